"""A control plane for the tests of controllers: the embedded API server, all controllers, and a fake kubelet."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gpuslice.clock import SystemClock, rfc3339
from gpuslice.errors import NotFound
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Resource
from gpuslice.local.apiserver import ApiServer
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


class World:
    """Verbs over JSON, as a user of kubectl has them, and the pods' fate in the test's hands."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.transport = server.transport()
        self.clock = SystemClock()
        self.wakes: set[asyncio.Event] = set()
        self.pods_created = 0
        self.pods_deleted: list[str] = []
        self.decide: Callable[[Json], str] = lambda pod: "ready"
        """What becomes of a new pod: "ready", "pending", "running", "succeeded", "failed"."""

    async def call(self, method: str, path: str, body: object = None, **query: str) -> Json:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else msgspec.json.encode(body)
        answer = await self.transport.request(method, path, query=query or None, body=data, content_type=kind)
        document: Json = msgspec.json.decode(answer.body or b"{}")
        if answer.status == 404:
            raise NotFound(404, document.get("message", ""))
        assert answer.status < 300, document
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
            raise AssertionError(f"not in {within} s; last seen: {last}") from None
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
    async def mark(self, pod: Json, state: str, exit_code: int = 0) -> None:
        now = rfc3339(self.clock.now_ns())
        ready = "True" if state == "ready" else "False"
        phase = {"ready": "Running", "running": "Running", "pending": "Pending"}.get(state, state.capitalize())
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
                try:
                    body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
                    await self.call("DELETE", RESOURCES["Pod"].path(meta["namespace"], meta["name"]), body)
                except (NotFound, AssertionError):
                    pass
        elif kind == "ADDED":
            state = self.decide(pod)
            if state != "pending":
                if not pod["spec"].get("nodeName"):
                    await self.bind(pod)
                try:
                    await self.mark(pod, state)
                except NotFound:
                    pass

    async def bind(self, pod: Json, node: str = "n1") -> None:
        meta = pod["metadata"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        try:
            await self.call("POST", RESOURCES["Pod"].path(meta["namespace"], meta["name"], "binding"), body)
        except NotFound:
            pass

    async def on_other(self, kind: str, item: Json) -> None:
        """Only the wake."""


@asynccontextmanager
async def world(*, kubelet: bool = True, controllers: bool = True) -> AsyncIterator[World]:
    server = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid.uuid4()))
    await server.start()
    it = World(server)
    tasks: list[asyncio.Task[None]] = []
    for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "Namespace", "Node", "Event"):
        tasks.append(asyncio.create_task(it.follow(RESOURCES[kind].path(), it.on_other)))
    if kubelet:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        await it.create(node)
        tasks.append(asyncio.create_task(it.follow(RESOURCES["Pod"].path(), it.on_pod)))
    if controllers:
        tasks.append(asyncio.create_task(start(server)))
    try:
        yield it
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()


async def start(server: ApiServer) -> None:
    ids = itertools.count()
    await run_controllers(
        Client(server.transport()),
        clock=SystemClock(),
        new_id=lambda: f"{next(ids):x}-{random.getrandbits(32):x}",
        random=random.random,
        root_ca="the certificate",
    )


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
