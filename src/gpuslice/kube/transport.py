"""`client.Transport` over HTTP/1.1, with no throttle of its own."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Unpack

import httpx2
from lightkube.core.exceptions import ConfigError

from gpuslice.errors import Unavailable
from gpuslice.kube.client import RequestOptions, Response
from gpuslice.kube.kubeconfig import Access

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 65.0
"""An API server itself gives up on a request after 60 seconds."""
WATCH_MARGIN_SECONDS: Final = 15.0
"""A watch that is silent this long after the server should have ended it is dead."""
KEEPALIVE_CONNECTIONS: Final = 100
"""Idle connections kept. The number in use is not limited: each open watch holds one."""

_FAILURES = (httpx2.HTTPError, httpx2.StreamError, OSError, ValueError, KeyError, ConfigError)
"""What a request may raise: a broken connection, or an exec plugin that gives no usable token."""


class HttpTransport:
    """`client.Transport` over HTTP/1.1: one connection per request in flight."""

    def __init__(self, access: Access) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=KEEPALIVE_CONNECTIONS)
        self._http = httpx2.AsyncClient(
            base_url=access.server,
            auth=access.auth,
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, pool=None),
            headers={"User-Agent": "gpuslice", "Accept": "application/json"},
            trust_env=False,
            transport=httpx2.AsyncHTTPTransport(
                verify=access.tls, limits=limits, socket_options=_keepalive()
            ),
        )

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Response:
        """One request, one whole answer. Raises Unavailable."""
        body = options.get("body")
        headers = {"Content-Type": options.get("content_type", "application/json")}
        try:
            answer = await self._http.request(
                method,
                path,
                params=options.get("query"),
                content=body,
                headers=headers if body is not None else None,
            )
        except _FAILURES as error:
            raise self._unavailable(error) from error
        return Response(answer.status_code, answer.content)

    def stream(
        self, path: str, *, query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]:
        """An open watch, as lines. Raises Unavailable when it breaks."""
        return self._stream(path, query)

    @asynccontextmanager
    async def _stream(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        # The server ends a watch after timeoutSeconds; a connection that stays silent beyond is dead.
        silence = float(query.get("timeoutSeconds") or ANSWER_SECONDS) + WATCH_MARGIN_SECONDS
        timeout = httpx2.Timeout(CONNECT_SECONDS, read=silence, pool=None)
        request = self._http.build_request("GET", path, params=query, timeout=timeout)
        try:
            answer = await self._http.send(request, stream=True)
        except _FAILURES as error:
            raise self._unavailable(error) from error
        # What the caller's own code raises while it reads is not ours to translate.
        try:
            yield answer.status_code, self._lines(answer)
        finally:
            await answer.aclose()

    async def aclose(self) -> None:
        """Close all connections. Safe to call twice."""
        await self._http.aclose()

    async def _lines(self, answer: httpx2.Response) -> AsyncIterator[bytes]:
        """Split a body at newlines. An object may be megabytes long and come in many pieces."""
        pieces: list[bytes] = []
        try:
            async for chunk in answer.aiter_bytes():
                *ended, rest = chunk.split(b"\n")
                for line in ended:
                    pieces.append(line)
                    if whole := b"".join(pieces):
                        yield whole
                    pieces.clear()
                if rest:
                    pieces.append(rest)
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise self._unavailable(error) from error
        if pieces:
            yield b"".join(pieces)

    def _unavailable(self, error: Exception) -> Unavailable:
        why = " ".join(str(error).split()) or type(error).__name__
        return Unavailable(f"the API server at {self._http.base_url} cannot be reached: {why}")


def _keepalive() -> list[tuple[int, int, int]]:
    """Socket options that notice a vanished peer within a minute, where the system has them."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options
