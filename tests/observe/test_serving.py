"""The HTTP server itself: TLS, certificates replaced under it, clients without one, taken ports, its end."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pki import Authority
from structlog.testing import capture_logs

from gpuslice.clock import SystemClock
from gpuslice.errors import InputError
from gpuslice.observe.addresses import parse_listen
from gpuslice.observe.serving import RELOAD_SECONDS, Tls, listen, serving


class Looks:
    """A clock on which whoever looks at the certificate wakes when the test says so, and nobody else."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    def now_ns(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        if seconds == RELOAD_SECONDS:
            await self.waiting.put(future)
        await future

    async def look(self) -> None:
        """Let the sleeper look once; returns when it sleeps again."""
        (await self.waiting.get()).set_result(None)
        again = await self.waiting.get()
        self.waiting.put_nowait(again)


async def hello(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


def trusting(authority: Authority, mine: Tls | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    if mine is not None:
        context.load_cert_chain(mine.cert, mine.key)
    return context


async def presented(port: int, context: ssl.SSLContext) -> str:
    """Common name of the certificate that a new connection is shown, once a request was answered over it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readline()
        subject = writer.get_extra_info("peercert")["subject"]
        return str(dict(pair for group in subject for pair in group)["commonName"])
    finally:
        writer.close()


@asynccontextmanager
async def guarded(seconds: float = 20) -> AsyncIterator[None]:
    async with asyncio.timeout(seconds):
        yield


async def test_a_replaced_certificate_is_presented_without_a_restart(tmp_path: Path) -> None:
    authority, clock = Authority(tmp_path), Looks()
    files = authority.issue("first")
    context = trusting(authority)
    async with guarded(), serving(hello, host="127.0.0.1", port=0, clock=clock, tls=files) as (_, port):
        assert await presented(port, context) == "first"
        await clock.look()
        assert await presented(port, context) == "first"
        authority.issue("second", files=files)
        await clock.look()
        assert await presented(port, context) == "second"


async def test_half_replaced_files_keep_the_old_certificate_until_they_match(tmp_path: Path) -> None:
    authority, clock = Authority(tmp_path), Looks()
    files = authority.issue("first")
    context = trusting(authority)
    other = authority.issue("other")
    async with guarded(), serving(hello, host="127.0.0.1", port=0, clock=clock, tls=files) as (_, port):
        with capture_logs() as logs:
            files.cert.write_bytes(other.cert.read_bytes())
            await clock.look()
            assert await presented(port, context) == "first"
            files.key.unlink()
            await clock.look()
            assert await presented(port, context) == "first"
            files.key.write_bytes(other.key.read_bytes())
            await clock.look()
        assert await presented(port, context) == "other"
    assert [entry["event"] for entry in logs] == [
        "the new certificate cannot be used yet",
        "certificate reloaded",
    ]


async def test_only_clients_with_a_certificate_of_the_ca_are_let_in(tmp_path: Path) -> None:
    """Defect 9.A.17 of gpushare: everybody could bind pods with the extender's rights."""
    authority = Authority(tmp_path)
    stranger = Authority(tmp_path, "stranger CA").issue("stranger")
    files = replace(authority.issue("server"), client_ca=authority.file)
    clock = SystemClock()
    async with guarded(), serving(hello, host="127.0.0.1", port=0, clock=clock, tls=files) as (_, port):
        assert await presented(port, trusting(authority, authority.issue("client"))) == "server"
        for context in (trusting(authority), trusting(authority, stranger)):
            # TLS 1.3 tells a refused client only when it reads.
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                await presented(port, context)


async def test_plain_http_on_a_tls_port_is_no_way_in(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server")
    clock = SystemClock()
    async with guarded(), serving(hello, host="127.0.0.1", port=0, clock=clock, tls=files) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


@pytest.mark.parametrize("broken", ["missing", "mismatched", "no PEM", "client CA"])
async def test_unusable_tls_files_are_one_sentence_and_free_the_port(tmp_path: Path, broken: str) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server")
    match broken:
        case "missing":
            files.key.unlink()
        case "mismatched":
            files.key.write_bytes(authority.issue("other").key.read_bytes())
        case "no PEM":
            files.cert.write_text("nonsense")
        case "client CA":
            files = replace(files, client_ca=tmp_path / "none.crt")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(InputError, match=r"the TLS files .*server.crt.* cannot be used: "):
        async with serving(hello, host="127.0.0.1", port=port, clock=SystemClock(), tls=files):
            pass
    listen("127.0.0.1", port).close()


async def test_a_port_in_use_is_one_sentence() -> None:
    clock = SystemClock()
    async with guarded(), serving(hello, host="127.0.0.1", port=0, clock=clock) as (host, port):
        with pytest.raises(InputError, match=rf"^cannot listen on {host}:{port}: Address already in use; "):
            async with serving(hello, host=host, port=port, clock=clock):
                pass
    async with serving(hello, host=host, port=port, clock=clock):
        pass  # and at once free again


def test_an_unknown_address_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"^cannot listen on 192\.0\.2\.1:0: .*; choose another"):
        listen("192.0.2.1", 0)
    with pytest.raises(InputError, match=r"^cannot listen on no\.such\.host\.invalid:0: "):
        listen("no.such.host.invalid", 0)


def test_addresses_are_read() -> None:
    assert parse_listen("127.0.0.1:32766") == ("127.0.0.1", 32766)
    assert parse_listen("[::1]:80") == ("::1", 80)
    assert parse_listen(":80") == ("0.0.0.0", 80)
    for wrong in ("nonsense", "host:", "host:99999", "host:-1", ""):
        with pytest.raises(InputError, match=r"^--listen: '.*' is not HOST:PORT"):
            parse_listen(wrong)


async def test_leaving_answers_what_is_in_flight_and_lets_idle_clients_go() -> None:
    arrived, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            arrived.set()
            await may_answer.wait()
        await hello(scope, receive, send)

    async with guarded():
        stack = serving(slow, host="127.0.0.1", port=0, clock=SystemClock())
        host, port = await stack.__aenter__()
        idle_reader, idle_writer = await asyncio.open_connection(host, port)
        idle_writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await idle_reader.readuntil(b"hello")
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await arrived.wait()
        leaving = asyncio.create_task(stack.__aexit__(None, None, None))
        assert await idle_reader.read() == b""  # closed at once
        assert not leaving.done()
        may_answer.set()
        assert (await reader.read()).endswith(b"hello")
        await leaving
        for one in (writer, idle_writer):
            one.close()


async def test_signals_stay_with_the_process() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    async with serving(hello, host="127.0.0.1", port=0, clock=SystemClock()):
        assert {number: signal.getsignal(number) for number in before} == before
