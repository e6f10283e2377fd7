"""What controllers plan is carried out in order, as long as somebody may act, and never twice."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from builders import StoppedClock, plain_node, pod

from gpuslice.cluster.actions import Create, Delete, Evict, Patch, Record
from gpuslice.cluster.executor import UNSEEN_SECONDS, Executor
from gpuslice.cluster.state import Cluster
from gpuslice.kube.client import Client, Response
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.gate import Gate
from gpuslice.kube.wire import Node, Pod
from gpuslice.observe.metrics import Metrics
from gpuslice.scheduler.summary import summed_up


class Api:
    """Takes down what it is asked; `answers` by path, else 200."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[str, tuple[int, object]] = {}

    async def request(self, method: str, path: str, **options: Any) -> Response:
        body = json.loads(options.get("body") or b"null")
        self.asked.append((method, path, body))
        status, answer = self.answers.get(path, (200, {}))
        return Response(status, msgspec.json.encode(answer))

    def stream(self, path: str, *, query: Mapping[str, str]) -> Any:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass


class Leader:
    leads = True
    why = "another one does"

    async def run(self) -> None:
        return


class World:
    def __init__(self) -> None:
        self.api, self.clock, self.leader = Api(), StoppedClock(), Leader()
        self.cluster = Cluster(clock=self.clock)
        self.cluster.gate = Gate(leadership=self.leader)
        client, numbers = Client(self.api), itertools.count()
        self.recorder = EventRecorder(client, "test", clock=self.clock, new_id=lambda: f"{next(numbers)}")
        self.executor = Executor(client, self.cluster, self.recorder, clock=self.clock)

    @property
    def paths(self) -> list[str]:
        return [path.rpartition("/")[2] for _, path, _ in self.api.asked]

    def protect(self, name: str, status: int = 429) -> None:
        self.api.answers[f"/api/v1/namespaces/default/pods/{name}/eviction"] = (status, {"message": "no"})

    async def events(self) -> list[str]:
        task = asyncio.create_task(self.recorder.run())
        await self.recorder.flushed()
        task.cancel()
        return [body["message"] for _, path, body in self.api.asked if path.endswith("/events")]


def evict(name: str, *, dry_run: bool = False) -> Evict:
    return Evict("default", name, f"uid-{name}", dry_run)


async def test_the_gate_is_asked_before_each_action() -> None:
    """Between two evictions another replica may have begun to lead."""
    world = World()

    async def lose(_: object) -> None:
        world.leader.leads = False

    executor = Executor(Client(world.api), world.cluster, world.recorder, clock=world.clock, more={str: lose})
    result = await executor.run([evict("a"), "lose", evict("b")])
    assert "does not lead" in str(result.failed)
    assert [path for _, path, _ in world.api.asked] == ["/api/v1/namespaces/default/pods/a/eviction"]
    assert not world.cluster.failed_actions, "that is no failure"


async def test_nothing_follows_a_pod_that_its_budget_protects() -> None:
    world = World()
    world.protect("b")
    result = await world.executor.run([evict("a", dry_run=True), evict("b", dry_run=True), evict("a")])
    assert result.protected == evict("b", dry_run=True)
    assert [body["deleteOptions"]["dryRun"] for _, _, body in world.api.asked] == [["All"], ["All"]]


async def test_what_has_happened_already_is_done() -> None:
    """After a crash in the middle the same plan is carried out again."""
    world = World()
    for name, status in (("gone", 404), ("another", 409)):
        world.protect(name, status)
    world.api.answers["/api/v1/nodes/n"] = (404, {})
    result = await world.executor.run([evict("gone"), evict("another"), Delete(Node.resource, "n")])
    assert result.ok


async def test_what_fails_ends_its_sequence_and_is_counted() -> None:
    world = World()
    world.protect("a", 500)
    for _ in range(2):
        result = await world.executor.run([evict("a"), evict("b")])
        assert result.failed is not None
    assert world.paths == ["eviction", "eviction"]
    assert world.cluster.failed_actions == {"Evict": 2}
    text = await summed_up(world.cluster, metrics := Metrics())
    assert b'gpuslice_failed_actions_total{action="Evict"} 2.0' in text
    assert await summed_up(world.cluster, metrics) == text, "counted once, however often it is asked"


async def test_a_change_of_what_has_changed_meanwhile_is_no_failure() -> None:
    world = World()
    world.api.answers["/api/v1/nodes/n"] = (409, {"reason": "Conflict"})
    result = await world.executor.run([Patch(Node, "n", {"metadata": {"resourceVersion": "1"}})])
    assert result.failed is not None
    assert not world.cluster.failed_actions


async def test_how_something_is_is_recorded_when_it_is_news_and_what_happens_each_time() -> None:
    world, about = World(), pod("p", 1)
    waits, cut = Record(about, "Normal", "Waits", "waits"), Record(about, "Normal", "Cut", "is cut")
    await world.executor.run([waits, waits, cut, cut, waits])
    assert await world.events() == ["waits", "is cut"], "equal events are counted by the recorder"
    (one,) = [
        body for _, path, body in world.api.asked if path.endswith("/events") and body["reason"] == "Waits"
    ]
    assert one["count"] == 2
    happened = Record(about, "Normal", "Made", "made", happened=True)
    await world.executor.run([happened, happened])
    await world.events()
    assert world.api.asked[-1][2]["count"] == 2


async def test_a_node_that_was_written_is_waited_for_until_the_cluster_shows_it() -> None:
    """Or else the next plan would begin the same again."""
    world = World()
    node = plain_node("n", 15, 1)

    def shown(version: str) -> None:
        world.cluster.set_node(
            msgspec.structs.replace(
                node, metadata=msgspec.structs.replace(node.metadata, resource_version=version)
            )
        )

    shown("7")
    world.api.answers["/api/v1/nodes/n"] = (200, {"metadata": {"name": "n", "resourceVersion": "9"}})
    assert world.executor.sees_its_writes()
    await world.executor.run([Patch(Node, "n", {})])
    assert not world.executor.sees_its_writes()
    shown("8")
    assert not world.executor.sees_its_writes()
    shown("9")
    assert world.executor.sees_its_writes()
    await world.executor.run([Delete(Node.resource, "n")])
    assert not world.executor.sees_its_writes()
    world.cluster.drop_node("n")
    assert world.executor.sees_its_writes()
    world.api.answers["/api/v1/nodes"] = (201, {"metadata": {"name": "m", "resourceVersion": "11"}})
    await world.executor.run([Create(Node.resource, {"metadata": {"name": "m"}})])
    assert not world.executor.sees_its_writes()
    world.clock.ns += int((UNSEEN_SECONDS + 1) * 1e9)
    assert world.executor.sees_its_writes(), "somebody may have deleted it at once"


async def test_a_patch_of_a_pods_status_names_its_uid() -> None:
    world = World()
    await world.executor.run([Patch(Pod, "p", {"metadata": {"uid": "u"}}, "default", "status")])
    assert world.api.asked == [
        ("PATCH", "/api/v1/namespaces/default/pods/p/status", {"metadata": {"uid": "u"}})
    ]
