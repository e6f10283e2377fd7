"""uvicorn's server with admission of connections: they are counted, and closed when they hold up others.

asyncio's own accept loop takes connections without end, and when files run out it logs the same line two
thousand times a second (Python 3.11 to 3.13). Ours takes one connection in each turn of the loop. When all
places are taken, the connection whose client has been waited for longest is closed: a silent client cannot
keep out the API server or a probe.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import structlog
import uvicorn

from gpuslice.clock import Clock
from gpuslice.observe.limits import Connection, Limits, Part
from gpuslice.observe.repeats import Repeats

LOOK_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.1
"""Seconds before the next accept when no file descriptor is left."""
FILES: Final = 65536
"""The limit of open files to ask for, if the process may have so many."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = structlog.get_logger(__name__)


class GuardedServer(uvicorn.Server):
    """uvicorn without its signal handlers, within `Limits`. Serves one listening socket.

    `accepting` is set once connections are taken.
    """

    def __init__(self, config: uvicorn.Config, limits: Limits, clock: Clock) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()
        self.guests: dict[Connection, None] = {}
        """All connections, those in their TLS handshake among them, from the oldest to the newest."""
        self._limits = limits
        self._clock = clock
        self._repeats = Repeats(clock.monotonic)
        self._doors: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        await self.lifespan.startup()
        allow_files()
        self.servers = []
        for listener in sockets or []:
            listener.setblocking(False)
            self._doors.append(asyncio.create_task(self._accept(listener), name="accept"))
        self._doors.append(asyncio.create_task(self._look(), name="look after connections"))
        self.started = True
        self.accepting.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections; close those that are answered, then the rest."""
        for door in self._doors:
            door.cancel()
        await asyncio.gather(*self._doors, return_exceptions=True)
        for guest in [one for one in self.guests if one.part is Part.OPENING]:
            guest.abort()
        await super().shutdown(sockets)
        for guest in list(self.guests):
            guest.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's handlers alone: Ctrl-C is handled where the program is assembled."""
        yield

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._repeats.warning("no connection can be taken", error=error.strerror)
                    self._make_room()
                    await self._clock.sleep(PAUSE_SECONDS)
                continue
            if len(self.guests) >= self._limits.connections and not self._make_room():
                self._turn_away(connected)
            else:
                self._let_in(connected)
            await asyncio.sleep(0)  # a crowd at the door does not hold up those inside

    def _let_in(self, connected: socket.socket) -> None:
        guest = Connection(
            self.config, self.server_state, self._limits, refused=self._refused, lost=self._forget
        )
        self.guests[guest] = None
        guest.opening = asyncio.create_task(self._open(guest, connected))

    async def _open(self, guest: Connection, connected: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        context = self.config.ssl
        patience = {"ssl_handshake_timeout": 60.0, "ssl_shutdown_timeout": 5.0} if context else {}
        try:
            await loop.connect_accepted_socket(lambda: guest, connected, ssl=context, **patience)
        except ConnectionError:
            pass  # it left, as whoever only looks whether the port is open
        except OSError as error:  # ssl.SSLError among them
            self._repeats.warning("a connection failed before its first request", error=str(error))
        finally:
            if guest.transport is None:
                connected.close()
                self._forget(guest)

    def _make_room(self) -> bool:
        """Close the connection whose client has been waited for longest; False if all are being answered."""
        waited_for = [guest for guest in self.guests if guest.part is not Part.ANSWER]
        if waited_for:
            min(waited_for, key=lambda guest: guest.rank).give_way()
        return bool(waited_for)

    def _turn_away(self, connected: socket.socket) -> None:
        self._refused("all connections are being answered: a new one was turned away")
        with connected, suppress(OSError):
            if self.config.ssl is None:
                text = b"there are too many connections\n"
                head = (
                    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nconnection: close\r\n"
                )
                connected.send(head + b"content-length: %d\r\n\r\n" % len(text) + text)

    def _refused(self, why: str) -> None:
        self._repeats.warning("a client was refused", key=why, why=why)

    def _forget(self, guest: Connection) -> None:
        self.guests.pop(guest, None)

    async def _look(self) -> None:
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            for guest in list(self.guests):
                guest.look()


def allow_files(wanted: int = FILES) -> None:
    """Raise the process's limit of open files as far as needed and allowed: the default may be 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
