"""A service under test: the API server and pod-resources are what a test says, kubelet's folders are real."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from agent_world import GPUS, container

from gpuslice import names
from gpuslice.clock import Clock, SystemClock
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.errors import Unavailable
from gpuslice.kube.client import Client, Response
from gpuslice.kube.wire import Pod
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.inject.slicefiles import SliceFolders
from gpuslice.node.kubelet.messages import (
    ContainerDevices,
    ContainerResources,
    PodResources,
    PreferredRequest,
)
from gpuslice.node.kubelet.podfolders import PodFolders
from gpuslice.node.service.deviceplugin import DevicePluginService
from gpuslice.requests.kinds import SHARES

ANNOTATIONS_LIMIT = 262_144
"""The API server's, in bytes of keys and values."""


class Api:
    """A transport that counts what it is asked and answers from a list of pods."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pods: dict[str, dict[str, Any]] = {}
        self.away = False

    async def request(self, method: str, path: str, *, body: bytes | None = None, **_: Any) -> Response:
        self.asked.append(f"{method} {path}")
        if self.away:
            raise Unavailable("nobody listens")
        name = path.rpartition("/")[2]
        if name == "pods":
            return Response(200, msgspec.json.encode({"metadata": {}, "items": list(self.pods.values())}))
        if name not in self.pods:
            return Response(404, b'{"message": "not found"}')
        pod = self.pods[name]
        if method == "PATCH":
            patch = msgspec.json.decode(body or b"")["metadata"]
            if patch["uid"] != pod["metadata"]["uid"]:
                return Response(409, b'{"message": "uid mismatch"}')
            merged = {**pod["metadata"]["annotations"], **patch["annotations"]}
            merged = {key: value for key, value in merged.items() if value is not None}
            if sum(len(key) + len(value) for key, value in merged.items()) > ANNOTATIONS_LIMIT:
                said = "metadata.annotations: Too long: may not be more than 262144 bytes"
                return Response(422, msgspec.json.encode({"code": 422, "reason": "Invalid", "message": said}))
            pod["metadata"]["annotations"] = merged
        return Response(200, msgspec.json.encode(pod))

    def add(self, name: str, uid: str, amount: int, resource: str = names.GPU_MEM) -> Pod:
        whole = amount if resource == names.WHOLE_GPU else 0
        asking = container("c", 0 if whole else amount, whole)
        self.pods[name] = {
            "metadata": {"name": name, "namespace": "default", "uid": uid, "annotations": {}},
            "spec": {"nodeName": "n1", "containers": [asking]},
            "status": {"phase": "Pending"},
        }
        return self.pod(name)

    def pod(self, name: str) -> Pod:
        return msgspec.convert(self.pods[name], Pod)


class Lister:
    def __init__(self) -> None:
        self.held: dict[str, tuple[str, ...]] = {}

    async def list(self, *, timeout: float) -> tuple[PodResources, ...]:
        return tuple(
            PodResources("default", name, (ContainerResources("c", (ContainerDevices(_kind(ids), ids),)),))
            for name, ids in self.held.items()
        )


def _kind(ids: tuple[str, ...]) -> str:
    return names.WHOLE_GPU if any(gpu.uuid in ids for gpu in GPUS) else names.GPU_MEM


class Bench:
    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.api, self.lister = Api(), Lister()
        self.problem = ""
        self.complete = True
        self.told: list[tuple[str, str]] = []
        """What was said to the owners of pods."""
        self.folder, self.pods = folder / "slices", folder / "pods"
        self.pods.mkdir()
        self.clock = clock or SystemClock()
        self.start()

    def start(self) -> None:
        """Once more: a new process knows nothing."""
        self.ledger = Ledger(NodeGpus(GPUS))
        self.service = DevicePluginService(
            Client(self.api),  # type: ignore[arg-type]
            "n1",
            self.ledger,
            self.lister,  # type: ignore[arg-type]
            SliceFolders(self.folder),
            PodFolders(self.pods, self.clock),
            isolation_disabled=lambda: True,
            differs=self.differs,
            complete=lambda: self.complete,
            record_event=lambda pod, sentence: self.told.append((pod.key, sentence)),
            clock=self.clock,
            random=lambda: 0.5,
        )
        self.service.rebuilt.set()
        self.all = [i for gpu in GPUS for i in self.ledger.ids.of(SHARES, gpu)]

    async def differs(self, _uuids: Collection[str]) -> str:
        return self.problem

    async def admit(self, size: int) -> tuple[str, ...]:
        request = PreferredRequest(tuple(self.all), (), size)
        return tuple(await self.service.prefer(SHARES, request))

    def ids_on(self, gpu: Gpu, count: int) -> tuple[str, ...]:
        return tuple(self.ledger.ids.of(SHARES, gpu))[:count]

    def slices(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(path.read_bytes()) for path in self.folder.glob("*/slice.json")]
