"""Plans what is to be done for a pool now, as sequences of actions, from its nodes as they are. Pure.

Nothing is remembered between two plans: work in progress shows on the nodes (labels, cordons). A pod is ended
only where the number of nodes was lowered or the pool deleted, and then by eviction, which disruption budgets
can delay; never for repartitioning a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuslice.capacity.nodepatch import new_node, node_patch, read_record, release_patch
from gpuslice.capacity.nodepool import READY, SCALING, DesiredPool, GPUNodePool, PoolStatus
from gpuslice.capacity.poolplan import PoolNode, Size, next_names, plan_count, plan_range, plan_repartition
from gpuslice.capacity.poolstatus import Content, readiness, scaling, status_of
from gpuslice.cluster.actions import Create, Delete, Evict, Patch, Record
from gpuslice.kube.wire import Node, Pod


@dataclass(frozen=True, slots=True)
class StartMachine:
    """Make the machine of a node whose object exists. One that runs already is left as it is."""

    name: str
    pool: DesiredPool


@dataclass(frozen=True, slots=True)
class StopMachine:
    """Remove a machine. `drained`: only if the API server says that no pods would be lost with it."""

    name: str
    drained: bool = False


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write a pool's status."""

    pool: GPUNodePool
    status: PoolStatus


Action = StartMachine | StopMachine | WriteStatus | Create | Patch | Delete | Evict | Record
Steps = list[list[Action]]
"""Sequences that do not depend on each other."""


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """A pool as it is. `nodes` are its own, `objects` their Nodes, `pods` the pods that would be lost with
    each.

    `needed`: new nodes that would take waiting pods. `taken`: names that no new node can have. `running`: the
    nodes whose machines were made; None where we make no machines. `now`: RFC 3339.
    """

    pool: GPUNodePool
    desired: DesiredPool
    nodes: Sequence[PoolNode]
    objects: Mapping[str, Node]
    pods: Mapping[str, Sequence[Pod]]
    needed: int
    taken: Collection[str]
    running: Collection[str] | None
    now: str


def refuse(pool: GPUNodePool, why: str, now: str) -> Steps:
    """The actions for a pool whose spec cannot be followed: only its status, which says why."""
    said = {READY: Content(False, "Invalid", why)}
    return [[Record(pool, "Warning", "Invalid", why)], _status(pool, None, said, now)]


def plan_pool(picture: PoolPicture) -> Steps:
    """The next steps for a pool."""
    pool, desired, nodes = picture.pool, picture.desired, picture.nodes
    size, steps = Size(), Steps()
    if picture.running is not None and desired.selector is None:
        size = _size(picture)
        steps += _machines(picture, size, picture.running)
    staying = [node for node in nodes if node.name not in size.retire]
    repartition = plan_repartition(staying)
    cordoned = {*size.retire, *repartition.close}
    for node in nodes:
        tell = (node.wanted, node.wanted_strategy) if node.name in repartition.tell else None
        patch = node_patch(picture.objects[node.name], desired, cordon=node.name in cordoned, tell=tell)
        if patch is None or node.name in size.remove:
            continue
        step: list[Action] = [Patch(Node, node.name, patch)]
        if tell is not None:
            text = f"node {node.name}: {tell[0]}, {tell[1]}"
            step.append(Record(pool, "Normal", "Partitioning", text, happened=True))
        steps.append(step)
    if repartition.failed:
        steps.append([Record(pool, "Warning", "PartitioningFailed", repartition.waits)])
    said = {
        READY: readiness(desired, nodes, size, repartition),
        SCALING: scaling(desired, makes=picture.running is not None),
    }
    return [*steps, _status(pool, nodes, said, picture.now)]


def plan_leaving(node: Node, pods: Sequence[Pod], *, makes: bool) -> Steps:
    """Plan for a node whose pool is gone, or that has left it: remove what the pool wrote; a machine made for
    the pool goes.
    """
    if not read_record(node).made or not makes:
        return [[Patch(Node, node.name, release_patch(node))]]
    if not node.spec.unschedulable:
        return [[Patch(Node, node.name, {"spec": {"unschedulable": True}})]]
    return _evictions(pods) or [[StopMachine(node.name, drained=True), Delete(Node.resource, node.name)]]


def _size(picture: PoolPicture) -> Size:
    spec, nodes = picture.desired.spec, picture.nodes
    if spec.min_count is None or spec.max_count is None:
        return plan_count(nodes, spec.count)
    if not nodes and not has_begun(picture.pool):
        return Size(add=spec.count)
    idle_s = picture.desired.idle_seconds
    return plan_range(nodes, spec.min_count, spec.max_count, needed=picture.needed, idle_s=idle_s)


def has_begun(pool: GPUNodePool) -> bool:
    """True once the pool has had its first nodes: from then on it may have none."""
    return pool.condition(SCALING) is not None


def _machines(picture: PoolPicture, size: Size, running: Collection[str]) -> Steps:
    """Make the machines that are missing, and remove those that are too many."""
    pool, desired, steps = picture.pool, picture.desired, Steps()
    for name in next_names(pool.name, size.add, {*picture.taken}):
        made = f"made node {name} ({desired.spec.node_vm_size})"
        steps.append(
            [
                Create(Node.resource, new_node(name, desired)),
                StartMachine(name, desired),
                Record(pool, "Normal", "NodeMade", made, happened=True),
            ]
        )
    steps += [
        [StartMachine(node.name, desired)]
        for node in picture.nodes
        if node.name not in running and node.name not in size.remove
    ]
    for name in size.evict:
        if picture.objects[name].spec.unschedulable:
            steps += _evictions(picture.pods[name])
    for name in size.remove:
        removed = Record(pool, "Normal", "NodeRemoved", f"removed node {name}", happened=True)
        steps.append([StopMachine(name, drained=True), Delete(Node.resource, name), removed])
    return steps


def _evictions(pods: Sequence[Pod]) -> Steps:
    """Each pod in a sequence of its own: an eviction that a disruption budget delays holds up no other."""
    return [
        [Evict(pod.namespace, pod.name, pod.uid)] for pod in pods if pod.metadata.deletion_timestamp is None
    ]


def _status(
    pool: GPUNodePool, nodes: Sequence[PoolNode] | None, said: Mapping[str, Content], now: str
) -> list[Action]:
    status = status_of(pool, nodes, said, now=now)
    return [] if status is None else [WriteStatus(pool, status)]
