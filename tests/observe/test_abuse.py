"""Clients that want a server down: endless and many headers, large bodies, slow and silent ones, crowds."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from pki import Authority
from structlog.testing import capture_logs

from gpuslice.observe.asgi import read_body
from gpuslice.observe.guarded import FILES, LOOK_SECONDS, PAUSE_SECONDS, allow_files
from gpuslice.observe.limits import Limits
from gpuslice.observe.logging import setup
from gpuslice.observe.repeats import QUIET_SECONDS, REMEMBERED, Repeats, StandardLibrary
from gpuslice.observe.serving import serving

SMALL = Limits(
    header_bytes=2000,
    headers=10,
    body_bytes=1000,
    pipelined=3,
    connections=4,
    header_seconds=3,
    body_seconds=5,
    idle_seconds=8,
    write_seconds=4,
    linger_seconds=1,
    linger_bytes=6_000_000,
)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Hand:
    """A clock that is moved by hand: only who waits for the next look is woken."""

    def __init__(self) -> None:
        self.sleepers: dict[float, list[asyncio.Future[None]]] = {}
        self.asleep = asyncio.Event()

    def now_ns(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self.sleepers.setdefault(seconds, []).append(future)
        self.asleep.set()
        await future

    async def look(self, times: int = 1) -> None:
        """Let so many seconds pass."""
        for _ in range(times):
            await self.wake(LOOK_SECONDS)
            await self.sleeping(LOOK_SECONDS)

    async def sleeping(self, seconds: float) -> None:
        while not self.sleepers.get(seconds):
            self.asleep.clear()
            await self.asleep.wait()

    async def wake(self, seconds: float) -> None:
        await self.sleeping(seconds)
        for future in self.sleepers.pop(seconds):
            future.set_result(None)


class App:
    """Answers with the size of the body; /slow only when it is told to, /big with more than sockets hold."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.go = asyncio.Event()
        self.headers: list[tuple[bytes, bytes]] = []
        self.left: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/unread":
            body: bytes | None = b""
        else:
            body = await read_body(receive, 10**9)
        if body is None:
            self.left.append(scope["path"])
            return
        if scope["path"] == "/slow":
            self.arrived.set()
            await self.go.wait()
        self.headers = list(scope["headers"])
        answer = b"." * 50_000_000 if scope["path"] == "/big" else b"%d bytes" % len(body)
        length = (b"content-length", str(len(answer)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": answer})


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> str:
        """The next answer: its status and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            int(one[15:]) for one in head.lower().split(b"\r\n") if one.startswith(b"content-length:")
        )
        return f"{head.split()[1].decode()} {(await self.reader.readexactly(length)).decode().strip()}"

    async def closed(self) -> bool:
        """Wait for the end; false if something was said before it."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


class Site:
    """A server with small limits, and its clock."""

    def __init__(self, app: App, clock: Hand, port: int, context: ssl.SSLContext | None) -> None:
        self.app = app
        self.clock = clock
        self.port = port
        self.context = context
        self.clients: list[Client] = []

    async def client(self) -> Client:
        made = Client(*await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context, limit=10**8))
        self.clients.append(made)
        return made

    async def serves(self) -> None:
        """Another client is answered."""
        one = await self.client()
        one.send(GET)
        assert await one.answer() == "200 0 bytes"
        one.writer.close()


@asynccontextmanager
async def site(limits: Limits = SMALL, *, tls: Path | None = None) -> AsyncIterator[Site]:
    files, context = None, None
    if tls is not None:
        authority = Authority(tls)
        files = authority.issue("server")
        context = ssl.create_default_context(cafile=authority.file)
    app, clock = App(), Hand()
    async with asyncio.timeout(30):
        serves = serving(
            app, host="127.0.0.1", port=0, clock=clock, tls=files, grace_seconds=1, limits=limits
        )
        async with serves as (_, port):
            made = Site(app, clock, port, context)
            try:
                yield made
            finally:
                app.go.set()
                for client in made.clients:
                    client.writer.transport.abort()


async def silent(port: int) -> socket.socket:
    """A connection that says nothing."""
    made = socket.socket()
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    return made


# --- headers --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "endless",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * 1000,
        b"GET /" + b"a" * 1000,
        b"GET / HTTP/1.1\r\n" + b"a" * 1000,
        b"GET / HTTP/1.1\r\nX: a\r\n" + b" folded\r\n" * 100,
    ],
    ids=["value", "url", "name", "folded"],
)
async def test_endless_headers_are_refused_before_they_are_held(endless: bytes) -> None:
    """httptools collects a header until it ends: 1.1 GB in 4.5 s."""
    async with site() as here:
        one = await here.client()
        one.send(endless)
        for _ in range(20):
            one.send(b"a" * 100)
            await asyncio.sleep(0)
        assert (await one.answer())[:4] in ("431 ", "400 ")
        await here.clock.look(3)
        assert await one.closed()
        await here.serves()


async def test_a_large_header_at_once_and_many_small_ones_are_refused() -> None:
    async with site() as here:
        for head in (b"X: " + b"a" * 3000 + b"\r\n", b"X: a\r\n" * 11):
            one = await here.client()
            one.send(b"GET / HTTP/1.1\r\n" + head + b"\r\n")
            assert (await one.answer()).startswith("431 ")


async def test_what_is_within_the_limits_is_answered_on_one_connection_again_and_again() -> None:
    async with site() as here:
        one = await here.client()
        for _ in range(5):
            one.send(b"GET / HTTP/1.1\r\nX: " + b"a" * 1900 + b"\r\n\r\n")
            assert await one.answer() == "200 0 bytes"
            one.send(b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + b"a" * 1000)
            assert await one.answer() == "200 1000 bytes"


async def test_trailers_and_chunk_extensions_are_bounded_and_are_no_headers() -> None:
    chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with site() as here:
        one = await here.client()
        one.send(chunked + b"3\r\nabc\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        assert await one.answer() == "200 3 bytes"
        assert b"authorization" not in dict(here.app.headers)
        for endless in (b"0\r\nX: ", b"3;"):
            one = await here.client()
            one.send(chunked + endless)
            for _ in range(30):
                one.send(b"a" * 100)
                await asyncio.sleep(0)
            assert (await one.answer()).startswith("431 ")


# --- bodies ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(chunked: bool) -> None:
    async with site() as here:
        one = await here.client()
        if chunked:
            one.send(
                b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"64\r\n" + b"a" * 100 + b"\r\n"
            )
            for _ in range(10):
                one.send(b"64\r\n" + b"a" * 100 + b"\r\n")
        else:
            one.send(b"POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n")
        assert await one.answer() == "413 the body of a request may be 1000 bytes long"
        await here.serves()


async def test_a_refused_client_reads_why_although_it_still_sends() -> None:
    """A connection that is closed while the client sends is reset, and what was said is lost."""
    async with site() as here:
        one = await here.client()
        one.send(b"POST / HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n")
        for _ in range(50):
            one.send(b"a" * 100_000)
            await one.writer.drain()
        assert (await one.answer()).startswith("413 ")
        await here.clock.look(3)
        assert await one.closed()


async def test_a_refused_client_is_not_listened_to_for_ever() -> None:
    """Not even for the seconds that it has to read why."""
    async with site() as here:
        one = await here.client()
        one.send(b"POST / HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n")
        with pytest.raises(ConnectionError):
            while True:
                one.send(b"a" * 100_000)
                await one.writer.drain()


async def test_an_answer_that_does_not_wait_for_the_body_leaves_the_limits_in_force() -> None:
    async with site() as here:
        one = await here.client()
        one.send(b"POST /unread HTTP/1.1\r\nContent-Length: 500\r\n\r\n")
        assert await one.answer() == "200 0 bytes"
        await here.clock.look(7)
        assert await one.closed()


# --- slow and silent ------------------------------------------------------------------------------
async def test_slow_headers_and_bodies_have_a_time() -> None:
    async with site() as here:
        head, body = await here.client(), await here.client()
        head.send(b"GET / HTTP/1.1\r\n")
        body.send(b"POST /slow HTTP/1.1\r\nContent-Length: 100\r\n\r\n")
        await here.serves()  # both have been read
        for _ in range(3):
            await here.clock.look()
            head.send(b"X: a\r\n")
            body.send(b"a")
            await here.serves()
        await here.clock.look()
        assert await head.answer() == "408 the headers of a request must be here within 3 s"
        await here.clock.look(2)
        assert await body.answer() == "408 the body of a request must be here within 5 s"
        await here.serves()
        assert here.app.left == ["/slow"]


async def test_connections_that_say_nothing_or_no_more_are_closed() -> None:
    async with site() as here:
        never, once = await here.client(), await here.client()
        once.send(GET)
        await once.answer()
        await here.clock.look(4)
        assert await never.closed()
        await here.clock.look(4)
        once.send(GET)
        assert await once.answer() == "200 0 bytes"
        await here.clock.look(9)
        assert await once.closed()


async def test_a_request_that_we_are_slow_to_answer_is_not_blamed() -> None:
    async with site() as here:
        one = await here.client()
        one.send(b"GET /slow HTTP/1.1\r\n\r\n")
        await here.app.arrived.wait()
        await here.clock.look(50)
        here.app.go.set()
        assert await one.answer() == "200 0 bytes"


async def test_who_does_not_take_the_answer_is_let_go() -> None:
    async with site() as here:
        one = socket.create_connection(("127.0.0.1", here.port))
        one.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        with capture_logs() as logs:
            while not any(entry.get("why") == "an answer was not taken" for entry in logs):
                await here.clock.look()
        with one:
            one.settimeout(5)
            received = 0
            with suppress(ConnectionError):
                while piece := one.recv(1_000_000):
                    received += len(piece)
            assert received < 50_000_000


async def test_a_handshake_that_never_ends_does(tmp_path: Path) -> None:
    async with site(tls=tmp_path) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        await here.serves()
        await here.clock.look(4)
        assert await reader.read() == b""
        writer.close()


# --- crowds ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("tls", [False, True])
async def test_a_crowd_of_silent_connections_keeps_nobody_out(tls: bool, tmp_path: Path) -> None:
    """1,100 of them: probes timed out."""
    async with site(tls=tmp_path if tls else None) as here:
        crowd = [await silent(here.port) for _ in range(40)]
        await here.serves()
        # Those that are new are let be as long as there are old ones.
        await here.clock.look()
        crowd += [await silent(here.port) for _ in range(2)]
        await here.serves()
        with suppress(ConnectionError):
            assert await asyncio.get_running_loop().sock_recv(crowd[0], 1) == b""  # it had to go
        for one in crowd:
            one.close()


async def test_whoever_is_in_the_middle_of_a_request_goes_before_whoever_has_made_one() -> None:
    async with site() as here:
        known = await here.client()
        known.send(GET)
        await known.answer()
        for _ in range(3):
            slow = await here.client()
            slow.send(b"GET / HTTP/1.1\r\nX: ")
        await here.clock.look()
        await here.serves()
        known.send(GET)
        assert await known.answer() == "200 0 bytes"


async def test_no_request_that_is_being_answered_is_given_up_for_a_new_one() -> None:
    async with site() as here:
        busy = [await here.client() for _ in range(4)]
        for one in busy:
            here.app.arrived.clear()
            one.send(b"GET /slow HTTP/1.1\r\n\r\n")
            await here.app.arrived.wait()
        assert await (await here.client()).answer() == "503 there are too many connections"
        here.app.go.set()
        assert {await one.answer() for one in busy} == {"200 0 bytes"}
        await here.serves()


async def test_pipelined_requests_are_answered_in_order_and_have_a_limit() -> None:
    async with site() as here:
        one = await here.client()
        one.send(GET * 3 + b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab")
        assert [await one.answer() for _ in range(4)] == ["200 0 bytes"] * 3 + ["200 2 bytes"]
        one.send(b"GET /slow HTTP/1.1\r\n\r\n" + GET * 10)
        assert await one.closed()
        await here.serves()


async def test_running_out_of_files_is_said_once_and_overcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio's accept loop writes 2,048 such lines at each try: 134 MB of log."""
    async with site() as here:
        idle = await here.client()
        idle.send(GET)
        await idle.answer()
        loop = asyncio.get_running_loop()
        accept, left = loop.sock_accept, 5

        async def no_more(listener: socket.socket) -> Any:
            nonlocal left
            if left:
                left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return await accept(listener)

        monkeypatch.setattr(loop, "sock_accept", no_more)
        with capture_logs() as logs:
            one = await here.client()  # taken by the accept that is under way
            for _ in range(5):
                await here.clock.wake(PAUSE_SECONDS)
            await here.serves()
        assert [entry["event"] for entry in logs if "error" in entry] == ["no connection can be taken"]
        assert await idle.closed()
        one.writer.close()


def test_the_process_takes_the_open_files_that_it_may_have() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        allow_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == (
            FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- logs -----------------------------------------------------------------------------------------
async def test_a_thousand_bad_requests_are_one_line() -> None:
    async with site(replace(SMALL, connections=100)) as here:
        with capture_logs() as logs:
            for _ in range(50):
                one = await here.client()
                one.send(b"\x16\x03\x01 what\r\n\r\n")
                assert await one.answer() == "400 this is not HTTP/1.1"
        assert [entry["event"] for entry in logs] == ["a client was refused"]


async def test_who_leaves_before_a_word_is_not_told_of_and_who_speaks_wrongly_is(tmp_path: Path) -> None:
    """Whoever only looks whether the port is open leaves so: that was a warning without words."""
    with capture_logs() as logs:
        async with site(tls=tmp_path) as here:
            one = await silent(here.port)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()  # by a reset
            await here.serves()
        assert logs == []
        async with site(tls=tmp_path) as here:
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(GET)
            await here.serves()
            writer.close()
    (told,) = logs
    assert (told["event"], "http request" in told["error"].lower()) == (
        "a connection failed before its first request",
        True,
    )


def test_equal_events_are_counted_and_told_with_their_number_after_a_minute() -> None:
    now = 0.0
    repeats = Repeats(lambda: now)
    with capture_logs() as logs:
        for now in (0.0, 1.0, 2.0, QUIET_SECONDS + 1):  # noqa: B007
            repeats.warning("refused", "a", why="x")
        repeats.warning("refused", "b")
    assert [(entry.get("why"), entry.get("repeated")) for entry in logs] == [
        ("x", None),
        ("x", 2),
        (None, None),
    ]


def test_what_is_remembered_of_events_is_bounded() -> None:
    repeats = Repeats(lambda: 0.0)
    with capture_logs() as logs:
        for number in range(REMEMBERED + 2):
            repeats.warning("refused", str(number))
        repeats.warning("refused", str(REMEMBERED + 1))
        assert len(logs) == REMEMBERED + 2
        repeats.warning("refused", "0")
    assert len(logs) == REMEMBERED + 3, "the first was forgotten, so it is news again"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before = list(root.handlers)
    yield root
    root.handlers = before
    structlog.reset_defaults()


def test_what_libraries_log_is_one_json_line_and_counted(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    setup(json=True)
    setup(json=True)
    assert sum(isinstance(handler, StandardLibrary) for handler in root.handlers) == 1
    for number in range(100):
        logging.getLogger("uvicorn.error").warning("request %d is not HTTP", number)
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["request 0 is not HTTP"]
