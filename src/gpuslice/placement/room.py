"""What is left of one GPU: the value that every question of the engine is asked about."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice import names
from gpuslice.devices.availability import OK, Availability
from gpuslice.devices.inventory import Apart
from gpuslice.devices.sharing import device_of


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """What is left of one GPU. `free_mib` is signed: an over-committed GPU has less than nothing.

    `holders` counts the pods on it; a GPU can be given whole, as one of `resource`, only if there is none.
    `parent`, `shareable`, `apart`, `packed` and `lone` as `devices.inventory.Gpu` has them.
    """

    index: int
    uuid: str
    free_mib: int
    total_mib: int
    holders: int = 0
    availability: Availability = OK
    resource: str = names.WHOLE_GPU
    parent: str = ""
    shareable: bool = True
    apart: Apart = Apart.NO
    packed: bool = False
    lone: bool = False

    @property
    def free(self) -> bool:
        """True if nobody uses any of it."""
        return not self.holders and self.free_mib >= self.total_mib

    @property
    def untouched(self) -> bool:
        """True if the GPU could be given away whole."""
        return self.available and self.free

    @property
    def available(self) -> bool:
        """True if it is given to containers."""
        return self.availability.ok

    @property
    def device(self) -> str:
        """The UUID of what a container sees: of a replica the device that it is one of."""
        return device_of(self.uuid)
