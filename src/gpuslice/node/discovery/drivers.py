"""The driver that a command works with: this machine's own, or a simulated one."""

from __future__ import annotations

from pathlib import Path

from gpuslice.clock import Clock
from gpuslice.config.devices import DevicesFile, find_machine
from gpuslice.config.gpus import read_unit
from gpuslice.node.discovery.backend import AsyncDriver, ThreadedDriver
from gpuslice.node.discovery.driver import Driver
from gpuslice.node.discovery.following import follow
from gpuslice.node.discovery.nvml import NvmlDriver
from gpuslice.node.discovery.simulated import DirectDriver, SimulatedDriver
from gpuslice.units import GIB, MemoryUnit

MachineDriver = NvmlDriver | SimulatedDriver


def driver_of(devices: Path | None, node: str) -> MachineDriver:
    """NVIDIA's driver, or what the file (or the ready-made machine) says about the GPUs of that node.

    Raises InputError naming the place in the file.
    """
    if devices is None:
        return NvmlDriver()
    return SimulatedDriver(DevicesFile.load(devices).machine(node))


def unit_of(devices: Path | None, wanted: str | None) -> MemoryUnit:
    """What one gpu-mem is: as asked for, else as the file says, else GiB. Raises InputError."""
    if wanted is not None:
        return read_unit(wanted, "--memory-unit")
    if devices is None:
        return GIB
    return read_unit(DevicesFile.load(devices).spec.memory_unit, "spec.memoryUnit")


def without_blocking(driver: Driver, *, clock: Clock) -> AsyncDriver:
    """The way to ask it without holding up the event loop."""
    return DirectDriver(driver) if isinstance(driver, SimulatedDriver) else ThreadedDriver(driver, clock)


async def keep_up(driver: Driver, devices: Path | None, node: str, *, clock: Clock) -> None:
    """Keep a simulated driver as its file says, whenever that changes; for ever."""
    if devices is not None and isinstance(driver, SimulatedDriver):
        path = find_machine(devices)
        await follow(path, lambda one: DevicesFile.load(one).machine(node), driver.describe, clock=clock)
