"""A typed client: the few verbs we use, over any `Transport`.

Errors: every verb raises `errors.ApiError` (its subclass by HTTP status) when the server refuses and
`errors.Unavailable` when it cannot be reached. There is no client-side throttle: gpushare's default of
5 requests a second was its slowest part.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypedDict, TypeVar, Unpack

import msgspec

from gpuslice.errors import ApiError, Conflict, Gone, api_error
from gpuslice.kube.decoding import (
    UNREADABLE,
    Broken,
    decode_item,
    decode_list,
    decode_mark,
    decode_one,
    shallow,
)
from gpuslice.kube.wire import KubeObject, Resource, Wire

K = TypeVar("K", bound=KubeObject)

Propagation = Literal["Background", "Foreground", "Orphan"]
PatchType = Literal["merge", "strategic", "json", "apply"]
PATCH_CONTENT_TYPE: Mapping[str, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
PAGE = 500
"""Objects per LIST page, at most: a page of full pods decodes in about 5 ms, so the loop stays responsive."""
FIRST_PAGE = 50
"""Objects of the first page, which says how large they are here."""
PAGE_BYTES = 8 * 2**20
"""What a page may have, about: one object can have more than a megabyte."""


class Response(msgspec.Struct, frozen=True):
    """What came back: status code and body."""

    status: int
    body: bytes


class RequestOptions(TypedDict, total=False):
    """What a request may carry beside method and path."""

    query: Mapping[str, str] | None
    body: bytes | None
    content_type: str
    """Of the body; JSON unless it is said."""


class Transport(Protocol):
    """Bytes to and from one API server. Raises `errors.Unavailable` if it cannot be reached."""

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Response:
        """One request, one whole answer, whatever its status."""

    def stream(
        self, path: str, *, query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]:
        """GET as (status, lines): an open watch. The iterator ends when the server closes it."""

    async def aclose(self) -> None:
        """Give back sockets. Safe to call twice."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[K]):
    """A complete LIST, the version to watch from, and what of it does not decode."""

    items: list[K]
    resource_version: str
    broken: tuple[Broken[K], ...] = ()


EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[K]):
    """One change. A BOOKMARK's object carries nothing but metadata.resourceVersion.

    `problem`: why the object does not decode; it then has what could be read of it.
    """

    type: EventType
    object: K
    problem: str = ""


class _Status(Wire, frozen=True, gc=False):
    message: str = ""
    reason: str = ""
    code: int = 0


class _RawWatch(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: msgspec.Raw


_ANOTHER_UID = re.compile(r'metadata\.uid: Invalid value: "[^"]*": field is immutable')
_watch_decoder = msgspec.json.Decoder(_RawWatch)
_status_decoder = msgspec.json.Decoder(_Status)


class Client:
    """Typed verbs over a transport. One instance serves any number of concurrent tasks."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def get(self, kind: type[K], name: str, namespace: str | None = None) -> K:
        """Read one object. Raises NotFound."""
        return _read(kind, name, await self._send("GET", kind.resource.path(namespace, name)))

    async def list(
        self,
        kind: type[K],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Listing[K]:
        """Read all objects."""
        items: list[K] = []
        broken: list[Broken[K]] = []
        version = ""
        async for page in self.pages(
            kind, namespace, label_selector=label_selector, field_selector=field_selector
        ):
            items += page.items
            broken += page.broken
            version = page.resource_version
        return Listing(items, version, tuple(broken))

    async def pages(
        self,
        kind: type[K],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[Listing[K]]:
        """Read all objects page by page, so that no more than one page needs to be in memory.

        All pages are of one moment; the version of the last is the one to watch from.
        """
        query = _query(limit=str(FIRST_PAGE), labelSelector=label_selector, fieldSelector=field_selector)
        while True:
            body = await self._send("GET", kind.resource.path(namespace), query=query)
            try:
                items, broken, meta = decode_list(kind, body)
            except UNREADABLE as error:
                raise _unreadable(f"the list of {kind.resource.plural}", error) from error
            yield Listing(items, meta.resource_version, tuple(broken))
            if not meta.continue_:
                return
            query["continue"] = meta.continue_
            fitting = PAGE_BYTES * (len(items) + len(broken)) // len(body)
            query["limit"] = str(min(max(fitting, 1), PAGE))

    async def watch(
        self,
        kind: type[K],
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = 290,
        on_open: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[WatchEvent[K]]:
        """Follow changes from a version on, bookmarks included, until the server ends the stream.

        `on_open` is called once the server has begun to answer: it knows the version.
        Raises Gone if the version is too old: list again (deletions in between are lost otherwise).
        """
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            labelSelector=label_selector,
            fieldSelector=field_selector,
            timeoutSeconds=str(timeout_seconds),
        )
        async with self.transport.stream(kind.resource.path(namespace), query=query) as (status, lines):
            if status != 200:
                raise _error(status, b"".join([line async for line in lines]))
            on_open()
            async for line in lines:
                event = _event(line)
                if event.type == "ERROR":
                    problem = _status_decoder.decode(event.object)
                    if problem.code == 410:
                        raise Gone(410, problem.message, reason=problem.reason)
                    raise api_error(problem.code or 500, problem.message, problem.reason)
                if event.type == "BOOKMARK":
                    yield WatchEvent("BOOKMARK", kind(metadata=decode_mark(event.object)))
                    continue
                read = decode_item(kind, event.object)
                if isinstance(read, Broken):
                    yield WatchEvent(event.type, read.object, read.problem)  # type: ignore[arg-type]
                else:
                    yield WatchEvent(event.type, read)  # type: ignore[arg-type]

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, object],
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
    ) -> bytes:
        """POST an object (or, with `name`, to its subresource). Raises Conflict if it exists."""
        path = resource.path(namespace, name, subresource)
        return await self._send("POST", path, body=msgspec.json.encode(body))

    async def replace(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, object],
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> bytes:
        """PUT a whole object or subresource. Never with a body that was read through a slim struct."""
        path = resource.path(namespace, name, subresource)
        return await self._send("PUT", path, body=msgspec.json.encode(body))

    async def read(self, path: str) -> bytes:
        """GET what is no object: discovery, version, health."""
        return await self._send("GET", path)

    async def patch(
        self,
        kind: type[K],
        name: str,
        body: object,
        namespace: str | None = None,
        *,
        patch_type: PatchType = "merge",
        subresource: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> K:
        """Change fields of an object. metadata.uid and .resourceVersion in the body are preconditions.

        Raises Conflict if they do not hold; to the API server another uid is an invalid change (422).
        """
        answer = await self._send(
            "PATCH",
            kind.resource.path(namespace, name, subresource),
            body=msgspec.json.encode(body),
            content_type=PATCH_CONTENT_TYPE[patch_type],
            query=query,
        )
        return _read(kind, name, answer)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
    ) -> None:
        """Delete an object; with `uid`, only that incarnation (else Conflict). Raises NotFound.

        `propagation` says what becomes of the objects it owns; None leaves it to the server.
        """
        options: dict[str, object] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation is not None:
            options["propagationPolicy"] = propagation
        await self._send("DELETE", resource.path(namespace, name), body=msgspec.json.encode(options))

    async def evict(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        """Ask for a pod's eviction, respecting its disruption budgets (429 if they forbid it).

        `dry_run`: only ask what the answer would be.
        """
        pods = Resource("", "v1", "pods", "Pod")
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}} | ({"dryRun": ["All"]} if dry_run else {}),
        }
        await self.create(pods, eviction, namespace, name=name, subresource="eviction")

    async def _send(self, method: str, path: str, **options: Unpack[RequestOptions]) -> bytes:
        answer = await self.transport.request(method, path, **options)
        if answer.status >= 300:
            raise _error(answer.status, answer.body)
        return answer.body


def _event(line: bytes) -> _RawWatch:
    try:
        return _watch_decoder.decode(line)
    except RecursionError:
        return _watch_decoder.decode(shallow(line))


def _read(kind: type[K], name: str, body: bytes) -> K:
    try:
        return decode_one(kind, body)
    except UNREADABLE as error:
        raise _unreadable(f"{kind.resource.kind} {name}", error) from error


def _unreadable(what: str, error: Exception) -> ApiError:
    """The request was answered, but not in words that we know: no retry makes it better."""
    return ApiError(200, f"the API server's answer about {what} cannot be read: {error}", reason="Unreadable")


def _query(**params: str) -> dict[str, str]:
    return {key: value for key, value in params.items() if value}


def _error(status: int, body: bytes) -> Exception:
    try:
        problem = _status_decoder.decode(body)
    except msgspec.DecodeError:
        problem = _Status(message=body[:300].decode(errors="replace"))
    if status == 422 and _ANOTHER_UID.search(problem.message):
        return Conflict(409, problem.message, reason="Conflict")
    return api_error(status, problem.message or f"the API server answered {status}", problem.reason)
