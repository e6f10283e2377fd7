"""HTTPS for kubectl: uvicorn inside our own task group, a certificate of our own, a bearer token.

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
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
import yaml

from gpuslice.clock import Clock
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.asgi import serve_scope
from gpuslice.local.apiserver.api.certificates import Certificates, issue
from gpuslice.observe.guarded import GuardedServer
from gpuslice.observe.limits import MIB, Limits
from gpuslice.observe.serving import listen

LIMITS = Limits(header_bytes=1024 * 1024, body_bytes=32 * MIB)
"""Headers as kube-apiserver: a command of `kubectl exec` is part of the URL. What is larger than the limit of
bodies in `asgi` is answered there, in Kubernetes' words; beyond this one nobody listens."""
SHUTDOWN_SECONDS = 1
"""How long a client that does not read may hold up the end."""
CLOSE_SECONDS = 0.02
"""How often watches that were opened during the shutdown are ended."""


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
    listener = listen(host, port)
    bound = listener.getsockname()[1]
    endpoint = Endpoint(f"https://{host}:{bound}", token, certificates.authority)
    with tempfile.TemporaryDirectory(prefix="gpuslice-") as folder:
        config = _config(server, certificates, Path(folder))
    running = GuardedServer(config, LIMITS, clock)
    task = asyncio.create_task(running.serve(sockets=[listener]), name="apiserver https")
    try:
        await running.accepting.wait()
        if kubeconfig is not None:
            write_kubeconfig(kubeconfig, endpoint)
        yield endpoint
    finally:
        running.should_exit = True
        while not task.done():
            # Clients watch again as long as the server still takes requests.
            server.close_watches()
            await asyncio.wait((task,), timeout=CLOSE_SECONDS)
        await task
        listener.close()


def _config(server: ApiServer, certificates: Certificates, folder: Path) -> uvicorn.Config:
    """The TLS files are read once, here; they need not outlive this call."""
    paths = {"cert": certificates.certificate, "key": certificates.key}
    for name, text in paths.items():
        target = folder / name
        target.touch(mode=0o600)
        target.write_bytes(text)
    config = uvicorn.Config(
        partial(serve_scope, server),
        interface="asgi3",
        http="httptools",
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=str(folder / "cert"),
        ssl_keyfile=str(folder / "key"),
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    config.load()
    return config


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
