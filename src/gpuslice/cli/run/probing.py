"""Probes of the commands that run for ever, and the tokens that are read from files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from gpuslice.cli.options import Probes
from gpuslice.clock import Clock
from gpuslice.errors import InputError
from gpuslice.observe.addresses import parse_listen
from gpuslice.observe.probes import LIMITS, ProbesApp
from gpuslice.observe.serving import serving


async def answer_probes(
    where: Probes | None,
    *,
    waits_for: Callable[[], str],
    metrics: Callable[[], Awaitable[bytes]],
    clock: Clock,
) -> None:
    """Answer probes until cancelled, if there is an address to do so at."""
    if where is None:
        return
    host, port = parse_listen(where.listen, field="--probes")
    token = read_token(where.token_file, "--metrics-token-file") if where.token_file else None
    app = ProbesApp(waits_for=waits_for, metrics=metrics, token=token)
    async with serving(app, host=host, port=port, clock=clock, limits=LIMITS):
        await asyncio.Event().wait()


def read_token(path: Path, field: str) -> str:
    """A token without its line end. Raises InputError naming the field."""
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", field=field) from error
    if not token:
        raise InputError(f"{path} is empty", field=field)
    return token
