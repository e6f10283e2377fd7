"""One resource as a device plugin for the kubelet, and the server on the plugin's socket.

`ResourcePlugin` translates between gRPC and the service. `PluginServer` keeps one plugin served and
registered: a kubelet that restarts deletes the plugin's socket and forgets the plugin, and if the plugin is
not back at once, running pods fail.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import structlog

from gpuslice.clock import Clock, happened
from gpuslice.errors import InputError
from gpuslice.kube.backoff import Backoff
from gpuslice.node.kubelet.inotify import FolderWatch
from gpuslice.node.kubelet.messages import (
    ContainerAllocation,
    Device,
    PluginOptions,
    PreferredRequest,
    Registration,
)
from gpuslice.node.kubelet.rpc import RpcError, Server, register, serve_plugin
from gpuslice.requests.kinds import Kind

KUBELET_SOCKET: Final = "kubelet.sock"
OPTIONS: Final = PluginOptions(pre_start_required=True, preferred_allocation=True)
RETRY: Final = Backoff(base=0.01, cap=1.0)
LISTENED_SECONDS: Final = 2.0
"""A kubelet that has registered the plugin and does not call ListAndWatch within this time has lost it."""

_log = structlog.get_logger(__name__)

Stamp = tuple[int, int] | None


def socket_name(resource: str) -> str:
    """The file name of a resource's socket: gpuslice-gpu-mem.sock, gpuslice-mig-1g.5gb.sock."""
    return f"gpuslice-{resource.partition('/')[2]}.sock"


class Service(Protocol):
    """What decides the answers. Every method may raise RpcError."""

    def devices(self, kind: Kind) -> Sequence[Device]: ...
    async def prefer(self, kind: Kind, request: PreferredRequest) -> Sequence[str]: ...
    async def allocate(self, kind: Kind, ids: Sequence[str]) -> ContainerAllocation: ...
    async def pre_start(self, kind: Kind, ids: Sequence[str]) -> None: ...


class ResourcePlugin:
    """A `kubeletapi.DevicePlugin` for one resource."""

    def __init__(self, kind: Kind, service: Service) -> None:
        self.resource = kind.resource
        self._kind = kind
        self.streams = 0
        self.on_end: Callable[[], None] = lambda: None
        """Called when a stream has ended, whoever ended it."""
        self._service = service
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """The devices have changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def options(self) -> PluginOptions:
        return OPTIONS

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        self.streams += 1
        try:
            while True:
                changed = self._changed
                yield self._service.devices(self._kind)
                await changed.wait()
        finally:
            self.streams -= 1
            self.on_end()

    async def prefer(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        return [await self._service.prefer(self._kind, request) for request in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocation]:
        return [await self._service.allocate(self._kind, ids) for ids in requests]

    async def pre_start(self, ids: Sequence[str]) -> None:
        await self._service.pre_start(self._kind, ids)


class PluginServer:
    """Serves one plugin on its socket in the kubelet's folder and keeps it registered."""

    def __init__(
        self,
        plugin: ResourcePlugin,
        folder: Path,
        *,
        on_change: Callable[[], None] = lambda: None,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self.plugin = plugin
        self._folder = folder
        self._path = folder / socket_name(plugin.resource)
        self._kubelet = folder / KUBELET_SOCKET
        self._clock = clock
        self._random = random
        self._server: Server | None = None
        self._mine: Stamp = None
        self._known_by: Stamp = None
        self.known = asyncio.Event()
        """Set while the kubelet that runs now knows of the plugin; `on_change` is told when that changes."""
        self._on_change = on_change
        self._registered_at = 0.0
        self._failures = 0

    @property
    def resource(self) -> str:
        return self.plugin.resource

    async def run(self) -> None:
        """Run for ever. Raises InputError if the socket is in use by another process."""
        wake = asyncio.Event()
        watch = FolderWatch(self._folder, (self._path.name, KUBELET_SOCKET), wake.set)
        self.plugin.on_end = wake.set
        try:
            while True:
                wake.clear()
                await happened(wake, self._clock, await self._settle())
        finally:
            watch.close()
            if self._server is not None:
                await self._server.stop()

    async def _settle(self) -> float:
        """Serve and register if need be; returns in how many seconds to look again at the latest."""
        if self._server is None or _stamp(self._path) != self._mine:
            self._forgotten()
            if self._server is not None:
                server, self._server = self._server, None
                if _stamp(self._path) is not None:
                    raise InputError(
                        f"{self._path} was taken over by another process; run one agent per node"
                    )
                await server.stop()
            self._server = await serve_plugin(self._path, self.plugin)
            self._mine = _stamp(self._path)
        kubelet = _stamp(self._kubelet)
        if kubelet is None:
            self._forgotten()
            return LISTENED_SECONDS
        since = self._clock.monotonic() - self._registered_at
        if kubelet == self._known_by and self.plugin.streams:
            return LISTENED_SECONDS
        if kubelet == self._known_by and since < LISTENED_SECONDS:
            return LISTENED_SECONDS - since
        try:
            await register(self._kubelet, Registration(self.plugin.resource, self._path.name, OPTIONS))
        except RpcError as error:
            self._failures += 1
            if self._failures == 5:
                _log.warning(
                    "kubelet does not take the plugin", resource=self.plugin.resource, error=str(error)
                )
            return RETRY.delay(self._failures, self._random)
        self._failures = 0
        self._known_by, self._registered_at = kubelet, self._clock.monotonic()
        self.known.set()
        self._on_change()
        _log.info("registered with kubelet", resource=self.plugin.resource)
        return LISTENED_SECONDS

    def _forgotten(self) -> None:
        self._known_by = None
        self.known.clear()
        self._on_change()


def _stamp(path: Path) -> Stamp:
    """A file's identity. A new socket often gets the old one's inode number, but not its ctime."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        return status.st_ino, status.st_ctime_ns
    return None
