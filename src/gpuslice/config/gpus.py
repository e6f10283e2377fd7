"""The list of GPUs in a file, and the machine that it stands for."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

import msgspec

from gpuslice.config.reader import Section
from gpuslice.devices.availability import sick
from gpuslice.devices.catalogue import GpuModel, find_model
from gpuslice.devices.found import FoundGpu
from gpuslice.devices.inventory import MAX_GPUS, Gpu, NodeGpus
from gpuslice.devices.machine import PaperGpu, PaperMig, partition
from gpuslice.devices.miglayout import MigLayout
from gpuslice.devices.migtables import geometry_of
from gpuslice.devices.xids import XidPolicy, describe
from gpuslice.errors import InputError
from gpuslice.units import MemoryUnit

_NAMESPACE: Final = uuid.UUID("6d1c6a4e-3b6e-5f0e-9a57-0c3f5a3e7a10")
_UUID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
DRIVER_VERSION: Final = "550.163.01"
CUDA_VERSION: Final = "12.4"
"""What a simulated machine has if nothing else is said."""
_FIRST_BUS: Final = 0x10
_NVIDIA: Final = 0x10DE


class GpuEntry(Section, frozen=True):
    """One line of `gpus`: either `count` equal GPUs, or one with a UUID of its own.

    `memory_mib` is what containers can hold; without it the model's, which must then be known. `mig`: MIG is
    on, with these instances ("1g.5gb", or "3g.20gb@4" for one that begins at memory slice 4). `xids`: errors
    that it reports. `lost`: it has fallen off the bus.
    """

    model: str
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_GPUS)] = 1
    uuid: str | None = None
    memory_mib: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = msgspec.field(
        default=None, name="memoryMiB"
    )
    healthy: bool = True
    numa_node: Annotated[int, msgspec.Meta(ge=0, le=1023)] | None = None
    mig: tuple[str, ...] | None = None
    xids: tuple[Annotated[int, msgspec.Meta(ge=0, le=9999)], ...] = ()
    lost: bool = False


def inventory(entries: Sequence[GpuEntry], unit: MemoryUnit, *, node: str, field: str) -> NodeGpus:
    """The GPUs of one node, indexed in the order of the file. Raises InputError under `field`."""
    return inventory_of(paper_gpus(entries, unit, node=node, field=field), unit, field=field)


def inventory_of(papers: Sequence[PaperGpu], unit: MemoryUnit, *, field: str) -> NodeGpus:
    """The same of GPUs that have been read. Raises InputError under `field`."""
    try:
        return NodeGpus(tuple(_shared(paper) for paper in papers), unit)
    except InputError as error:
        raise InputError(str(error), field=field) from error


def paper_gpus(
    entries: Sequence[GpuEntry], unit: MemoryUnit, *, node: str, field: str
) -> tuple[PaperGpu, ...]:
    """The GPUs with all that the file says about them. Raises InputError under `field`.

    A GPU without a UUID gets one that follows from the node's name and its index, the same every time.
    """
    gpus: list[PaperGpu] = []
    for position, entry in enumerate(entries):
        where = f"{field}[{position}]"
        if entry.uuid is not None and entry.count > 1:
            raise InputError(
                f"{entry.count} GPUs cannot share one uuid; write one entry for each, or leave the uuid out",
                field=where,
            )
        if entry.uuid is not None and not _UUID.fullmatch(entry.uuid):
            raise InputError(
                f"{entry.uuid!r} is not a UUID as nvidia-smi -L prints it (GPU-...)", field=f"{where}.uuid"
            )
        model = _model(entry, where)
        usable = model.usable_mib if entry.memory_mib is None else entry.memory_mib
        if unit.units_in(usable) < 1:
            raise InputError(
                f"{usable} MiB is less than one unit of {unit}; choose a smaller memoryUnit", field=where
            )
        mig = _mig(entry, model, where)
        for _ in range(entry.count):
            index = len(gpus)
            gpu = _gpu(entry, model, usable, index, entry.uuid or generated_uuid(node, index))
            gpus.append(PaperGpu(gpu, mig, entry.xids, entry.lost))
    return tuple(gpus)


def generated_uuid(node: str, index: int) -> str:
    """The UUID of a simulated GPU, in NVML's form."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}"


def read_unit(text: str, field: str) -> MemoryUnit:
    """`memoryUnit` of a file. Raises InputError under `field`."""
    try:
        return MemoryUnit.parse(text)
    except InputError as error:
        raise InputError(str(error), field=field) from error


def _shared(paper: PaperGpu) -> Gpu:
    """The GPU with what follows from its fate, as an agent will find it."""
    gpu = paper.gpu.shared
    if paper.lost:
        return replace(gpu, availability=sick("lost in the file"))
    counting = [xid for xid in paper.xids if XidPolicy().counts(xid)]
    return replace(gpu, availability=sick(describe(counting[-1]))) if counting else gpu


def _model(entry: GpuEntry, where: str) -> GpuModel:
    try:
        return find_model(entry.model)
    except InputError as error:
        if entry.memory_mib is not None and entry.model.strip():
            return GpuModel(entry.model, entry.memory_mib, 0, "", "")
        raise InputError(str(error), field=f"{where}.model") from error


def _gpu(entry: GpuEntry, model: GpuModel, usable: int, index: int, uuid: str) -> FoundGpu:
    return FoundGpu(
        index,
        uuid,
        model.name,
        usable + model.reserved_mib,
        model.reserved_mib,
        minor=index,
        pci_bus_id=f"00000000:{_FIRST_BUS + index:02X}:00.0",
        numa_node=entry.numa_node,
        brand="Tesla" if model.name.startswith("Tesla") else "Nvidia",
        compute_capability=model.compute_capability,
        healthy=entry.healthy,
        reason="" if entry.healthy else "marked unhealthy in the file",
        pci_device_id=None if model.pci_device is None else model.pci_device << 16 | _NVIDIA,
    )


def _mig(entry: GpuEntry, model: GpuModel, where: str) -> PaperMig | None:
    if model.mig_family is None:
        if entry.mig is not None:
            raise InputError(f"{model.name} cannot be partitioned; leave mig out", field=f"{where}.mig")
        return None
    geometry = geometry_of(model.mig_family)
    try:
        layout = partition(geometry, entry.mig) if entry.mig else MigLayout(geometry)
    except InputError as error:
        raise InputError(str(error), field=f"{where}.mig") from error
    return PaperMig(model.architecture == "ampere", entry.mig is not None, layout)
