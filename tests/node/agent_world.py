"""A node under test: embedded API server, simulated kubelet and the real agent, over real unix sockets."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from gpuslice import names
from gpuslice.clock import Clock, SystemClock
from gpuslice.cluster.annotations import encode_allocation
from gpuslice.devices.availability import of_health
from gpuslice.devices.found import Found, FoundGpu
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.errors import InputError, Unavailable
from gpuslice.kube.client import Client, Response, Transport
from gpuslice.kube.wire import KubeObject, Node, Pod
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.kubelet import Kubelet, NodeDescription
from gpuslice.node.agent import Agent
from gpuslice.node.kubelet.messages import ContainerAllocation
from gpuslice.node.kubelet.rpc import PluginClient
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.pod import read_request
from gpuslice.units import GIB, parse_count

GUARD = 20.0
NODE = "n1"
GPUS = tuple(Gpu(i, f"GPU-{i:08x}-0000", "Tesla T4", 15109) for i in range(2))
"""Two GPUs of 14 GiB."""


class SimulatedBackend:
    """GPUs of which the test says what they are and how they fare."""

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        self._gpus = gpus
        self._changed = asyncio.Event()

    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus

    def plain(self) -> tuple[Gpu, ...]:
        return self._gpus

    def found(self) -> Found:
        gpus = (FoundGpu(g.index, g.uuid, g.model, g.memory_mib, 0) for g in self._gpus)
        whole = (
            replace(g, healthy=not o.availability.sick, reason=o.availability.reason)
            for g, o in zip(gpus, self._gpus, strict=True)
        )
        return Found("", "", tuple(whole))

    async def differs(self, uuids: Collection[str]) -> str:
        return ""

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def set_gpus(self, gpus: tuple[Gpu, ...]) -> None:
        """Other GPUs, or the same in another state."""
        if gpus != self._gpus:
            self._gpus = gpus
            self._changed.set()

    def set_health(self, uuid: str, healthy: bool, reason: str = "") -> None:
        """One GPU falls ill, or recovers. Raises InputError if there is no such GPU."""
        if all(gpu.uuid != uuid for gpu in self._gpus):
            raise InputError(f"this node has no GPU {uuid!r}")
        changed = tuple(
            replace(gpu, availability=of_health(healthy, reason)) if gpu.uuid == uuid else gpu
            for gpu in self._gpus
        )
        self.set_gpus(changed)


class Outage:
    """A transport that refuses what it is told to refuse."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._refuses: Callable[[str], bool] = lambda method: False
        self._cut = asyncio.Event()

    def fail_after(self, refuses: Callable[[str], bool]) -> None:
        """From now on these methods fail; open watches break off if GET is among them."""
        self._refuses = refuses
        if refuses("GET"):
            self._cut.set()

    def heal(self) -> None:
        self._refuses = lambda method: False
        self._cut = asyncio.Event()

    async def request(self, method: str, path: str, **more: Any) -> Response:
        if self._refuses(method):
            raise Unavailable("the test has cut the line")
        return await self._inner.request(method, path, **more)

    @asynccontextmanager
    async def stream(self, path: str, **more: Any) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        if self._refuses("GET"):
            raise Unavailable("the test has cut the line")
        async with self._inner.stream(path, **more) as (status, lines):
            yield status, self._until_cut(lines)

    async def _until_cut(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        cut = asyncio.ensure_future(self._cut.wait())
        try:
            while True:
                line = asyncio.ensure_future(anext(lines, None))
                await asyncio.wait((line, cut), return_when=asyncio.FIRST_COMPLETED)
                if self._cut.is_set() or not line.done():
                    line.cancel()
                    await asyncio.wait((line,))
                    raise Unavailable("the test has cut the line")
                found = line.result()
                if found is None:
                    return
                yield found
        finally:
            cut.cancel()

    async def aclose(self) -> None:
        await self._inner.aclose()


class World:
    def __init__(
        self,
        folder: Path,
        gpus: tuple[Gpu, ...] = GPUS,
        *,
        kubelet_clock: Clock = SystemClock(),  # noqa: B008
        **options: Any,
    ) -> None:
        self.folder = folder
        self.kubelet_clock = kubelet_clock
        self.options = options
        self.api = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid.uuid4()))
        self.client = Client(self.api.transport())
        self.api_of_agent = Outage(self.api.transport())
        self.backend = SimulatedBackend(gpus)
        self.gpus = NodeGpus(gpus, GIB)
        self.kubelet: Kubelet | None = None
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def agent(self, **more: Any) -> Agent:
        options: dict[str, Any] = {"unit": GIB, "clock": SystemClock(), "random": Random(1).random}
        options |= self.options | more
        return Agent(Client(self.api_of_agent), NODE, self.backend, kubelet_dir=self.folder, **options)

    async def start_agent(self) -> None:
        self.running_agent = self.agent()
        self.tasks["agent"] = asyncio.create_task(self.running_agent.run())

    async def start_kubelet(self, seed: int = 7) -> None:
        kubelet = Kubelet(
            self.client,
            NodeDescription(NODE, address="10.0.0.7"),
            root=self.folder,
            clock=self.kubelet_clock,
            random=Random(seed),
            run_processes=False,
        )
        self.kubelet = kubelet
        self.tasks["kubelet"] = asyncio.create_task(kubelet.run())
        async with asyncio.timeout(GUARD):
            await kubelet.ready.wait()

    async def stop(self, what: str) -> None:
        task = self.tasks.pop(what, None)
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def start_by_hand(self, name: str, container: str) -> None:
        """What the kubelet does when it tries a container's start again."""
        assert self.kubelet is not None
        pod = await self.client.get(Pod, name, "default")
        ids = self.kubelet.devices.manager.held(pod.uid, container, names.GPU_MEM)
        assert ids
        plugin = PluginClient(self.folder / "device-plugins" / "gpuslice-gpu-mem.sock")
        await plugin.pre_start(tuple(ids))
        await plugin.aclose()

    async def served(self, units: int, *, lacks: str = "") -> None:
        """Wait until the kubelet itself has the plugin's ids (the node's status may be old).

        Then until the agent lacks nothing but that.
        """
        assert self.kubelet is not None
        manager = self.kubelet.devices.manager
        await becomes(lambda: manager.allocatable().get(names.GPU_MEM) == units, self.kubelet.changed)
        if units:
            await becomes(lambda: self.running_agent.waits_for() == lacks, self.running_agent.changed)

    async def swept(self) -> None:
        """Wait until no container has a slice."""
        await becomes(lambda: not self.slices(), self.running_agent.changed)

    async def allocatable(self, units: int, resource: str = names.GPU_MEM) -> Node:
        return await self.until(
            Node,
            NODE,
            lambda node: parse_count((node.status.allocatable or {}).get(resource, 0), field="") == units,
        )

    async def create(
        self,
        name: str,
        *containers: dict[str, Any],
        on: dict[str, tuple[int, ...]] | None = None,
        annotations: dict[str, str] | None = None,
        **spec: Any,
    ) -> Pod:
        """A pod bound to the node. `on`: the GPUs (indexes) that the scheduler planned, by container."""
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
            "spec": {"nodeName": NODE, "containers": list(containers), **spec},
        }
        if on is not None:
            pod = msgspec.json.decode(json.dumps(body), type=Pod)
            request = read_request(pod.spec, pod.annotations)
            grants = [
                Grant(c.name, GPUS[i].uuid, self.gpus.unit.to_mib(c.units_per_gpu), bool(c.whole))
                for c in request.containers
                for i in on[c.name]
            ]
            body["metadata"]["annotations"] |= encode_allocation(
                request,
                Allocation(tuple(grants)),
                self.gpus,
                assume_time_ns=SystemClock().now_ns(),
                assigned=False,
            )
        return msgspec.json.decode(await self.client.create(Pod.resource, body, "default"), type=Pod)

    async def pod(self, name: str, holds: Callable[[Pod], bool]) -> Pod:
        return await self.until(Pod, name, holds, "default")

    def given(self, pod: Pod, container: str = "c") -> ContainerAllocation:
        """What the agent has answered for a container, as the kubelet has it."""
        assert self.kubelet is not None
        (holding,) = self.kubelet.devices.manager.holdings(pod.uid, container)
        return holding.answer

    async def assigned(self, name: str) -> Pod:
        """Wait until the agent has made a pod's annotations true."""
        return await self.pod(name, lambda pod: pod.annotations.get(names.MEM_ASSIGNED) == "true")

    async def running(self, name: str) -> Pod:
        return await self.pod(name, lambda pod: pod.status.phase == "Running")

    async def gone(self, name: str) -> None:
        async with asyncio.timeout(GUARD):
            listing = await self.client.list(Pod, "default")
            if all(pod.name != name for pod in listing.items):
                return
            async for event in self.client.watch(Pod, "default", resource_version=listing.resource_version):
                if event.type == "DELETED" and event.object.name == name:
                    return

    async def until(
        self, kind: type[Any], name: str, holds: Callable[[Any], bool], namespace: str | None = None
    ) -> Any:
        last: KubeObject | None = None
        try:
            async with asyncio.timeout(GUARD):
                listing = await self.client.list(kind, namespace)
                for item in listing.items:
                    if item.name == name:
                        last = item
                        if holds(item):
                            return item
                async for event in self.client.watch(
                    kind, namespace, resource_version=listing.resource_version
                ):
                    if event.type in ("ADDED", "MODIFIED") and event.object.name == name:
                        last = event.object
                        if holds(event.object):
                            return event.object
        except TimeoutError as error:
            raise AssertionError(f"waited in vain, it is {last}") from error
        raise AssertionError("the watch ended first")

    def slices(self) -> list[dict[str, Any]]:
        """Every slice.json of the node."""
        return [
            json.loads(path.read_text())
            for path in sorted((self.folder / "gpuslice" / "slices").glob("*/slice.json"))
        ]


@asynccontextmanager
async def world(gpus: tuple[Gpu, ...] = GPUS, **options: Any) -> AsyncIterator[World]:
    """API server, kubelet and agent, ready to take pods. `options` are the agent's."""
    folder = Path(tempfile.mkdtemp(prefix="node"))  # pytest's own folders are too long for a socket
    here = World(folder, gpus, **options)
    await here.api.start()
    try:
        await here.start_kubelet()
        await here.start_agent()
        await here.allocatable(sum(map(here.gpus.units_of, gpus)))
        for resource, count in Counter(gpu.resource for gpu in gpus).items():
            await here.allocatable(count, resource)
        yield here
    finally:
        for what in ("agent", "kubelet"):
            await here.stop(what)
        await here.api.stop()
        shutil.rmtree(folder)


async def becomes(holds: Callable[[], bool], changed: asyncio.Event) -> None:
    """Wait until something is true; the event is set when it may have become so."""
    async with asyncio.timeout(GUARD):
        while not holds():
            changed.clear()
            await changed.wait()


def container(name: str, units: int = 0, whole: int = 0, **more: Any) -> dict[str, Any]:
    resource, amount = (names.WHOLE_GPU, whole) if whole else (names.GPU_MEM, units)
    limits = {"resources": {"limits": {resource: str(amount)}}} if amount else {}
    return {"name": name, "image": "busybox", **limits, **more}
