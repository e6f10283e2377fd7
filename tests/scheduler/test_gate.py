"""Nothing is decided from half a picture, whichever list is the one that is missing, and whoever decides."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
from lab import Lab, api_server, pod_body

from gpuslice import names
from gpuslice.capacity.nodepool import DEFINITIONS, POOLS, PoolFields, definition, pool_object
from gpuslice.capacity.poolcontroller import NodePoolController
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.migrecords import MigCapableGpu, encode_partitions
from gpuslice.cluster.state import Cluster
from gpuslice.devices.miglayout import MigLayout
from gpuslice.devices.migtables import geometry_of
from gpuslice.errors import Unavailable
from gpuslice.kube.client import Client, Response
from gpuslice.kube.gate import Gate, GatedClient
from gpuslice.kube.wire import ConfigMap, Node, Pod
from gpuslice.scheduler.core import EXTENDER, Core
from gpuslice.scheduler.extender.service import ExtenderSettings, Listening, extender
from gpuslice.scheduler.service import run_scheduler

KUBE = "default-scheduler"
LISTS = ("nodes", "pods", "configmaps", "gpunodepools")
VERBS = ("filter", "prioritize", "preempt", "bind")


class Hurry:
    """Twenty seconds pass in one."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return 20 * time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


class Lossy:
    """A transport on which lists of some kinds wait, and watches of some kinds break and stay broken."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._may_list = {kind: asyncio.Event() for kind in LISTS}
        self._is_cut = {kind: asyncio.Event() for kind in LISTS}
        for event in self._may_list.values():
            event.set()

    def hold(self, kind: str) -> None:
        self._may_list[kind].clear()

    def cut(self, kind: str) -> None:
        self._is_cut[kind].set()

    def mend(self) -> None:
        for kind in LISTS:
            self._may_list[kind].set()
            self._is_cut[kind].clear()

    async def request(self, method: str, path: str, **more: Any) -> Response:
        kind = path.rpartition("/")[2]
        if method == "GET" and kind in LISTS:
            await self._may_list[kind].wait()
            if self._is_cut[kind].is_set():
                raise Unavailable("connection refused")
        answer: Response = await self._inner.request(method, path, **more)
        return answer

    @asynccontextmanager
    async def _stream(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        cut = self._is_cut[path.rpartition("/")[2]]
        if cut.is_set():
            raise Unavailable("connection refused")
        async with self._inner.stream(path, query=query) as (status, lines):
            yield status, _until(cut, lines)

    def stream(self, path: str, *, query: Mapping[str, str]) -> Any:
        return self._stream(path, query)

    async def aclose(self) -> None:
        pass


async def _until(cut: asyncio.Event, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    ends = asyncio.create_task(cut.wait())
    try:
        while True:
            line = asyncio.ensure_future(anext(lines))
            await asyncio.wait((line, ends), return_when=asyncio.FIRST_COMPLETED)
            if not line.done():
                line.cancel()
                await asyncio.gather(line, return_exceptions=True)
                raise Unavailable("connection reset")
            yield line.result()
    except StopAsyncIteration:
        return
    finally:
        ends.cancel()


class Site:
    """Everybody who decides, on one lossy line; and a cluster where each has something to do.

    `n1` is full. `n2` is free and its GPU is marked as sick. `n3` is free. On `n4` the sum suffices and no GPU
    does. GPUs of `n5` can be cut, `n6` is to be a pool's.
    """

    def __init__(self, lab: Lab, line: Lossy, clock: Hurry, core: Core) -> None:
        self.lab = lab
        self.line = line
        self.clock = clock
        self.core = core
        self.cluster = core.cluster
        self.http = httpx2.AsyncClient()

    async def furnish(self) -> None:
        lab = self.lab
        await lab.client.create(DEFINITIONS, definition())
        for name in ("n1", "n2", "n3"):
            await lab.node(name, [15], labels={"name": name})
        await lab.node("n4", [8, 8], labels={"name": "n4"})
        await lab.node("n5", [], labels={names.MIG_POLICY: "on-demand"})
        geometry = geometry_of("A100-40")
        cut = MigCapableGpu("GPU-n5-0", 0, True, MigLayout(geometry, ()))
        body = {"metadata": {"annotations": {names.MIG_PARTITIONS: encode_partitions([cut])}}}
        await lab.client.patch(Node, "n5", body)
        await lab.node("n6", [], labels={"rack": "r1", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"})
        for name, units, node in (("full", 10, "n1"), ("low", 5, "n4"), ("mid", 5, "n4")):
            await lab.pod(name, units, scheduler=KUBE, priority=-9 if name == "low" else 0)
            await lab.place(name, node)
        await lab.client.create(
            ConfigMap.resource,
            {"metadata": {"name": f"{names.UNHEALTHY_PREFIX}n2"}, "data": {names.UNHEALTHY_KEY: "0"}},
            names.UNHEALTHY_NAMESPACE,
        )
        await lab.pod("asked", 10, scheduler=KUBE)
        await lab.until(lambda: "asked" in lab.pods)

    async def provoke(self) -> None:
        """Give each of those that act by themselves something to do."""
        lab = self.lab
        await lab.pod("own", 10)
        await lab.pod("high", 5, priority=100, scheduler=KUBE, nodeSelector={"name": "n4"})
        container = {
            "name": "main",
            "image": "cuda",
            "resources": {"limits": {f"{names.MIG_PREFIX}2g.10gb": "1"}},
        }
        await lab.pod("uncut", scheduler=KUBE, containers=[container])
        for name in ("high", "uncut"):
            await lab.give_up(name)
        fields = PoolFields(selector={"rack": "r1"}, gpu_instance_profile="MIG1g")
        await lab.client.create(POOLS, pool_object("p", fields))

    async def acted(self) -> dict[str, bool]:
        """Who of them has done it."""
        get, lab = self.lab.client.get, self.lab
        return {
            "scheduler": (await get(Pod, "own", "default")).spec.node_name == "n3",
            "preemption": lab.pods["low"].metadata.deletion_timestamp is not None,
            "MIG on demand": names.MIG_WANTED in (await get(Node, "n5")).annotations,
            "node pools": names.MIG_CONFIG in (await get(Node, "n6")).labels,
        }

    async def all_act(self) -> None:
        async with asyncio.timeout(20):
            while not all((await self.acted()).values()):
                await self.clock.sleep(0.2)

    async def ask(self, listening: Listening) -> dict[str, tuple[int, Any]]:
        """What each route says of the pod `asked`."""
        base = f"http://127.0.0.1:{listening.port}"
        pod = self.lab.pods["asked"]
        victims = {"n1": {"Pods": [{"UID": self.lab.pods["full"].uid}], "NumPDBViolations": 0}}
        args = {"Pod": msgspec.to_builtins(pod), "Nodes": None, "NodeNames": ["n1", "n2"]}
        bodies = {
            "filter": args,
            "prioritize": args,
            "preempt": {"Pod": args["Pod"], "NodeNameToMetaVictims": victims},
            "bind": {"PodName": "asked", "PodNamespace": "default", "PodUID": pod.uid, "Node": "n1"},
        }
        answers: dict[str, tuple[int, Any]] = {}
        for verb, body in bodies.items():
            got = await self.http.post(f"{base}/gpushare-scheduler/{verb}", json=body)
            answers[verb] = got.status_code, _json(got.text)
        for route in ("inspect", "inspect/n1"):
            got = await self.http.get(f"{base}/gpushare-scheduler/{route}")
            answers[route] = got.status_code, _json(got.text)
        text = (await self.http.get(f"{base}/metrics")).text
        held = next(line for line in text.splitlines() if line.startswith(f"{ALLOCATED} "))
        answers["metrics"] = 200, float(held.split()[1])
        return answers


ALLOCATED = "gpuslice_cluster_gpu_memory_allocated_mib"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@asynccontextmanager
async def site() -> AsyncIterator[tuple[Site, Callable[[], Awaitable[Listening]]]]:
    """The site, and what starts those who decide."""
    clock, numbers = Hurry(), itertools.count(1)
    server = await api_server()
    watched = Cluster(clock=clock)
    feed = ClusterFeed(Client(server.transport()), watched, clock=clock, random=lambda: 0.1)
    lab = Lab(Client(server.transport()), watched, feed)
    line = Lossy(server.transport())
    core = Core(
        Client(line),
        component=EXTENDER,
        clock=clock,
        random=lambda: 0.1,
        new_id=lambda: f"{next(numbers):x}",
    )
    made = Site(lab, line, clock, core)
    stack = AsyncExitStack()
    tasks = [asyncio.create_task(feed.run())]

    async def start() -> Listening:
        await stack.enter_async_context(core.running())
        listening = await stack.enter_async_context(extender(core, ExtenderSettings(port=0)))
        pools = NodePoolController(
            core.client, core.cluster, clock=clock, new_id=core.new_id, random=core.random
        )
        tasks.extend(asyncio.create_task(run) for run in (run_scheduler(core), pools.run()))
        return listening

    await feed.wait_synced()
    await made.furnish()
    try:
        yield made, start
        assert not any(task.done() for task in tasks)
    finally:
        line.mend()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stack.aclose()
        await made.http.aclose()
        await server.stop()


def _says_nothing(answers: Mapping[str, tuple[int, Any]]) -> None:
    status, answer = answers["filter"]
    assert status == 200
    assert not answer["NodeNames"], "kube-scheduler reads the sentence"
    assert not answer["FailedNodes"]
    assert answer["Error"].startswith("the picture of the cluster is not complete: ")
    assert answers["bind"] == (503, {"Error": answer["Error"]})
    assert {answers[verb][0] for verb in ("prioritize", "preempt")} == {503}
    for route in ("inspect", "inspect/n1"):
        assert answers[route] == (503, {"nodes": [], "error": answer["Error"]})
    assert math.isnan(answers["metrics"][1])


def _says_all(answers: Mapping[str, tuple[int, Any]]) -> None:
    assert answers["filter"][1]["NodeNames"] == []
    assert answers["filter"][1]["Error"] == ""
    assert set(answers["filter"][1]["FailedNodes"]) == {"n1", "n2"}
    assert answers["bind"] == (500, {"Error": "Insufficient GPU Memory in one device"})
    assert (answers["prioritize"][0], answers["preempt"][0]) == (200, 200)
    assert [node["name"] for node in answers["inspect"][1]["nodes"]] == ["n1", "n2", "n3", "n4"]
    assert answers["inspect/n1"][1]["nodes"][0]["usedGPU"] == 10
    assert answers["metrics"][1] >= 20 * 1024


@pytest.mark.parametrize(
    "held", [("nodes",), ("pods",), ("configmaps",), ("pods", "configmaps"), ("gpunodepools",)]
)
async def test_nobody_decides_before_a_list_has_come(held: tuple[str, ...]) -> None:
    """After a restart: with the list of pods late by three seconds a bind went to a GPU that was full."""
    async with site() as (s, start):
        await s.provoke()
        for kind in held:
            s.line.hold(kind)
        listening = await start()
        await s.clock.sleep(5)
        if held == ("gpunodepools",):
            _says_all(await s.ask(listening))  # nobody but the pools' controller needs them
            assert not (await s.acted())["node pools"]
        else:
            assert set(held) <= set(s.cluster.gate.lacking())
            _says_nothing(await s.ask(listening))
            assert not any((await s.acted()).values())
        s.line.mend()
        await s.all_act()
        _says_all(await s.ask(listening))
        assert (await s.lab.client.get(Pod, "asked", "default")).spec.node_name == ""


@pytest.mark.parametrize("lost", LISTS)
async def test_nobody_decides_while_a_list_is_not_followed(lost: str) -> None:
    """The picture was whole once; what has happened since is not known."""
    async with site() as (s, start):
        listening = await start()
        await s.core.feed.wait_synced()
        _says_all(await s.ask(listening))
        s.line.cut(lost)
        await s.clock.sleep(3)
        await s.provoke()
        await s.clock.sleep(5)
        if lost == "gpunodepools":
            _says_all(await s.ask(listening))
        else:
            assert s.cluster.gate.lacking() == [lost]
            _says_nothing(await s.ask(listening))
            assert not any((await s.acted()).values())
            own = await s.lab.client.get(Pod, "own", "default")
            assert not own.status.conditions, "nor that there is no room"
        assert not (await s.acted())["node pools"]
        s.line.mend()
        await s.all_act()
        _says_all(await s.ask(listening))


class Leader:
    leads = True
    why = "replica-2 holds the Lease"

    async def run(self) -> None:
        return


async def test_a_replica_that_does_not_lead_decides_nothing_and_shows_everything() -> None:
    """Two that choose GPUs could promise one twice: each learns of the other's choice a moment later."""
    async with site() as (s, start):
        listening = await start()
        await s.core.feed.wait_synced()
        leader = s.cluster.gate.leadership = Leader()
        leader.leads = False
        await s.provoke()
        await s.clock.sleep(5)
        answers = await s.ask(listening)
        assert answers["filter"][1]["Error"] == "this replica does not lead: replica-2 holds the Lease"
        assert [answers[verb][0] for verb in VERBS[1:]] == [503, 503, 503]
        assert answers["inspect"][0] == 200
        assert not any((await s.acted()).values())
        leader.leads = True
        await s.lab.client.patch(Pod, "high", {"metadata": {"labels": {"any": "change"}}}, "default")
        await s.all_act()
        _says_all(await s.ask(listening))


async def test_pods_that_ask_for_no_gpu_need_no_picture() -> None:
    async with site() as (s, start):
        s.line.hold("pods")
        listening = await start()
        body = {"Pod": pod_body("cpu"), "NodeNames": ["n1"]}
        url = f"http://127.0.0.1:{listening.port}/gpushare-scheduler/filter"
        assert (await s.http.post(url, json=body)).json()["NodeNames"] == ["n1"]


async def test_the_next_step_of_what_takes_long_asks_again() -> None:
    """Victims are evicted one by one: in between another replica may have begun to lead."""
    server = await api_server()
    client = Client(server.transport())
    leader = Leader()
    gate = Gate(leadership=leader)
    gated = GatedClient(client, gate)
    await gated.create(Node.resource, {"metadata": {"name": "one"}})
    leader.leads = False
    with pytest.raises(Unavailable, match="does not lead"):
        await gated.create(Node.resource, {"metadata": {"name": "two"}})
    with pytest.raises(Unavailable, match="does not lead"):
        await gated.patch(Node, "one", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Unavailable, match="does not lead"):
        await gated.delete(Node.resource, "one")
    assert [node.name for node in (await gated.list(Node)).items] == ["one"]
    await server.stop()
