"""/healthz, /readyz and /metrics for processes that serve nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from gpuslice.observe.limits import Limits
from gpuslice.observe.serving import authorized

Answer = tuple[int, str, bytes]
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text."""
TEXT: Final = "text/plain; charset=utf-8"
LIMITS: Final = Limits(body_bytes=0)
"""Nothing is sent to these routes."""
NO_TOKEN: Final[Answer] = (401, TEXT, b"a bearer token is required\n")


class ProbesApp:
    """ASGI 3. `waits_for` says in a few words why the process is not ready, "" once it is.

    With a token, /metrics is answered only to who has it; kubelet's probes carry none.
    """

    def __init__(
        self,
        *,
        waits_for: Callable[[], str],
        metrics: Callable[[], Awaitable[bytes]],
        token: str | None = None,
    ) -> None:
        self._waits_for = waits_for
        self._metrics = metrics
        self._token = token

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"].rstrip("/")
        if path == "/metrics" and not authorized(scope, self._token):
            status, kind, body = NO_TOKEN
        else:
            status, kind, body = await self._answer(scope["method"], path)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, method: str, path: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return 405, TEXT, b"Method Not Allowed\n"
        match path:
            case "/healthz":
                return 200, TEXT, b"ok"
            case "/readyz":
                missing = self._waits_for()
                return (503, TEXT, missing.encode()) if missing else (200, TEXT, b"ok")
            case "/metrics":
                return 200, CONTENT_TYPE, await self._metrics()
        return 404, TEXT, b"404 page not found\n"
