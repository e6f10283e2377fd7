"""A world in which every request waits for the test to decide its fate: served, lost before or after it
took effect, late, overtaken. Used by the binder's tests."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpuslice.cluster.annotations import encode_gpus
from gpuslice.cluster.state import Cluster
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.errors import Unavailable
from gpuslice.kube.client import Client, Response
from gpuslice.kube.wire import Node, Pod
from gpuslice.names import ALLOCATION, MEM_ASSIGNED
from gpuslice.scheduler.binder import Binder

GPU_MIB = 10 * 1024


class StepClock:
    """Time moves only when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_ns(self) -> int:
        return int(self.seconds * 1e9)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.seconds + seconds, future))
        await future

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        due = [future for at, future in self._sleepers if at <= self.seconds]
        self._sleepers = [(at, future) for at, future in self._sleepers if at > self.seconds]
        for future in due:
            if not future.done():
                future.set_result(None)


@dataclass
class Request:
    """One request on its way: not yet applied, and the client still waiting for an answer."""

    method: str
    path: str
    body: dict[str, Any]
    answer: asyncio.Future[Response]


@dataclass
class World:
    """The truth (what the API server has) and everything on its way to it."""

    clock: StepClock = field(default_factory=StepClock)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name
    waiting: list[Request] = field(default_factory=list)
    ghosts: list[Request] = field(default_factory=list)  # the client gave up; they may still land
    feed: list[tuple[str, Pod]] = field(default_factory=list)
    bound_ever: set[tuple[str, str]] = field(default_factory=set)  # (uid, node)
    posts: int = 0
    version: int = 100

    def __post_init__(self) -> None:
        self.cluster = Cluster(clock=self.clock)
        for name in ("n1", "n2"):
            gpus = tuple(Gpu(i, f"GPU-{name}-{i}", "T4", GPU_MIB) for i in range(2))
            annotations = encode_gpus(NodeGpus(gpus))
            body = {
                "metadata": {"name": name, "annotations": annotations},
                "status": {"allocatable": {"aliyun.com/gpu-mem": "20"}},
            }
            self.cluster.set_node(msgspec.convert(body, Node))
        self.binder = Binder(self.cluster, Client(self), clock=self.clock)

    # --- the truth --------------------------------------------------------------------------------
    def create(self, name: str, units: int, uid: str | None = None, *, init: int = 0) -> Pod:
        """A pod of one container, after an init container if that asks for something, too."""
        self.version += 1
        main, before = (
            {"name": container, "resources": {"limits": {"aliyun.com/gpu-mem": str(amount)}}}
            for container, amount in (("main", units), ("before", init))
        )
        self.pods[name] = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": uid or f"uid-{self.version}",
                "resourceVersion": str(self.version),
                "annotations": {},
            },
            "spec": {"containers": [main], "initContainers": [before] if init else []},
        }
        return self._changed(name)

    def assign(self, name: str) -> None:
        """The pod's node has said where it is, and the feed has shown it."""
        self.pods[name]["metadata"]["annotations"][MEM_ASSIGNED] = "true"
        self.touch(name)
        while self.feed:
            self.tell_one()

    def get(self, name: str) -> Pod:
        return msgspec.convert(self.pods[name], Pod)

    def touch(self, name: str) -> Pod:
        self.version += 1
        self.pods[name]["metadata"]["resourceVersion"] = str(self.version)
        return self._changed(name)

    def delete(self, name: str) -> None:
        self.feed.append(("gone", self.get(name)))
        del self.pods[name]

    def _changed(self, name: str) -> Pod:
        pod = msgspec.convert(msgspec.json.decode(msgspec.json.encode(self.pods[name])), Pod)
        self.feed.append(("set", pod))
        return pod

    def tell_one(self) -> None:
        """The feed shows the cluster the oldest change that it has not seen."""
        kind, pod = self.feed.pop(0)
        if kind == "set":
            self.cluster.set_pod(pod)
        else:
            self.cluster.drop_pod(pod.uid)

    def promised(self) -> dict[str, int]:
        """GPU -> MiB that bound pods hold in truth."""
        taken: dict[str, int] = {}
        for pod in self.pods.values():
            if pod["spec"].get("nodeName"):
                record = msgspec.json.decode(pod["metadata"]["annotations"][ALLOCATION])
                for gpu, mib in record["main"].items():
                    taken[gpu] = taken.get(gpu, 0) + mib
        return taken

    # --- requests ---------------------------------------------------------------------------------
    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> Response:
        answer = asyncio.get_running_loop().create_future()
        self.posts += method == "POST"
        self.waiting.append(Request(method, path, msgspec.json.decode(body or b"{}"), answer))
        return await answer

    def serve(self, number: int = 0) -> None:
        """The request takes effect and its answer arrives."""
        request = self.waiting.pop(number)
        _reply(request, self._apply(request))

    def lose_answer(self, number: int = 0, status: int = 0) -> None:
        """The request takes effect; the client sees a cut connection (or a 5xx)."""
        request = self.waiting.pop(number)
        self._apply(request)
        _fail(request, status)

    def lose_request(self, number: int = 0, status: int = 0) -> None:
        """The client gives up; the request may land later (`land`) or never."""
        request = self.waiting.pop(number)
        self.ghosts.append(request)
        _fail(request, status)

    def refuse(self, status: int, number: int = 0) -> None:
        """The server says no and does nothing."""
        _reply(self.waiting.pop(number), _status(status, "not today"))

    def land(self, number: int = 0) -> None:
        """A lost request takes effect after all."""
        self._apply(self.ghosts.pop(number))

    def _apply(self, request: Request) -> Response:
        parts = request.path.split("/")
        name = parts[6]
        if name not in self.pods:
            return _status(404, f'pods "{name}" not found')
        pod = self.pods[name]
        meta = pod["metadata"]
        if request.method == "GET":
            return Response(200, msgspec.json.encode(pod))
        wanted = request.body["metadata"]
        if wanted["uid"] != meta["uid"] or wanted["resourceVersion"] != meta["resourceVersion"]:
            return _status(409, "precondition failed")
        if request.method == "POST":
            if pod["spec"].get("nodeName"):
                return _status(409, "already bound")
            node = request.body["target"]["name"]
            pod["spec"]["nodeName"] = node
            self.bound_ever.add((meta["uid"], node))
        meta["annotations"].update(wanted.get("annotations", {}))
        self.touch(name)
        return Response(200, msgspec.json.encode(pod))


def _reply(request: Request, response: Response) -> None:
    if not request.answer.done():
        request.answer.set_result(response)


def _fail(request: Request, status: int) -> None:
    if status:
        _reply(request, _status(status, "etcd timed out"))
    elif not request.answer.done():
        request.answer.set_exception(Unavailable("connection reset"))


def _status(code: int, message: str) -> Response:
    return Response(code, msgspec.json.encode({"kind": "Status", "code": code, "message": message}))


async def settle(rounds: int = 12) -> None:
    """Let everything that can run, run."""
    for _ in range(rounds):
        await asyncio.sleep(0)
