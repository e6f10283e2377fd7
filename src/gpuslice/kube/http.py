"""The way to a real API server.

The libraries for it take longer to import than anything else that is done at a start. So they are imported
when they are needed, and beside what the event loop does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Unpack

from gpuslice.kube.client import Client, RequestOptions, Response, Transport

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def own_namespace() -> str:
    """The namespace of the pod that this process is in, "default" if it is in none."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


def connect(kubeconfig: Path | None) -> Client:
    """Make a client for the kubeconfig's current context.

    Without a file: the pod's service account, else $KUBECONFIG, else ~/.kube/config, as kubectl does.
    Nothing is sent yet. Raises InputError, naming the file, if the configuration is missing or broken.
    """
    return Client(_transport(kubeconfig))


@asynccontextmanager
async def connected(kubeconfig: Path | None) -> AsyncIterator[Client]:
    """A client for the block. Raises InputError if the kubeconfig is missing or broken."""
    client = connect(kubeconfig)
    try:
        yield client
    finally:
        await client.transport.aclose()


@asynccontextmanager
async def connected_later(kubeconfig: Path | None) -> AsyncIterator[Client]:
    """The same for who has something to do first: the configuration is read at the first request.

    It is that request which raises InputError.
    """
    transport = _Later(kubeconfig)
    try:
        yield Client(transport)
    finally:
        await transport.aclose()


class _Later:
    """A transport that is made when it is needed."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig
        self._making: asyncio.Future[Transport] | None = None

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Response:
        transport = await self._made()
        return await transport.request(method, path, **options)

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        transport = await self._made()
        async with transport.stream(path, query=query) as answer:
            yield answer

    async def aclose(self) -> None:
        if self._making is not None and self._making.done() and not self._making.exception():
            await self._making.result().aclose()

    async def _made(self) -> Transport:
        if self._making is None:
            self._making = asyncio.ensure_future(asyncio.to_thread(_transport, self._kubeconfig))
        return await asyncio.shield(self._making)


def _transport(kubeconfig: Path | None) -> Transport:
    from gpuslice.kube.kubeconfig import read_access
    from gpuslice.kube.transport import HttpTransport

    return HttpTransport(read_access(kubeconfig))
