"""XIDs, GPUs that vanish and come back: what the agent's backend makes of them, over both drivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nvml_world import Opened, events, machine

from gpuslice.devices.found import FoundGpu
from gpuslice.devices.xids import XidPolicy
from gpuslice.node.discovery.backend import QUERY_SECONDS, REOPEN_SECONDS, DiscoveredGpus, ThreadedDriver
from gpuslice.node.discovery.driver import Driver, Xid
from gpuslice.node.discovery.health import QUIET_SECONDS
from gpuslice.node.discovery.simulated import DirectDriver, SimulatedDriver

GUARD = 20.0
LOST = "the GPU has fallen off the bus or does not answer"


class Silent:
    """A driver whose events are never there, at once."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def wait(self, milliseconds: int) -> None:
        return None


class Turning:
    """A clock that the test turns; who sleeps is woken at once and finds the time passed."""

    def __init__(self) -> None:
        self.time = 0.0

    def now_ns(self) -> int:
        return int(self.time * 1e9)

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


@asynccontextmanager
async def following(
    driver: Driver, clock: Turning, policy: XidPolicy | None = None
) -> AsyncIterator[DiscoveredGpus]:
    asking = DirectDriver(driver) if isinstance(driver, SimulatedDriver) else ThreadedDriver(driver, clock)
    backend = DiscoveredGpus(asking, policy or XidPolicy(), clock)
    await backend.start()
    async with asyncio.timeout(GUARD), asyncio.TaskGroup() as group:
        running = group.create_task(backend.run())
        yield backend
        running.cancel()


async def until(
    backend: DiscoveredGpus, true: Callable[[tuple[FoundGpu, ...]], bool]
) -> tuple[FoundGpu, ...]:
    while not true(backend.found().gpus):
        await backend.changed()
    return backend.found().gpus


def reasons(gpus: tuple[FoundGpu, ...]) -> list[str]:
    return [gpu.reason for gpu in gpus]


def test_xids_are_delivered_with_their_gpu_and_instance(switched_on: Opened) -> None:
    driver, hardware = switched_on("8xA100-40")
    hardware.happens("xid", 2, 79)
    hardware.happens("xid", 5, 13, 7, 0)
    assert list(events(driver)) == [Xid(hardware.uuid(2), 79), Xid(hardware.uuid(5), 13, 7, 0)]
    assert driver.wait(0) is None


async def test_an_xid_makes_its_gpu_unhealthy_until_it_has_been_quiet(switched_on: Opened) -> None:
    driver, hardware = switched_on("2xT4")
    clock = Turning()
    async with following(driver, clock) as backend:
        hardware.happens("xid", 1, 48)
        gpus = await until(backend, lambda gpus: not gpus[1].healthy)
        assert reasons(gpus) == ["", "XID 48: double-bit ECC error"]
        assert [gpu.available for gpu in backend.gpus()] == [True, False]
        clock.time += QUIET_SECONDS + QUERY_SECONDS
        gpus = await until(backend, lambda gpus: gpus[1].healthy)
        assert reasons(gpus) == ["", ""]


async def test_errors_of_programs_change_nothing(switched_on: Opened) -> None:
    driver, hardware = switched_on("2xT4")
    async with following(driver, Turning()) as backend:
        for number in (13, 31, 43, 45, 68, 109):
            hardware.happens("xid", 0, number)
        hardware.happens("xid", 1, 95)
        gpus = await until(backend, lambda gpus: not gpus[1].healthy)
        assert reasons(gpus) == ["", "XID 95: uncontained memory error"]


async def test_a_gpu_off_the_bus_is_kept_and_comes_back(switched_on: Opened) -> None:
    """device-plugin #231, #1223: the others go on; #189: it recovers without a restart."""
    driver, hardware = switched_on("8xA100-40")
    clock = Turning()
    async with following(driver, clock) as backend:
        hardware.now("lost 3")
        gpus = await until(backend, lambda gpus: not gpus[3].healthy)
        assert [gpu.index for gpu in gpus if gpu.healthy] == [0, 1, 2, 4, 5, 6, 7]
        assert (gpus[3].uuid, gpus[3].reason) == (hardware.uuid(3), LOST)
        hardware.happens("xid", 5, 48)
        await until(backend, lambda gpus: not gpus[5].healthy)
        hardware.now()
        clock.time += QUERY_SECONDS
        gpus = await until(backend, lambda gpus: gpus[3].healthy)
        assert len(gpus) == 8
        hardware.happens("xid", 3, 79)
        await until(backend, lambda gpus: not gpus[3].healthy)


async def test_a_gpu_that_is_not_counted_any_more_is_kept(switched_on: Opened) -> None:
    driver, hardware = switched_on("8xA100-40")
    clock = Turning()
    async with following(driver, clock) as backend:
        hardware.now("lost 0", "gone 0")
        await until(backend, lambda gpus: not gpus[0].healthy)
        clock.time += REOPEN_SECONDS
        gpus = await until(backend, lambda gpus: not gpus[7].healthy)
        # The others have moved up, as they do for everybody who asks the driver.
        assert [gpu.uuid for gpu in gpus] == [hardware.uuid(i) for i in (1, 2, 3, 4, 5, 6, 7, 0)]
        assert gpus[7].reason == "the driver does not list the GPU any more"
        hardware.now()
        clock.time += REOPEN_SECONDS
        gpus = await until(backend, lambda gpus: all(gpu.healthy for gpu in gpus))
        assert [gpu.uuid for gpu in gpus] == [hardware.uuid(i) for i in range(8)]


async def test_a_driver_that_goes_away_and_comes_back(switched_on: Opened) -> None:
    """The driver is updated under the agent: every GPU is kept, none healthy, until it answers again."""
    driver, hardware = switched_on("2xT4")
    clock = Turning()
    async with following(driver, clock) as backend:
        hardware.now("lost 0", "lost 1", "init 18")
        await until(backend, lambda gpus: not any(gpu.healthy for gpu in gpus))
        clock.time += REOPEN_SECONDS
        gpus = await until(backend, lambda gpus: all("different versions" in gpu.reason for gpu in gpus))
        assert len(gpus) == 2
        hardware.now()
        await until(backend, lambda gpus: all(gpu.healthy for gpu in gpus))
        hardware.happens("xid", 1, 48)
        await until(backend, lambda gpus: not gpus[1].healthy)


SEVEN = "{gpus: [{model: A100-40, mig: [1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]}]}"


@pytest.fixture(params=["nvml", "paper"])
def seven(request: pytest.FixtureRequest, switched_on: Opened) -> tuple[Driver, Callable[..., None]]:
    """A GPU partitioned in seven, and a way to report an XID on it."""
    if request.param == "nvml":
        driver, hardware = switched_on(SEVEN)
        return driver, lambda *words: hardware.happens("xid", 0, *words)
    paper = SimulatedDriver(machine(SEVEN))
    return paper, lambda *words: paper.raise_xid(paper.query().gpus[0].uuid, *words)


async def test_an_xid_of_a_gpu_is_one_of_all_its_mig_devices(
    seven: tuple[Driver, Callable[..., None]],
) -> None:
    """NVIDIA's plugin (v0.20) marks one of seven, whichever its map has last."""
    driver, xid = seven
    async with following(driver, Turning()) as backend:
        xid(79)
        (gpu,) = await until(backend, lambda gpus: not gpus[0].healthy)
        assert [mig.healthy for mig in gpu.mig_devices] == [False] * 7
        assert {mig.reason for mig in gpu.mig_devices} == {"XID 79: the GPU has fallen off the bus"}


async def test_an_xid_of_an_instance_is_one_of_that_mig_device_alone(
    seven: tuple[Driver, Callable[..., None]],
) -> None:
    """NVIDIA's plugin (v0.20) drops it unless that device is the last in its map."""
    driver, xid = seven
    async with following(driver, Turning()) as backend:
        for number, instance in enumerate((13, 10, 7)):
            xid(94, instance, 0)
            gpus = await until(
                backend, lambda gpus, n=number: sum(not mig.healthy for mig in gpus[0].mig_devices) == n + 1
            )
        assert gpus[0].healthy
        sick = [mig.gpu_instance for mig in gpus[0].mig_devices if not mig.healthy]
        assert sick == [7, 10, 13]


async def test_a_driver_without_events_is_looked_at(switched_on: Opened, old_library: Path) -> None:
    """Neither events nor a library that waits keep the agent busy: it looks every QUERY_SECONDS."""
    driver, hardware = switched_on("2xT4", using=old_library)
    clock = Turning()
    async with following(Silent(driver), clock) as backend:
        hardware.now("lost 1")
        await until(backend, lambda gpus: not gpus[1].healthy)
        assert clock.time >= QUERY_SECONDS


async def test_a_described_machine_is_as_ill_as_its_file_says() -> None:
    driver = SimulatedDriver(machine("{gpus: [{model: T4}, {model: T4}]}"))
    async with following(driver, Turning()) as backend:
        driver.describe(machine("{gpus: [{model: T4, xids: [31, 48]}, {model: T4, lost: true}]}"))
        gpus = await until(backend, lambda gpus: not gpus[0].healthy and not gpus[1].healthy)
        assert reasons(gpus) == ["XID 48: double-bit ECC error", LOST]
        driver.describe(machine("{gpus: [{model: T4, healthy: false}]}"))
        gpus = await until(backend, lambda gpus: len(gpus) == 1)
        assert reasons(gpus) == ["XID 48: double-bit ECC error; marked unhealthy in the file"]


async def test_a_description_recuts_a_gpu_only_if_it_says_so() -> None:
    driver = SimulatedDriver(machine("{gpus: [{model: A30, mig: []}]}"))
    gpu = driver.query().gpus[0].uuid
    made = driver.create_gpu_instance(gpu, 14)
    driver.describe(machine("{gpus: [{model: A30, mig: [], numaNode: 1}]}"))
    assert driver.layout(gpu).instances == (made,)
    driver.describe(machine("{gpus: [{model: A30, mig: [2g.12gb]}]}"))
    assert str(driver.layout(gpu)) == "2g.12gb at 0:2"
