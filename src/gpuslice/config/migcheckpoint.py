"""mig-parted's checkpoint: the MIG layout of a node's GPUs, written down with its places. Pure.

Its numbers are NVML's enumeration (NVML_GPU_INSTANCE_PROFILE_*), not the ids that nvidia-smi shows. Source:
NVIDIA/mig-parted `api/checkpoint/v1`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuslice.config.reader import Section, convert, read_file
from gpuslice.devices.mig import MigGeometry
from gpuslice.devices.miglayout import ComputeInstance, GpuInstance, MigLayout
from gpuslice.errors import InputError

VERSION: Final = "v1"


class SavedPlacement(Section, frozen=True, rename="pascal"):
    """Memory slices."""

    start: int
    size: int


class SavedCompute(Section, frozen=True):
    """Only engines that are shared are ever made: `engines` is 0."""

    profile: int = msgspec.field(name="ProfileID")
    engines: int = msgspec.field(name="EngProfileID")


class SavedInstance(Section, frozen=True, rename="pascal"):
    profile: int = msgspec.field(name="ProfileID")
    placement: SavedPlacement
    compute_instances: tuple[SavedCompute, ...] | None = None


class SavedGpu(Section, frozen=True, rename="pascal"):
    """`mig_mode`: 1 for on."""

    uuid: str = msgspec.field(name="UUID")
    mig_mode: int
    gpu_instances: tuple[SavedInstance, ...] | None = None

    @property
    def enabled(self) -> bool:
        """Was MIG on?"""
        return self.mig_mode == 1

    def layout(self, geometry: MigGeometry) -> MigLayout:
        """The instances, on a GPU that can be partitioned so. Raises InputError if this one cannot."""
        return MigLayout(geometry, tuple(_instance(geometry, saved) for saved in self.gpu_instances or ()))


class SavedState(Section, frozen=True, rename="pascal"):
    devices: tuple[SavedGpu, ...] | None = None


class MigCheckpoint(Section, frozen=True, rename="pascal"):
    """A whole file."""

    version: str
    mig_state: SavedState

    @property
    def gpus(self) -> tuple[SavedGpu, ...]:
        """Those GPUs that can be partitioned."""
        return self.mig_state.devices or ()

    @classmethod
    def load(cls, path: Path) -> MigCheckpoint:
        """Read a file. Raises InputError naming it and the place in it."""
        return read_file(path, cls.parse)

    @classmethod
    def parse(cls, text: str) -> MigCheckpoint:
        """Read a file's text. Raises InputError naming the place."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not JSON: {error}") from error
        found = convert(document, cls)
        if found.version != VERSION:
            raise InputError(f"unknown version: {found.version}; write {VERSION}", field="Version")
        seen: set[str] = set()
        for position, gpu in enumerate(found.gpus):
            where = f"MigState.Devices[{position}]"
            if gpu.mig_mode not in (0, 1):
                raise InputError(f"{gpu.mig_mode} is neither 0 nor 1", field=f"{where}.MigMode")
            if gpu.gpu_instances and not gpu.enabled:
                raise InputError("instances although MIG is off", field=f"{where}.GpuInstances")
            if gpu.uuid in seen:
                raise InputError(f"{gpu.uuid} is there twice", field=f"{where}.UUID")
            seen.add(gpu.uuid)
        return found


def checkpoint(gpus: Sequence[tuple[str, MigLayout | None]]) -> str:
    """The file for GPUs by UUID; without a layout MIG is off. As mig-parted writes it, null for nothing."""
    devices = [
        {
            "UUID": uuid,
            "MigMode": int(layout is not None),
            "GpuInstances": _instances(layout) if layout else None,
        }
        for uuid, layout in gpus
    ]
    document = {"Version": VERSION, "MigState": {"Devices": devices or None}}
    return json.dumps(document, separators=(",", ":"))


def _instances(layout: MigLayout) -> list[dict[str, Any]] | None:
    ordered = sorted(layout.instances, key=lambda gi: (gi.profile.enum, gi.start))
    return [
        {
            "ProfileID": gi.profile.enum,
            "Placement": {"Start": gi.start, "Size": gi.profile.size},
            "ComputeInstances": _compute(layout.geometry, gi),
        }
        for gi in ordered
    ] or None


def _compute(geometry: MigGeometry, gi: GpuInstance) -> list[dict[str, int]] | None:
    enums = {kind.slices: kind.enum for kind in geometry.ci_profiles(gi.profile)}
    found = sorted(enums.get(ci.slices) or 0 for ci in gi.compute)
    return [{"ProfileID": enum, "EngProfileID": 0} for enum in found] or None


def _instance(geometry: MigGeometry, saved: SavedInstance) -> GpuInstance:
    profile = geometry.by_enum(saved.profile)
    if profile is None:
        raise InputError(
            f"the checkpoint has NVML's profile {saved.profile}, which {geometry.name} does not have; "
            f"it has {geometry.listing}"
        )
    start, size = saved.placement.start, saved.placement.size
    if size != profile.size:
        raise InputError(f"the checkpoint has {profile} of {size} memory slices; here it has {profile.size}")
    sizes = {kind.enum: kind.slices for kind in geometry.ci_profiles(profile)}
    parts: list[ComputeInstance] = []
    for number, compute in enumerate(saved.compute_instances or ()):
        if compute.profile not in sizes or compute.engines:
            raise InputError(
                f"the checkpoint has a compute instance ({compute.profile}, {compute.engines}) in {profile}, "
                "which cannot be made there"
            )
        parts.append(ComputeInstance(sizes[compute.profile], number))
    return GpuInstance(profile, start, geometry.gi_id(profile, start), tuple(parts))
