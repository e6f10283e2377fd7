"""One broken or healthy cluster per test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from doctor_world import Site, start


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = await start()
    async with asyncio.timeout(30):
        yield made
    await made.server.stop()
