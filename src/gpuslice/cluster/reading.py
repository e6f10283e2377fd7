"""Reads a cluster once, with the scheduler's accounting, for commands that print and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.cluster.records import NodeView
from gpuslice.cluster.state import Cluster
from gpuslice.errors import InputError
from gpuslice.kube.client import Client, Listing
from gpuslice.kube.decoding import Broken
from gpuslice.kube.wire import ConfigMap, KubeObject, Node, Pod
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.units import GIB, MemoryUnit, parse_count

K = TypeVar("K", bound=KubeObject)

LARGEST_GIB = 100
"""gpushare's rule for its nodes, which do not publish their unit: with more units per GPU than this, a unit
is 1 MiB."""


async def read_views(client: Client, node: str | None) -> tuple[list[NodeView], list[str]]:
    """The nodes that have GPUs, by name, and a sentence for each object that cannot be read.

    With `node` only that node, even without GPUs. Raises NotFound.
    """
    if node is None:
        nodes, pods = await client.list(Node), await client.list(Pod)
    else:
        nodes = Listing([await client.get(Node, node)], "")
        pods = await client.list(Pod, field_selector=f"spec.nodeName={node}")
    cluster = await read_cluster(client, nodes, pods)
    views = [view for view in cluster.snapshots() if node is not None or view.gpus or view.problem]
    return views, cluster.quarantine.sentences()


async def read_cluster(
    client: Client, nodes: Listing[Node], pods: Listing[Pod], policy: Policy = BINPACK
) -> Cluster:
    """The cluster read from the API server, as the scheduler would hold it."""
    marks = await client.list(ConfigMap, names.UNHEALTHY_NAMESPACE)
    broken: tuple[Broken[Any], ...] = (*nodes.broken, *pods.broken, *marks.broken)
    return cluster_of(nodes.items, pods.items, marks.items, broken, policy)


def cluster_of(
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    marks: Sequence[ConfigMap],
    broken: Sequence[Broken[Any]] = (),
    policy: Policy = BINPACK,
) -> Cluster:
    """The same from objects that have been read already; `marks`: the ConfigMaps of kube-system.

    `broken`: objects that do not decode. They are in the cluster's quarantine, with all others that cannot be
    read.
    """
    cluster = Cluster(clock=SystemClock(), policy=policy, default_unit=_unit_of_gpushare(nodes))
    for config in marks:
        if config.name.startswith(names.UNHEALTHY_PREFIX):
            text = (config.data or {}).get(names.UNHEALTHY_KEY)
            cluster.set_unhealthy(config.name.removeprefix(names.UNHEALTHY_PREFIX), text)
    for node in nodes:
        _tell(cluster, cluster.set_node, node)
    # Pods whose GPU is recorded first, so that the other pods are counted where memory is really free.
    for pod in sorted(pods, key=lambda pod: (names.ALLOCATION not in pod.annotations, pod.key)):
        _tell(cluster, cluster.set_pod, pod)
    for one in broken:
        if isinstance(one.object, Pod):
            _tell(cluster, cluster.set_pod, one.object)  # what it holds on its node is not free
        cluster.quarantine.hold(one.object, one.problem)
    return cluster


def _tell(cluster: Cluster, change: Callable[[K], None], obj: K) -> None:
    try:
        change(obj)
    except Exception as error:  # a command shows the others all the same
        cluster.quarantine.hold(obj, error)


def _unit_of_gpushare(nodes: Sequence[Node]) -> MemoryUnit:
    """What a unit is on nodes that do not publish it."""
    for node in nodes:
        if names.MEMORY_UNIT in node.annotations:
            continue
        capacity = node.status.capacity or {}
        try:
            units = parse_count(capacity.get(names.GPU_MEM, 0), field=names.GPU_MEM)
            count = parse_count(capacity.get(names.GPU_COUNT, 0), field=names.GPU_COUNT)
        except InputError:
            continue
        if units and count:
            return MemoryUnit(1) if units // count > LARGEST_GIB else GIB
    return GIB
