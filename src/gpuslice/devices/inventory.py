"""The GPUs of one node, as its agent found them.

Models may be mixed: every GPU carries its own memory (gpushare gave all GPUs the size of the first).
The identity of a GPU is its UUID; the index is how humans and gpushare's annotations call it and may
change at a reboot.

A MIG device is a GPU here, too: it has a UUID and memory of its own, and a container holds it or does not.
So one engine places both. What it is a part of is its `parent`, which itself is then not in the list.

So is a replica of either: one of several ids by which a device is announced (`devices.sharing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpuslice import names
from gpuslice.devices.availability import OK, Availability, closed
from gpuslice.devices.sharing import device_of
from gpuslice.errors import InputError
from gpuslice.units import GIB, MemoryUnit

MAX_GPUS = 512
"""The most GPUs per node that the engine takes: 8 of 7 MIG devices with 8 replicas each are 448. Its arrays
are only as large as the largest node of a cluster needs."""


class Mode(StrEnum):
    """How a GPU is used right now. A GPU is in one mode at a time and changes it when free."""

    FREE = "free"
    SHARED = "shared"
    WHOLE = "whole"


class ReplicaRule(StrEnum):
    """The rule for what else a container that holds one replica of a device may hold."""

    ANY = ""
    """Anything."""
    OTHER_DEVICES = "device"
    """No other replica of the same device."""
    ALONE = "alone"
    """Nothing else of the resource."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, MIG device, or replica. `memory_mib` is what containers can hold, of a replica its even part.

    `resource` is the extended resource that counts it as a whole.
    `parent`: the UUID of the GPU that it is a part of, "" if it is none. `shareable`: shares of its memory
    can be given out. `replica_rule` and `packed` are about replicas: `packed` ones are preferred on devices
    of which the most are given out already, others where the fewest are. `numa_node` is the one that it is
    near to.
    """

    index: int
    uuid: str
    model: str
    memory_mib: int
    availability: Availability = OK
    resource: str = names.WHOLE_GPU
    parent: str = ""
    shareable: bool = True
    replica_rule: ReplicaRule = ReplicaRule.ANY
    packed: bool = False
    numa_node: int | None = None
    lone: bool = False

    @property
    def device(self) -> str:
        """The UUID of what a container sees: of a replica the device that it is one of."""
        return device_of(self.uuid)

    @property
    def available(self) -> bool:
        """True if it is given to containers."""
        return self.availability.ok

    def closed(self, reason: str) -> Gpu:
        """The same device, closed for this reason unless it is unavailable for another one."""
        return replace(self, availability=closed(reason)) if self.available else self

    @property
    def physical(self) -> str:
        """The UUID of the piece of hardware."""
        return self.parent or self.uuid


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """All GPUs of a node, ordered by index, and what one unit of gpu-mem is there.

    Raises InputError for duplicate UUIDs or indexes and for impossible sizes.
    """

    gpus: tuple[Gpu, ...]
    unit: MemoryUnit = GIB
    _by_uuid: Mapping[str, Gpu] = field(init=False, repr=False, compare=False)
    _by_index: Mapping[int, Gpu] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.gpus) > MAX_GPUS:
            raise InputError(
                f"{len(self.gpus)} GPUs on one node; at most {MAX_GPUS} are supported", field="gpus"
            )
        for what, values in (("uuid", [g.uuid for g in self.gpus]), ("index", [g.index for g in self.gpus])):
            for value, times in Counter(values).items():
                if times > 1:
                    raise InputError(
                        f"{value!r} appears {times} times; every GPU needs its own {what}",
                        field=f"gpus.{what}",
                    )
        for gpu in self.gpus:
            if gpu.memory_mib < 0 or gpu.memory_mib >= 2**31 or gpu.index < 0:
                raise InputError(
                    f"GPU {gpu.uuid} has index {gpu.index} and {gpu.memory_mib} MiB; both must be 0 or more",
                    field="gpus",
                )
        object.__setattr__(self, "gpus", tuple(sorted(self.gpus, key=lambda gpu: gpu.index)))
        object.__setattr__(self, "_by_uuid", {gpu.uuid: gpu for gpu in self.gpus})
        object.__setattr__(self, "_by_index", {gpu.index: gpu for gpu in self.gpus})

    def find(self, uuid: str) -> Gpu | None:
        """The GPU of that UUID, if the node still has it."""
        return self._by_uuid.get(uuid)

    def at(self, index: int) -> Gpu | None:
        """The GPU of that index, if the node still has it."""
        return self._by_index.get(index)

    def units_of(self, gpu: Gpu) -> int:
        """Units of gpu-mem that the GPU offers."""
        return self.unit.units_in(gpu.memory_mib) if gpu.shareable else 0

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources that count whole devices here; `nvidia.com/gpu` first, even if it has none."""
        return tuple(dict.fromkeys((names.WHOLE_GPU, *(gpu.resource for gpu in self.gpus))))
