"""Runs the beginning of `placement.search` for many nodes at once: all that it finds without backtracking.

The search's first path and its first bounds are a few numpy operations per leg for all nodes of a cluster,
and give the search's answer for nearly every node; only the remaining nodes must be searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

import numpy as np
import numpy.typing as npt

from gpuslice.placement.search import Leg, sums_of

Mask = npt.NDArray[np.bool_]
Free = npt.NDArray[np.int32]
_NOWHERE: Final = np.int32(2**31 - 1)


def straight_down(legs: Sequence[Leg], free: Free) -> Mask:
    """Which nodes take the legs, in this order, each on the tightest GPUs that it fits on.

    `free`: MiB by GPU slot and node, negative where nothing can be given.
    """
    left, unit = _in_units(legs, free)
    fits = np.ones(free.shape[1], np.bool_)
    for leg in legs:
        size = leg.mib // unit
        if leg.gpus > len(left):
            return np.zeros_like(fits)
        tight = np.where(left >= size, left, _NOWHERE)
        if leg.gpus == 1:
            slots = tight.argmin(axis=0)[np.newaxis]
        else:
            slots = np.argpartition(tight, leg.gpus - 1, axis=0)[: leg.gpus]
        rooms = np.take_along_axis(left, slots, axis=0)
        fits &= (rooms >= size).all(axis=0)
        np.put_along_axis(left, slots, rooms - size, axis=0)
    return fits


def hopeless(legs: Sequence[Leg], free: Free) -> Mask:
    """Which nodes cannot take the legs by number or by sum (see `placement.search`)."""
    left, unit = _in_units(legs, free)
    np.maximum(left, 0, out=left)
    ordered = sorted(legs, key=lambda leg: -leg.mib)
    sizes = [leg.mib // unit for leg in ordered]
    sums = sums_of(sizes, int(left.max(initial=0)))
    no = np.zeros(free.shape[1], np.bool_)
    number = need = 0
    for position, (size, leg) in enumerate(zip(sizes, ordered, strict=True)):
        number += leg.gpus
        need += size * leg.gpus
        if position + 1 < len(sizes) and sizes[position + 1] == size:
            continue
        no |= np.minimum(left // size, position + 1).sum(axis=0) < number
        most = _largest(sums[position + 1], left) if sums[position + 1] else left
        no |= most.sum(axis=0, dtype=np.int64) < need
    return no


def _in_units(legs: Sequence[Leg], free: Free) -> tuple[Free, int]:
    unit = gcd(*(leg.mib for leg in legs))
    return free // np.int32(unit), unit


def _largest(sums: int, rooms: Free) -> Free:
    """For each amount of free memory the largest of the sums that fits into it."""
    most = int(rooms.max(initial=0))
    bits = np.frombuffer(sums.to_bytes(most // 8 + 1, "little"), np.uint8)
    found = np.unpackbits(bits, bitorder="little")[: most + 1] * np.arange(most + 1, dtype=np.int32)
    return np.maximum.accumulate(found)[rooms]
