"""The slow, obvious planner of MIG instances: every layout a GPU can have, tried one by one.

It shares nothing with `gpuslice.placement` but the value types, and exists to disagree with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product

from gpuslice.devices.mig import GiProfile, MigGeometry
from gpuslice.devices.miglayout import GpuInstance, MigLayout
from gpuslice.devices.migprofile import MigProfile, parts_of

Windows = tuple[tuple[GiProfile, int], ...]
Content = tuple[int, ...]


@lru_cache(32)
def every_legal(geometry: MigGeometry) -> tuple[Windows, ...]:
    """All sets of windows that no rule forbids, grown one window at a time and checked whole each time."""
    slots = [(profile, start) for profile in geometry.profiles for start in profile.starts]
    found: list[Windows] = [()]
    for slot in slots:
        found += [(*one, slot) for one in found if legal(geometry, (*one, slot))]
    return tuple(found)


def legal(geometry: MigGeometry, windows: Windows) -> bool:
    made = MigLayout(geometry, tuple(GpuInstance(p, start, n) for n, (p, start) in enumerate(windows)))
    return made.fault is None


@lru_cache(32)
def every_content(slices: int) -> tuple[Content, ...]:
    """All sizes of compute instances that a GPU instance can hold together, none among them."""
    counts = [range(slices // size + 1) for size in parts_of(slices)]
    contents = []
    for chosen in product(*counts):
        content = tuple(size for size, n in zip(parts_of(slices), chosen, strict=True) for _ in range(n))
        if sum(content) <= slices:
            contents.append(content)
    return tuple(contents)


@lru_cache(1 << 16)
def future(geometry: MigGeometry, windows: Windows) -> int:
    """How many single windows could be added."""
    return sum(
        (profile, start) not in windows and legal(geometry, (*windows, (profile, start)))
        for profile in geometry.profiles
        for start in profile.starts
    )


def cheapest(
    now: MigLayout, wanted: Mapping[MigProfile, int], *, exactly: bool
) -> tuple[int, int, int] | None:
    """The best (instances destroyed, steps, placements that remain possible) of all ways to what is wanted.

    None if there is no way. The first two are as low as can be, then the third as high.
    """
    best: tuple[int, int, int] | None = None
    for windows in every_legal(now.geometry):
        for destroyed, steps in _costs(now, windows, Counter(dict(wanted)), exactly):
            if best is None or (destroyed, steps) <= best[:2]:
                left = future(now.geometry, windows)
                if best is None or (destroyed, steps, -left) < (*best[:2], -best[2]):
                    best = destroyed, steps, left
    return best


def _costs(
    now: MigLayout, windows: Windows, wanted: Counter[MigProfile], exactly: bool
) -> Iterator[tuple[int, int]]:
    before = {(gi.profile, gi.start): gi for gi in now.instances}
    if any(gi.in_use and place not in windows for place, gi in before.items()):
        return
    gone = [gi for place, gi in before.items() if place not in windows]
    destroyed = sum(1 + len(gi.compute) for gi in gone)
    devices: list[tuple[GiProfile, GpuInstance | None, Sequence[Content]]] = []
    for place in windows:
        gi = before.get(place)
        used = Counter(ci.slices for ci in gi.compute if ci.in_use) if gi else Counter()
        contents = [c for c in every_content(place[0].slices) if not used - Counter(c)]
        if exactly:
            # What is there must be wanted, and an instance without a device is none.
            names = [Counter(part(place[0], size) for size in c) for c in contents]
            contents = [c for c, name in zip(contents, names, strict=True) if c and not name - wanted]
        devices.append((place[0], gi, contents))
    for chosen in product(*(contents for _, _, contents in devices)):
        final: Counter[MigProfile] = Counter()
        removed, steps = destroyed, destroyed
        for (profile, gi, _), content in zip(devices, chosen, strict=True):
            after = Counter(content)
            was = Counter(ci.slices for ci in gi.compute) if gi else Counter()
            used = Counter(ci.slices for ci in gi.compute if ci.in_use) if gi else Counter()
            removed += (was - after).total()
            steps += (was - after).total() + (after - was).total() + (gi is None)
            for size, count in (after if exactly else after - used).items():
                final[part(profile, size)] += count
        if final == wanted if exactly else not wanted - final:
            yield removed, steps


def part(profile: GiProfile, size: int) -> MigProfile:
    return MigProfile(profile.name.slices, profile.name.memory_gb, profile.name.attribute, size)
