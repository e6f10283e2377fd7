"""GPUs of which somebody says what they are and how they fare: those of `gpuslice up`, and of tests."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gpuslice.devices.inventory import Gpu
from gpuslice.errors import InputError


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
