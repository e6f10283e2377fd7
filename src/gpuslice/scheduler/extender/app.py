"""The extender over HTTP: a raw ASGI application, since the hot routes deserve no framework."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gpuslice import names
from gpuslice.clock import Clock
from gpuslice.errors import InputError
from gpuslice.observe.metrics import CONTENT_TYPE, Metrics
from gpuslice.scheduler.extender.handlers import Extender

VERSION: Final = b"0.1.0"
"""What gpushare's /version answers; its clients compare it."""
BODY_LIMIT: Final = 256 * 1024 * 1024
"""kube-scheduler without nodeCacheCapable sends whole nodes: 62 MB for 5,000 of them."""
JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
OPEN: Final = ("/healthz", "/readyz")
"""Routes that kubelet's probes reach without a token."""

Answer = tuple[int, str, bytes]


class ExtenderApp:
    """Routes requests to `Extender`. With a token, everything but the probes must carry it.

    `admission` answers AdmissionReviews on /mutate: one server is enough for a small cluster.
    """

    def __init__(
        self,
        extender: Extender,
        metrics: Metrics,
        *,
        clock: Clock,
        ready: Callable[[], bool],
        token: str | None = None,
        admission: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._extender = extender
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._ready = ready
        self._token = token
        prefix = names.EXTENDER_PREFIX
        self._posts: dict[str, Callable[[bytes], Awaitable[Answer]]] = {
            f"{prefix}/filter": self._plain("filter", extender.filter),
            f"{prefix}/prioritize": self._plain("prioritize", extender.prioritize),
            f"{prefix}/preempt": self._plain("preempt", extender.preempt),
            f"{prefix}/bind": self._bind,
        }
        if admission is not None:
            self._posts["/mutate"] = self._mutate
        self._inspect = f"{prefix}/inspect"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI 3."""
        if scope["type"] != "http":
            return
        body = b""
        if scope["method"] == "POST":
            read = await _body(receive)
            if read is None:
                return
            body = read
        status, kind, answer = await self._answer(scope, body)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, scope: Any, body: bytes) -> Answer:
        path, method = scope["path"], scope["method"]
        if not self._admits(scope, path):
            return 401, TEXT, b"a bearer token is required\n"
        if len(body) > BODY_LIMIT:
            return 413, TEXT, b"the body is too large\n"
        if path in self._posts:
            return await self._posts[path](body) if method == "POST" else _not_allowed()
        get = self._get(path)
        if get is None:
            return 404, TEXT, b"404 page not found\n"
        return get() if method in ("GET", "HEAD") else _not_allowed()

    def _get(self, path: str) -> Callable[[], Answer] | None:
        """The GET route of a path."""
        if path == self._inspect or path == f"{self._inspect}/":
            return lambda: _json(self._extender.inspect())
        if path.startswith(f"{self._inspect}/") and path.count("/") == self._inspect.count("/") + 1:
            return lambda: _json(self._extender.inspect(path.rpartition("/")[2]))
        routes: dict[str, Callable[[], Answer]] = {
            "/version": lambda: (200, TEXT, VERSION),
            "/healthz": lambda: (200, TEXT, b"ok"),
            "/readyz": lambda: (
                (200, TEXT, b"ok") if self._ready() else (503, TEXT, b"the cache is not synced")
            ),
            "/metrics": lambda: (200, CONTENT_TYPE, self._metrics.render()),
        }
        return routes.get(path)

    def _admits(self, scope: Any, path: str) -> bool:
        if self._token is None or path in OPEN:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, b"Bearer " + self._token.encode())

    def _plain(self, verb: str, handler: Callable[[bytes], bytes]) -> Callable[[bytes], Awaitable[Answer]]:
        observe = self._metrics.seconds.labels(verb).observe

        async def answer(body: bytes) -> Answer:
            start = self._clock.monotonic()
            result = handler(body)
            observe(self._clock.monotonic() - start)
            return 200, JSON, result

        return answer

    async def _bind(self, body: bytes) -> Answer:
        start = self._clock.monotonic()
        status, result = await self._extender.bind(body)
        self._metrics.seconds.labels("bind").observe(self._clock.monotonic() - start)
        return status, JSON, result

    async def _mutate(self, body: bytes) -> Answer:
        assert self._admission is not None
        try:
            return 200, JSON, self._admission(body)
        except InputError as error:
            return 400, TEXT, f"{error}\n".encode()


def _json(answer: tuple[int, bytes]) -> Answer:
    return answer[0], JSON, answer[1]


def _not_allowed() -> Answer:
    return 405, TEXT, b"Method Not Allowed\n"


async def _body(receive: Any) -> bytes | None:
    """The whole body; None if the client went away. What is over the limit is not kept."""
    pieces: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        size += len(piece)
        if size <= BODY_LIMIT + len(piece):
            pieces.append(piece)
        more = message.get("more_body", False)
    return b"".join(pieces)
