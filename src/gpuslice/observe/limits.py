"""Puts limits on one connection of an HTTP server: uvicorn's protocol has none of its own.

httptools collects a header until it ends, however long it gets; uvicorn waits for ever for a request to be
complete, and makes an object of every pipelined one. Here each part of a request has a size and a time. Time
is counted in looks, one a second, not read from a clock: if the loop was held up, no client is blamed for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may do. Times are in looks, which are seconds."""

    header_bytes: int = 64 * KIB
    """Bytes of the request line and all headers together; as much again between two pieces of a chunked
    body.
    """
    headers: int = 100
    body_bytes: int = 3 * MIB
    """As kube-apiserver takes and sends at most."""
    pipelined: int = 8
    """Requests that are sent before the first is answered."""
    connections: int = 512
    header_seconds: int = 10
    """From the start of a connection, TLS handshake included, or from the first byte of a later request."""
    body_seconds: int = 30
    idle_seconds: int = 120
    """Between two requests. Longer than Go's 90 s, so that the client is the one who closes."""
    write_seconds: int = 30
    """How long a client may take none of its answer."""
    linger_seconds: int = 2
    """How long a refused client is still read from, so that it gets the reason instead of a reset
    connection.
    """
    linger_bytes: int = 16 * MIB
    """How many bytes are read from it then."""


class Part(Enum):
    """What a connection waits for."""

    OPENING = "the TLS handshake, or the first request"
    HEADERS = "the rest of the headers"
    BODY = "the rest of the body"
    ANSWER = "us, or it is a WebSocket"
    IDLE = "the next request"
    OVER = "its end: it was refused, or is being closed"


class _Refused(Exception):
    """Stops the parser. Says why by status and sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Connection(HttpToolsProtocol):
    """uvicorn's protocol within `Limits`. `refused` is told of every refusal, `lost` of the end."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        limits: Limits,
        *,
        refused: Callable[[str], None],
        lost: Callable[[Connection], None],
    ) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.opening: asyncio.Task[None] | None = None
        """The TLS handshake."""
        self.looks = 0
        """Since it waits for what it waits for now."""
        self._limits = limits
        self._tell = refused
        self._lost = lost
        self._reading = Part.OPENING
        self._over = False
        self._refused = False
        self._refusal: _Refused | None = None
        self._requests = 0
        self._head = 0  # bytes of the head that is being read, which the parser may still hold
        self._parsed = 0  # bytes of it that the parser has handed out
        self._count = 0
        self._body = 0
        self._between = 0  # bytes since the last piece of the body: chunk extensions, trailers
        self._unsent = 0
        self._stuck = 0  # looks since the client has taken anything
        self._unread = 0  # bytes that came after a refusal

    # --- what it waits for ------------------------------------------------------------------------
    @property
    def part(self) -> Part:
        """What it waits for."""
        if self._over or (self.transport is not None and self.transport.is_closing()):
            return Part.OVER
        if self._reading in (Part.HEADERS, Part.BODY):
            return self._reading
        if self._reading is Part.ANSWER or (self.cycle is not None and not self.cycle.response_complete):
            return Part.ANSWER
        return self._reading

    def look(self) -> None:
        """Once a second: end what has taken too long."""
        self.looks += 1
        limits = self._limits
        unsent = self.transport.get_write_buffer_size() if self.transport is not None else 0
        self._stuck = self._stuck + 1 if unsent and unsent >= self._unsent else 0
        self._unsent = unsent
        match self.part:
            case Part.OPENING if self.looks > limits.header_seconds:
                self._tell("no request came")
                self._close()
            case Part.HEADERS if self.looks > limits.header_seconds:
                self._refuse(408, f"the headers of a request must be here within {limits.header_seconds} s")
            case Part.BODY if self.flow.read_paused:
                self.looks = 0  # it is this server that does not read
            case Part.BODY if self.looks > limits.body_seconds:
                self._refuse(408, f"the body of a request must be here within {limits.body_seconds} s")
            case Part.IDLE if self.looks > limits.idle_seconds:
                self._close()
            case Part.OVER if self.looks > (limits.linger_seconds if self._refused else limits.write_seconds):
                self.abort()
        if self._stuck > limits.write_seconds:
            self._tell("an answer was not taken")
            self.abort()

    def give_way(self) -> None:
        """End at once, to make room for another connection."""
        if self.part in (Part.HEADERS, Part.BODY):
            self._refuse(503, "there are too many connections, and this one was waited for longest")
        elif self.part is not Part.OVER:
            self._tell("there are too many connections, and this one was idle longest")
        self.abort()

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """Which of several connections are to give way first: the lowest.

        Those that are over; those that have been waited for longer than a moment, whoever is in the middle of
        a request before whoever has made one and may make another; the others.
        """
        part = self.part
        return part is not Part.OVER, self.looks == 0, part is Part.IDLE, -self.looks

    def abort(self) -> None:
        """Close it and forget what is not written yet."""
        if self.opening is not None and not self.opening.done():
            self.opening.cancel()
        elif self.transport is not None:
            self.transport.abort()
        self._over = True

    def _close(self) -> None:
        """Close it, once all is written, without a word to the client."""
        if self.transport is None:
            self.abort()
            return
        self.transport.close()
        self._over, self.looks = True, 0

    def _now_at(self, part: Part) -> None:
        self._reading = part
        self.looks = 0

    # --- asyncio ----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over. Its time counts among that of the first headers."""
        super().connection_made(transport)  # type: ignore[arg-type]
        if self._over:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, within the limits."""
        if self._over:
            # It was refused, and reads the answer at its leisure.
            self._unread += len(data)
            if self._unread > self._limits.linger_bytes:
                self.abort()
            return
        before, requests, body = self._reading, self._requests, self._body
        try:
            self._feed(data)
        except httptools.HttpParserError:
            wrong = self._refusal or _Refused(400, "this is not HTTP/1.1")
            self._refuse(wrong.status, wrong.sentence)
            return
        if self._reading is Part.HEADERS and before is not Part.BODY:
            # Not if it is the rest of a chunk with whole requests in it: those have been counted.
            self._head += len(data) if self._requests - requests <= (before is not Part.HEADERS) else 0
            if self._head > self._limits.header_bytes:
                self._too_long()
        elif self._reading is Part.BODY and before is Part.BODY:
            self._between = self._between + len(data) if self._body == body else 0
            if self._between > self._limits.header_bytes:
                self._too_long()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self._now_at(Part.ANSWER)
                self.handle_websocket_upgrade()
            else:
                # No other protocol is spoken here: the request is answered, and the parser takes no more.
                self.cycle.keep_alive = False

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over; its end is still told to us."""
        super().handle_websocket_upgrade()
        protocol: Any = self.transport.get_protocol()
        theirs = protocol.connection_lost

        def lost(error: Exception | None) -> None:
            self._lost(self)
            theirs(error)

        protocol.connection_lost = lost

    # --- the parser -------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        """A request begins."""
        if len(self.pipeline) >= self._limits.pipelined:
            self._stop(
                503, f"more than {self._limits.pipelined} requests were sent before the first was answered"
            )
        super().on_message_begin()
        self._requests += 1
        self._head = self._parsed = self._count = 0
        # The first request must be here within the time of the connection itself.
        looks = self.looks if self._reading is Part.OPENING else 0
        self._now_at(Part.HEADERS)
        self.looks = looks

    def on_url(self, url: bytes) -> None:
        """A piece of the URL."""
        self._read(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header, or a trailer, which nobody reads."""
        self._count += 1
        if self._count > self._limits.headers:
            self._stop(431, f"a request may have {self._limits.headers} headers")
        self._read(len(name) + len(value) + 4)
        if self._reading is Part.HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body begins."""
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if length.isdigit() and (len(length) > 18 or int(length) > self._limits.body_bytes):
            self._too_large()
        self._now_at(Part.BODY)
        self._body = self._between = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body += len(body)
        if self._body > self._limits.body_bytes:
            self._too_large()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here."""
        super().on_message_complete()
        self._now_at(Part.IDLE)

    def on_response_complete(self) -> None:
        """The answer is written."""
        self.looks = 0
        super().on_response_complete()
        self._unset_keepalive_if_required()  # idle connections are looked after here

    # --- refusing ---------------------------------------------------------------------------------
    def _read(self, size: int) -> None:
        self._parsed += size
        if self._parsed > self._limits.header_bytes:
            self._stop(431, f"the headers of a request may be {self._limits.header_bytes} bytes long")

    def _too_long(self) -> None:
        self._refuse(431, f"the headers of a request may be {self._limits.header_bytes} bytes long")

    def _too_large(self) -> None:
        self._stop(413, f"the body of a request may be {self._limits.body_bytes} bytes long")

    def _stop(self, status: int, sentence: str) -> None:
        self._refusal = _Refused(status, sentence)
        raise self._refusal

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer with one sentence, where no other answer has begun, and take no more."""
        self._tell(sentence)
        answering = self.cycle is not None and not self.cycle.response_complete
        answered = self._reading is Part.BODY and not answering
        # Answers come in the order of the requests: with others under way nothing can be said of this one.
        silent = (
            answered
            or bool(self.pipeline)
            or (answering and (self.cycle.response_started or self._reading is Part.HEADERS))
        )
        self.pipeline.clear()
        if answering:
            # Whoever is at work on it is told that the client has gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if silent or self.transport.is_closing():
            self._close()
            return
        self.flow.resume_reading()
        text = f"{sentence}\n".encode()
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(text) + text)
        self._over = self._refused = True
        self.looks = 0
