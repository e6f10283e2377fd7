"""Searches the layouts of a geometry: where instances can go together, how many layouts there are, and what
still fits beside them.

Memory slices are bits of an integer and instances are counted by profile, so that a question costs
microseconds; answers are remembered. Compute instances play no part here: what lies in a window is free to
be divided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpuslice.devices.mig import GiProfile, MigGeometry
from gpuslice.devices.miglayout import MigLayout, count_fault, say_counts
from gpuslice.devices.migprofile import MigProfile

Counts = tuple[int, ...]
"""How many instances of each profile, in the geometry's order."""


@dataclass(frozen=True, slots=True)
class Filling:
    """A way to add instances: `starts` by profile, in the order of `MigSpace.by_size`.

    `future`: the placements (profile and start) that remain possible, each alone, once all are added.
    """

    future: int
    starts: tuple[tuple[GiProfile, int], ...]


class MigSpace:
    """Answers about one geometry. Get it from `space_of`, so that they are remembered."""

    def __init__(self, geometry: MigGeometry) -> None:
        self.geometry = geometry
        profiles = geometry.profiles
        self._windows = [[(start, p.mask(start)) for start in p.starts] for p in profiles]
        self._places = [(p, start) for p in profiles for start in p.starts]
        self._first_place = [sum(len(p.starts) for p in profiles[:i]) for i in range(len(profiles))]
        self._index = {profile: index for index, profile in enumerate(profiles)}
        self._shares = [[limit.share(p) for p in profiles] for limit in geometry.limits]
        self.by_size = sorted(range(len(profiles)), key=lambda i: (-profiles[i].size, -profiles[i].slices, i))
        self.none: Counts = (0,) * len(profiles)
        self._fill = lru_cache(1 << 16)(self._find_filling)
        self.future = lru_cache(1 << 16)(self._future)
        self._room = lru_cache(1 << 12)(self._find_room)
        self._why = lru_cache(1 << 12)(self._find_why)

    def index(self, profile: GiProfile) -> int | None:
        """The profile's place in the geometry's order; None if it is not in it."""
        return self._index.get(profile)

    def counts(self, instances: Iterable[GiProfile]) -> Counts:
        """Profiles, each as often as there are instances of it, as a tuple of counts."""
        counts = [0] * len(self.none)
        for profile in instances:
            if profile in self._index:
                counts[self._index[profile]] += 1
        return tuple(counts)

    def state(self, layout: MigLayout) -> tuple[int, Counts]:
        """The taken memory slices and the counts of a layout."""
        return layout.occupied, self.counts(gi.profile for gi in layout.instances)

    def starts(self, occupied: int, counts: Counts, profile: GiProfile) -> tuple[int, ...]:
        """Where one more of a profile can begin."""
        index = self._index[profile]
        if not self._room(counts)[index]:
            return ()
        return tuple(start for start, mask in self._windows[index] if not mask & occupied)

    def _find_room(self, counts: Counts) -> tuple[bool, ...]:
        """For each profile: do numbers, compute slices and limits allow one more?"""
        profiles = self.geometry.profiles
        compute = sum(p.slices * n for p, n in zip(profiles, counts, strict=True))
        taken = [sum(s * n for s, n in zip(shares, counts, strict=True)) for shares in self._shares]
        return tuple(
            counts[i] < profile.max_count
            and compute + profile.slices <= self.geometry.compute_slices
            and all(
                not shares[i] or used + shares[i] <= limit.total
                for limit, shares, used in zip(self.geometry.limits, self._shares, taken, strict=True)
            )
            for i, profile in enumerate(profiles)
        )

    def _future(self, occupied: int, counts: Counts) -> int:
        """How many placements of single instances remain possible."""
        room = self._room(counts)
        return sum(
            1
            for i, windows in enumerate(self._windows)
            if room[i]
            for _, mask in windows
            if not mask & occupied
        )

    def fill(self, occupied: int, counts: Counts, wanted: Counts) -> Filling | None:
        """The best way to add instances to what is there, or None if there is none.

        Best is what leaves the most placements possible, then the lowest starts, large instances first.
        """
        found = self._fill(occupied, counts, wanted, -1)
        return None if found is None else Filling(found[0], tuple(self._places[i] for i in found[1:]))

    def _find_filling(
        self, occupied: int, counts: Counts, wanted: Counts, after: int
    ) -> tuple[int, ...] | None:
        """As `fill`: what remains possible, and the positions in `_places`.

        Instances of one profile are put in order of their starts; the next must begin after `after`. Tens of
        thousands of answers are remembered: as bare numbers they cost the garbage collector nothing.
        """
        index = next((i for i in self.by_size if wanted[i]), None)
        if index is None:
            return (self.future(occupied, counts),)
        if not self._room(counts)[index]:
            return None
        best: tuple[int, ...] | None = None
        more, rest = _add(counts, index, 1), _add(wanted, index, -1)
        for place, (start, mask) in enumerate(self._windows[index], self._first_place[index]):
            if start > after and not mask & occupied:
                found = self._fill(occupied | mask, more, rest, start if rest[index] else -1)
                if found is not None and (best is None or found[0] > best[0]):
                    best = (found[0], place, *found[1:])
        return best

    def drivers_start(self, layout: MigLayout, profile: GiProfile) -> int | None:
        """Where the driver puts an instance if no place is given; None if nowhere.

        It is the place that leaves the most placements possible, and the lowest of several. That reproduces
        every case that is documented for A100; other drivers may differ, so plans always say the place.
        """
        occupied, counts = self.state(layout)
        filling = self.fill(occupied, counts, _add(self.none, self._index[profile], 1))
        return None if filling is None else filling.starts[0][1]

    def possible(self, wanted: Counter[GiProfile]) -> bool:
        """True if an empty GPU can hold all of these together."""
        return self.fill(0, self.none, self.counts(wanted.elements())) is not None

    def why_impossible(self, wanted: Mapping[MigProfile, int]) -> str | None:
        """Why an empty GPU cannot have these MIG devices, in one sentence; None if it can.

        Compute instances of one GPU instance profile share as few GPU instances as they fit in.
        """
        return self._why(frozenset(wanted.items()))

    def _find_why(self, wanted: frozenset[tuple[MigProfile, int]]) -> str | None:
        geometry = self.geometry
        instances: Counter[GiProfile] = Counter()
        parts: dict[GiProfile, Counter[int]] = {}
        for device, count in sorted(wanted):
            profile = geometry.find(device)
            if count and profile is None:
                return f"{device} does not exist on {geometry.name}; it has {geometry.listing}"
            if profile is not None and device.is_whole:
                instances[profile] += count
            elif profile is not None and count:
                parts.setdefault(profile, Counter())[device.compute] += count
        for profile, counts in parts.items():
            most = profile.slices * profile.max_count
            total = sum(size * count for size, count in counts.items())
            if total > most:
                return (
                    f"the compute instances of {profile} take {total} compute slices; "
                    f"{geometry.name} can have {most} in instances of that profile"
                )
            sizes = tuple(sorted(counts.elements(), reverse=True))
            instances[profile] += fewest_bins(sizes, profile.slices)
        ordered = Counter({geometry.profiles[i]: instances[geometry.profiles[i]] for i in self.by_size})
        if (by_number := count_fault(geometry, ordered)) is not None:
            return by_number
        if not self.possible(ordered):
            return (
                f"{say_counts(ordered.items())} cannot lie on {geometry.name} together: their windows of "
                "memory slices overlap in every arrangement"
            )
        return None

    def layouts(self, *, only_maximal: bool = False) -> Iterator[frozenset[tuple[GiProfile, int]]]:
        """Every legal layout, as (profile, start); the empty one is the first.

        `only_maximal`: those to which nothing can be added.
        """
        slots = [(i, start, mask) for i, windows in enumerate(self._windows) for start, mask in windows]
        profiles = self.geometry.profiles

        def grow(
            first: int, occupied: int, counts: Counts, chosen: tuple[tuple[GiProfile, int], ...]
        ) -> Iterator[frozenset[tuple[GiProfile, int]]]:
            if not only_maximal or not self.future(occupied, counts):
                yield frozenset(chosen)
            room = self._room(counts)
            for number in range(first, len(slots)):
                i, start, mask = slots[number]
                if room[i] and not mask & occupied:
                    added = (*chosen, (profiles[i], start))
                    yield from grow(number + 1, occupied | mask, _add(counts, i, 1), added)

        return grow(0, 0, self.none, ())


def _add(counts: Counts, index: int, by: int) -> Counts:
    return (*counts[:index], counts[index] + by, *counts[index + 1 :])


@lru_cache(1024)
def fewest_bins(sizes: tuple[int, ...], capacity: int) -> int:
    """How many GPU instances of `capacity` compute slices hold compute instances of these sizes."""
    if not sizes:
        return 0
    largest, rest = sizes[0], sizes[1:]

    def fills(left: int, candidates: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """What may remain once more of the candidates have gone beside the largest."""
        yield candidates
        for i, size in enumerate(candidates):
            if size <= left and (not i or candidates[i - 1] != size):
                for after in fills(left - size, candidates[i + 1 :]):
                    yield candidates[:i] + after

    return 1 + min(fewest_bins(left, capacity) for left in fills(capacity - largest, rest))


@lru_cache(64)
def space_of(geometry: MigGeometry) -> MigSpace:
    """The answers about a geometry, made once."""
    return MigSpace(geometry)
