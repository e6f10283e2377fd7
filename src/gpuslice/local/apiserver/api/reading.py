"""The generic verbs that read: get, list (paged, or as of a version) and watch, whatever the kind."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import msgspec

from gpuslice.clock import Clock
from gpuslice.local.apiserver.api.entries import Entry, frame
from gpuslice.local.apiserver.api.http import Reply, Request, Stream, Target
from gpuslice.local.apiserver.api.store import Collection, Store
from gpuslice.local.apiserver.api.watch import Render, Watcher
from gpuslice.local.apiserver.schema import fields, selectors
from gpuslice.local.apiserver.schema.kinds import Kind, Registry
from gpuslice.local.apiserver.schema.objects import convert, encode
from gpuslice.local.apiserver.schema.status import Failure, Json, bad_request, not_found

WATCH_SECONDS = 1800
"""How long a watch lasts that asks for no other time."""
BOOKMARK_SECONDS = 60
LAST_BOOKMARK_SECONDS = 2
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Reader:
    """The reading verbs over one store."""

    def __init__(self, store: Store, registry: Registry, clock: Clock) -> None:
        self.store = store
        self.registry = registry
        self.clock = clock

    def collection(self, kind: Kind) -> Collection:
        """Where objects of a kind are."""
        return self.store.collection(kind.storage)

    def entry(self, target: Target) -> Entry:
        """The current version of the target. Raises 404."""
        found = self.collection(target.kind).get(target.namespace, target.name)
        if found is None:
            raise not_found(target.kind.group, target.kind.plural, target.name)
        return found

    def raw(self, kind: Kind, raw: bytes) -> bytes:
        """An object's bytes in the version that the request speaks."""
        if self.registry.is_stored_form(kind):
            return raw
        return encode(convert(kind, msgspec.json.decode(raw)))

    def get(self, target: Target) -> Reply:
        """GET one object."""
        return Reply(self.raw(target.kind, self.entry(target).raw))

    def select(self, request: Request, target: Target) -> tuple[list[Entry], Json]:
        """The objects that a LIST asks for, and its ListMeta (paging included)."""
        kind = target.kind
        labels, chosen = self._selectors(request, kind)
        limit = request.number("limit") or 0
        meta: Json = {"resourceVersion": str(self.store.version)}
        token = request.query.get("continue", "")
        if token:
            number, version = _read_token(token)
            entries = self.store.snapshot(number)
            meta["resourceVersion"] = version
        else:
            entries = self._at_version(request, self.collection(kind), target.namespace)
            name = chosen.exact("metadata.name")
            if name is not None and target.namespace:
                entries = [entry for entry in entries if entry.key[1] == name]
            if labels.clauses:
                entries = [entry for entry in entries if labels.matches(entry.labels)]
            if chosen.clauses:
                entries = [entry for entry in entries if chosen.matches(entry.field)]
        if limit and len(entries) > limit:
            page, rest = entries[:limit], entries[limit:]
            meta["continue"] = _token(self.store.keep_snapshot(rest), meta["resourceVersion"])
            if not (labels.clauses or chosen.clauses):
                meta["remainingItemCount"] = len(rest)
            return page, meta
        return entries, meta

    def list_all(self, request: Request, target: Target) -> Reply:
        """GET a collection."""
        entries, meta = self.select(request, target)
        kind = target.kind
        items = b",".join([self.raw(kind, entry.raw) for entry in entries])
        head = f'{{"kind":"{kind.kind}List","apiVersion":"{kind.api_version}","metadata":'.encode()
        return Reply(b"".join((head, encode(meta), b',"items":[', items, b"]}")))

    def _selectors(
        self, request: Request, kind: Kind
    ) -> tuple[selectors.LabelSelector, selectors.FieldSelector]:
        labels = selectors.parse_labels(request.query.get("labelSelector", ""))
        chosen = selectors.parse_fields(request.query.get("fieldSelector", ""))
        if chosen.clauses:
            extra = kind.custom.selectable if kind.custom else ()
            fields.check(chosen, kind.storage, extra)
        return labels, chosen

    def _at_version(self, request: Request, collection: Collection, namespace: str) -> list[Entry]:
        asked = request.query.get("resourceVersion", "")
        if asked in ("", "0"):
            return collection.in_order(namespace)
        version = _version(asked)
        if version > self.store.version:
            raise Failure(
                504, "Timeout", f"Too large resource version: {version}, current: {self.store.version}"
            )
        if request.query.get("resourceVersionMatch") == "Exact":
            return collection.as_of(version, namespace)
        return collection.in_order(namespace)

    def watch(
        self,
        request: Request,
        target: Target,
        render: Render | None = None,
    ) -> Stream:
        """GET a collection with watch=true. If the version is too old, its only event is the error 410."""
        kind, collection = target.kind, self.collection(target.kind)
        labels, chosen = self._selectors(request, kind)
        if target.name:
            chosen = selectors.FieldSelector((*chosen.clauses, ("metadata.name", True, target.name)))
        tables = render is not None
        if render is None and not self.registry.is_stored_form(kind):

            def render(type_: str, raw: bytes) -> bytes:
                return frame(type_, self.raw(kind, raw))

        watcher = Watcher(
            kind,
            target.namespace,
            labels,
            chosen,
            indexed=fields.INDEXED.get(kind.storage, ""),
            render=render,
            bookmarks=request.flag("allowWatchBookmarks"),
            tables=tables,
        )
        asked = request.query.get("resourceVersion", "")
        initial = request.query.get("sendInitialEvents")
        past = []
        if initial == "true" or (asked in ("", "0") and initial is None):
            for entry in collection.in_order(target.namespace):
                if watcher.selects(entry):
                    watcher.send(render("ADDED", entry.raw) if render else frame("ADDED", entry.raw))
            watcher.version = self.store.version
            if initial == "true" and watcher.bookmarks:
                self.bookmark(kind, watcher, end=True)
        elif asked not in ("", "0"):
            watcher.version = _version(asked)
            try:
                past = list(collection.since(watcher.version))
            except Failure as failure:
                watcher.send(frame("ERROR", encode(failure.body())))
                watcher.close()
                return Stream(_batches(watcher), watcher.close)
        for event in past:
            watcher.offer(event)
        seconds = request.number("timeoutSeconds") or WATCH_SECONDS
        start = self.clock.monotonic()
        watcher.deadline = start + seconds
        if watcher.bookmarks:
            watcher.bookmark_at = _next_bookmark(start, watcher.deadline)
        collection.hub.add(watcher)
        return Stream(_batches(watcher), watcher.close)

    def bookmark(self, kind: Kind, watcher: Watcher, *, end: bool = False) -> None:
        """Tell a watcher how far it has seen, so that it can resume from there."""
        meta: Json = {"resourceVersion": str(self.store.version), "creationTimestamp": None}
        if end:
            meta["annotations"] = {INITIAL_EVENTS_END: "true"}
        # The zero value of the Go type is what is sent; a pod's would be no pod.
        empty = {"spec": {"containers": None}, "status": {}} if kind.key == ("", "pods") else {}
        raw = encode({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta, **empty})
        if watcher.render is not None and watcher.tables:
            watcher.send(watcher.render("BOOKMARK", raw))
        else:
            watcher.send(frame("BOOKMARK", raw))
        watcher.version = self.store.version

    def tick(self) -> None:
        """End the watches whose time is up and send the bookmarks that are due."""
        moment = self.clock.monotonic()
        for collection in self.store.collections():
            for watcher in collection.hub.watchers():
                if moment >= watcher.bookmark_at:
                    watcher.bookmark_at = _next_bookmark(moment, watcher.deadline)
                    self.bookmark(watcher.kind, watcher)
                if moment >= watcher.deadline:
                    watcher.close()


def _next_bookmark(moment: float, deadline: float) -> float:
    """Once a minute, and shortly before the end."""
    last = deadline - LAST_BOOKMARK_SECONDS
    return min(moment + BOOKMARK_SECONDS, last) if moment < last else float("inf")


async def _batches(watcher: Watcher) -> AsyncIterator[list[bytes]]:
    try:
        while lines := await watcher.batch():
            yield lines
    finally:
        watcher.close()


def _version(text: str) -> int:
    if not text.isdigit():
        raise bad_request(
            f'invalid resource version: resourceVersion: Invalid value: "{text}": '
            f'strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def _token(number: int, version: str) -> str:
    return base64.urlsafe_b64encode(encode({"v": "meta.k8s.io/v1", "rv": version, "page": number})).decode()


def _read_token(token: str) -> tuple[int, str]:
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(token))
        return int(found["page"]), str(found["rv"])
    except (ValueError, KeyError, TypeError, msgspec.DecodeError):
        raise bad_request("invalid continue token: continue key is not valid") from None
