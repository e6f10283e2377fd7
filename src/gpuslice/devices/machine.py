"""Simulated machines as a description gives them, before anything has happened to them. Pure values.

How a GPU of one kind behaves when MIG is switched is NVIDIA's: MIG user guide, "Enable MIG Mode".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuslice.devices.found import FoundGpu
from gpuslice.devices.mig import MigGeometry
from gpuslice.devices.miglayout import MigLayout, instance
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migspace import space_of
from gpuslice.errors import InputError


@dataclass(frozen=True, slots=True)
class PaperMig:
    """How a GPU that can be partitioned was left; `enabled` is MIG's mode.

    `needs_reset`: the mode changes when the GPU is reset (Ampere), not at once (Hopper and later).
    """

    needs_reset: bool
    enabled: bool
    layout: MigLayout


@dataclass(frozen=True, slots=True)
class PaperGpu:
    """A GPU and its fate: `xids` are errors that it has reported, `lost` that it has fallen off the bus."""

    gpu: FoundGpu
    mig: PaperMig | None = None
    xids: tuple[int, ...] = ()
    lost: bool = False


@dataclass(frozen=True, slots=True)
class PaperMachine:
    """All GPUs of a machine, and the versions that its driver gives."""

    driver_version: str
    cuda_version: str
    gpus: tuple[PaperGpu, ...]


def partition(geometry: MigGeometry, wanted: Iterable[str]) -> MigLayout:
    """GPU instances made one after the other: "3g.20gb@4" begins at memory slice 4, "1g.5gb" where the driver
    likes. Each is one MIG device.

    Raises InputError naming the one that cannot be read or has no room.
    """
    layout = MigLayout(geometry)
    for text in wanted:
        name, at, start = text.partition("@")
        if at and not (start.isdecimal() and start.isascii()):
            raise InputError(f"{text!r}: write PROFILE or PROFILE@START, such as 3g.20gb@4")
        profile = geometry.profile(MigProfile.parse(name))
        if MigProfile.parse(name) != profile.name:
            raise InputError(f"{text!r} is a part of a GPU instance; write {profile}")
        place = int(start) if at else space_of(geometry).drivers_start(layout, profile)
        if place is None:
            raise InputError(f"there is no room for {profile} beside {layout}")
        layout = MigLayout(geometry, (*layout.instances, instance(geometry, profile.name, place)))
        if layout.fault is not None:
            raise InputError(layout.fault)
    return layout
