"""Names of MIG profiles, as NVIDIA's driver and tools write them: `1g.5gb`, `1g.5gb+me`, `1c.4g.20gb`.

A name is the number of compute slices of the GPU instance (`4g`), its memory in rounded GB, at most one
attribute that begins with `+` (has) or `-` (has not), and, if a compute instance takes only a part of the
GPU instance, that part (`1c`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from gpuslice import names
from gpuslice.errors import InputError, quoted

_NAME: Final = re.compile(
    r"(?:([1-9][0-9]?)c\.)?([1-9][0-9]?)g\.([1-9][0-9]{0,3})gb([+-][a-z][a-z0-9]*(?:\.[a-z][a-z0-9]*)*)?"
)


@dataclass(frozen=True, slots=True, order=True)
class MigProfile:
    """A profile by its name.

    `slices` and `compute` are compute slices: of the GPU instance, and of the compute instance in it.
    `memory_gb` is the rounded number of the name; `attribute` is empty or like "+me", "-me", "+me.all".
    """

    slices: int
    memory_gb: int
    attribute: str = ""
    compute: int = 0
    """0 while constructing means: all of the GPU instance."""

    def __post_init__(self) -> None:
        if not self.compute:
            object.__setattr__(self, "compute", self.slices)

    @classmethod
    def parse(cls, text: str, *, field: str = "") -> MigProfile:
        """Read a name such as "3g.20gb". A leading part that is the whole (`3c.3g.20gb`) is left out.

        Raises InputError, naming `field`, for anything that NVIDIA's tools would not write.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise InputError(
                f"{quoted(text)} is not a MIG profile; write one as nvidia-smi does, "
                "such as 1g.5gb, 1g.5gb+me or 1c.3g.20gb",
                field=field,
            )
        slices, part = int(match[2]), int(match[1] or match[2])
        if not can_be_part(part, slices):
            possible = ", ".join(f"{c}c" for c in parts_of(slices) if c < slices)
            raise InputError(
                f"{quoted(text)}: no compute instance of {part} slices can be made in a GPU instance of "
                f"{slices}; "
                + (f"use {possible}, or leave the part out" if possible else "leave the part out"),
                field=field,
            )
        return cls(slices, int(match[3]), match[4] or "", part)

    @classmethod
    def of_resource(cls, resource: str) -> MigProfile | None:
        """The profile that an extended resource such as `nvidia.com/mig-1g.5gb.me` counts.

        None if the resource is not one of MIG.
        """
        if not resource.startswith(names.MIG_PREFIX):
            return None
        head, unit, attribute = resource.removeprefix(names.MIG_PREFIX).partition("gb")
        if attribute.startswith("."):
            attribute = "+" + attribute[1:]
        if attribute and "+" in resource:
            return None
        try:
            return cls.parse(head + unit + attribute)
        except InputError:
            return None

    @property
    def resource(self) -> str:
        """The extended resource of the `mixed` strategy: `nvidia.com/mig-1g.5gb.me`."""
        return names.MIG_PREFIX + self.label

    @property
    def label(self) -> str:
        """The name as it is written in labels and names of configurations: `1g.5gb.me`, `1g.24gb-me`."""
        return str(self).replace("+", ".")

    @property
    def gpu_instance(self) -> MigProfile:
        """The profile of the whole GPU instance that this one is (a part of)."""
        return self if self.is_whole else replace(self, compute=self.slices)

    @property
    def is_whole(self) -> bool:
        """True if the compute instance takes all of its GPU instance."""
        return self.compute == self.slices

    def __str__(self) -> str:
        part = "" if self.is_whole else f"{self.compute}c."
        return f"{part}{self.slices}g.{self.memory_gb}gb{self.attribute}"


def can_be_part(compute: int, slices: int) -> bool:
    """Is there a compute instance of that size in a GPU instance of that many slices? (go-nvlib's rule)."""
    return compute == slices or (0 < compute < slices and 2 * compute <= slices + 1)


def parts_of(slices: int) -> tuple[int, ...]:
    """Sizes of compute instances that a GPU instance can hold, the smallest first."""
    return tuple(size for size in range(1, slices + 1) if can_be_part(size, slices))


def named_gb(memory_mib: int, total_mib: int) -> int:
    """The GB in a profile's name, from the memory of an instance and of the GPU as NVML reports it, in MiB.

    It is a number of eighths of the GPU, rounded up, of its GiB, rounded up, and then rounded half up. So it
    changes with the driver: the same board is `1g.23gb` with 186 GiB and `1g.24gb` with 189.
    """
    eighths = -(-8 * memory_mib // total_mib)
    return gb_of_eighths(eighths, -(-total_mib // 1024))


def gb_of_eighths(eighths: int, total_gib: int) -> int:
    """`eighths` of the GPU's memory in GB, half rounded up."""
    return (2 * eighths * total_gib + 8) // 16
