"""/healthz, /readyz and /metrics for processes that serve nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from gpuslice.observe.asgi import NO_TOKEN, NOT_ALLOWED, NOT_FOUND, OK, TEXT, Answer, authorized, send_answer
from gpuslice.observe.limits import Limits

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text."""
LIMITS: Final = Limits(body_bytes=0)
"""No route takes a body."""


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
            await send_answer(send, NO_TOKEN)
        else:
            await send_answer(send, await self._answer(scope["method"], path))

    async def _answer(self, method: str, path: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return NOT_ALLOWED
        match path:
            case "/healthz":
                return OK
            case "/readyz":
                missing = self._waits_for()
                return (503, TEXT, missing.encode()) if missing else OK
            case "/metrics":
                return 200, CONTENT_TYPE, await self._metrics()
        return NOT_FOUND
