"""HTTPS for kubectl: a certificate of our own, a bearer token, and open watches end when the server does.

async with serving(server, port=0, kubeconfig=path, clock=clock) as endpoint: ...
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from gpuslice.clock import Clock
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.asgi import serve_scope
from gpuslice.local.apiserver.api.certificates import issue
from gpuslice.observe.limits import MIB, Limits
from gpuslice.observe.serving import Tls
from gpuslice.observe.serving import serving as serving_http

LIMITS = Limits(header_bytes=1024 * 1024, body_bytes=32 * MIB)
"""Headers as kube-apiserver: a command of `kubectl exec` is part of the URL. What is larger than the limit of
bodies in `asgi` is answered there, in Kubernetes' words; beyond this one nobody listens."""
SHUTDOWN_SECONDS = 1
"""How long a client that does not read may hold up the end."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server listens and how to get in."""

    url: str
    token: str
    authority: bytes
    """The CA certificate, PEM."""


class _NoRefusals(logging.Filter):
    """Keeps out uvicorn's complaints about what is normal here: a refused exec, a request for SPDY."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is worth a line."""
        text = record.getMessage()
        return not text.startswith(
            ("ASGI callable returned without completing", "Unsupported upgrade request")
        )


_NO_REFUSALS = _NoRefusals()


@asynccontextmanager
async def serving(
    server: ApiServer, *, clock: Clock, host: str = "127.0.0.1", port: int = 0, kubeconfig: Path | None = None
) -> AsyncIterator[Endpoint]:
    """Serve HTTPS while the block runs; port 0 takes a free one. Raises InputError if the port is taken.

    Leaving the block ends open watches at once. The kubeconfig file stays: whoever chose its place
    removes it.
    """
    logging.getLogger("uvicorn.error").addFilter(_NO_REFUSALS)
    certificates = issue(clock)
    token = secrets.token_urlsafe(32)
    server.token = token
    ending = asyncio.Event()
    app = partial(serve_scope, server, ending)
    async with AsyncExitStack() as stack:
        # The TLS files are read once; they need not outlive that.
        with tempfile.TemporaryDirectory(prefix="gpuslice-") as folder:
            tls = Tls(
                _private(Path(folder, "cert"), certificates.certificate),
                _private(Path(folder, "key"), certificates.key),
            )
            _, bound = await stack.enter_async_context(
                serving_http(
                    app,
                    host=host,
                    port=port,
                    clock=clock,
                    tls=tls,
                    grace_seconds=SHUTDOWN_SECONDS,
                    websockets=True,
                    limits=LIMITS,
                )
            )
        endpoint = Endpoint(f"https://{host}:{bound}", token, certificates.authority)
        if kubeconfig is not None:
            write_kubeconfig(kubeconfig, endpoint)
        try:
            yield endpoint
        finally:
            ending.set()


def _private(file: Path, content: bytes) -> Path:
    file.touch(mode=0o600)
    file.write_bytes(content)
    return file


def write_kubeconfig(path: Path, endpoint: Endpoint, *, name: str = "gpuslice") -> None:
    """Write a kubeconfig for this endpoint, mode 0600, whole or not at all."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {
                    "server": endpoint.url,
                    "certificate-authority-data": base64.b64encode(endpoint.authority).decode(),
                },
            }
        ],
        "users": [{"name": name, "user": {"token": endpoint.token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        "current-context": name,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            yaml.safe_dump(content, file, sort_keys=False)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
