"""What ASGI applications have in common: a body within limits, a bearer token, an answer in one piece."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from gpuslice.errors import GpuSliceError, InputError, Unavailable

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
START: Final = 4096
"""Bytes that are kept of a body that is too large or gave way to others."""

Answer = tuple[int, str, bytes]
"""Status, content type, body."""
OK: Final[Answer] = (200, TEXT, b"ok")
NO_TOKEN: Final[Answer] = (401, TEXT, b"a bearer token is required\n")
NOT_FOUND: Final[Answer] = (404, TEXT, b"404 page not found\n")
NOT_ALLOWED: Final[Answer] = (405, TEXT, b"Method Not Allowed\n")


class TooLarge(InputError):
    """The body of a request is larger than its reader allows. `start`: how it begins."""

    def __init__(self, limit: int, start: bytes) -> None:
        super().__init__(f"the body of this request may be {limit} bytes long")
        self.start = start


class GaveWay(Unavailable):
    """The body of a request was the largest of too many at once. `start`: how it begins."""

    def __init__(self, start: bytes) -> None:
        super().__init__("too much is being read at once; ask again")
        self.start = start


async def send_answer(send: Any, answer: Answer) -> None:
    """Answer an HTTP request."""
    status, kind, body = answer
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def refusal(error: GpuSliceError) -> Answer:
    """An error as an answer: a request that is too large, wrong, or comes at a bad time."""
    status = 413 if isinstance(error, TooLarge) else 503 if isinstance(error, Unavailable) else 400
    return status, TEXT, f"{error}\n".encode()


def authorized(scope: Any, token: str | None) -> bool:
    """Whether an ASGI request carries the bearer token that is demanded, if any."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    return token is None or hmac.compare_digest(given, b"Bearer " + token.encode())


@dataclass(slots=True, eq=False)
class _Body:
    start: bytes = b""
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0


class Bodies:
    """The bodies that are being read, together within `most` bytes: beyond that the largest is dropped.

    Each is within its own limit, but there may be hundreds at once, of clients that are slow on purpose.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._reading: set[_Body] = set()

    @contextmanager
    def one(self) -> Iterator[_Body]:
        """A new body, which counts while the block runs."""
        body = _Body()
        self._reading.add(body)
        try:
            yield body
        finally:
            self._forget(body)

    def add(self, body: _Body, piece: bytes) -> None:
        """Add a piece of the body. Raises GaveWay if the body had to give way to others."""
        body.start = body.start or piece[:START]
        if body in self._reading:
            body.pieces.append(piece)
            body.size += len(piece)
            self._size += len(piece)
        while self._size > self._most:
            self._forget(max(self._reading, key=lambda one: one.size))
        if body not in self._reading:
            raise GaveWay(body.start)

    def _forget(self, body: _Body) -> None:
        if body in self._reading:
            self._reading.remove(body)
            self._size -= body.size
            body.pieces.clear()


async def read_body(receive: Any, limit: int, bodies: Bodies | None = None) -> bytes | None:
    """The whole body of an ASGI request, None if the client went away.

    Raises TooLarge beyond `limit` bytes, of which nothing more is kept; GaveWay if it had to give way to
    others of `bodies`.
    """
    together = bodies or Bodies(limit)
    with together.one() as body:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            if body.size + len(piece) > limit:
                raise TooLarge(limit, b"".join([*body.pieces, piece])[:START])
            together.add(body, piece)
            if not message.get("more_body", False):
                return b"".join(body.pieces)
