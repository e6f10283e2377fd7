"""A webhook that the API server calls by address: the doctor connects, and judges what it finds there."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from doctor_world import Site

from gpuslice.admission import certificates
from gpuslice.doctor.finding import Level


@asynccontextmanager
async def serving(
    folder: Path, *, made: datetime, name: str = "127.0.0.1"
) -> AsyncIterator[tuple[str, bytes]]:
    """A TLS server with a certificate of that time; yields its URL and its authority."""
    plan = certificates.plan({}, names=[name], client=False, now=made)
    stored = certificates.renewed({}, plan, names=[name], now=made)
    for key in (certificates.SERVING, certificates.SERVING_KEY):
        (folder / key).write_bytes(stored[key])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / certificates.SERVING, folder / certificates.SERVING_KEY)

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"https://127.0.0.1:{port}/mutate", stored[certificates.AUTHORITY]
    finally:
        server.close()


async def point(site: Site, url: str, authority: bytes) -> None:
    """Our webhook is at that address now."""
    await site.hook(
        {"op": "remove", "path": "/clientConfig/service"},
        {"op": "add", "path": "/clientConfig/url", "value": url},
    )
    await site.trust(authority)


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


async def test_a_good_one(site: Site, tmp_path: Path, now: datetime) -> None:
    await site.install()
    async with serving(tmp_path, made=now) as (url, authority):
        await point(site, url, authority)
        assert await site.findings() == []


async def test_an_expired_one(site: Site, tmp_path: Path, now: datetime) -> None:
    await site.install()
    async with serving(tmp_path, made=now - timedelta(days=91)) as (url, authority):
        await point(site, url, authority)
        (found,) = await site.findings()
    assert (found.code, found.level, found.object) == ("certificate-expired", Level.ERROR, url)


async def test_one_for_another_address(site: Site, tmp_path: Path, now: datetime) -> None:
    await site.install()
    async with serving(tmp_path, made=now, name="192.0.2.7") as (url, authority):
        await point(site, url, authority)
        (found,) = await site.findings()
    assert found.code == "certificate-wrong-name"
    assert "127.0.0.1" in found.sentence


async def test_one_of_another_authority(site: Site, tmp_path: Path, now: datetime) -> None:
    await site.install()
    other = await site.certificate()
    async with serving(tmp_path, made=now) as (url, _):
        await point(site, url, other)
        (found,) = await site.findings()
    assert found.code == "certificate-wrong-authority"


async def test_nobody_there(site: Site) -> None:
    """From here this address is perhaps another machine than for the API server: a warning."""
    await site.install()
    other = await site.certificate()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        await point(site, f"https://127.0.0.1:{free.getsockname()[1]}/mutate", other)
        (found,) = await site.findings()
    assert (found.code, found.level) == ("webhook-unreachable", Level.WARNING)
    assert "where nobody answers" in found.sentence
