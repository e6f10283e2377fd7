"""What one start of a container has printed, kept in memory, to be read and followed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Final

from gpuslice.local.streams import LogOptions

LIMIT: Final = 1024 * 1024
"""Bytes kept per start of a container; beyond it the oldest lines go, as in a rotated file."""


class Log:
    """Lines with their times. One writer, any number of readers."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lines: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._dropped = 0  # lines that are gone from the front
        self._partial = b""
        self._closed = False
        self._changed: asyncio.Event | None = None  # made only while somebody follows

    def write(self, data: bytes) -> None:
        """Add output; an unfinished line waits for its end."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        now = self._now_ns()
        for line in lines:
            self._add(now, line + b"\n")
        self._tell()

    def close(self) -> None:
        """The container has ended. Safe to call twice."""
        if self._partial:
            self._add(self._now_ns(), self._partial)
            self._partial = b""
        self._closed = True
        self._tell()

    async def read(self, options: LogOptions) -> AsyncIterator[bytes]:
        """The lines that the options ask for; with `follow`, until the container ends."""
        position = self._dropped + self._first(options)
        left = options.limit_bytes
        while True:
            position = max(position, self._dropped)
            while position - self._dropped < len(self._lines):
                when, line = self._lines[position - self._dropped]
                position += 1
                if options.timestamps:
                    line = _stamp(when) + b" " + line
                if left is not None:
                    line = line[:left]
                    left -= len(line)
                if line:
                    yield line
                if left == 0:
                    return
            if not options.follow or self._closed:
                return
            if self._changed is None:
                self._changed = asyncio.Event()
            await self._changed.wait()

    def _first(self, options: LogOptions) -> int:
        first = 0
        if options.since_seconds is not None:
            since = self._now_ns() - options.since_seconds * 1_000_000_000
            first = sum(1 for when, _ in self._lines if when < since)
        if options.tail_lines is not None:
            first = max(first, len(self._lines) - options.tail_lines)
        return first

    def _add(self, when: int, line: bytes) -> None:
        self._lines.append((when, line))
        self._size += len(line)
        while self._size > LIMIT and len(self._lines) > 1:
            self._size -= len(self._lines.popleft()[1])
            self._dropped += 1

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


def _stamp(ns: int) -> bytes:
    seconds, rest = divmod(ns, 1_000_000_000)
    return (datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{rest:09d}Z").encode()
