"""Chooses GPUs for a container that are near each other. Pure.

NVIDIA's rules (go-gpuallocator's best effort), but for a defect: a GPU that has gone is passed over and does
not spoil the choice (device plugin, issues 231, 1223). `placement.whole` chooses among replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

from gpuslice.devices.found import FoundGpu, Nearness
from gpuslice.errors import InputError

PER_NVLINK: Final = 100
SCORES: Final[Mapping[Nearness, int]] = {
    Nearness.SYSTEM: 10,
    Nearness.NUMA_NODE: 20,
    Nearness.HOST_BRIDGE: 30,
    Nearness.SWITCHES: 40,
    Nearness.SWITCH: 50,
    Nearness.BOARD: 60,
}
NOT_ENOUGH: Final = "not enough available devices to satisfy allocation"
_MOST_PARTITIONS: Final = 10_000
"""Beyond this a set is judged alone, without what it leaves: 16 GPUs in fours are 2,627,625 partitions."""
_MOST_SETS: Final = 20_000
"""Beyond this a set is grown, by the GPU that is nearest to it: of 16 GPUs there are 12,870 of 8."""


def pair_score(one: FoundGpu, other: FoundGpu) -> int:
    """How near two GPUs are: what they share on PCIe, and 100 for every NVLink between them."""
    for link in one.links:
        if link.uuid == other.uuid:
            return SCORES[link.nearness] + PER_NVLINK * link.nvlinks
    return 0


def nearest(
    gpus: Sequence[FoundGpu], available: Collection[str], required: Collection[str], size: int
) -> tuple[str, ...]:
    """The UUIDs of `size` GPUs, among them all required ones, in the order of their indexes.

    The available GPUs are divided into sets of that size with the largest sum of pair scores, so that what is
    left is good, too; of these sets it is the best. Raises InputError if there are not so many.
    """
    offered = [gpu for gpu in gpus if gpu.uuid in available or gpu.uuid in required]
    needed = {gpu.uuid for gpu in offered if gpu.uuid in required}
    if size < 1 or len(offered) < size or len(needed) < len(set(required)) or len(needed) > size:
        raise InputError(NOT_ENOUGH)
    scores = _Scores(offered)
    sets = scores.best_partition(size, frozenset(_places(offered, needed)))
    best = max(sets, key=scores.of)
    return tuple(offered[place].uuid for place in sorted(best))


def _places(gpus: Sequence[FoundGpu], uuids: Collection[str]) -> Iterator[int]:
    return (place for place, gpu in enumerate(gpus) if gpu.uuid in uuids)


class _Scores:
    """Pair scores of some GPUs, which are numbers here."""

    def __init__(self, gpus: Sequence[FoundGpu]) -> None:
        self.count = len(gpus)
        self._pairs = [[pair_score(one, other) for other in gpus] for one in gpus]

    def of(self, members: Sequence[int]) -> int:
        return sum(self._pairs[a][b] for a, b in combinations(members, 2))

    def best_partition(self, size: int, needed: frozenset[int]) -> list[tuple[int, ...]]:
        """Sets of the best partition that hold all that is needed; the first of several equal ones."""
        if _partitions(self.count, size) > _MOST_PARTITIONS:
            if comb(self.count, size) > _MOST_SETS:
                return [self._grown(size, {*needed, start}) for start in sorted(needed or range(self.count))]
            return [one for one in combinations(range(self.count), size) if needed <= set(one)]
        best: tuple[int, list[tuple[int, ...]]] | None = None
        for partition in _divide(tuple(range(self.count)), size, -self.count % size):
            score = sum(map(self.of, partition))
            fitting = [one for one in partition if len(one) == size and needed <= set(one)]
            if fitting and (best is None or score > best[0]):
                best = score, fitting
        assert best is not None  # the needed ones fit into one set, and some partition has it whole
        return best[1]

    def _grown(self, size: int, members: set[int]) -> tuple[int, ...]:
        """So many, beginning with these; of GPUs that are equally near the first."""
        while len(members) < size:
            others = [one for one in range(self.count) if one not in members]
            members.add(max(others, key=lambda one: sum(self._pairs[one][member] for member in members)))
        return tuple(sorted(members))


def _partitions(count: int, size: int) -> int:
    """An upper bound of how many ways there are to divide."""
    ways, left = 1, -(-count // size) * size
    while left > size:
        ways *= comb(left - 1, size - 1)
        left -= size
    return ways


def _divide(members: tuple[int, ...], size: int, missing: int) -> Iterator[list[tuple[int, ...]]]:
    """Every way to divide into sets of `size`, `missing` places in them staying empty."""
    if not members:
        yield []
        return
    first, rest = members[0], members[1:]
    for length in range(min(size, len(members)), max(1, size - missing) - 1, -1):
        for others in combinations(rest, length - 1):
            left = tuple(one for one in rest if one not in others)
            for remaining in _divide(left, size, missing - (size - length)):
                yield [(first, *others), *remaining]
