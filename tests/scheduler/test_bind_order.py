"""Pods that their node could confuse are bound one after the other; nobody else waits, and nobody for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from binder_world import World, settle

from gpuslice.cluster.annotations import encode_gpus
from gpuslice.cluster.podcode import PodCode
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.kube.gate import Gate
from gpuslice.kube.leading import Leadership
from gpuslice.kube.wire import Node
from gpuslice.names import GPU_MEM as SHARES
from gpuslice.requests.pod import PodRequest
from gpuslice.scheduler.binder import ADMISSION_SECONDS, ANSWER_SECONDS, HOLD_SECONDS
from gpuslice.scheduler.bindorder import can_be_confused


async def bound(world: World, name: str, units: int, init: int = 0, node: str = "n1") -> None:
    """A pod that is bound and whose node has not said yet where it is."""
    bind = asyncio.create_task(world.binder.bind(world.create(name, units, init=init), node))
    await settle()
    world.serve()
    assert (await bind).code is PodCode.BOUND


async def test_a_pod_waits_until_the_one_that_it_could_be_taken_for_has_its_gpu() -> None:
    world = World()
    await bound(world, "first", 3, init=2)
    answer = world.binder.start(world.create("second", 2), "n1")
    await settle()
    assert not world.waiting
    assert world.cluster.pod(world.get("second").uid), "its GPU is reserved meanwhile"
    world.assign("first")
    await settle()
    world.serve()
    assert (await answer).code is PodCode.BOUND


async def test_whoever_came_first_is_bound_first() -> None:
    world = World()
    await bound(world, "first", 3, init=2)
    answers = [world.binder.start(world.create(name, 3, init=2), "n1") for name in ("second", "third")]
    await settle()
    for name, before, answer in zip(("second", "third"), ("first", "second"), answers, strict=True):
        world.assign(before)
        await settle()
        (request,) = world.waiting
        assert request.body["metadata"]["name"] == name
        world.serve()
        assert (await answer).code is PodCode.BOUND


async def test_the_end_of_the_pod_that_is_waited_for_is_enough() -> None:
    world = World()
    await bound(world, "first", 3, init=2)
    world.binder.start(world.create("second", 2), "n1")
    await settle()
    world.delete("first")
    while world.feed:
        world.tell_one()
    await settle()
    assert len(world.waiting) == 1


async def test_nobody_waits_on_another_node_or_for_another_size_or_among_plain_pods() -> None:
    world = World()
    await bound(world, "first", 3, init=2)
    await bound(world, "elsewhere", 2, node="n2")
    await bound(world, "larger", 5)
    await bound(world, "larger-too", 5)


async def test_a_pod_whose_node_says_nothing_is_not_waited_for_for_long() -> None:
    """Neither by the first that comes after it, nor by each one anew."""
    world = World()
    await bound(world, "first", 3, init=2)
    world.binder.start(world.create("second", 2), "n1")
    await settle()
    assert not world.waiting
    world.clock.advance(ADMISSION_SECONDS)
    await settle()
    world.serve()
    await settle()
    world.clock.advance(ADMISSION_SECONDS)
    await bound(world, "third", 2)


async def test_a_long_row_of_pods_is_not_waited_for_for_ever() -> None:
    world = World()
    await bound(world, "first", 1, init=1)
    count = int(HOLD_SECONDS / ADMISSION_SECONDS) + 4
    answers = [world.binder.start(world.create(f"p{n}", 1, init=1), "n1") for n in range(count)]
    await settle(40)
    for _ in range(int(HOLD_SECONDS / ADMISSION_SECONDS)):
        world.clock.advance(ADMISSION_SECONDS)
        await settle(40)
        while world.waiting:
            world.serve()
            await settle(40)
    assert all(answer.done() for answer in answers)


async def test_a_caller_hears_in_time_that_its_pod_waits_and_may_ask_again() -> None:
    """kube-scheduler tries again what failed; the bind goes on meanwhile."""
    world = World()
    await bound(world, "first", 3, init=2)
    pod = world.create("second", 2)
    asked = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    world.clock.advance(ANSWER_SECONDS)
    verdict = await asked
    assert verdict.code is PodCode.HELD
    assert "default/first" in verdict.message
    again = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    world.assign("first")
    await settle()
    world.serve()
    assert (await again).code is PodCode.BOUND
    assert world.posts == 2


async def test_a_pod_whose_turn_comes_when_this_replica_leads_no_more_keeps_no_room() -> None:
    """Its reservation would tie it to a node that may suit it no longer, until it is deleted."""
    leadership = SimpleNamespace(leads=True, why="another one does")
    world = World()
    world.cluster.gate = Gate(leadership=cast("Leadership", leadership))
    await bound(world, "first", 3, init=2)
    second = world.create("second", 2)
    answer = world.binder.start(second, "n1")
    leadership.leads = False
    world.assign("first")
    await settle()
    assert (await answer).code is PodCode.NOT_READY
    assert world.cluster.pod(second.uid) is None
    assert not world.waiting


async def test_whoever_waits_looks_again_for_changes_on_its_node_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look compares a pod with all of its node: thousands that wait must not look at every event."""
    looks: list[PodRequest] = []

    def counted(one: PodRequest, other: PodRequest) -> bool:
        looks.append(one)
        return can_be_confused(one, other)

    monkeypatch.setattr("gpuslice.scheduler.binder.can_be_confused", counted)
    world = World()
    await bound(world, "first", 3, init=2)
    await bound(world, "elsewhere", 2, node="n2")
    world.binder.start(world.create("second", 2), "n1")
    while world.feed:
        world.tell_one()
    await settle()
    looks.clear()
    world.create("waits-for-a-node", 2)
    world.touch("first")
    world.assign("elsewhere")
    await settle()
    assert looks == []
    world.assign("first")
    await settle()
    assert len(world.waiting) == 1


async def test_a_namespace_with_many_pods_delays_others_by_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited up to a minute behind them, since each of them may take seconds."""
    world = World()
    await bound(world, "first", 1, init=1)
    for number in range(4):
        world.binder.start(world.create(f"greedy{number}", 1, init=1), "n1")
    modest = world.create("modest", 1, init=1)
    other = msgspec.structs.replace(modest, metadata=msgspec.structs.replace(modest.metadata, namespace="b"))
    world.binder.start(other, "n1")
    order = []
    for name in ("first", "greedy0", "modest", "greedy1"):
        world.assign(name)
        await settle()
        (request,) = world.waiting
        order.append(request.body["metadata"]["name"])
        world.serve()
        await settle()
    assert order == ["greedy0", "modest", "greedy1", "greedy2"]


async def test_a_change_on_a_node_costs_little_however_many_wait_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each looked again at every change, and compared itself with all: 10 ms for a hundred."""
    looks = 0

    def counted(one: PodRequest, other: PodRequest) -> bool:
        nonlocal looks
        looks += 1
        return can_be_confused(one, other)

    monkeypatch.setattr("gpuslice.scheduler.binder.can_be_confused", counted)
    world = World()
    world.cluster.set_node(large_node("n1", 100))
    await bound(world, "first", 1, init=1)
    for number in range(50):
        world.binder.start(world.create(f"p{number:02}", 1, init=1), "n1")
    await settle()
    looks = 0
    world.assign("first")
    await settle()
    assert len(world.waiting) == 1
    assert looks < 150, "two of them look, and nobody else"


async def test_a_caller_hears_in_time_that_its_pod_waits_for_its_earlier_bind() -> None:
    world = World()
    pod = world.create("one", 2)
    first = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    second = asyncio.create_task(world.binder.bind(pod, "n2"))
    await settle()
    world.clock.advance(ANSWER_SECONDS)
    verdict = await second
    assert verdict.code is PodCode.HELD
    assert "its bind to node n1" in verdict.message
    world.serve()
    assert (await first).code is PodCode.BOUND


def large_node(name: str, gpus: int) -> Node:
    found = tuple(Gpu(i, f"GPU-{name}-{i}", "T4", 10 * 1024) for i in range(gpus))
    status = {"allocatable": {SHARES: str(10 * gpus)}}
    body = {"metadata": {"name": name, "annotations": encode_gpus(NodeGpus(found))}, "status": status}
    return msgspec.convert(body, Node)
