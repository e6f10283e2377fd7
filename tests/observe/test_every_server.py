"""Each of our servers, as it is put together, is within limits: headers, bodies, silence, crowds."""

from __future__ import annotations

import asyncio
import socket
import ssl
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from pki import Authority

from gpuslice.admission import certificates
from gpuslice.admission.nodename import unknown
from gpuslice.admission.webhook import serve as serve_webhook
from gpuslice.clock import SystemClock
from gpuslice.kube.client import Client
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.serve import serving as serving_api
from gpuslice.observe.limits import Limits
from gpuslice.observe.probes import LIMITS as PROBES
from gpuslice.observe.probes import ProbesApp
from gpuslice.observe.serving import listen, serving
from gpuslice.scheduler.core import EXTENDER, Core
from gpuslice.scheduler.extender.service import ExtenderSettings, extender

MIB = 1024 * 1024
SERVERS = {"extender": 128 * MIB, "webhook": 32 * MIB, "probes": 0, "apiserver": 32 * MIB}
"""By their names: the largest body."""
CROWD = Limits().connections + 100


class Running:
    """A server's port; with the context, by TLS."""

    def __init__(self, port: int, context: ssl.SSLContext | None, path: str) -> None:
        self.port = port
        self.context = context
        self.path = path

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)

    async def says(self, request: bytes) -> bytes:
        """The first line of the answer."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            return await reader.readline()
        finally:
            writer.transport.abort()

    async def serves(self) -> None:
        assert (await self.says(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % self.path.encode())).split()[1] in (
            b"200",
            b"401",
        )


@asynccontextmanager
async def running(server: str, folder: Path) -> AsyncIterator[Running]:
    clock = SystemClock()
    api = ApiServer(clock=clock, new_uid=lambda: str(uuid.uuid4()))
    await api.start()
    authority = Authority(folder)
    context = ssl.create_default_context(cafile=authority.file)
    tasks: list[asyncio.Task[None]] = []
    try:
        async with asyncio.timeout(60):
            match server:
                case "extender":
                    core = Core(
                        Client(api.transport()),
                        component=EXTENDER,
                        clock=clock,
                        random=lambda: 1.0,
                        new_id=lambda: uuid.uuid4().hex[:16],
                    )
                    settings = ExtenderSettings(port=0, token="secret")
                    async with core.running(), extender(core, settings) as listening:
                        yield Running(listening.port, None, "/healthz")
                case "webhook":
                    files = authority.issue("server")
                    files.cert.rename(folder / certificates.SERVING)
                    files.key.rename(folder / certificates.SERVING_KEY)
                    free = listen("127.0.0.1", 0)
                    port = free.getsockname()[1]
                    free.close()
                    tasks.append(
                        asyncio.create_task(
                            serve_webhook("127.0.0.1", port, folder, clock=clock, offered=unknown)
                        )
                    )
                    made = Running(port, context, "/healthz")
                    while True:
                        with suppress(ConnectionRefusedError):
                            await made.serves()
                            break
                        await asyncio.sleep(0)
                    yield made
                case "probes":
                    app = ProbesApp(waits_for=lambda: "", metrics=_none)
                    async with serving(app, host="127.0.0.1", port=0, clock=clock, limits=PROBES) as (
                        _,
                        port,
                    ):
                        yield Running(port, None, "/healthz")
                case "apiserver":
                    async with serving_api(api, clock=clock) as endpoint:
                        trusting = ssl.create_default_context(cadata=endpoint.authority.decode())
                        yield Running(int(endpoint.url.rpartition(":")[2]), trusting, "/version")
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await api.stop()


async def _none() -> bytes:
    return b""


@pytest.mark.parametrize("server", SERVERS)
async def test_headers_and_bodies_are_refused_beyond_their_limits(server: str, tmp_path: Path) -> None:
    async with running(server, tmp_path) as here:
        endless = b"GET / HTTP/1.1\r\nX: " + b"a" * (2 * MIB)
        assert await here.says(endless) == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
        many = b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 101 + b"\r\n"
        assert (await here.says(many)).startswith(b"HTTP/1.1 431 ")
        large = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (SERVERS[server] + 1)
        assert (await here.says(large)).startswith(b"HTTP/1.1 413 ")
        await here.serves()


@pytest.mark.parametrize("server", SERVERS)
async def test_a_crowd_that_says_nothing_keeps_nobody_out(server: str, tmp_path: Path) -> None:
    async with running(server, tmp_path) as here:
        crowd = []
        for _ in range(CROWD):
            one = socket.socket()
            one.setblocking(False)
            await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", here.port))
            crowd.append(one)
        await here.serves()
        for one in crowd:
            one.close()


async def test_a_stranger_cannot_make_the_extender_hold_a_large_body(tmp_path: Path) -> None:
    async with running("extender", tmp_path) as here:
        head = b"POST /gpushare-scheduler/filter HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n"
        assert await here.says(head) == b"HTTP/1.1 401 Unauthorized\r\n"


async def test_the_webhook_can_ask_the_api_server_for_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, mine = authority.issue("server"), authority.issue("apiserver")
    files.cert.rename(tmp_path / certificates.SERVING)
    files.key.rename(tmp_path / certificates.SERVING_KEY)
    free = listen("127.0.0.1", 0)
    port = free.getsockname()[1]
    free.close()
    known, stranger = (ssl.create_default_context(cafile=authority.file) for _ in range(2))
    known.load_cert_chain(mine.cert, mine.key)
    task = asyncio.create_task(
        serve_webhook(
            "127.0.0.1", port, tmp_path, clock=SystemClock(), client_ca=authority.file, offered=unknown
        )
    )
    try:
        async with asyncio.timeout(20):
            while True:
                with suppress(ConnectionRefusedError):
                    await Running(port, known, "/healthz").serves()
                    break
                await asyncio.sleep(0)
            with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
                await Running(port, stranger, "/healthz").serves()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_metrics_can_ask_for_a_token_and_probes_never_do() -> None:
    app = ProbesApp(waits_for=lambda: "", metrics=_none, token="secret")

    async def status(path: str, token: str = "") -> object:
        sent: list[dict[str, object]] = []

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {token}".encode())]
        await app({"type": "http", "method": "GET", "path": path, "headers": headers}, None, send)
        return sent[0]["status"]

    assert [await status("/metrics"), await status("/metrics/"), await status("/metrics", "guess")] == [
        401
    ] * 3
    assert [await status("/healthz"), await status("/readyz"), await status("/metrics", "secret")] == [
        200
    ] * 3
