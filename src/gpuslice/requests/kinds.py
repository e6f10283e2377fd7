"""The kinds of things that a container can ask for: shares of a GPU's memory, or whole devices. Pure.

A kubelet knows a kind by the name of its resource. What follows from the name is defined only here: which
GPUs offer the kind, how much they are charged for it, and what it is called in a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, Protocol

from gpuslice import names
from gpuslice.devices.inventory import NodeGpus


class Offer(Protocol):
    """A GPU, MIG device or replica, by what it offers."""

    @property
    def resource(self) -> str: ...
    @property
    def shareable(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """Memory of a GPU that several containers share. Each id is one unit of it (`NodeGpus.unit`)."""

    resource: str = names.GPU_MEM
    whole: ClassVar[bool] = False
    """True if a GPU of which a container holds an id is all of it that container's."""

    def is_offered_by(self, gpu: Offer) -> bool:
        return gpu.shareable

    def mib(self, gpus: NodeGpus, _uuid: str, count: int) -> int:
        """The memory that this number of ids of that GPU stands for."""
        return gpus.unit.to_mib(count)

    def say(self, gpus: NodeGpus, count: int) -> str:
        return gpus.unit.say(count)


@dataclass(frozen=True, slots=True)
class WholeDevices:
    """Devices that a container has for itself: GPUs, MIG devices, replicas. Each id is one of them."""

    resource: str
    whole: ClassVar[bool] = True

    def is_offered_by(self, gpu: Offer) -> bool:
        return gpu.resource == self.resource

    def mib(self, gpus: NodeGpus, uuid: str, count: int) -> int:
        gpu = gpus.find(uuid)
        return count * gpu.memory_mib if gpu else 0

    def say(self, gpus: NodeGpus, count: int) -> str:
        if self != WHOLE_GPUS or any(gpu.uuid != gpu.device for gpu in gpus.gpus):
            return f"{count} {self.resource}"
        return f"{count} whole GPU{'s' if count != 1 else ''}"


Kind = MemoryShares | WholeDevices

SHARES: Final = MemoryShares()
WHOLE_GPUS: Final = WholeDevices(names.WHOLE_GPU)
REPLICAS: Final = WholeDevices(names.SHARED_GPU)
FIXED: Final[tuple[Kind, ...]] = (SHARES, WHOLE_GPUS, REPLICAS)
"""The kinds whose resources have names that are known before any node is."""

_FIXED: Final = {kind.resource: kind for kind in FIXED}


@lru_cache(maxsize=256)
def kind_of(resource: str) -> Kind | None:
    """The kind that a resource counts, None if it is none of GPUs."""
    if resource.startswith(names.MIG_PREFIX):
        return WholeDevices(resource)
    return _FIXED.get(resource)


def kinds_in(resources: Iterable[str]) -> Iterator[Kind]:
    """The kinds among these resources."""
    return (kind for name in resources if (kind := kind_of(name)) is not None)


def kinds_of(gpus: NodeGpus) -> tuple[Kind, ...]:
    """The kinds that a node's agent registers with kubelet: memory even where there is none yet, then devices
    by index.
    """
    return (SHARES, *(WholeDevices(name) for name in dict.fromkeys(gpu.resource for gpu in gpus.gpus)))
