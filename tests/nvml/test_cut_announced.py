"""GPUs that are partitioned while the agent runs: what is announced and given out is what the driver has, over both drivers.

Neither driver reports an event for it, and no time passes here: the look that finds it out has to be asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from nvml_world import Opened, machine

from gpuslice.devices.sharing import MigStrategy
from gpuslice.devices.xids import XidPolicy
from gpuslice.node.discovery.backend import DiscoveredGpus, ThreadedDriver
from gpuslice.node.discovery.driver import Driver
from gpuslice.node.discovery.simulated import DirectDriver, SimulatedDriver

TWO_GPUS = "{gpus: [{model: A100-40, mig: [1g.5gb@4]}, {model: A100-40}]}"
ONE, ONE_MEDIA, THREE = 19, 20, 9
"""Ids of A100's profiles as nvidia-smi shows them."""


class Stopped:
    """A clock that stands still."""

    def now_ns(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


DriverFor = Callable[[str], Driver]


@pytest.fixture(params=["nvml", "paper"])
def driver_for(request: pytest.FixtureRequest, switched_on: Opened) -> DriverFor:
    def make(text: str) -> Driver:
        return switched_on(text)[0] if request.param == "nvml" else SimulatedDriver(machine(text))

    return make


@asynccontextmanager
async def announcing(driver: Driver) -> AsyncIterator[DiscoveredGpus]:
    clock = Stopped()
    asking = DirectDriver(driver) if isinstance(driver, SimulatedDriver) else ThreadedDriver(driver, clock)
    backend = DiscoveredGpus(asking, XidPolicy(), clock, MigStrategy.MIXED)
    await backend.start()
    running = asyncio.create_task(backend.run())
    try:
        yield backend
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def partitioned(driver: Driver, gpu: str, profile: int, start: int) -> None:
    made = driver.create_gpu_instance(gpu, profile, start)
    driver.create_compute_instance(gpu, made.id, made.profile.slices)


def clear(driver: Driver, gpu: str) -> None:
    for instance in driver.layout(gpu).instances:
        for compute in instance.compute:
            driver.destroy_compute_instance(gpu, instance.id, compute.id)
        driver.destroy_gpu_instance(gpu, instance.id)


def resources(backend: DiscoveredGpus) -> list[str]:
    return sorted(gpu.resource for gpu in backend.gpus())


async def test_after_a_cut_what_is_announced_is_what_is_there(driver_for: DriverFor) -> None:
    driver = driver_for(TWO_GPUS)
    async with announcing(driver) as backend:
        first = backend.found().gpus[0].uuid
        assert resources(backend) == ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]
        async with backend.partitioning():
            clear(driver, first)
            partitioned(driver, first, THREE, 0)
        assert resources(backend) == ["nvidia.com/gpu", "nvidia.com/mig-3g.20gb"]


async def test_nothing_half_made_is_announced_and_nothing_old_after_a_failure(driver_for: DriverFor) -> None:
    driver = driver_for("{gpus: [{model: H100-80, mig: [1g.10gb@4]}, {model: H100-80}]}")
    async with announcing(driver) as backend:
        first, second = (gpu.uuid for gpu in backend.found().gpus)
        before = backend.gpus()
        with pytest.raises(ZeroDivisionError):
            async with backend.partitioning():
                clear(driver, first)
                partitioned(driver, first, ONE, 0)
                # Somebody allocates on the other GPU meanwhile, and finds that somebody has partitioned that, too.
                driver.set_mig_mode(second, True)
                asking = asyncio.create_task(backend.differs({second}))
                for _ in range(20):
                    await asyncio.sleep(0)
                assert backend.gpus() == before
                raise ZeroDivisionError
        assert "has just been partitioned" in await asking
        assert resources(backend) == ["nvidia.com/mig-1g.10gb"]


@pytest.mark.parametrize("profile, start", [(None, 0), (ONE_MEDIA, 4), (THREE, 4)])
async def test_a_mig_device_that_somebody_else_has_replaced_is_given_to_nobody(
    driver_for: DriverFor, profile: int | None, start: int
) -> None:
    """By nvidia-smi, or `gpuslice mig apply`. In the same place it may even have the same UUID."""
    driver = driver_for(TWO_GPUS)
    async with announcing(driver) as backend:
        (device,) = backend.found().gpus[0].mig_devices
        assert await backend.differs({device.uuid}) == ""
        clear(driver, backend.found().gpus[0].uuid)
        if profile is not None:
            partitioned(driver, backend.found().gpus[0].uuid, profile, start)
        assert "has just been partitioned in another way" in await backend.differs({device.uuid})
        assert resources(backend) != ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"], "looked at once"


async def test_a_whole_gpu_that_somebody_else_has_cut_is_given_to_nobody(driver_for: DriverFor) -> None:
    driver = driver_for("{gpus: [{model: H100-80}, {model: H100-80}]}")
    async with announcing(driver) as backend:
        first, second = (gpu.uuid for gpu in backend.found().gpus)
        driver.set_mig_mode(first, True)
        assert "has just been partitioned in another way" in await backend.differs({first})
        assert await backend.differs({second}) == ""
        assert first in await backend.differs({first}), "it is not announced any more"


async def test_a_gpu_that_is_lost_is_given_to_nobody(switched_on: Opened) -> None:
    driver, hardware = switched_on("2xT4")
    async with announcing(driver) as backend:
        hardware.now("lost 1")
        assert "GPU 1" in await backend.differs({hardware.uuid(1)})
        assert await backend.differs({hardware.uuid(0)}) == ""
