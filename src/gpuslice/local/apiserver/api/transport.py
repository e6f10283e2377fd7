"""The in-process client's way in: the same handlers as HTTP, without its framing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Unpack
from urllib.parse import unquote

from gpuslice.kube.client import RequestOptions, Response
from gpuslice.local.apiserver.api.http import JSON, Reply, Request, Stream


class LocalTransport:
    """A `kube.client.Transport` over an `ApiServer` of this process and event loop."""

    def __init__(self, handle: Callable[[Request], Awaitable[Reply | Stream]]) -> None:
        self._handle = handle

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Response:
        """One request, one whole answer. Like a network, it lets everybody else run meanwhile."""
        await asyncio.sleep(0)
        request = Request(
            method,
            unquote(path),
            options.get("query") or {},
            options.get("body") or b"",
            options.get("content_type", JSON),
        )
        answer = await self._handle(request)
        if isinstance(answer, Reply):
            return Response(answer.status, answer.body)
        pieces = [piece async for batch in answer.batches for piece in batch]
        return Response(answer.status, b"".join(pieces))

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """GET as (status, lines)."""
        answer = await self._handle(Request("GET", unquote(path), query))
        if isinstance(answer, Reply):
            yield answer.status, _once(answer.body)
            return
        try:
            yield answer.status, _flat(answer.batches)
        finally:
            answer.close()

    async def aclose(self) -> None:
        """Nothing to give back."""


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _flat(batches: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    async for batch in batches:
        for line in batch:
            yield line
