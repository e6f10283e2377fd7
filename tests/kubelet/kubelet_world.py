"""A node under test: embedded API server, a kubelet on a clock that only tests move, a plugin that obeys."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from gpuslice.clock import SystemClock
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Event, Node, Pod
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.kubelet import Kubelet, NodeDescription
from gpuslice.local.streams import LogOptions
from gpuslice.node.kubelet.messages import (
    ContainerAllocation,
    Device,
    PluginOptions,
    PodResources,
    PreferredRequest,
    Registration,
)
from gpuslice.node.kubelet.rpc import PodResourcesClient, RpcError, Server, register, serve_plugin
from gpuslice.units import parse_count

GUARD = 20.0
"""Seconds after which a test that waits in vain fails."""
RESOURCE = "aliyun.com/gpu-mem"
IDS = [f"g{gpu}-{number}" for gpu in range(4) for number in range(16)]
"""4 GPUs of 16 ids each, as in the measurements of the real kubelet."""


class ManualClock:
    """Time that stands still until `advance`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: dict[asyncio.Future[None], tuple[float, float]] = {}  # -> (until, asked for)
        self._changed = asyncio.Event()

    def now_ns(self) -> int:
        return 1_790_000_000_000_000_000 + int(self._now * 1e9)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers[future] = (self._now + seconds, seconds)
        self._changed.set()
        try:
            await future
        finally:
            del self._sleepers[future]

    def advance(self, seconds: float) -> None:
        self._now += seconds
        for future, (until, _) in self._sleepers.items():
            if until <= self._now and not future.done():
                future.set_result(None)

    async def someone_sleeps(self, low: float, high: float) -> float:
        """Wait until a task sleeps for a time in that range (seconds); returns it."""
        async with asyncio.timeout(GUARD):
            while True:
                self._changed.clear()
                for future, (_, asked) in self._sleepers.items():
                    if low <= asked <= high and not future.done():
                        return asked
                await self._changed.wait()


class Plugin:
    """A device plugin that does as it is told and remembers what it was asked."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.devices: list[Device] = [Device(id_) for id_ in ids]
        self.preferred: Callable[[PreferredRequest], Sequence[str]] = lambda request: request.available[
            : request.size
        ]
        self.allocated: list[frozenset[str]] = []
        self.asked: list[PreferredRequest] = []
        self.started: list[frozenset[str]] = []
        self.owners: list[tuple[PodResources, ...]] = []
        self.envs: dict[str, str] = {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}
        self.answer: Callable[[Sequence[str]], ContainerAllocation] | None = None
        self.allocate_gate = asyncio.Event()
        self.allocate_gate.set()
        self.allocating = asyncio.Event()
        self.refuse_prefer: RpcError | None = None
        self.refuse_allocate: RpcError | None = None
        self.refuse_start: RpcError | None = None
        self.lister: PodResourcesClient | None = None
        self.in_flight = 0
        self.most_in_flight = 0
        self.server: Server | None = None
        self.disconnected = asyncio.Event()
        """The kubelet's stream has ended."""
        self._changed = asyncio.Event()

    def publish(self, devices: list[Device]) -> None:
        self.devices = devices
        self._changed.set()

    async def options(self) -> PluginOptions:
        return PluginOptions(pre_start_required=True, preferred_allocation=True)

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        self.disconnected.clear()
        try:
            while True:
                self._changed.clear()
                yield self.devices
                await self._changed.wait()
        finally:
            self.disconnected.set()

    async def prefer(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        self.asked.extend(requests)
        if self.refuse_prefer:
            raise self.refuse_prefer
        return [self.preferred(request) for request in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocation]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.allocating.set()
        try:
            await self.allocate_gate.wait()
        finally:
            self.in_flight -= 1
        if self.refuse_allocate:
            raise self.refuse_allocate
        self.allocated.extend(frozenset(ids) for ids in requests)
        return [self.answer(ids) if self.answer else ContainerAllocation(envs=self.envs) for ids in requests]

    async def pre_start(self, ids: Sequence[str]) -> None:
        self.started.append(frozenset(ids))
        if self.lister is not None:
            self.owners.append(await self.lister.list())
        if self.refuse_start:
            raise self.refuse_start


class World:
    """One node. `node` waits for what is true of it, `pod` for what is true of a pod."""

    def __init__(self, folder: Path, *, run_processes: bool = False, **node: Any) -> None:
        self.folder = folder
        self.api = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid.uuid4()))
        self.client = Client(self.api.transport())
        self.clock = ManualClock()
        self.run_processes = run_processes
        self.description = NodeDescription("n1", **{"address": "10.0.0.7", **node})
        self.kubelet = self.new_kubelet()
        self.served: list[Plugin] = []

    def new_kubelet(self) -> Kubelet:
        return Kubelet(
            self.client,
            self.description,
            root=self.folder,
            clock=self.clock,
            random=Random(7),
            run_processes=self.run_processes,
        )

    @property
    def plugins(self) -> Path:
        return self.folder / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        return self.folder / "pod-resources/kubelet.sock"

    async def serve(self, plugin: Plugin, resource: str = RESOURCE, *, endpoint: str = "") -> None:
        """Serve a plugin and register it; returns when its ids are known."""
        endpoint = endpoint or resource.replace("/", "-") + ".sock"
        plugin.server = await serve_plugin(self.plugins / endpoint, plugin)
        self.served.append(plugin)
        await self.register(plugin, resource, endpoint=endpoint)

    async def register(self, plugin: Plugin, resource: str = RESOURCE, *, endpoint: str) -> None:
        """Register a plugin that is served; returns when its ids are known."""
        options = await plugin.options()
        await register(self.plugins / "kubelet.sock", Registration(resource, endpoint, options))
        healthy = sum(device.healthy for device in plugin.devices)
        # Parsed, since the API server writes 50000 as 50k.
        await self.node(
            lambda node: parse_count((node.status.allocatable or {}).get(resource, 0), field="") == healthy
        )

    async def create(self, name: str, *containers: dict[str, Any], **spec: Any) -> Pod:
        """Create a pod bound to the node. Extra keywords: parts of the spec, or `annotations`."""
        metadata = {"name": name, "namespace": "default", "annotations": spec.pop("annotations", {})}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"nodeName": "n1", "containers": list(containers) or [container("c")], **spec},
        }
        return msgspec.json.decode(await self.client.create(Pod.resource, body, "default"), type=Pod)

    async def pod(self, name: str, holds: Callable[[Pod], bool]) -> Pod:
        """Wait until something is true of a pod."""
        return await self._until(Pod, name, holds, "default")

    async def phase(self, name: str, phase: str) -> Pod:
        return await self.pod(name, lambda pod: pod.status.phase == phase)

    async def node(self, holds: Callable[[Node], bool]) -> Node:
        return await self._until(Node, "n1", holds, None)

    async def gone(self, name: str) -> None:
        """Wait until a pod object is deleted."""
        async with asyncio.timeout(GUARD):
            listing = await self.client.list(Pod, "default")
            if all(pod.name != name for pod in listing.items):
                return
            version = listing.resource_version
            async for event in self.client.watch(Pod, "default", resource_version=version):
                if event.type == "DELETED" and event.object.name == name:
                    return

    async def event(self, reason: str) -> Event:
        """Wait for an event with that reason."""
        async with asyncio.timeout(GUARD):
            listing = await self.client.list(Event, "default")
            for item in listing.items:
                if item.reason == reason:
                    return item
            version = listing.resource_version
            async for event in self.client.watch(Event, "default", resource_version=version):
                if event.type != "BOOKMARK" and event.object.reason == reason:
                    return event.object
        raise AssertionError(f"the watch ended before an event {reason}")

    async def raw(self, name: str) -> dict[str, Any]:
        """A pod as the API server has it."""
        answer = await self.client.transport.request("GET", Pod.resource.path("default", name))
        result: dict[str, Any] = msgspec.json.decode(answer.body)
        return result

    async def log(self, name: str, container: str = "", **options: Any) -> str:
        chunks = self.kubelet.logs("default", name, container, LogOptions(**options))
        async with asyncio.timeout(GUARD):
            return b"".join([chunk async for chunk in chunks]).decode()

    async def exec(self, name: str, *command: str, tty: bool = False) -> tuple[int, str]:
        """Run a command in a pod: exit code and everything it printed."""
        async with asyncio.timeout(GUARD):
            session = await self.kubelet.exec("default", name, "", command, stdin=False, tty=tty)
            text = b"".join([piece.data async for piece in session.output()]).decode()
            return await session.wait(), text

    async def _until(
        self, kind: type[Any], name: str, holds: Callable[[Any], bool], where: str | None
    ) -> Any:
        async with asyncio.timeout(GUARD):
            listing = await self.client.list(kind, where)
            for item in listing.items:
                if item.name == name and holds(item):
                    return item
            async for event in self.client.watch(kind, where, resource_version=listing.resource_version):
                if event.type in ("ADDED", "MODIFIED") and event.object.name == name and holds(event.object):
                    return event.object
        raise AssertionError("the watch ended first")


@asynccontextmanager
async def world(*, run_processes: bool = False, **node: Any) -> AsyncIterator[World]:
    """A running node; everything is stopped at the end."""
    folder = Path(tempfile.mkdtemp(prefix="kubelet"))  # pytest's own folders are too long for a socket
    here = World(folder, run_processes=run_processes, **node)
    await here.api.start()
    running = asyncio.create_task(here.kubelet.run())
    try:
        async with asyncio.timeout(GUARD):
            await asyncio.wait(
                (running, asyncio.ensure_future(here.kubelet.ready.wait())),
                return_when=asyncio.FIRST_COMPLETED,
            )
        yield here
    finally:
        running.cancel()
        (outcome,) = await asyncio.gather(running, return_exceptions=True)
        for plugin in here.served:
            if plugin.server is not None:
                await plugin.server.stop()
        await here.api.stop()
        shutil.rmtree(folder)
        assert isinstance(outcome, asyncio.CancelledError), f"the kubelet ended by itself: {outcome!r}"


def container(name: str, units: int = 0, **more: Any) -> dict[str, Any]:
    """A container that asks for that many ids."""
    spec: dict[str, Any] = {"name": name, "image": "busybox", **more}
    if units:
        spec["resources"] = {"limits": {RESOURCE: str(units)}}
    return spec
