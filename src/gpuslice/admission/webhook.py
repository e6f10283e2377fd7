"""The admission webhook over HTTPS: one route for the API server, one to see that it answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from gpuslice.admission import certificates
from gpuslice.admission.mutate import review
from gpuslice.clock import Clock
from gpuslice.errors import InputError
from gpuslice.observe.serving import Tls, TooLarge, read_body, serving

BODY_LIMIT: Final = 3 * 1024 * 1024
"""kube-apiserver takes no larger request, and etcd no object of more than 1.5 MiB."""
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
    try:
        body = await read_body(receive, BODY_LIMIT)
        if body is None:
            return None
        return 200, "application/json", review(body)
    except TooLarge as error:
        return 413, TEXT, f"{error}\n".encode()
    except InputError as error:
        return 400, TEXT, f"{error}\n".encode()
