"""The server as an ASGI 3 application."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from gpuslice.local.apiserver.api import execution
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.http import Reply, Request, Stream, reply
from gpuslice.local.apiserver.schema.status import Failure, unauthorized
from gpuslice.observe.asgi import TooLarge, authorized, read_body
from gpuslice.observe.limits import MIB

BODY_LIMIT = 3 * MIB
"""Bytes of a request body; as kube-apiserver."""


def read_scope(scope: Any, body: bytes = b"") -> Request:
    """The request that an ASGI scope describes."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    lists = parse_qs(scope.get("query_string", b"").decode(), keep_blank_values=True)
    return Request(
        scope.get("method", "GET"),
        scope["path"],
        {name: values[-1] for name, values in lists.items()},
        body,
        headers.get(b"content-type", "application/json"),
        headers.get(b"accept", "application/json"),
        headers.get(b"user-agent", ""),
        lists,
    )


async def serve_scope(server: ApiServer, ending: asyncio.Event, scope: Any, receive: Any, send: Any) -> None:
    """Serve one HTTP request or one WebSocket. Streams do not outlast `ending`."""
    if scope["type"] == "websocket":
        if not authorized(scope, server.token):
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        await execution.serve(partial(server.exec, read_scope(scope)), scope, receive, send)
        return
    if scope["type"] != "http":
        return
    if not authorized(scope, server.token):
        await _send_reply(send, reply(unauthorized().body(), 401), [])
        return
    try:
        body = await read_body(receive, BODY_LIMIT)
    except TooLarge:
        failure = Failure(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_LIMIT}")
        await _send_reply(send, reply(failure.body(), 413), [])
        return
    if body is None:
        return
    request = read_scope(scope, body)
    answer = await server.handle(request)
    if isinstance(answer, Reply):
        await _send_reply(send, answer, request.warnings)
    else:
        await _send_stream(receive, send, answer, ending)


def _warning(text: str) -> tuple[bytes, bytes]:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return b"warning", f'299 - "{quoted}"'.encode("latin-1", "replace")


async def _send_reply(send: Any, answer: Reply, warnings: list[str]) -> None:
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-cache, private"),
        *map(_warning, warnings),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _send_stream(receive: Any, send: Any, answer: Stream, ending: asyncio.Event) -> None:
    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def close_at_the_end() -> None:
        await ending.wait()
        answer.close()  # what it has still to say is passed on

    async def pass_on() -> None:
        async for batch in answer.batches:
            await send({"type": "http.response.body", "body": b"".join(batch), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    headers = [(b"content-type", answer.content_type.encode()), (b"cache-control", b"no-cache, private")]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    # The headers must reach the client before the first event does.
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    tasks = [asyncio.create_task(part()) for part in (until_gone, pass_on, close_at_the_end)]
    try:
        await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
    finally:
        answer.close()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result
