"""A server on a clock that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from apikit import Api, StillClock, new_ids

from gpuslice.local.apiserver.api.app import ApiServer


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
async def server(clock: StillClock) -> AsyncIterator[ApiServer]:
    made = ApiServer(clock=clock, new_uid=new_ids())
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def api(server: ApiServer) -> Api:
    return Api(server)
