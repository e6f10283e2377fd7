"""The extender over HTTP: a plain ASGI application, since a framework would slow the hot routes down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from gpuslice import names
from gpuslice.clock import Clock
from gpuslice.errors import Unavailable
from gpuslice.observe.asgi import (
    JSON,
    NO_TOKEN,
    NOT_ALLOWED,
    NOT_FOUND,
    OK,
    TEXT,
    Answer,
    TooLarge,
    authorized,
    read_body,
    refusal,
    send_answer,
)
from gpuslice.observe.limits import Limits
from gpuslice.observe.metrics import Metrics
from gpuslice.observe.probes import CONTENT_TYPE
from gpuslice.scheduler.extender.handlers import Extender

VERSION: Final = b"0.1.0"
"""What gpushare's /version answers; its clients compare it."""
BODY_LIMIT: Final = 128 * 1024 * 1024
"""kube-scheduler without nodeCacheCapable sends whole nodes: 62 MB for 5,000 of them."""
LIMITS: Final = Limits(body_bytes=BODY_LIMIT)
"""The limit of the server in front of it."""
PROBES: Final = ("/healthz", "/readyz")
OPEN: Final = (*PROBES, names.WEBHOOK_PATH)
"""Routes that need no token: kubelet's probes and the API server's webhook calls carry none. An admission
review changes nothing, and only reveals whether a node has a resource."""

Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class ExtenderApp:
    """Routes requests to `Extender`. With a token, everything that is not `OPEN` must carry it.

    `webhook` answers the requests to its own path: one server is enough for a small cluster.
    """

    def __init__(
        self,
        extender: Extender,
        metrics: Metrics,
        *,
        clock: Clock,
        ready: Callable[[], bool],
        token: str | None = None,
        webhook: Asgi | None = None,
    ) -> None:
        self._extender = extender
        self._webhook = webhook
        self._metrics = metrics
        self._clock = clock
        self._ready = ready
        self._token = token
        prefix = names.EXTENDER_PREFIX
        self._posts: dict[str, Callable[[bytes], Awaitable[Answer]]] = {
            f"{prefix}/filter": self._plain("filter", extender.filter),
            f"{prefix}/prioritize": self._plain("prioritize", extender.prioritize),
            f"{prefix}/preempt": self._timed("preempt", extender.preempt),
            f"{prefix}/bind": self._bind,
        }
        self._inspect = f"{prefix}/inspect"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI 3."""
        if scope["type"] != "http":
            return
        # httprouter redirects a path with a slash at its end to the path without it; we answer at once.
        path = scope["path"].rstrip("/") or "/"
        if path == names.WEBHOOK_PATH and self._webhook is not None:
            await self._webhook(scope, receive, send)
            return
        if not self._admits(scope, path):
            await send_answer(send, NO_TOKEN)
            return
        body: bytes | None = b""
        if scope["method"] == "POST":
            # Read only after the token was checked: nobody without one shall make us hold so much.
            try:
                body = await read_body(receive, BODY_LIMIT)
            except TooLarge as error:
                await send_answer(send, refusal(error))
                return
        if body is not None:
            await send_answer(send, await self._answer(scope["method"], path, body))

    async def _answer(self, method: str, path: str, body: bytes) -> Answer:
        if path in self._posts:
            return await self._posts[path](body) if method == "POST" else NOT_ALLOWED
        if not self._knows(path):
            return NOT_FOUND
        return await self._get(path) if method in ("GET", "HEAD") else NOT_ALLOWED

    def _knows(self, path: str) -> bool:
        """True if there is such a GET route. Below `inspect` any single name is a route."""
        fixed = (self._inspect, "/version", "/metrics", *PROBES)
        return path in fixed or path.rpartition("/")[0] == self._inspect

    async def _get(self, path: str) -> Answer:
        match path:
            case "/version":
                return 200, TEXT, VERSION
            case "/healthz":
                return OK
            case "/readyz":
                return OK if self._ready() else (503, TEXT, b"the cache is not synced")
            case "/metrics":
                return 200, CONTENT_TYPE, await self._extender.metrics()
        node = None if path == self._inspect else path.rpartition("/")[2]
        status, answer = await self._extender.inspect(node)
        return status, JSON, answer

    def _admits(self, scope: Any, path: str) -> bool:
        return path in OPEN or authorized(scope, self._token)

    def _plain(self, verb: str, handler: Callable[[bytes], bytes]) -> Callable[[bytes], Awaitable[Answer]]:
        async def at_once(body: bytes) -> bytes:
            return handler(body)

        return self._timed(verb, at_once)

    def _timed(
        self, verb: str, handler: Callable[[bytes], Awaitable[bytes]]
    ) -> Callable[[bytes], Awaitable[Answer]]:
        observe = self._metrics.seconds.labels(verb).observe

        async def answer(body: bytes) -> Answer:
            start = self._clock.monotonic()
            try:
                result = await handler(body)
            except Unavailable as error:
                return refusal(error)
            observe(self._clock.monotonic() - start)
            return 200, JSON, result

        return answer

    async def _bind(self, body: bytes) -> Answer:
        start = self._clock.monotonic()
        status, result = await self._extender.bind(body)
        self._metrics.seconds.labels("bind").observe(self._clock.monotonic() - start)
        return status, JSON, result
