"""A cluster without nodes' agents: the embedded API server, our scheduler, and hands that play kubelet."""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.state import Change, Cluster
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.errors import Conflict, Unavailable
from gpuslice.kube.client import Client, Response
from gpuslice.kube.wire import Event, Node, Pod, Resource
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.names import SCHEDULER_NAME
from gpuslice.scheduler.binder import Binder
from gpuslice.scheduler.core import SCHEDULER, Core
from gpuslice.scheduler.preemption_controller import PreemptionController
from gpuslice.scheduler.service import run_scheduler

GIB = 1024


def node_body(
    name: str,
    gpus: Sequence[int] = (),
    *,
    cpu: str = "8",
    memory: str = "32Gi",
    pods: str = "110",
    labels: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    unschedulable: bool = False,
) -> dict[str, Any]:
    """A node; `gpus`: the GiB of each."""
    inventory = NodeGpus(tuple(Gpu(i, f"GPU-{name}-{i}", "T4", g * GIB) for i, g in enumerate(gpus)))
    amounts = {"cpu": cpu, "memory": memory, "pods": pods}
    if gpus:
        amounts |= {names.GPU_MEM: str(sum(gpus)), names.WHOLE_GPU: str(len(gpus))}
    spec: dict[str, Any] = {"unschedulable": True} if unschedulable else {}
    if taints:
        spec["taints"] = taints
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels or {},
            "annotations": encode_gpus(inventory) if gpus else {},
        },
        "spec": spec,
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod_body(
    name: str,
    units: int = 0,
    *,
    cpu: str = "",
    priority: int = 0,
    scheduler: str = SCHEDULER_NAME,
    **spec: Any,
) -> dict[str, Any]:
    """A pod with one container; `units` of gpu-mem."""
    resources: dict[str, Any] = {}
    if units:
        resources["limits"] = {names.GPU_MEM: str(units)}
    if cpu:
        resources["requests"] = {"cpu": cpu}
    container = {"name": "main", "image": "scratch", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"schedulerName": scheduler, "containers": [container]} | spec,
    }


PDB = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
PRIORITY_CLASS = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)


class _Pods(dict[str, Pod]):
    """Pods by name; one that is not there (yet) is blank."""

    def __missing__(self, name: str) -> Pod:
        return Pod()


class Lab:
    def __init__(self, client: Client, cluster: Cluster, feed: ClusterFeed) -> None:
        self.client = client
        self.cluster = cluster
        self.feed = feed
        self.pods = _Pods()
        self.controller: PreemptionController | None = None
        self.weather: Weather | None = None
        self._changed = asyncio.Event()
        cluster.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        obj = change.object
        if isinstance(obj, Pod):
            if change.kind == "pod":
                self.pods[obj.name] = obj
            else:
                self.pods.pop(obj.name, None)
        self._changed.set()

    async def until(self, true: Callable[[], bool], what: str = "") -> None:
        """Wait until the feed has shown something that makes it true."""
        try:
            async with asyncio.timeout(10):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"never happened: {what or true}") from None

    async def node(self, name: str, gpus: Sequence[int] = (), **more: Any) -> None:
        await self.client.create(Node.resource, node_body(name, gpus, **more))

    async def pod(self, name: str, units: int = 0, *, priority: int = 0, **more: Any) -> None:
        if priority:
            more["priorityClassName"] = f"p{priority}"
            with contextlib.suppress(Conflict):
                meta = {"name": f"p{priority}"}
                await self.client.create(PRIORITY_CLASS, {"metadata": meta, "value": priority})
        await self.client.create(Pod.resource, pod_body(name, units, **more), "default")

    async def end(self, name: str) -> None:
        """The kubelet has ended the pod and it is gone."""
        await self.client.delete(Pod.resource, name, "default", grace_seconds=0)
        await self.until(lambda: name not in self.pods, f"{name} gone")

    async def place(self, name: str, node: str) -> None:
        """Bind a pod as kube-scheduler with the extender does."""
        await self.until(lambda: name in self.pods, f"{name} seen")
        verdict = await Binder(self.cluster, self.client, clock=SystemClock()).bind(self.pods[name], node)
        assert verdict.ok, verdict
        await self.bound(name)

    async def give_up(self, name: str) -> None:
        """Say that the pod is unschedulable, as its scheduler would."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
        status = {"status": {"conditions": [condition]}}
        await self.client.patch(Pod, name, status, "default", patch_type="strategic", subresource="status")

    async def bound(self, name: str) -> str:
        """The node that the pod gets."""
        await self.until(lambda: bool(name in self.pods and self.pods[name].spec.node_name), f"{name} bound")
        return self.pods[name].spec.node_name

    async def waits(self, name: str, text: str = "") -> str:
        """The sentence in the pod's condition, once it contains `text`."""

        def message() -> str:
            for condition in self.pods[name].status.conditions or () if name in self.pods else ():
                if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
                    return condition.message
            return ""

        await self.until(lambda: bool(message()) and text in message(), f"{name} waits: {text}")
        return message()

    async def events(self, name: str, reason: str) -> list[str]:
        """The messages of a pod's events, once there are some."""
        async with asyncio.timeout(10):
            while True:
                listing = await self.client.list(Event, "default")
                found = [
                    e.message for e in listing.items if e.involved_object.name == name and e.reason == reason
                ]
                if found:
                    return found
                await asyncio.sleep(0)


class Weather:
    """A transport that can be cut off."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.cut = False
        self.refused = asyncio.Event()

    async def request(self, method: str, path: str, **more: Any) -> Response:
        if self.cut:
            self.refused.set()
            raise Unavailable("connection refused")
        return await self.inner.request(method, path, **more)

    def stream(self, path: str, *, query: Mapping[str, str]) -> Any:
        return self.inner.stream(path, query=query)

    async def aclose(self) -> None:
        pass


async def api_server() -> ApiServer:
    numbers = itertools.count(1)
    server = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid.UUID(int=next(numbers))))
    await server.start()
    return server


@contextlib.asynccontextmanager
async def laboratory(
    *,
    scheduler_names: tuple[str, ...] = (SCHEDULER_NAME,),
    scheduler: bool = True,
    controller: bool = False,
    late: bool = False,
    server: ApiServer | None = None,
) -> AsyncIterator[Lab]:
    """A running cluster; with `controller`, the one that makes room for kube-scheduler's pods.

    `late`: the feed is complete before the scheduler begins. `server`: one that outlives this laboratory.
    """
    clock = SystemClock()
    api = server or await api_server()
    weather = Weather(api.transport())
    client = Client(weather)
    core = Core(
        client, component=SCHEDULER, clock=clock, random=lambda: 0.5, new_id=lambda: f"{uuid.uuid4()}"
    )
    lab = Lab(Client(api.transport()), core.cluster, core.feed)
    lab.weather = weather
    try:
        async with core.running(), contextlib.AsyncExitStack() as stack:
            if late:
                await core.feed.wait_synced()
            parts = [run_scheduler(core, scheduler_names)] if scheduler else []
            if controller:
                lab.controller = PreemptionController(
                    client,
                    core.cluster,
                    serves=lambda name: name not in scheduler_names,
                    clock=clock,
                    recorder=core.recorder,
                )
                parts.append(lab.controller.run())
            tasks = [asyncio.create_task(part) for part in parts]
            stack.push_async_callback(end, tasks)
            yield lab
    finally:
        if server is None:
            await api.stop()


async def end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
