"""A control plane for the tests of controllers: the embedded API server, all controllers, and a fake kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gpuslice.clock import SystemClock, rfc3339
from gpuslice.errors import Conflict, NotFound, api_error
from gpuslice.kube.client import Client, Response
from gpuslice.kube.wire import Resource
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.transport import LocalTransport
from gpuslice.local.controllers import run_controllers

Json = dict[str, Any]
RESOURCES = {
    one.kind: one
    for one in (
        Resource("", "v1", "pods", "Pod"),
        Resource("", "v1", "nodes", "Node", False),
        Resource("", "v1", "namespaces", "Namespace", False),
        Resource("", "v1", "configmaps", "ConfigMap"),
        Resource("", "v1", "serviceaccounts", "ServiceAccount"),
        Resource("", "v1", "events", "Event"),
        Resource("apps", "v1", "deployments", "Deployment"),
        Resource("apps", "v1", "replicasets", "ReplicaSet"),
        Resource("apps", "v1", "statefulsets", "StatefulSet"),
        Resource("apps", "v1", "daemonsets", "DaemonSet"),
        Resource("apps", "v1", "controllerrevisions", "ControllerRevision"),
        Resource("batch", "v1", "jobs", "Job"),
        Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
        Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    )
}


class FastClock(SystemClock):
    """Time that runs `factor` times as fast, so that grace periods and deadlines pass within a test."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self._ns, self._monotonic = super().now_ns(), super().monotonic()

    def now_ns(self) -> int:
        return self._ns + int((super().now_ns() - self._ns) * self.factor)

    def monotonic(self) -> float:
        return self._monotonic + (super().monotonic() - self._monotonic) * self.factor

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / self.factor)


class World:
    """Verbs over JSON, as a user of kubectl has them, and the pods' fate in the test's hands."""

    def __init__(self, server: ApiServer, clock: FastClock) -> None:
        self.server = server
        self.transport = server.transport()
        self.clock = clock
        self.wakes: set[asyncio.Event] = set()
        self.tasks: list[asyncio.Task[None]] = []
        self._endings: set[asyncio.Task[None]] = set()
        self.pods_created = 0
        self.pods_deleted: list[str] = []
        self.decide: Callable[[Json], str] = lambda pod: "ready"
        """What becomes of a new pod: "ready", "pending", "running", "succeeded", "failed"."""
        self.refuses: Callable[[str, str], bool] = lambda method, path: False
        """Which requests of the controllers the server refuses (403), as a quota or a webhook would."""
        self.pods_visible = asyncio.Event()
        """While it is not set, the controllers' watch of pods brings nothing: their picture is old."""
        self.pods_visible.set()
        self.may_end = asyncio.Event()
        """While it is not set, pods that are being deleted keep terminating."""
        self.may_end.set()

    async def call(self, method: str, path: str, body: object = None, **query: str) -> Json:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else msgspec.json.encode(body)
        answer = await self.transport.request(method, path, query=query or None, body=data, content_type=kind)
        document: Json = msgspec.json.decode(answer.body or b"{}")
        if answer.status >= 300:
            raise api_error(answer.status, document.get("message", ""))
        return document

    async def get(self, kind: str, name: str, namespace: str = "default") -> Json:
        return await self.call("GET", RESOURCES[kind].path(namespace, name))

    async def list(self, kind: str, namespace: str | None = "default", **query: str) -> list[Json]:
        items: list[Json] = (await self.call("GET", RESOURCES[kind].path(namespace), **query))["items"]
        return items

    async def create(self, body: Json) -> Json:
        resource = RESOURCES[body["kind"]]
        return await self.call("POST", resource.path(body["metadata"].get("namespace", "default")), body)

    async def patch(self, kind: str, name: str, body: Json, *, subresource: str | None = None) -> Json:
        return await self.call("PATCH", RESOURCES[kind].path("default", name, subresource), body)

    async def delete(self, kind: str, name: str, policy: str | None = None, grace: int | None = None) -> None:
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if policy:
            body["propagationPolicy"] = policy
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        await self.call("DELETE", RESOURCES[kind].path("default", name), body)

    async def until(self, what: Callable[[], Any], within: float = 15.0) -> Any:
        """Wait until the awaited `what()` is true; asked again whenever a pod or a workload changes."""
        wake = asyncio.Event()
        self.wakes.add(wake)
        last: object = None
        try:
            async with asyncio.timeout(within):
                while True:
                    wake.clear()
                    try:
                        last = await what()
                    except NotFound as error:
                        last = error
                    else:
                        if last:
                            return last
                    await wake.wait()
        except TimeoutError:
            dead = [str(task) for task in self.tasks if task.done()]
            raise AssertionError(f"not in {within} s; last seen: {last}; died: {dead}") from None
        finally:
            self.wakes.discard(wake)

    async def status(self, kind: str, name: str, **wanted: object) -> Json:
        """Wait until the status holds these values. Missing counts are 0."""

        async def there() -> Json | None:
            item = await self.get(kind, name)
            status = item.get("status", {})
            fresh = status.get("observedGeneration", 10**9) >= item["metadata"].get("generation", 0)
            same = all((status.get(key) or 0) == value for key, value in wanted.items())
            return item if fresh and same else None

        item: Json = await self.until(there)
        return item

    async def events(self, reason: str) -> list[str]:
        return [one["message"] for one in await self.list("Event", None) if one["reason"] == reason]

    # --- the kubelet's part -------------------------------------------------------------------------
    async def mark(self, pod: Json, state: str) -> None:
        now = rfc3339(self.clock.now_ns())
        ready = "True" if state == "ready" else "False"
        phase = {"ready": "Running", "running": "Running", "pending": "Pending"}.get(
            state, state.capitalize()
        )
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": now}
        meta = pod["metadata"]
        path = RESOURCES["Pod"].path(meta["namespace"], meta["name"], "status")
        status: Json = {"phase": phase, "conditions": [condition], "startTime": now}
        await self.call("PATCH", path, {"metadata": {"uid": meta["uid"]}, "status": status})

    async def follow(self, path: str, on_event: Callable[[str, Json], Any]) -> None:
        async with self.transport.stream(path, query={"watch": "true"}) as (status, lines):
            assert status == 200
            async for line in lines:
                event = msgspec.json.decode(line)
                await on_event(event["type"], event["object"])
                for wake in self.wakes:
                    wake.set()

    async def on_pod(self, kind: str, pod: Json) -> None:
        meta = pod["metadata"]
        if kind == "ADDED":
            self.pods_created += 1
        if kind == "DELETED":
            self.pods_deleted.append(meta["name"])
            return
        if meta.get("deletionTimestamp"):
            if meta.get("deletionGracePeriodSeconds"):
                ending = asyncio.create_task(self.end(meta))
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)
        elif kind == "ADDED":
            state = self.decide(pod)
            if state != "pending":
                with contextlib.suppress(NotFound, Conflict):  # it may be gone, or another one by now
                    if not pod["spec"].get("nodeName"):
                        await self.bind(pod)
                    await self.mark(pod, state)

    async def end(self, meta: Json) -> None:
        await self.may_end.wait()
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        with contextlib.suppress(NotFound, Conflict):
            await self.call("DELETE", RESOURCES["Pod"].path(meta["namespace"], meta["name"]), body)

    async def bind(self, pod: Json) -> None:
        """To the node that a DaemonSet's pod names, else to n1."""
        meta, name = pod["metadata"], "n1"
        affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
        if required := affinity.get("requiredDuringSchedulingIgnoredDuringExecution"):
            name = required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        target = {"apiVersion": "v1", "kind": "Node", "name": name}
        precise = {"name": meta["name"], "uid": meta["uid"]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": precise, "target": target}
        await self.call("POST", RESOURCES["Pod"].path(meta["namespace"], meta["name"], "binding"), body)

    async def on_other(self, kind: str, item: Json) -> None:
        """Only the wake."""


class PickyTransport(LocalTransport):
    """The controllers' way to the server, through `World.refuses`."""

    def __init__(self, it: World) -> None:
        super().__init__(it.server.handle)
        self._it = it

    async def request(self, method: str, path: str, **options: Any) -> Response:
        if self._it.refuses(method, path):
            return Response(403, b'{"kind":"Status","message":"quota exceeded","code":403}')
        return await super().request(method, path, **options)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        async with super().stream(path, query=query) as (status, lines):
            yield status, self._held(lines) if path.endswith("/pods") else lines

    async def _held(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            await self._it.pods_visible.wait()
            yield line


@asynccontextmanager
async def world(*, speed: float = 1.0, controllers: bool = True) -> AsyncIterator[World]:
    """`speed` is how fast the controllers' and the server's time runs."""
    clock = FastClock(speed)
    server = ApiServer(clock=clock, new_uid=lambda: str(uuid.uuid4()))
    await server.start()
    it = World(server, clock)
    tasks = it.tasks
    tasks += [
        asyncio.create_task(it.follow(resource.path(), it.on_pod if kind == "Pod" else it.on_other))
        for kind, resource in RESOURCES.items()
    ]
    await it.create(node("n1"))
    if controllers:
        tasks.append(asyncio.create_task(start(it)))
    try:
        yield it
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()


async def start(it: World) -> None:
    """All controllers, for ever."""
    ids = itertools.count()
    await run_controllers(
        Client(PickyTransport(it)),
        clock=it.clock,
        new_id=lambda: f"{next(ids):x}-{random.getrandbits(32):x}",
        random=random.random,
        root_ca="the certificate",
    )


def node(name: str, **labels: str) -> Json:
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    meta = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"conditions": [ready]}}


def template(image: str = "app:1", **labels: str) -> Json:
    return {
        "metadata": {"labels": labels or {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": image}]},
    }


def workload(kind: str, name: str = "web", **spec: Any) -> Json:
    group = "batch/v1" if kind == "Job" else "apps/v1"
    body: Json = {"template": template()}
    if kind == "Job":
        body["template"]["spec"]["restartPolicy"] = "Never"
        del body["template"]["metadata"]
    else:
        body["selector"] = {"matchLabels": {"app": "web"}}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": body | spec}
