"""GPUs that exist on paper: for clusters without one, and for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from gpuslice.clock import Clock
from gpuslice.devices.inventory import Gpu
from gpuslice.errors import InputError

POLL_SECONDS: Final = 0.5
"""How often a devices file is looked at: people edit it by hand."""

_log = structlog.get_logger(__name__)


class SimulatedBackend:
    """A `DeviceBackend` that says what it was told."""

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        self._gpus = gpus
        self._changed = asyncio.Event()

    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def set_gpus(self, gpus: tuple[Gpu, ...]) -> None:
        """Other GPUs, or the same in another state."""
        if gpus != self._gpus:
            self._gpus = gpus
            self._changed.set()

    def set_health(self, uuid: str, healthy: bool, reason: str = "") -> None:
        """One GPU falls ill, or recovers. Raises InputError if there is no such GPU."""
        if all(gpu.uuid != uuid for gpu in self._gpus):
            raise InputError(f"this node has no GPU {uuid!r}")
        changed = tuple(
            replace(gpu, healthy=healthy, reason="" if healthy else reason) if gpu.uuid == uuid else gpu
            for gpu in self._gpus
        )
        self.set_gpus(changed)

    async def follow(self, path: Path, load: Callable[[Path], tuple[Gpu, ...]], *, clock: Clock) -> None:
        """Read a file anew whenever it changes, for ever. A file that cannot be read changes nothing."""
        seen = _stamp(path)
        while True:
            await clock.sleep(POLL_SECONDS)
            stamp = _stamp(path)
            if stamp is None or stamp == seen:
                continue
            seen = stamp
            try:
                self.set_gpus(load(path))
            except InputError as error:
                _log.warning("the devices file cannot be read; the GPUs stay as they were", error=str(error))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None
