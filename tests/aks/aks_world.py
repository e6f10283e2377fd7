"""A provider that speaks to the fake, with a login that has a token, and without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from azure.core.credentials import AccessToken
from azure.core.pipeline.transport import AsyncioRequestsTransport
from fakearm import CLUSTER, GROUP, SUBSCRIPTION, TOKEN, FakeArm

from gpuslice.capacity.aks import AksCluster
from gpuslice.capacity.azurepools import AksPools

HERE = AksCluster(SUBSCRIPTION, GROUP, CLUSTER)


class Login:
    """A credential that has a token."""

    def __init__(self, token: str = TOKEN) -> None:
        self._token = token

    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken(self._token, 4102444800)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Login:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        pass


class Impatient(AsyncioRequestsTransport):
    """Notes how long the SDK would have waited, and does not."""

    def __init__(self, authority: Path, waited: list[float]) -> None:
        super().__init__(connection_verify=str(authority))
        self._waited = waited

    async def sleep(self, duration: float) -> None:
        self._waited.append(duration)
        await asyncio.sleep(0)


class World:
    """The fake, and a provider for it. `waited`: the seconds between the SDK's requests."""

    def __init__(self, arm: FakeArm, authority: Path) -> None:
        self.arm = arm
        self.authority = authority
        self.waited: list[float] = []

    @asynccontextmanager
    async def pools(
        self, cluster: AksCluster = HERE, *, token: str = TOKEN, wait: bool = False
    ) -> AsyncIterator[AksPools]:
        transport = Impatient(self.authority, self.waited)
        async with AksPools(
            cluster, Login(token), endpoint=self.arm.endpoint, transport=transport, poll_seconds=7, wait=wait
        ) as pools:
            yield pools
