"""A GPU and what is free of it: the value that the engine works on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuslice.devices.inventory import Gpu
from gpuslice.requests.allocation import Charge


@dataclass(frozen=True, slots=True)
class FreeGpu:
    """`free_mib` is signed: an over-committed GPU has less than nothing.

    `holders` counts the pods on it; a GPU can be given whole, as one of its resource, only if there is none.
    """

    gpu: Gpu
    free_mib: int
    holders: int = 0

    @property
    def unused(self) -> bool:
        """True if nobody uses any of it."""
        return not self.holders and self.free_mib >= self.gpu.memory_mib

    @property
    def untouched(self) -> bool:
        """True if the GPU could be given away whole."""
        return self.gpu.available and self.unused


def after_charges(free_gpus: Sequence[FreeGpu], charges: Iterable[Charge], sign: int) -> list[FreeGpu]:
    """The same GPUs after charges were given back (1) or taken (-1)."""
    by_gpu: dict[str, list[Charge]] = {}
    for charge in charges:
        by_gpu.setdefault(charge.gpu, []).append(charge)
    return [
        replace(
            one,
            free_mib=one.free_mib + sign * sum(one.gpu.memory_mib if c.whole else c.mib for c in mine),
            holders=one.holders - sign * len(mine),
        )
        if (mine := by_gpu.get(one.gpu.uuid))
        else one
        for one in free_gpus
    ]
