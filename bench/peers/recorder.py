"""A kubelet that only records: who registers, which devices they announce, and what they answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuslice.node.kubelet.messages import (
    ContainerAllocation,
    ContainerDevices,
    Device,
    PodResources,
    PreferredRequest,
    Registration,
)
from gpuslice.node.kubelet.rpc import (
    PluginClient,
    RpcCode,
    RpcError,
    Server,
    serve_pod_resources,
    serve_registration,
)


@dataclass
class Plugin:
    """One resource: how it registered and what it announces now."""

    registration: Registration
    client: PluginClient
    devices: tuple[Device, ...] | None = None
    task: asyncio.Task[None] | None = None


class Nobody:
    """What pod-resources say of a node on which no container holds anything."""

    async def list(self) -> tuple[PodResources, ...]:
        return ()

    async def allocatable(self) -> tuple[ContainerDevices, ...]:
        return ()

    async def get(self, name: object) -> PodResources:
        raise RpcError(RpcCode.NOT_FOUND, "nobody is here")


class Recorder:
    """Serves kubelet.sock in a folder. Resources other than NVIDIA's are not recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "device-plugins"
        self._lists = folder / "pod-resources" / "kubelet.sock"
        self._lister: Server | None = None
        self.plugins: dict[str, Plugin] = {}
        self._server: Server | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        # Nobody holds anything: our agent gives out nothing before it has been told so.
        self._lists.parent.mkdir(parents=True, exist_ok=True)
        self._lister = await serve_pod_resources(self._lists, Nobody())
        self._server = await serve_registration(self.folder / "kubelet.sock", self._register)

    async def stop(self) -> None:
        for plugin in self.plugins.values():
            if plugin.task:
                plugin.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await plugin.task
            await plugin.client.aclose()
        for server in (self._server, self._lister):
            if server:
                await server.stop()

    async def _register(self, registration: Registration) -> None:
        if not registration.resource.startswith("nvidia.com/"):
            return
        old = self.plugins.get(registration.resource)
        if old is not None and old.task is not None:
            old.task.cancel()
        plugin = Plugin(registration, PluginClient(self.folder / registration.endpoint))
        self.plugins[registration.resource] = plugin
        plugin.task = asyncio.create_task(self._follow(plugin))

    async def _follow(self, plugin: Plugin) -> None:
        with contextlib.suppress(RpcError):
            async for devices in plugin.client.list_and_watch():
                plugin.devices = devices
                self._changed.set()
                self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait for the devices to be so; False if they are not in time."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    changed = self._changed
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.2):
                            await changed.wait()
        except TimeoutError:
            return False
        return True

    def announced(self) -> dict[str, dict[str, Any]]:
        """Resources, and of each its ids, in order of the ids, with their health and NUMA nodes."""
        return {
            name: {
                device.id: {"healthy": device.healthy, "numa": list(device.numa)}
                for device in sorted(plugin.devices or (), key=lambda one: one.id)
            }
            for name, plugin in sorted(self.plugins.items())
        }

    def sick(self) -> dict[str, list[str]]:
        """The ids that are not healthy."""
        found = {
            name: [one for one, state in ids.items() if not state["healthy"]]
            for name, ids in self.announced().items()
        }
        return {name: ids for name, ids in found.items() if ids}

    async def allocate(self, resource: str, ids: Sequence[str]) -> dict[str, Any]:
        """What a container that gets these ids is told, or the error; its code is a plugin's own affair."""
        try:
            (answer,) = await self.plugins[resource].client.allocate(ids)
        except RpcError as error:
            return {"error": str(error)}
        return as_json(answer)

    async def prefer(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str] | dict[str, str]:
        """The ids that the plugin would take, sorted: a kubelet takes them as a set."""
        request = PreferredRequest(tuple(available), tuple(must), size)
        try:
            return sorted(await self.plugins[resource].client.prefer(request))
        except RpcError as error:
            return {"error": error.as_go_prints_it}


def as_json(answer: ContainerAllocation) -> dict[str, Any]:
    """An answer without what only one side has: our folder of the container, the random part of CDI's key."""
    mounts = [m for m in answer.mounts if "gpuslice" not in m.container_path]
    return {
        "envs": dict(sorted(answer.envs.items())),
        "mounts": sorted(f"{m.host_path} -> {m.container_path} ro={m.read_only}" for m in mounts),
        "devices": sorted(f"{d.host_path} -> {d.container_path} {d.permissions}" for d in answer.devices),
        "annotations": _named(answer.annotations),
        "cdi": list(answer.cdi_devices),
    }


def _named(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key.rpartition("_")[0] + "_*": value for key, value in annotations.items()}
