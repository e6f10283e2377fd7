"""Pods that kube-scheduler tried again before we knew of the room that had become free (defect 9.A.15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from builders import plain_node, pod
from test_extender_answers import World, args, with_version

from gpuslice import names
from gpuslice.kube.client import Client
from gpuslice.kube.gate import Gate
from gpuslice.kube.wire import Pod
from gpuslice.observe.metrics import Metrics
from gpuslice.scheduler.extender.handlers import Extender
from gpuslice.scheduler.extender.waking import WINDOW_SECONDS, Waker


class Woken(World):
    """A full node, and events that come when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        client = Client(self.api)
        self.waker = Waker(client, self.cluster, clock=self.clock)
        self.extender = Extender(self.cluster, client, self.binder, Metrics(), refused=self.waker.refused)
        for node in ("n", "m"):
            self.cluster.set_node(plain_node(node, 15, 1))
            self.old = pod(f"old-{node}", 15, node=node, index=0, phase="Running")
            self.cluster.set_pod(self.old)

    def waiting(self, name: str, units: int = 10) -> Pod:
        one = with_version(pod(name, units))
        self.api.add(one)
        return one

    def ask(self, one: Pod, *nodes: str) -> object:
        return self.filter(one, list(nodes))["NodeNames"]

    def end(self, node: str) -> None:
        """We learn that the pod on a node is gone."""
        gone = pod(f"old-{node}", 15, node=node)
        self.cluster.drop_pod(gone.uid)

    async def next_woken(self) -> str:
        async with asyncio.timeout(5):
            name, body = await self.api.patches.get()
        meta = body["metadata"]
        assert isinstance(meta, dict)
        assert meta["uid"] == f"uid-{name}"
        assert list(meta["annotations"]) == [names.WOKEN]
        return name


@pytest.fixture
async def world() -> AsyncIterator[Woken]:
    made = Woken()
    running = asyncio.create_task(made.waker.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_9a15_a_pod_refused_a_moment_too_early_is_woken_once(world: Woken) -> None:
    one = world.waiting("a")
    assert world.ask(one, "n") == []
    world.end("n")
    assert await world.next_woken() == "a"
    world.end("n")  # another event of no importance
    assert world.ask(world.waiting("last", 16), "n") == []
    assert world.ask(world.waiting("b"), "n") == ["n"]
    world.cluster.set_pod(pod("old-n", 15, node="n", index=0, phase="Running"))
    assert world.ask(world.waiting("c"), "n") == []
    world.end("n")
    assert await world.next_woken() == "c"  # and nobody before it


async def test_room_on_a_node_that_the_pod_may_not_use_wakes_nobody(world: Woken) -> None:
    assert world.ask(world.waiting("picky"), "n") == []
    assert world.ask(world.waiting("other"), "m") == []
    world.end("m")
    assert await world.next_woken() == "other"
    world.end("n")
    assert await world.next_woken() == "picky"


async def test_an_old_refusal_is_kube_schedulers_own_business(world: Woken) -> None:
    """It has been told of the change after its attempt, and tries again by itself."""
    assert world.ask(world.waiting("early"), "n") == []
    await world.clock.sleep(WINDOW_SECONDS)
    assert world.ask(world.waiting("late"), "n") == []
    world.end("n")
    assert await world.next_woken() == "late"
    assert world.api.patches.empty()


async def test_a_pod_that_was_bound_meanwhile_is_left_alone(world: Woken) -> None:
    one = world.waiting("a")
    assert world.ask(one, "n") == []
    world.cluster.drop_pod("uid-old-m")
    assert (await world.bind(one, "m"))[0] == 200
    assert world.ask(world.waiting("b"), "n") == []
    world.end("n")
    assert await world.next_woken() == "b"


async def test_a_pod_that_is_gone_stops_nobody(world: Woken) -> None:
    assert world.ask(with_version(pod("gone", 5)), "n") == []  # the API server does not know it
    assert world.ask(world.waiting("a"), "n") == []
    world.end("n")
    assert await world.next_woken() == "a"


async def test_nobody_is_woken_by_half_a_picture(world: Woken) -> None:
    """A list is being handed over: what looks free may be taken by those that come next."""
    one = world.waiting("a")
    assert world.ask(one, "n") == []
    half = world.cluster.gate = Gate(Half())
    world.end("n")
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.api.patches.empty()
    half.lists = ()
    assert await world.next_woken() == "a"


class Half:
    name = "pods"
    whole = False


async def test_at_most_some_dozens_are_remembered(world: Woken) -> None:
    for number in range(100):
        assert world.extender.filter(args(world.waiting(f"p{number}"), ["n"]))
    world.end("n")
    woken = [await world.next_woken() for _ in range(32)]
    assert woken[0] == "p68"
    assert woken[-1] == "p99"
