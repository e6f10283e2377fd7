"""The server as one object: routes a request to its verb, owns the store and the housekeeping.

server = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid.uuid4()))
await server.start()
client = kube.client.Client(server.transport())     # in the process
serving(server, clock=clock)                        # or over HTTP (`serve`)
"""

from __future__ import annotations

import asyncio
import contextlib
import random as _random
from collections.abc import Callable
from pathlib import Path

from gpuslice.clock import Clock
from gpuslice.local.apiserver.api import (
    bootstrap,
    execution,
    logs,
    partial,
    patching,
    pods,
    reviews,
    scale,
    webhookpost,
)
from gpuslice.local.apiserver.api.admission import Admission, Post
from gpuslice.local.apiserver.api.bodies import read_delete_options, read_object
from gpuslice.local.apiserver.api.database import Database
from gpuslice.local.apiserver.api.definitions import Definitions
from gpuslice.local.apiserver.api.discovery import REVIEWS, VERSION, Discovery
from gpuslice.local.apiserver.api.expiry import Expiry
from gpuslice.local.apiserver.api.http import Reply, Request, Stream, Target, reply
from gpuslice.local.apiserver.api.namespaces import Namespaces
from gpuslice.local.apiserver.api.rest import Rest
from gpuslice.local.apiserver.api.store import Store
from gpuslice.local.apiserver.api.strategy import Strategy
from gpuslice.local.apiserver.api.transport import LocalTransport
from gpuslice.local.apiserver.print import tables
from gpuslice.local.apiserver.print.tables import Tables
from gpuslice.local.apiserver.schema.kinds import Registry
from gpuslice.local.apiserver.schema.managed import Managers
from gpuslice.local.apiserver.schema.openapi import OpenApi
from gpuslice.local.apiserver.schema.status import (
    Failure,
    Json,
    method_not_allowed,
    no_such_route,
)
from gpuslice.local.streams import ExecSession, KubeletBackend

TICK_SECONDS = 0.5
"""How often ended watches, due bookmarks, dying namespaces and unwritten objects are looked for."""


MADE_BY_PUT = {
    ("", "endpoints"),
    ("", "events"),
    ("", "limitranges"),
    ("", "services"),
    ("coordination.k8s.io", "leases"),
    *(("rbac.authorization.k8s.io", name) for name in ("clusterroles", "clusterrolebindings")),
    *(("rbac.authorization.k8s.io", name) for name in ("roles", "rolebindings")),
}
"""Kinds of which a PUT to a name that is not there makes an object."""


class ApiServer:
    """A Kubernetes API server in this process."""

    def __init__(
        self,
        *,
        clock: Clock,
        new_uid: Callable[[], str],
        random: Callable[[], float] = _random.random,
        database: Path | None = None,
        webhook_post: Post = webhookpost.post,
    ) -> None:
        self.clock = clock
        self.kubelets: dict[str, KubeletBackend] = {}
        """The streaming half of each node's kubelet, by node name: logs and exec."""
        self.token: str | None = None
        """The bearer token that HTTP requests must carry; None lets everyone in."""
        self.store = Store()
        self.registry = Registry()
        self.admission = Admission(self.store, webhook_post, new_uid)
        self.rest = Rest(
            self.store,
            self.registry,
            self.admission,
            Strategy(self.store, clock=clock, random=random),
            Managers(clock),
            clock=clock,
            new_uid=new_uid,
        )
        self.discovery = Discovery(self.registry)
        self.tables = Tables(clock)
        self.openapi = OpenApi(self.registry)
        self.namespaces = Namespaces(self.rest)
        self.definitions = Definitions(self.rest)
        self.expiry = Expiry(self.rest)
        self.rest.after.append(self.expiry.note)
        self.rest.after.append(self.admission.note)
        self._database: Database | None = None
        if database is not None:
            self._database = Database(database, self.store)
            self._database.load()
            self.definitions.adopt()
            self.namespaces.adopt()
            self.expiry.adopt()
        self._housekeeping: asyncio.Task[None] | None = None
        bootstrap.populate(self.rest, clock, new_uid)

    async def start(self) -> None:
        """Begin the housekeeping. Call once, before the first watch."""
        self._housekeeping = asyncio.create_task(self._keep_house(), name="apiserver housekeeping")

    async def stop(self) -> None:
        """End every watch and stop. Safe to call twice."""
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._housekeeping
            self._housekeeping = None
        for collection in self.store.collections():
            for watcher in collection.hub.watchers():
                watcher.close()
        if self._database is not None:
            self._database.close()
            self._database = None

    def transport(self) -> LocalTransport:
        """A client's way in without HTTP."""
        return LocalTransport(self.handle)

    async def _keep_house(self) -> None:
        while True:
            await self.clock.sleep(TICK_SECONDS)
            self.rest.tick()
            self.expiry.sweep()
            await self.namespaces.sweep()
            if self._database is not None:
                self._database.flush()

    async def exec(self, request: Request) -> ExecSession:
        """Begin what a WebSocket asks for. Raises what is wrong with the request, 404 for other paths."""
        target = self.target(request.path)
        if target.kind.key != ("", "pods") or target.subresource not in execution.STREAMS:
            raise no_such_route()
        return await execution.open_session(self.rest, self.kubelets, request, target)

    # --- routes -------------------------------------------------------------------------------------
    async def handle(self, request: Request) -> Reply | Stream:
        """Serve one request; every Failure becomes a Status."""
        try:
            return await self._route(request)
        except Failure as failure:
            return reply(failure.body(), failure.status)

    async def _route(self, request: Request) -> Reply | Stream:
        parts = request.path.strip("/").split("/")
        match parts:
            case ["healthz" | "livez" | "readyz", *_]:
                return Reply(b"ok", content_type="text/plain; charset=utf-8")
            case ["version"]:
                return reply(VERSION)
            case ["api" | "apis"]:
                return self.discovery.root(request, parts[0])
            case ["api", "v1"]:
                return self.discovery.resources("", "v1")
            case ["apis", group]:
                return self.discovery.group(group)
            case ["apis", group, version]:
                return self.discovery.resources(group, version)
            case ["openapi", "v3"]:
                return reply(self.openapi.index())
            case ["openapi", "v3", *rest]:
                return Reply(self.openapi.document("/".join(rest)))
            case ["api", "v1", *rest]:
                return await self._serve(request, self._target("", "v1", rest))
            case ["apis", group, version, *rest]:
                if (group, version, rest[-1]) in REVIEWS and request.method == "POST":
                    return reviews.review(REVIEWS[group, version, rest[-1]], request, read_object(request))
                return await self._serve(request, self._target(group, version, rest))
        raise no_such_route()

    def target(self, path: str) -> Target:
        """What a path under /api or /apis names. Raises 404."""
        match path.strip("/").split("/"):
            case ["api", "v1", *rest] if rest:
                return self._target("", "v1", rest)
            case ["apis", group, version, *rest] if rest:
                return self._target(group, version, rest)
        raise no_such_route()

    def _target(self, group: str, version: str, parts: list[str]) -> Target:
        namespace = ""
        if parts[0] == "watch":
            raise no_such_route()
        if parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in ("status", "finalize"):
            namespace, parts = parts[1], parts[2:]
        kind = self.registry.find(group, version, parts[0])
        if kind is None or len(parts) > 3 or (namespace and not kind.namespaced):
            raise no_such_route()
        if kind.namespaced and not namespace and len(parts) > 1:
            raise no_such_route()
        name = parts[1] if len(parts) > 1 else ""
        return Target(kind, namespace, name, parts[2] if len(parts) > 2 else "")

    async def _serve(self, request: Request, target: Target) -> Reply | Stream:
        if target.subresource:
            return await self._subresource(request, target)
        method = request.method
        if target.name:
            match method:
                case "GET":
                    return self._get(request, target)
                case "PUT":
                    created = read_object(request) if target.kind.key in MADE_BY_PUT else None
                    return await self.rest.update(
                        request, target, lambda _: read_object(request), created=created
                    )
                case "PATCH":
                    return await patching.patch(self.rest, request, target)
                case "DELETE":
                    return await self.rest.delete(request, target, read_delete_options(request))
        else:
            match method:
                case "GET":
                    return self._get(request, target)
                case "POST":
                    return await self.rest.create(request, target, read_object(request))
                case "DELETE":
                    return await self.rest.delete_collection(request, target, read_delete_options(request))
        raise method_not_allowed()

    def _get(self, request: Request, target: Target) -> Reply | Stream:
        """GET one object or a collection, or watch it; as a table or bare metadata if that is asked for."""
        as_table = tables.wanted(request.accept)
        only_metadata = not as_table and partial.wanted(request)
        include = request.query.get("includeObject", "")
        if request.flag("watch"):
            render = self.tables.renderer(target.kind, include) if as_table else None
            return self.rest.watch(request, target, partial.line if only_metadata else render)
        if only_metadata:
            if target.name:
                return reply(partial.of(self.rest.entry(target).raw))
            chosen, listed = self.rest.select(request, target)
            return reply(partial.of_all([entry.raw for entry in chosen], listed))
        if not as_table:
            return self.rest.get(target) if target.name else self.rest.list_all(request, target)
        if target.name:
            entries = [self.rest.entry(target)]
            meta: Json = {"resourceVersion": str(entries[0].version)}
        else:
            entries, meta = self.rest.select(request, target)
        raws = [entry.raw for entry in entries]
        return reply(self.tables.table(target.kind, raws, meta, include=include))

    async def _subresource(self, request: Request, target: Target) -> Reply | Stream:
        kind, name, method = target.kind, target.subresource, request.method
        if name == "status" and kind.status:
            if method == "GET":
                return self.rest.get(target)
            if method == "PATCH":
                return await patching.patch(self.rest, request, target)
            if method == "PUT":
                return await self.rest.update(request, target, lambda _: read_object(request))
        if name == "scale" and kind.scale is not None and method in ("GET", "PUT", "PATCH"):
            return await scale.serve(self.rest, request, target)
        if name == "finalize" and kind.key == ("", "namespaces") and method == "PUT":
            return await self.rest.update(request, target, lambda _: read_object(request))
        if name == "token" and kind.key == ("", "serviceaccounts") and method == "POST":
            uid = self.rest.entry(target).uid
            return reviews.token(target.name, target.namespace, read_object(request), uid, self.clock)
        if kind.key == ("", "pods") and name == "log" and method == "GET":
            return await logs.serve(self.rest, self.kubelets, request, target)
        if kind.key == ("", "pods") and name in execution.STREAMS and method in ("GET", "POST"):
            execution.refuse_spdy(self.rest, self.kubelets, request, target)
        if kind.key == ("", "pods") and method == "POST":
            if name == "binding":
                return pods.bind(self.rest, request, target, read_object(request))
            if name == "eviction":
                return await pods.evict(self.rest, request, target, read_object(request))
        raise no_such_route()
