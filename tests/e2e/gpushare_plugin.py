"""What a node looks like on which gpushare's own device plugin runs: its ids, its environment, its socket.

After AliyunContainerService/gpushare-device-plugin: one id per GiB of each GPU, `<uuid>-_-<number>`, and which GPU a
container holds is in its pod's annotations alone. kubelet keeps the ids in its checkpoint, as after years of use.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuslice import names
from gpuslice.node.kubelet.messages import (
    ContainerAllocation,
    Device,
    PluginOptions,
    PreferredRequest,
    Registration,
)
from gpuslice.node.kubelet.rpc import register, serve_plugin

from .cluster import Object, RealCluster
from .node import Node

FOLDER = "/var/lib/kubelet/device-plugins"
SOCKET = "aliyungpushare.sock"


class _Plugin:
    """`sizes`: GiB of each GPU; `by_units`: on which GPU a container of so many units is."""

    def __init__(self, sizes: Sequence[int], by_units: Mapping[int, int]) -> None:
        self._sizes = sizes
        self._by_units = by_units

    async def options(self) -> PluginOptions:
        return PluginOptions()

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        yield [
            Device(f"GPU-0000000{gpu}-old-_-{number}")
            for gpu, size in enumerate(self._sizes)
            for number in range(size)
        ]
        await asyncio.Event().wait()

    async def prefer(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        return [request.available[: request.size] for request in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocation]:
        return [ContainerAllocation(self._environment(len(ids))) for ids in requests]

    def _environment(self, units: int) -> dict[str, str]:
        index = self._by_units[units]
        return {
            names.VISIBLE_DEVICES: str(index),
            names.MEM_IDX: str(index),
            names.MEM_POD: str(units),
            names.MEM_CONTAINER: str(units),
            names.MEM_DEV: str(self._sizes[index]),
        }

    async def pre_start(self, ids: Sequence[str]) -> None:
        raise AssertionError("gpushare's plugin never asks for it")


@contextmanager
def gpushare_plugin(
    cluster: RealCluster, node: Node, sizes: Sequence[int], by_units: Mapping[int, int]
) -> Iterator[None]:
    """gpushare's plugin on a node, with what it writes into the node's status; its end is that of the plugin alone."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve(folder: Path) -> None:
        server = await serve_plugin(folder / SOCKET, _Plugin(sizes, by_units))
        await register(folder / "kubelet.sock", Registration(names.GPU_MEM, SOCKET))
        started.set()
        await ended.wait()
        await server.stop()

    with tempfile.TemporaryDirectory() as short:
        (folder := Path(short) / "plugins").symlink_to(node.path(FOLDER))
        thread = threading.Thread(target=loop.run_until_complete, args=(serve(folder),))
        thread.start()
        try:
            cluster.wait(started.is_set, 20, "gpushare's plugin to be registered")
            count = {"status": {"capacity": {names.GPU_COUNT: str(len(sizes))}}}
            path = f"/api/v1/nodes/{node.name}/status"
            cluster.request("PATCH", path, count, "application/merge-patch+json")
            yield
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()


def gpushare_pod(name: str, node: str, index: int, units: int, size: int) -> Object:
    """A pod as gpushare's scheduler leaves it: bound, with its five annotations."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "annotations": {
                names.MEM_IDX: str(index),
                names.MEM_POD: str(units),
                names.MEM_DEV: str(size),
                names.MEM_ASSIGNED: "true",
                names.MEM_ASSUME_TIME: "1600000000000000000",
            },
        },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "busybox:e2e",
                    "command": ["sleep", "100000"],
                    "resources": {"limits": {names.GPU_MEM: str(units)}},
                }
            ],
        },
    }
