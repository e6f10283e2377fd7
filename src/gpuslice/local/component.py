"""A part of the cluster in one process that comes back when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Final

import structlog

from gpuslice.clock import Clock
from gpuslice.kube.backoff import Backoff

RESTART: Final = Backoff(base=0.2, cap=10.0)

_log = structlog.get_logger(__name__)


class Component:
    """One part of the cluster, started again when it fails: a bug in one node must not end the others."""

    def __init__(
        self, name: str, start: Callable[[], Coroutine[None, None, None]], *, clock: Clock, random: Random
    ) -> None:
        self.name = name
        self._start = start
        self._clock = clock
        self._random = random
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run for ever."""
        failures = 0
        while True:
            self._task = asyncio.create_task(self._start(), name=self.name)
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError:
                self._task.cancel()
                await asyncio.wait([self._task])
                raise
            if self._task.cancelled():
                continue  # `kill`: it comes back, as a DaemonSet's pod would
            error = self._task.exception()
            failures += 1
            _log.error("ended and is started again", component=self.name, exc_info=error)
            await self._clock.sleep(RESTART.delay(failures, self._random.random))

    def kill(self) -> None:
        """End it; it is started again at once."""
        if self._task is not None:
            self._task.cancel()
