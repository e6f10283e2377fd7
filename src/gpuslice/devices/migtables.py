"""Tables of MIG profiles per family of GPUs, for simulated GPUs and for planning without a node.

Sources: NVIDIA's MIG user guide ("Supported MIG Profiles") and listings of `nvidia-smi mig -lgip` that users
published. What no source says is None and is not guessed. Sizes that nvidia-smi prints as GiB with two digits
are the multiple of 64 MiB that it prints so (19.62 GiB is 20096 MiB). On a node nothing of this is used:
drivers differ, see `devices.mig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from gpuslice.devices.mig import ATTRIBUTES, Engines, GiProfile, MigGeometry, limits_of
from gpuslice.devices.migprofile import MigProfile, gb_of_eighths
from gpuslice.errors import InputError


class _Shape(NamedTuple):
    """What a profile is on every GPU of its kind: NVML's number, nvidia-smi's id, slices, windows, count."""

    enum: int
    id: int
    slices: int
    size: int
    starts: tuple[int, ...]
    max_count: int


_SEVEN: Final = (
    _Shape(0, 19, 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    _Shape(7, 20, 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    _Shape(9, 15, 1, 2, (0, 2, 4, 6), 4),
    _Shape(1, 14, 2, 2, (0, 2, 4), 3),
    _Shape(2, 9, 3, 4, (0, 4), 2),
    _Shape(3, 5, 4, 4, (0,), 1),
    _Shape(4, 0, 7, 8, (0,), 1),
)
"""A100 and all later GPUs of seven compute and eight memory slices: same windows on all of them."""
_QUARTERS: Final = (0, 1, 2, 3)
_A30: Final = (
    _Shape(0, 14, 1, 1, _QUARTERS, 4),
    _Shape(7, 21, 1, 1, _QUARTERS, 1),
    _Shape(1, 5, 2, 2, (0, 2), 2),
    _Shape(8, 6, 2, 2, (0, 2), 1),
    _Shape(3, 0, 4, 4, (0,), 1),
)
_RTX_PRO_6000: Final = (
    _Shape(0, 14, 1, 1, _QUARTERS, 4),
    _Shape(7, 21, 1, 1, _QUARTERS, 1),
    _Shape(10, 47, 1, 1, _QUARTERS, 4),
    _Shape(13, 67, 1, 1, _QUARTERS, 4),
    _Shape(15, 65, 1, 1, _QUARTERS, 1),
    _Shape(1, 5, 2, 2, (0, 2), 2),
    _Shape(11, 35, 2, 2, (0, 2), 2),
    _Shape(14, 66, 2, 2, (0, 2), 2),
    _Shape(16, 64, 2, 2, (0, 2), 1),
    _Shape(3, 0, 4, 4, (0,), 1),
    _Shape(12, 32, 4, 4, (0,), 1),
)
_HALVES: Final = (0, 1)
# Names, counts and engines are published; ids are taken to be those of profiles of as many slices on the
# larger board. Guides before version 590 had four slices for the 5000.
_RTX_PRO_4500: Final = (
    _Shape(0, 14, 1, 1, _HALVES, 2),
    _Shape(10, 47, 1, 1, _HALVES, 2),
    _Shape(13, 67, 1, 1, _HALVES, 2),
    _Shape(15, 65, 1, 1, _HALVES, 1),
    _Shape(1, 5, 2, 2, (0,), 1),
    _Shape(11, 35, 2, 2, (0,), 1),
)
_RTX_PRO_5000: Final = (
    _RTX_PRO_4500[0],
    _Shape(7, 21, 1, 1, _HALVES, 1),
    *_RTX_PRO_4500[1:],
)

_Memory = Mapping[int, int]
"""MiB of an instance by enum. The media extensions change nothing: enum 7 is as 0, and 8 as 1."""
_Engines = Mapping[int, Engines]
_UNKNOWN: Final = Engines()


def _seven_memory(one: int, double: int, two: int, *rest: int) -> _Memory:
    """MiB of 1g, 1g with double memory, 2g and, where known, 3g, 4g, 7g."""
    return dict(zip((0, 9, 1, 2, 3, 4), (one, double, two, *rest), strict=False)) | {7: one}


def _with_sm(engines: _Engines, *sm: int | None) -> _Engines:
    """The same engines on a board with other numbers of multiprocessors, in the order of `_SEVEN`."""
    return {
        shape.enum: Engines(count, e.copy, e.decoder, e.encoder, e.jpeg, e.ofa)
        for shape, count in zip(_SEVEN, sm, strict=True)
        for e in (engines[shape.enum],)
    }


_A100_ENGINES: Final = {
    0: Engines(14, 1, 0, 0, 0, 0),
    7: Engines(14, 1, 1, 0, 1, 1),
    9: Engines(14, 1, 1, 0, 0, 0),
    1: Engines(28, 2, 1, 0, 0, 0),
    2: Engines(42, 3, 2, 0, 0, 0),
    3: Engines(56, 4, 2, 0, 0, 0),
    4: Engines(98, 7, 5, 0, 1, 1),
}
_H100_ENGINES: Final = {
    0: Engines(16, 1, 1, 0, 1, 0),
    7: Engines(16, 1, 1, 0, 1, 1),
    9: Engines(26, 1, 1, 0, 1, 0),
    1: Engines(32, 2, 2, 0, 2, 0),
    2: Engines(60, 3, 3, 0, 3, 0),
    3: Engines(64, 4, 4, 0, 4, 0),
    4: Engines(132, 8, 7, 0, 7, 1),
}
"""H100 SXM with 80 GB, and H200, whose listing is the same."""
_B200_ENGINES: Final = {
    0: Engines(18, 2, 1, 0, 1, 0),
    7: Engines(18, 2, 1, 0, 1, 1),
    9: Engines(30, 2, 1, 0, 1, 0),
    1: Engines(36, 4, 2, 0, 2, 0),
    2: Engines(copy=6),
    3: Engines(copy=8),
    4: Engines(copy=16),
}
_GB200_ENGINES: Final = {
    0: Engines(18, 2, 1, 0, 1, 0),
    7: Engines(18, 2, 1, 0, 1, 1),
    9: Engines(32, 2, 1, 0, 1, 0),
    1: Engines(38, 4, 2, 0, 2, 0),
}
_A30_ENGINES: Final = {
    0: Engines(14, 1, 0, 0, 0, 0),
    7: Engines(14, 1, 1, 0, 1, 1),
    1: Engines(28, 2, 2, 0, 0, 0),
    8: Engines(28, 2, 2, 0, 1, 1),
    3: Engines(56, 4, 4, 0, 1, 1),
}
_RTX_PRO_6000_ENGINES: Final = {
    0: Engines(46, 1, 1, 1, 1, 0),
    7: Engines(46, 1, 1, 1, 1, 1),
    10: Engines(46, None, 1, 1, 1, 0),
    13: Engines(46, None, 0, 0, 0, 0),
    15: Engines(46, None, 4, 4, 4, 1),
    1: Engines(94, None, 2, 2, 2, 0),
    11: Engines(94, None, 2, 2, 2, 0),
    14: Engines(94, None, 0, 0, 0, 0),
    16: Engines(94, None, 4, 4, 4, 1),
    3: Engines(188, None, 4, 4, 4, 1),
    12: Engines(188, None, 4, 4, 4, 1),
}
_RTX_PRO_5000_ENGINES: Final = {
    0: Engines(None, 1, 1, 1, 0, 0),
    7: Engines(None, 1, 1, 1, 1, 1),
    10: Engines(None, 1, 1, 1, 0, 0),
    13: Engines(None, 1, 0, 0, 0, 0),
    15: Engines(None, 1, 3, 3, 1, 1),
    1: Engines(None, 4, 3, 3, 1, 1),
    11: Engines(None, 4, 3, 3, 1, 1),
}
_RTX_PRO_4500_ENGINES: Final = {
    0: Engines(None, 1, 1, 1, 1, 0),
    10: Engines(None, 1, 1, 1, 1, 0),
    13: Engines(None, 1, 0, 0, 0, 0),
    15: Engines(None, 1, 3, 3, 2, 1),
    1: Engines(None, 2, 3, 3, 2, 1),
    11: Engines(None, 2, 3, 3, 2, 1),
}


def _geometry(
    name: str,
    total_gib: int,
    shapes: tuple[_Shape, ...],
    memory: _Memory,
    engines: _Engines,
) -> MigGeometry:
    slices = max(shape.size for shape in shapes)
    profiles = tuple(
        GiProfile(
            MigProfile(
                shape.slices,
                gb_of_eighths(8 * shape.size // slices, total_gib),
                ATTRIBUTES.get(shape.enum, ""),
            ),
            shape.enum,
            shape.id,
            shape.size,
            shape.starts,
            shape.max_count,
            memory.get(shape.enum),
            engines.get(shape.enum, _UNKNOWN),
        )
        for shape in shapes
    )
    compute = max(shape.slices for shape in shapes)
    return MigGeometry(name, slices, compute, profiles, limits_of(profiles))


_H100_80_MEMORY: Final = _seven_memory(9984, 20096, 20096, 40448, 40448, 81152)
_RTX_PRO_6000_MEMORY: Final = {
    shape.enum: {1: 24192, 2: 48512, 4: 97280}[shape.size] for shape in _RTX_PRO_6000
}

FAMILIES: Final[Mapping[str, MigGeometry]] = MappingProxyType(
    {
        geometry.name: geometry
        for geometry in (
            _geometry(
                "A100-40", 40, _SEVEN, _seven_memory(4864, 9856, 9856, 19968, 19968, 40192), _A100_ENGINES
            ),
            # Sources differ on whether a plain 1g has a decoder here; the user guide says none, as on 40 GB.
            _geometry(
                "A100-80", 80, _SEVEN, _seven_memory(9728, 19968, 19968, 40192, 40192, 80896), _A100_ENGINES
            ),
            _geometry("H100-64", 64, _SEVEN, {}, {}),
            _geometry("H100-80", 80, _SEVEN, _H100_80_MEMORY, _H100_ENGINES),
            _geometry(
                "H100-80-PCIE",
                80,
                _SEVEN,
                _H100_80_MEMORY,
                _with_sm(_H100_ENGINES, 14, 14, None, 30, 46, 62, 114),
            ),
            _geometry("H100-94", 94, _SEVEN, {}, {}),
            # Also the GPU of GH200 and H20 with 96 GB.
            _geometry("H100-96", 96, _SEVEN, {}, {}),
            _geometry(
                "H200", 141, _SEVEN, _seven_memory(16384, 33024, 33024, 71168, 71168, 143360), _H100_ENGINES
            ),
            _geometry("GH200-144", 144, _SEVEN, _seven_memory(17920, 36096, 36096), {}),
            # A driver of two months earlier gave a 1g 22528 MiB under the same name.
            _geometry("B200", 180, _SEVEN, _seven_memory(20992, 45312, 45312), _B200_ENGINES),
            _geometry("GB200", 186, _SEVEN, _seven_memory(22528, 46592, 46592), _GB200_ENGINES),
            # The same board with a driver that reports more memory in total: other names.
            _geometry("GB200-189", 189, _SEVEN, _seven_memory(20480, 46592, 46592), _GB200_ENGINES),
            _geometry("B300", 269, _SEVEN, {}, {}),
            _geometry("GB300", 278, _SEVEN, {}, {}),
            _geometry("A30", 24, _A30, {0: 5952, 7: 5952, 1: 11968, 8: 11968, 3: 24000}, _A30_ENGINES),
            # In the display mode "compute" and with a recent vBIOS.
            _geometry("RTX-PRO-6000", 96, _RTX_PRO_6000, _RTX_PRO_6000_MEMORY, _RTX_PRO_6000_ENGINES),
            _geometry("RTX-PRO-5000", 48, _RTX_PRO_5000, {}, _RTX_PRO_5000_ENGINES),
            _geometry("RTX-PRO-4500", 32, _RTX_PRO_4500, {}, _RTX_PRO_4500_ENGINES),
        )
    }
)
"""By the key that `devices.catalogue.GpuModel.mig_family` has."""


def geometry_of(family: str) -> MigGeometry:
    """The table of a family. Raises InputError that lists the families."""
    found = FAMILIES.get(family)
    if found is None:
        raise InputError(
            f"there is no table of MIG profiles for {family!r}; use one of {', '.join(FAMILIES)}"
        )
    return found
