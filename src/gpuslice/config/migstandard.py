"""The configurations that every GPU of a family can have, under mig-parted's names. Pure.

`all-disabled`, `all-enabled`, `all-<profile>` with as many as fit, and `all-balanced`: what NVIDIA's operator
ships, so that a node's label nvidia.com/mig.config keeps its meaning. Source: NVIDIA/mig-parted
`pkg/mig/builder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from gpuslice.config.migparted import MigEntry, MigPartedFile, PciId
from gpuslice.devices.mig import GiProfile, MigGeometry
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migspace import space_of

_BALANCED: Final = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
"""How many instances of how many slices `all-balanced` has, by the GPU's compute slices."""


def standard_configs(kinds: Sequence[tuple[tuple[PciId, ...], MigGeometry]]) -> MigPartedFile:
    """The file for a node (or a fleet) with these kinds of GPUs: their boards and what can be made from them.

    With one kind the entries are for all GPUs; with several each entry has its device-filter.
    """
    configs: dict[str, list[MigEntry]] = {
        "all-disabled": [MigEntry(False, MappingProxyType({}))],
        "all-enabled": [MigEntry(True, MappingProxyType({}))],
    }
    for boards, geometry in kinds:
        filters = boards if len(kinds) > 1 else ()
        for profile in geometry.profiles:
            devices = {profile.name: _most(geometry, profile)}
            configs.setdefault(f"all-{profile.name.label}", []).append(_entry(devices, filters))
        if balanced := _balanced(geometry):
            configs.setdefault("all-balanced", []).append(_entry(balanced, filters))
    return MigPartedFile(MappingProxyType({name: tuple(entries) for name, entries in configs.items()}))


def _entry(devices: dict[MigProfile, int], boards: tuple[PciId, ...]) -> MigEntry:
    return MigEntry(True, MappingProxyType(devices), None, boards)


def _most(geometry: MigGeometry, profile: GiProfile) -> int:
    """How many of one profile a GPU holds when it holds nothing else."""
    space = space_of(geometry)
    return next(
        count
        for count in range(profile.max_count, 0, -1)
        if count == 1 or space.why_impossible({profile.name: count}) is None
    )


def _balanced(geometry: MigGeometry) -> dict[MigProfile, int]:
    """Instances of several sizes that fill the GPU; nothing for a GPU that has no such plain profiles."""
    wanted = _BALANCED.get(geometry.compute_slices, {})
    plain: dict[int, MigProfile] = {}
    # Of two plain profiles of so many slices the one with less memory: 1g.5gb, not 1g.10gb.
    for name in sorted((profile.name for profile in geometry.profiles), reverse=True):
        if not name.attribute:
            plain[name.slices] = name
    if not all(slices in plain for slices in wanted):
        return {}
    return {plain[slices]: count for slices, count in wanted.items()}
