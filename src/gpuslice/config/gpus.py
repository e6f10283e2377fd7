"""The list of GPUs in a file, and the inventory that it stands for."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from gpuslice.config.reader import Section
from gpuslice.devices.catalogue import find_model
from gpuslice.devices.inventory import MAX_GPUS, Gpu, NodeGpus
from gpuslice.errors import InputError
from gpuslice.units import MemoryUnit

_NAMESPACE: Final = uuid.UUID("6d1c6a4e-3b6e-5f0e-9a57-0c3f5a3e7a10")
_UUID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


class GpuEntry(Section, frozen=True):
    """One line of `gpus`: either `count` equal GPUs, or one with a UUID of its own.

    `memory_mib` is what containers can hold; without it the model's, which must then be known.
    """

    model: str
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_GPUS)] = 1
    uuid: str | None = None
    memory_mib: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = msgspec.field(
        default=None, name="memoryMiB"
    )
    healthy: bool = True


def inventory(entries: Sequence[GpuEntry], unit: MemoryUnit, *, node: str, field: str) -> NodeGpus:
    """The GPUs of one node, indexed in the order of the file. Raises InputError under `field`.

    A GPU without a UUID gets one that follows from the node's name and its index, the same every time.
    """
    gpus: list[Gpu] = []
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
        model, memory = _model(entry, where)
        if unit.units_in(memory) < 1:
            raise InputError(
                f"{memory} MiB is less than one unit of {unit}; choose a smaller memoryUnit", field=where
            )
        for _ in range(entry.count):
            index = len(gpus)
            gpus.append(
                Gpu(
                    index,
                    entry.uuid or generated_uuid(node, index),
                    model,
                    memory,
                    entry.healthy,
                    "" if entry.healthy else "marked unhealthy in the file",
                )
            )
    try:
        return NodeGpus(tuple(gpus), unit)
    except InputError as error:
        raise InputError(str(error), field=field) from error


def generated_uuid(node: str, index: int) -> str:
    """The UUID of a simulated GPU, in NVML's form."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}"


def read_unit(text: str, field: str) -> MemoryUnit:
    """`memoryUnit` of a file. Raises InputError under `field`."""
    try:
        return MemoryUnit.parse(text)
    except InputError as error:
        raise InputError(str(error), field=field) from error


def _model(entry: GpuEntry, where: str) -> tuple[str, int]:
    """The product name and its usable memory in MiB."""
    try:
        known = find_model(entry.model)
    except InputError as error:
        if entry.memory_mib is not None and entry.model.strip():
            return entry.model, entry.memory_mib
        raise InputError(str(error), field=f"{where}.model") from error
    return known.name, entry.memory_mib if entry.memory_mib is not None else known.usable_mib
