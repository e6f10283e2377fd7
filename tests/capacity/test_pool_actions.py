"""From a pool's nodes as they are to what is done about them: values, whoever carries them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gpuslice.capacity.nodepatch import new_node, node_patch
from gpuslice.capacity.nodepool import GPUNodePool, PoolFields, PoolMeta, read_pool
from gpuslice.capacity.poolactions import (
    PoolPicture,
    StartMachine,
    StopMachine,
    WriteStatus,
    plan_leaving,
    plan_pool,
)
from gpuslice.capacity.poolplan import PoolNode
from gpuslice.cluster.actions import Create, Delete, Evict, Patch, Record
from gpuslice.kube.wire import Node, ObjectMeta, Pod

NOW = "2026-01-01T00:00:00Z"


def pool(**fields: Any) -> GPUNodePool:
    spec = PoolFields(vm_size="Standard_NC4as_T4_v3", **fields)
    return GPUNodePool(metadata=PoolMeta(name="p", uid="u"), spec=spec)


def made(one: GPUNodePool, name: str, *, cordoned: bool = False) -> Node:
    """A node that the pool made, as it wants it."""
    body = new_node(name, read_pool(one))
    body["spec"]["unschedulable"] = cordoned
    node = msgspec.convert(body, Node)
    patch = node_patch(node, read_pool(one), cordon=cordoned)
    annotations = (patch or {"metadata": {}})["metadata"].get("annotations", {})
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, annotations={**node.annotations, **annotations})
    )


def holder(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"))


def kinds(steps: Sequence[Sequence[object]]) -> list[list[type]]:
    return [[type(action) for action in step] for step in steps if step]


def picture(one: GPUNodePool, *nodes: Node, pods: dict[str, list[Pod]] | None = None) -> PoolPicture:
    held = {node.name: (pods or {}).get(node.name, []) for node in nodes}
    seen = tuple(PoolNode(n.name, pods=len(held[n.name]), cordoned=n.spec.unschedulable) for n in nodes)
    names = frozenset(node.name for node in nodes)
    objects = {node.name: node for node in nodes}
    return PoolPicture(one, read_pool(one), seen, objects, held, 0, names, names, NOW)


def test_a_new_node_comes_before_its_machine_and_is_told_of_when_both_are_there() -> None:
    steps = plan_pool(picture(pool(count=2)))
    assert kinds(steps) == [[Create, StartMachine, Record]] * 2 + [[WriteStatus]]
    assert [step[1].name for step in steps[:2]] == ["p-0", "p-1"]  # type: ignore[union-attr]


def test_a_plan_that_was_interrupted_goes_on_where_it_stopped() -> None:
    """The node was created, and its machine was not started."""
    one = pool(count=1)
    seen = replace(picture(one, made(one, "p-0")), running=frozenset())
    assert kinds(plan_pool(seen)) == [[StartMachine], [WriteStatus]]


def test_pods_are_evicted_from_a_node_that_goes_once_it_gets_no_more_and_then_its_machine_goes() -> None:
    one, pods = pool(count=0), {"p-0": [holder("a"), holder("b")]}
    first = plan_pool(picture(one, made(one, "p-0"), pods=pods))
    assert kinds(first) == [[Patch], [WriteStatus]]
    closed = made(one, "p-0", cordoned=True)
    then = plan_pool(picture(one, closed, pods=pods))
    assert kinds(then) == [[Evict], [Evict], [WriteStatus]]
    last = plan_pool(picture(one, closed))
    assert kinds(last) == [[StopMachine, Delete, Record], [WriteStatus]]
    assert last[0][0] == StopMachine("p-0", drained=True)


def test_nothing_is_to_be_done_for_a_pool_that_is_as_it_should_be() -> None:
    one = pool(count=1)
    (status,) = [s for s in plan_pool(picture(one, made(one, "p-0"))) if s]
    assert isinstance(status[0], WriteStatus)
    done = msgspec.structs.replace(one, status=status[0].status)
    assert kinds(plan_pool(picture(done, made(one, "p-0")))) == []


def test_a_node_of_no_pool_is_let_go_and_a_made_one_is_removed_without_pods() -> None:
    one = pool(count=1)
    node, closed = made(one, "p-0"), made(one, "p-0", cordoned=True)
    assert kinds(plan_leaving(node, [], makes=False)) == [[Patch]], "the machine is somebody else's"
    assert kinds(plan_leaving(node, [holder("a")], makes=True)) == [[Patch]]
    assert kinds(plan_leaving(closed, [holder("a")], makes=True)) == [[Evict]]
    assert kinds(plan_leaving(closed, [], makes=True)) == [[StopMachine, Delete]]
