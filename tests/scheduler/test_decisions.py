"""Single decisions and what the service makes of their answers, without an API server."""

import asyncio
from typing import Any, cast

import msgspec
from binder_world import StepClock, settle
from lab import node_body, pod_body

from gpuslice.cluster.podcode import PodCode
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.waiting import WaitingPod, read_waiting
from gpuslice.kube.client import Client, Transport
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.verdict import Verdict
from gpuslice.scheduler.binder import Binder
from gpuslice.scheduler.cycle import KEPT, Cycle
from gpuslice.scheduler.service import Scheduler


class World:
    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.cluster = Cluster(clock=StepClock())
        self.table, self.nominations = self.cluster.table, self.cluster.nominations
        self.cycle = Cycle(self.cluster)
        for body in nodes:
            self.cluster.set_node(msgspec.convert(body, Node))


def pod(name: str, units: int = 0, priority: int = 0, **more: Any) -> Pod:
    body = pod_body(name, units, **more)
    body["metadata"]["uid"] = f"uid-{name}"
    body["metadata"]["resourceVersion"] = "1"
    body["spec"]["priority"] = priority
    return msgspec.convert(body, Pod)


def waiting(name: str, units: int = 0, priority: int = 0, **more: Any) -> WaitingPod:
    return read_waiting(pod(name, units, priority, **more))


def test_nominated_pod_goes_where_room_was_made() -> None:
    """Also if another node would score higher by now."""
    world = World(node_body("tight", [5]), node_body("wide", [16]))
    high = waiting("high", 5, 9)
    assert world.cycle.decide(high).node == "tight"
    world.nominations.nominate(high, "wide", [])
    assert world.cycle.decide(high).node == "wide"


def test_room_beside_a_nominated_pod_is_not_kept_from_others() -> None:
    """Only its own GPU's room is kept: what fits beside it may come."""
    world = World(node_body("n1", [10, 10]))
    world.nominations.nominate(waiting("high", 8, 9), "n1", [])
    assert world.cycle.decide(waiting("beside", 10)).node == "n1"
    assert world.cycle.decide(waiting("higher", 10, 10)).node == "n1"
    world.nominations.nominate(waiting("high2", 8, 9), "n1", [])
    assert KEPT in world.cycle.decide(waiting("beside", 10)).verdict.message


def test_binpacks_across_nodes() -> None:
    """A pod goes to the node that it fills best, whatever the order of the nodes."""
    world = World(node_body("a", [16]), node_body("b", [6]), node_body("c", [12]))
    assert world.cycle.decide(waiting("p", 6)).node == "b"


def test_pods_without_gpu_go_to_the_emptiest_node() -> None:
    world = World(node_body("a", cpu="8"), node_body("b", cpu="8"))
    world.table.set_pod(pod("x", cpu="4"), "a")
    assert world.cycle.decide(waiting("p", cpu="1")).node == "b"


def test_bad_request_is_told_and_not_placed() -> None:
    world = World(node_body("n1", [10]))
    body = pod_body("p")
    body["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": "1.5"}}
    decision = world.cycle.decide(read_waiting(msgspec.convert(body, Pod)))
    assert not decision.node
    assert "not a whole number" in decision.verdict.message


class _Binder:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.started: list[tuple[str, str]] = []
        self.answers: list[asyncio.Future[Verdict]] = []

    def start(self, pod: Pod, node: str) -> asyncio.Future[Verdict]:
        self.started.append((pod.name, node))
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


def scheduler(clock: StepClock) -> tuple[Scheduler, _Binder, Cluster]:
    binder, cluster = _Binder(), Cluster(clock=clock)
    client = Client(cast(Transport, None))
    made = Scheduler(
        client,
        cluster,
        scheduler_names=("gpuslice",),
        clock=clock,
        recorder=EventRecorder(client, "test", clock=clock, new_id=lambda: "1"),
        binder=cast(Binder, binder),
        random=lambda: 0.5,
    )
    return made, binder, cluster


async def test_old_news_of_a_bound_pod_does_not_queue_it_again() -> None:
    """The feed still shows the pod unbound when the API server has long said yes."""
    made, binder, cluster = scheduler(StepClock())
    cluster.set_node(msgspec.convert(node_body("n1"), Node))
    cluster.set_pod(pod("p"))
    made.handle(await made.queue.pop())
    binder.answers[0].set_result(Verdict(PodCode.BOUND, "bound to n1"))
    await settle()
    cluster.set_pod(pod("p"))
    assert made.queue.pop_nowait() is None
    assert cluster.table.pod("uid-p") is not None


async def test_failed_bind_gives_the_room_back_and_is_tried_again_after_a_second() -> None:
    clock = StepClock()
    made, binder, cluster = scheduler(clock)
    cluster.set_node(msgspec.convert(node_body("n1", cpu="1"), Node))
    cluster.set_pod(pod("p", cpu="1"))
    made.handle(await made.queue.pop())
    binder.answers[0].set_result(Verdict(PodCode.API_FAILED, "binding failed: not today"))
    await settle()
    assert cluster.table.pod("uid-p") is None
    assert made.queue.pop_nowait() is None
    clock.advance(1)
    made.handle(await made.queue.pop())
    assert binder.started == [("p", "n1"), ("p", "n1")]


async def test_room_of_a_failed_bind_wakes_who_waits_for_it() -> None:
    clock = StepClock()
    made, binder, cluster = scheduler(clock)
    cluster.set_node(msgspec.convert(node_body("n1", cpu="1"), Node))
    for name in ("p", "q"):
        cluster.set_pod(pod(name, cpu="1"))
        made.handle(await made.queue.pop())
    assert made.queue.pop_nowait() is None
    binder.answers[0].set_result(Verdict(PodCode.API_FAILED, "binding failed: not today"))
    await settle()
    woken = made.queue.pop_nowait()
    assert woken is not None
    assert woken.pod.name == "q"
