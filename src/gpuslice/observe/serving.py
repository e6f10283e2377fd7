"""An HTTP server inside our own event loop: uvicorn without its signal handlers, within `limits`.

The server shares memory with the application; Ctrl-C and SIGTERM are handled where the process is assembled.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
import uvicorn

from gpuslice.clock import Clock
from gpuslice.errors import InputError
from gpuslice.observe.guarded import GuardedServer
from gpuslice.observe.limits import Limits

RELOAD_SECONDS: Final = 10.0
"""How often the certificate files are looked at: cert-manager and kubelet replace them in place."""
BACKLOG: Final = 2048

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of the serving certificate; with `client_ca` only clients it signed are let in."""

    cert: Path
    key: Path
    client_ca: Path | None = None


@asynccontextmanager
async def serving(
    app: Any,
    *,
    host: str,
    port: int,
    clock: Clock,
    tls: Tls | None = None,
    grace_seconds: int = 5,
    websockets: bool = False,
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
) -> AsyncIterator[tuple[str, int]]:
    """Serve an ASGI application while the block runs; yields the bound address. Port 0 takes a free one.

    Leaving the block finishes requests in flight for up to `grace_seconds`. Raises InputError if the port is
    taken or the certificate cannot be read.
    """
    listener = listen(host, port)
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http="httptools",
        ws="websockets-sansio" if websockets else "none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace_seconds,
        ssl_certfile=str(tls.cert) if tls else None,
        ssl_keyfile=str(tls.key) if tls else None,
        ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        listener.close()
        raise InputError(f"the TLS files {tls} cannot be used: {error}") from error
    server = GuardedServer(config, limits, clock)
    tasks = [asyncio.create_task(server.serve(sockets=[listener]), name=f"http {host}:{port}")]
    if tls is not None and config.ssl is not None:
        tasks.append(asyncio.create_task(_reload(config.ssl, tls, clock), name="certificate reload"))
    try:
        await server.accepting.wait()
        yield listener.getsockname()[:2]
    finally:
        server.should_exit = True
        for task in tasks[1:]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await tasks[0]
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises InputError with one sentence if the address is taken or unknown."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be named: asyncio turns Nagle's delay (40 ms per answer) off for TCP sockets only.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Only after this is the address certainly ours: with SO_REUSEADDR two may bind it before one listens.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from error
    return listener


async def _reload(context: ssl.SSLContext, tls: Tls, clock: Clock) -> None:
    """Load the certificate again whenever its files change; the next handshake presents the new one."""
    seen = _fingerprint(tls)
    while True:
        await clock.sleep(RELOAD_SECONDS)
        now = _fingerprint(tls)
        if now in (seen, None):
            continue
        try:
            # First into a context that nobody uses: one that fails is left with the new certificate and the
            # old key, and no handshake succeeds any more.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert, tls.key)
            context.load_cert_chain(tls.cert, tls.key)
        except (OSError, ssl.SSLError) as error:
            # Files are replaced one after the other: a pair that does not match yet is tried again.
            _log.warning("the new certificate cannot be used yet", error=str(error))
            continue
        seen = now
        _log.info("certificate reloaded", cert=str(tls.cert))


def _fingerprint(tls: Tls) -> tuple[int, int] | None:
    try:
        return tls.cert.stat().st_mtime_ns, tls.key.stat().st_mtime_ns
    except OSError:
        return None
