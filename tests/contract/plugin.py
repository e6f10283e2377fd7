"""A device plugin that does as it is told and writes down what kubelet asks of it, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuslice.node.kubelet.messages import (
    ContainerAllocation,
    Device,
    PluginOptions,
    PodName,
    PodResources,
    PreferredRequest,
    Registration,
)
from gpuslice.node.kubelet.rpc import (
    PodResourcesClient,
    RpcError,
    Server,
    register,
    serve_plugin,
)

from .kit import Kit, Object, container, pod, until

NODE = "node-1"
IDS = [f"g{gpu}-{number}" for gpu in range(2) for number in range(8)]


@dataclass
class Plugin:
    """`calls` is everything kubelet asked for: (method, argument)."""

    resource: str
    devices: list[Device]
    calls: list[tuple[str, Any]] = field(default_factory=list)
    answer: ContainerAllocation = field(default_factory=ContainerAllocation)
    preferred: Callable[[PreferredRequest], Sequence[str]] = lambda request: sorted(request.available)[
        : request.size
    ]
    refuse: dict[str, RpcError] = field(default_factory=dict)
    owners: list[tuple[PodResources, ...]] = field(default_factory=list)
    """What pod-resources said at each PreStartContainer."""
    lister: PodResourcesClient | None = None
    in_flight: int = 0
    most_in_flight: int = 0
    streams: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, devices: list[Device]) -> None:
        self.devices = devices
        self._changed.set()

    def of(self, method: str) -> list[Any]:
        """The arguments of all calls of one method."""
        return [argument for name, argument in self.calls if name == method]

    async def options(self) -> PluginOptions:
        return PluginOptions(pre_start_required=True, preferred_allocation=True)

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        self.streams += 1
        while True:
            self._changed.clear()
            yield self.devices
            await self._changed.wait()

    async def prefer(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        for one in requests:
            self._asked("prefer", one)
        return [self.preferred(one) for one in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocation]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            # A turn for whoever would be so bold as to ask at the same time.
            await asyncio.sleep(0)
            for one in requests:
                self._asked("allocate", frozenset(one))
            return [self.answer for _ in requests]
        finally:
            self.in_flight -= 1

    async def pre_start(self, ids: Sequence[str]) -> None:
        if self.lister is not None:
            self.owners.append(await self.lister.list())
        self._asked("pre_start", frozenset(ids))

    def _asked(self, method: str, argument: Any) -> None:
        self.calls.append((method, argument))
        if error := self.refuse.get(method):
            raise error


class NodeUnderTest:
    """A kubelet's sockets, and pods that are bound to its node."""

    def __init__(self, k8s: Kit, lister: PodResourcesClient) -> None:
        self.k8s = k8s
        self.lister = lister
        self.resource = f"{k8s.ns}.example/unit"
        self.folder: Path = k8s.backend.kubelet_folder(NODE)
        self.servers: list[Server] = []

    @property
    def plugins(self) -> Path:
        return self.folder / "device-plugins"

    @property
    def socket(self) -> Path:
        return self.plugins / f"{self.k8s.ns}.sock"

    async def serve(self, ids: Sequence[str] = IDS) -> Plugin:
        """A plugin that kubelet knows."""
        plugin = Plugin(self.resource, [Device(id_) for id_ in ids], lister=self.lister)
        await self.register(plugin)
        return plugin

    async def register(self, plugin: Plugin) -> None:
        """Serve it and introduce it; returns when kubelet counts its ids."""
        self.servers.append(await serve_plugin(self.socket, plugin))
        registration = Registration(plugin.resource, self.socket.name, await plugin.options())

        async def introduced() -> bool:
            try:
                await register(self.plugins / "kubelet.sock", registration)
            except RpcError as error:
                if error.retryable:
                    return False  # kubelet is on its way
                raise
            return True

        await until(introduced, "kubelet to take the registration")
        await self.counts({device.id for device in plugin.devices if device.healthy})

    async def counts(self, ids: set[str]) -> None:
        """Wait until kubelet has exactly these ids of the resource to give."""

        async def look() -> bool:
            try:
                offered = await self.lister.allocatable()
            except RpcError:
                return False
            return {i for one in offered if one.resource == self.resource for i in one.ids} == ids

        await until(look, f"kubelet to count {len(ids)} ids")

    async def stop_plugin(self) -> None:
        for server in self.servers:
            await server.stop()
        self.servers.clear()

    def container(self, name: str = "c", units: int = 1, command: str = "sleep 1000", **more: Any) -> Object:
        return container(name, command, limits={self.resource: units}, **more)

    async def create(self, name: str, *containers: Object, **spec: Any) -> Object:
        """Create a pod that is bound to the node already."""
        body = pod(name, *(containers or (self.container(),)), nodeName=NODE, **spec)
        made: Object = await self.k8s.create("pods", body)
        return made

    async def resources(self, name: str) -> PodResources:
        return await self.lister.get(PodName(self.k8s.ns, name))

    async def held(self, name: str) -> dict[str, frozenset[str]]:
        """Container -> ids, as pod-resources tells them."""
        found = await self.resources(name)
        return {one.name: frozenset(one.ids(self.resource)) for one in found.containers}


@asynccontextmanager
async def node_under_test(k8s: Kit) -> AsyncIterator[NodeUnderTest]:
    lister = PodResourcesClient(k8s.backend.kubelet_folder(NODE) / "pod-resources/kubelet.sock")
    node = NodeUnderTest(k8s, lister)
    try:
        yield node
    finally:
        await node.stop_plugin()
        await lister.aclose()
