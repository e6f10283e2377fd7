"""The GPUs of a driver as the agent follows them: queried at intervals, and at each of the driver's
events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

import structlog

from gpuslice.clock import Clock
from gpuslice.devices.announced import announce
from gpuslice.devices.found import Found, FoundGpu
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.devices.labels import Machine, node_labels
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.offered import offered
from gpuslice.devices.sharing import UNSHARED, AllocationPolicy, MigStrategy, Sharing
from gpuslice.devices.xids import XidPolicy
from gpuslice.errors import InputError
from gpuslice.node.discovery.driver import Changed, Driver, DriverError, Xid
from gpuslice.node.discovery.health import Health

QUERY_SECONDS: Final = 10.0
"""How often the GPUs are looked at without an event: no event reports that a GPU has vanished."""
REOPEN_SECONDS: Final = 60.0
"""How often the library is loaded anew while GPUs are missing: it only knows the GPUs that were there when it
was loaded. Not more often, since GPUs that nobody uses are shut down in between."""
WAIT_SECONDS: Final = 0.5
"""How long one wait for an event may hold a thread: the agent's end waits for it."""

_log = structlog.get_logger(__name__)


class AsyncDriver(Protocol):
    """A `Driver` that is asked without holding up the event loop."""

    async def open(self) -> None:
        """See `Driver.open`."""

    async def listen(self) -> None:
        """See `Driver.listen`."""

    async def query(self) -> Found:
        """See `Driver.query`."""

    async def query_gpu(self, gpu: str) -> FoundGpu:
        """See `Driver.query_gpu`."""

    async def wait(self) -> Xid | Changed | None:
        """The next event; None if there was none for some time, at most QUERY_SECONDS."""


class ThreadedDriver:
    """A driver whose calls block: each call runs in a thread."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def open(self) -> None:
        await asyncio.to_thread(self._driver.open)

    async def listen(self) -> None:
        await asyncio.to_thread(self._driver.listen)

    async def query(self) -> Found:
        return await asyncio.to_thread(self._driver.query)

    async def query_gpu(self, gpu: str) -> FoundGpu:
        return await asyncio.to_thread(self._driver.query_gpu, gpu)

    async def wait(self) -> Xid | Changed | None:
        started = self._clock.monotonic()
        event = await asyncio.to_thread(self._driver.wait, int(WAIT_SECONDS * 1000))
        if event is None and self._clock.monotonic() - started < WAIT_SECONDS / 2:
            await self._clock.sleep(WAIT_SECONDS)  # this library does not wait
        return event


class DiscoveredGpus:
    """A `DeviceBackend` over a driver. Call `start` once, then let `run` run.

    `machine` reads what the kernel knows of these GPUs, for labels; without it those labels are missing.
    """

    def __init__(
        self,
        driver: AsyncDriver,
        policy: XidPolicy,
        clock: Clock,
        strategy: MigStrategy = MigStrategy.NONE,
        *,
        machine: Callable[[tuple[FoundGpu, ...]], Machine] | None = None,
    ) -> None:
        self._driver = driver
        self._read_machine = machine
        self._configured = strategy
        self._told: MigStrategy | None = None
        self._sharing = UNSHARED
        self._replicas_from = AllocationPolicy.DISTRIBUTED
        self._shut = ""
        self._machine = Machine()
        self._closed: frozenset[str] = frozenset()
        self._announced: tuple[Gpu, ...] = ()
        """The devices as the driver has them; of these some are closed."""
        self._refused = ""
        self._policy = policy
        self._clock = clock
        self._changed = asyncio.Event()
        self._health: Health | None = None
        self._found = Found("", "", ())
        self._refusals = 0
        self._broken = False
        self._heard: frozenset[str] = frozenset()
        self._queried = self._opened = 0.0
        self._querying = asyncio.Lock()
        """Held from a look until its answer is taken in, and while GPUs are partitioned: answers come in
        order.
        """

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._closing(gpu) for gpu in self._announced)

    def plain(self) -> tuple[Gpu, ...]:
        """The same devices as they would be if none were shared."""
        with suppress(InputError):
            return offered(self._found, self._strategy)
        return self.gpus()

    def found(self) -> Found:
        """The machine with all that is known of it, MIG devices included."""
        return self._found

    @property
    def strategy(self) -> MigStrategy:
        """How MIG devices are counted."""
        return self._strategy

    @asynccontextmanager
    async def partitioning(self) -> AsyncIterator[None]:
        """GPUs are partitioned inside this block. Nothing half made is announced; at its end the devices that
        are there then are announced.

        Needed because no event reports it: NVML has none that every driver sends.
        """
        async with self._querying:
            try:
                yield
            finally:
                await self._query()

    async def differs(self, uuids: Collection[str]) -> str:
        """A sentence if one of these devices is not as it is announced, or does not answer; "" if all are as
        announced.

        Asks the driver, since somebody else may have partitioned a GPU since the last query; if so,
        everything is queried anew.
        """
        if gone := set(uuids) - {gpu.device for gpu in self._announced}:
            return f"{' and '.join(sorted(gone))} is not there any more, or is used in another way"
        for gpu in [gpu for gpu in self._found.gpus if _devices(gpu) & set(uuids)]:
            try:
                now = await self._driver.query_gpu(gpu.uuid)
            except DriverError as error:
                said = f"GPU {gpu.index} ({gpu.uuid}): {error}"
            else:
                if _form(now, uuids) == _form(gpu, uuids):
                    continue
                said = f"GPU {gpu.index} ({gpu.uuid}) has just been partitioned in another way"
            async with self._querying:
                await self._query()
            return said
        return ""

    def close(self, uuids: Collection[str]) -> None:
        """Give these devices to nobody; devices that were closed before and are not among them are open
        again.
        """
        if frozenset(uuids) != self._closed:
            self._closed = frozenset(uuids)
            self._changed.set()

    def shut(self, reason: str) -> None:
        """Give nothing to anybody, for this reason, until `configure` is called."""
        if reason != self._shut:
            self._shut = reason
            self._changed.set()

    def check(self, strategy: MigStrategy, sharing: Sharing, policy: AllocationPolicy) -> tuple[str, ...]:
        """Warnings about what may not work as meant. Raises InputError if the GPUs cannot be shared so."""
        counted = self._told or strategy
        try:
            offered(self._found, counted)
        except InputError as error:
            return (str(error),)  # not the sharing's fault; GPUs can be partitioned so that it comes true
        NodeGpus(offered(self._found, counted, sharing, policy))
        return announce(self._found, counted, sharing).warnings

    def configure(
        self,
        strategy: MigStrategy,
        sharing: Sharing = UNSHARED,
        policy: AllocationPolicy = AllocationPolicy.DISTRIBUTED,
    ) -> None:
        """From now on announce the devices so, as far as they can be; call `check` before."""
        before = self._strategy
        self._configured, self._sharing, self._replicas_from, self._shut = strategy, sharing, policy, ""
        if self._strategy is not before:
            self._announced = ()
        self._offer()
        self._changed.set()

    def count_as(self, strategy: MigStrategy | None) -> None:
        """From now on count MIG devices so, whatever is configured; None: as configured. As long as the GPUs
        cannot be counted so, nothing is offered.
        """
        before, self._told = self._strategy, strategy
        if self._strategy is not before:
            self._announced = ()
            self._offer()
            self._changed.set()

    @property
    def _strategy(self) -> MigStrategy:
        return self._told or self._configured

    def labels(self) -> Mapping[str, str]:
        """What a node's labels say about this machine."""
        return node_labels(self._found, self._machine, self._strategy, self._sharing).labels

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def start(self) -> None:
        """Connect and look for the first time.

        Raises DriverError if there is no driver to ask. A MIG strategy that cannot be met is no reason to
        end: instances do not outlive a reboot, and the agent is who makes them again.
        """
        await self._driver.open()
        found = await self._driver.query()
        self._health = Health(self._policy, found)
        self._found = self._health.found()
        self._offer()
        if self._read_machine is not None:
            self._machine = await asyncio.to_thread(self._read_machine, self._found.gpus)
        self._queried = self._opened = self._clock.monotonic()
        self._heard = frozenset(gpu.uuid for gpu in found.gpus)
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
            if event is not None or now - self._queried >= QUERY_SECONDS:
                async with self._querying:
                    await self._query()
            self._publish()

    @property
    def _after_start(self) -> Health:
        assert self._health is not None, "start comes first"
        return self._health

    async def _event(self) -> Xid | Changed | None:
        """The next event; None if there is none for a while, or the driver cannot say."""
        try:
            if self._refusals > 1:
                await self._clock.sleep(QUERY_SECONDS)
            if self._refusals:
                await self._driver.listen()
            event = await self._driver.wait()
        except DriverError as error:
            # So it is when a GPU falls off the bus: look at once which one, then listen to the others.
            self._refusals += 1
            if self._refusals == 1:
                _log.warning("the driver reports no events now; looking instead", error=str(error))
            return Changed()
        self._refusals = 0
        return event

    async def _query(self) -> None:
        self._queried = self._clock.monotonic()
        health = self._after_start
        missing = not health.all_answer or not self._found.gpus
        try:
            if missing and self._queried - self._opened >= REOPEN_SECONDS:
                self._opened = self._queried
                await self._driver.open()
            found = await self._driver.query()
            self._broken = False
        except DriverError as error:
            if not self._broken:
                _log.warning("the driver cannot be asked; until it can, GPUs count as lost", error=str(error))
            self._broken = True
            known = self._found
            silent = tuple((gpu.index, str(error)) for gpu in known.gpus)
            found = Found(known.driver_version, known.cuda_version, (), silent)
        health.update(found, self._queried)
        answering = frozenset(gpu.uuid for gpu in found.gpus)
        if not answering <= self._heard:
            self._refusals = max(self._refusals, 1)  # those that are back are to be listened to
        self._heard = answering
        self._publish()

    def _publish(self) -> None:
        found = self._after_start.found()
        if found != self._found:
            self._found = found
            self._offer()
            self._changed.set()

    def _offer(self) -> None:
        """What containers can be given now. While GPUs are being partitioned, and before they are, `single`
        may be broken for a time.
        """
        refused = ""
        try:
            self._announced = offered(self._found, self._strategy, self._sharing, self._replicas_from)
        except InputError as error:
            refused = str(error)
            there = {gpu.uuid for gpu in self._found.gpus}
            there |= {device.uuid for gpu in self._found.gpus for device in gpu.mig_devices}
            self._announced = tuple(gpu for gpu in self._announced if gpu.device in there)
        if refused and refused != self._refused:
            left = "only what was there before and still is" if self._announced else "nothing"
            _log.warning(f"{left} can be given out", error=refused)
        self._refused = refused

    def _closing(self, gpu: Gpu) -> Gpu:
        if self._shut:
            return gpu.closed(self._shut)
        if gpu.device in self._closed:
            return gpu.closed(
                "its GPU is repartitioned" if gpu.parent else "being partitioned into MIG devices"
            )
        return gpu


def _devices(gpu: FoundGpu) -> set[str]:
    return {gpu.uuid, *(device.uuid for device in gpu.mig_devices)}


def _form(gpu: FoundGpu, uuids: Collection[str]) -> tuple[bool, list[tuple[str, MigProfile]]]:
    """How those of these devices that are on this GPU are partitioned. A UUID alone does not say: the driver
    makes it from the place of the instance, and another profile may lie there.
    """
    partitioned = gpu.mig is not None and gpu.mig.current
    return partitioned, sorted(
        ((d.uuid, d.profile) for d in gpu.mig_devices if d.uuid in uuids), key=lambda d: d[0]
    )
