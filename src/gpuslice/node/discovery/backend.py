"""A driver as the agent follows it: what it says, what it reports, and looking again, off the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from gpuslice.clock import Clock
from gpuslice.devices.found import Found
from gpuslice.devices.inventory import Gpu
from gpuslice.devices.xids import XidPolicy
from gpuslice.node.discovery.driver import Changed, Driver, DriverError, Xid
from gpuslice.node.discovery.health import Health

LOOK_SECONDS: Final = 10.0
"""How often the GPUs are looked at without an event: nothing tells that one has vanished."""
WAIT_MILLISECONDS: Final = 500
"""How long one question for events may take: ending the agent waits for it."""

_log = structlog.get_logger(__name__)


class DiscoveredGpus:
    """A `DeviceBackend` over a `Driver`. Call `start` once, then let `run` run."""

    def __init__(self, driver: Driver, policy: XidPolicy, clock: Clock) -> None:
        self._driver = driver
        self._policy = policy
        self._clock = clock
        self._changed = asyncio.Event()
        self._health: Health | None = None
        self._found = Found("", "", ())
        self._deaf = False
        self._reopen = False
        self._looked = 0.0

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu.shared for gpu in self._found.gpus)

    def found(self) -> Found:
        """The machine with all that is known of it, MIG devices among it."""
        return self._found

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def start(self) -> None:
        """Connect and look for the first time. Raises DriverError if there is no driver to ask."""
        await asyncio.to_thread(self._driver.open)
        found = await asyncio.to_thread(self._driver.look)
        self._health = Health(self._policy, found)
        self._found = self._health.found()
        self._looked = self._clock.monotonic()
        for index, reason in found.silent:
            _log.warning("a GPU does not answer and is left out", index=index, reason=reason)
        if not found.gpus:
            _log.warning("this node has no GPU that answers; waiting for one")

    async def run(self) -> None:
        """Follow what happens, for ever."""
        while True:
            event = await self._event()
            now = self._clock.monotonic()
            if isinstance(event, Xid):
                self._after_start.xid(event, now)
            if event is not None or now - self._looked >= LOOK_SECONDS:
                await self._look()
            self._tell()

    @property
    def _after_start(self) -> Health:
        assert self._health is not None, "start comes first"
        return self._health

    async def _event(self) -> Xid | Changed | None:
        """The next event; None if there is none for a while, or the driver cannot say."""
        if self._deaf:
            await self._clock.sleep(LOOK_SECONDS)
            self._deaf, self._reopen = False, True
            return Changed()
        try:
            return await asyncio.to_thread(self._driver.wait, WAIT_MILLISECONDS)
        except DriverError as error:
            # So it is when a GPU falls off the bus: look at once which one.
            _log.warning("the driver does not report events now; looking instead", error=str(error))
            self._deaf = True
            return Changed()

    async def _look(self) -> None:
        self._looked = self._clock.monotonic()
        health = self._after_start
        try:
            if self._reopen or not health.all_answer or not self._found.gpus:
                # The library knows only the GPUs that were there when it was opened.
                await asyncio.to_thread(self._driver.open)
                self._reopen = False
            found = await asyncio.to_thread(self._driver.look)
        except DriverError as error:
            _log.warning("the driver cannot be asked; the GPUs count as lost until it can", error=str(error))
            self._deaf = True
            known = self._found
            silent = tuple((gpu.index, str(error)) for gpu in known.gpus)
            found = Found(known.driver_version, known.cuda_version, (), silent)
        health.look(found, self._looked)

    def _tell(self) -> None:
        found = self._after_start.found()
        if found != self._found:
            self._found = found
            self._changed.set()
