"""Reads a description that people edit by hand anew whenever it has changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog

from gpuslice.clock import Clock
from gpuslice.errors import InputError

POLL_SECONDS: Final = 0.5

T = TypeVar("T")
_log = structlog.get_logger(__name__)


async def follow(path: Path, load: Callable[[Path], T], apply: Callable[[T], None], *, clock: Clock) -> None:
    """Pass on what the file says whenever it changes, for ever. A file that cannot be read changes
    nothing.
    """
    seen = _stamp(path)
    while True:
        await clock.sleep(POLL_SECONDS)
        stamp = _stamp(path)
        if stamp is None or stamp == seen:
            continue
        seen = stamp
        try:
            apply(load(path))
        except InputError as error:
            _log.warning("the devices file cannot be read; the GPUs stay as they were", error=str(error))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None
