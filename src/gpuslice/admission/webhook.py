"""The admission webhook over HTTPS: one route for the API server, one to see that it answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from gpuslice.admission import certificates
from gpuslice.admission.mutate import review
from gpuslice.clock import Clock
from gpuslice.errors import InputError
from gpuslice.observe.serving import Tls, serving

BODY_LIMIT: Final = 16 * 1024 * 1024
"""An object has at most 1.5 MiB in etcd; a review holds two."""
PATH: Final = "/mutate"
TEXT: Final = "text/plain; charset=utf-8"

Answer = tuple[int, str, bytes]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """ASGI 3. Open to everyone: a review changes nothing and reveals nothing."""
    if scope["type"] != "http":
        return
    answer = await _answer(scope["method"], scope["path"].rstrip("/"), receive)
    if answer is None:
        return
    status, kind, body = answer
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve(host: str, port: int, folder: Path, *, clock: Clock) -> None:
    """Serve until cancelled, with tls.crt and tls.key of a folder, read again when they change.

    Raises InputError if the address is taken or the files cannot be used.
    """
    tls = Tls(folder / certificates.SERVING, folder / certificates.SERVING_KEY)
    async with serving(app, host=host, port=port, clock=clock, tls=tls):
        await asyncio.Event().wait()


async def _answer(method: str, path: str, receive: Any) -> Answer | None:
    """None if the client went away."""
    if path == "/healthz":
        return 200, TEXT, b"ok"
    if path != PATH:
        return 404, TEXT, b"404 page not found\n"
    if method != "POST":
        return 405, TEXT, b"Method Not Allowed\n"
    pieces: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        size += len(message.get("body", b""))
        if size > BODY_LIMIT:
            return 413, TEXT, b"the body is too large\n"
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    try:
        return 200, "application/json", review(b"".join(pieces))
    except InputError as error:
        return 400, TEXT, f"{error}\n".encode()
