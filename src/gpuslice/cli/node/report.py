"""A machine's GPUs for people and programs."""

from __future__ import annotations

import msgspec

from gpuslice.cli.output import Report
from gpuslice.devices.found import Found, FoundGpu, MigDevice


class LinkReport(Report, frozen=True):
    uuid: str
    nearness: str
    nvlinks: int


class MigDeviceReport(Report, frozen=True):
    index: int
    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    placement: str | None
    memory_mib: int | None = msgspec.field(name="memoryMiB")
    multiprocessors: int | None
    healthy: bool
    reason: str


class GpuReport(Report, frozen=True):
    index: int
    uuid: str
    name: str
    brand: str
    minor: int | None
    pci_bus_id: str
    pci_device_id: str | None
    numa_node: int | None
    memory_mib: int = msgspec.field(name="memoryMiB")
    reserved_mib: int = msgspec.field(name="reservedMiB")
    compute_capability: str
    mig_capable: bool
    mig_mode: bool
    mig_mode_pending: bool
    mig_devices: list[MigDeviceReport]
    links: list[LinkReport]
    healthy: bool
    reason: str


class SilentReport(Report, frozen=True):
    index: int
    reason: str


class MachineReport(Report, frozen=True):
    driver_version: str
    cuda_version: str
    gpus: list[GpuReport]
    silent: list[SilentReport]


def report(found: Found) -> MachineReport:
    """Everything that was found."""
    return MachineReport(
        found.driver_version,
        found.cuda_version,
        [_gpu(gpu) for gpu in found.gpus],
        [SilentReport(index, reason) for index, reason in found.silent],
    )


def _gpu(gpu: FoundGpu) -> GpuReport:
    return GpuReport(
        gpu.index,
        gpu.uuid,
        gpu.name,
        gpu.brand,
        gpu.minor,
        gpu.pci_bus_id,
        None if gpu.pci_device_id is None else f"0x{gpu.pci_device_id:08X}",
        gpu.numa_node,
        gpu.memory_mib,
        gpu.reserved_mib,
        gpu.compute_capability,
        gpu.mig is not None,
        gpu.mig is not None and gpu.mig.current,
        gpu.mig is not None and gpu.mig.pending,
        [_mig(mig) for mig in gpu.mig_devices],
        [LinkReport(link.uuid, link.nearness.name.lower(), link.nvlinks) for link in gpu.links],
        gpu.healthy,
        gpu.reason,
    )


def _mig(mig: MigDevice) -> MigDeviceReport:
    return MigDeviceReport(
        mig.index,
        mig.uuid,
        str(mig.profile),
        mig.gpu_instance,
        mig.compute_instance,
        str(mig.window) if mig.window else None,
        mig.memory_mib,
        mig.engines.sm,
        mig.healthy,
        mig.reason,
    )
