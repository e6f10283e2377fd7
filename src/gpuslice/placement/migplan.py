"""Planning the MIG instances of one GPU, exactly.

From what is partitioned now, in use or idle, to what is wanted: with the fewest instances destroyed, never
one that is in use, then with the fewest created, then so that the most placements remain possible, then at
the lowest places. Every place is said; the driver is not left to choose.

The search goes through what may be kept of the idle instances, fewest destroyed first, and asks `MigSpace`
where the rest can lie. A GPU has few instances, so this is exhaustive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, product
from typing import Final

from gpuslice.devices.mig import GiProfile
from gpuslice.devices.miglayout import ComputeInstance, GpuInstance, MigLayout, say_counts
from gpuslice.devices.migprofile import MigProfile, parts_of
from gpuslice.devices.migspace import Filling, MigSpace, space_of
from gpuslice.errors import InputError
from gpuslice.placement.migsteps import Action, MigPlan, Step, create_parts, destroy_parts, step_of
from gpuslice.placement.verdict import Code, Verdict

_NONE: Final[frozenset[int]] = frozenset()
Wanted = Mapping[MigProfile, int]
"""How many MIG devices of each profile."""


def plan_exactly(now: MigLayout, wanted: Wanted) -> MigPlan | Verdict:
    """To exactly these MIG devices, as a configuration of mig-parted says.

    A verdict if no GPU like this can have them, or not with the instances that are in use where they are.
    Raises InputError for a negative count.
    """
    asked = _asked(wanted)
    used = now.devices - now.idle_devices
    if (verdict := _impossible(now, asked)) is not None:
        return verdict
    if surplus := used - asked:
        text = f"{say_counts(sorted(surplus.items()))} in use would have to go"
        return Verdict(Code.MIG_IN_USE, text, {"in_use": used.total(), "surplus": surplus.total()})
    return _search(now, frozenset(asked.items()), exactly=True)


def plan_besides(now: MigLayout, wanted: Wanted, *, may_destroy: bool = True) -> MigPlan | Verdict:
    """To these MIG devices, idle, besides all that is in use and as much as possible of what is idle.

    Idle devices that are there already count. Unless idle instances may be destroyed, all stay. A verdict if
    there is no room. Raises InputError for a negative count.
    """
    asked = _asked(wanted)
    if (verdict := _impossible(now, asked)) is not None:
        return verdict
    return _search(now, frozenset(asked.items()), exactly=False, may_destroy=may_destroy)


def _asked(wanted: Wanted) -> Counter[MigProfile]:
    for profile, count in wanted.items():
        if count < 0:
            raise InputError(f"{count} instances of {profile} are wanted; write 0 or more")
    return +Counter(dict(wanted))


def _impossible(now: MigLayout, asked: Counter[MigProfile]) -> Verdict | None:
    geometry = now.geometry
    unknown = sum(1 for profile in asked if geometry.find(profile) is None)
    why = space_of(geometry).why_impossible(asked)
    if why is None:
        return None
    code = Code.MIG_UNKNOWN_PROFILE if unknown else Code.MIG_IMPOSSIBLE
    return Verdict(code, why, {"wanted": asked.total(), "unknown_profiles": unknown})


@dataclass(frozen=True, slots=True)
class _Kept:
    """What may become of one instance: gone (None), or kept with these compute instances.

    `held` are the sizes of those that count as wanted, `room` is what is left beside all; `destroyed` is how
    many instances go. `index` is the profile's in its `MigSpace`, None if the GPU has it by mistake.
    """

    gi: GpuInstance
    index: int | None
    compute: tuple[ComputeInstance, ...] | None
    held: tuple[int, ...]
    room: int
    mask: int
    destroyed: int


@dataclass(frozen=True, slots=True)
class _Packing:
    """Where missing compute instances of one GPU instance profile go.

    `into[i]` are the sizes that go into the i-th kept instance, `new` those of each instance to be created.
    """

    into: tuple[tuple[int, ...], ...]
    new: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Outcome:
    kept: tuple[_Kept, ...]
    packings: tuple[tuple[GiProfile, _Packing], ...]
    filling: Filling

    @property
    def key(self) -> tuple[int, int, list[int]]:
        """Smaller is better among outcomes that destroy equally many."""
        parts = sum(len(part) for _, packing in self.packings for part in (*packing.into, *packing.new))
        starts = [start for _, start in self.filling.starts]
        return len(starts) + parts, -self.filling.future, starts


# A cluster has many GPUs that are partitioned alike, and is asked again and again while pods wait. More
# answers would not be found again more often, but make the garbage collector's pauses longer than a plan
# takes.
@lru_cache(1024)
def _search(
    now: MigLayout, wanted: frozenset[tuple[MigProfile, int]], *, exactly: bool, may_destroy: bool = True
) -> MigPlan | Verdict:
    space = space_of(now.geometry)
    sizes: dict[GiProfile, tuple[int, ...]] = {}
    for device, count in sorted(wanted, reverse=True):
        profile = now.geometry.profile(device)
        sizes[profile] = sizes.get(profile, ()) + (device.compute,) * count
    sizes = {profile: tuple(sorted(parts, reverse=True)) for profile, parts in sizes.items()}
    options = [
        _options(space, gi, exactly=exactly, may_change=exactly or gi.profile in sizes, may_go=may_destroy)
        for gi in now.instances
    ]
    # Whatever can be had can be had when all that is idle goes.
    bare = tuple(max(fates, key=lambda fate: fate.destroyed) for fates in options)
    if _complete(space, bare, sizes, exactly) is not None:
        for destroyed in range(sum(fate.destroyed for fate in bare) + 1):
            found = (_complete(space, fates, sizes, exactly) for fates in _ways(options, destroyed))
            if outcomes := [outcome for outcome in found if outcome is not None]:
                return _steps(now, min(outcomes, key=lambda outcome: outcome.key))
    fixed = MigLayout(now.geometry, tuple(gi for gi in now.instances if gi.in_use or not may_destroy))
    what = "instances in use" if may_destroy else "instances there"
    asked = Counter(dict(wanted))
    text = f"{say_counts(sorted(asked.items()))} cannot be had besides the {what}: {fixed}"
    numbers = {"wanted": asked.total(), "memory_slices_kept": fixed.occupied.bit_count()}
    return Verdict(Code.MIG_NO_ROOM, text, numbers)


def _ways(options: Sequence[Sequence[_Kept]], destroyed: int) -> list[tuple[_Kept, ...]]:
    """Every choice of a fate for each instance by which exactly so much is destroyed."""
    ways: list[tuple[int, tuple[_Kept, ...]]] = [(destroyed, ())]
    most = [max(fate.destroyed for fate in fates) for fates in options]
    for i, fates in enumerate(options):
        later = sum(most[i + 1 :])
        ways = [
            (left - fate.destroyed, (*chosen, fate))
            for left, chosen in ways
            for fate in fates
            if 0 <= left - fate.destroyed <= later
        ]
    return [chosen for _, chosen in ways]


@lru_cache(4096)
def _options(
    space: MigSpace, gi: GpuInstance, *, exactly: bool, may_change: bool, may_go: bool
) -> tuple[_Kept, ...]:
    """What may become of an instance. One in use stays, with the compute instances in use."""
    fates = _fates(gi, may_change) if may_go else (gi.compute,)
    return tuple(
        _Kept(
            gi,
            space.index(gi.profile),
            compute,
            tuple(ci.slices for ci in compute or () if exactly or not ci.in_use),
            gi.profile.slices - sum(ci.slices for ci in compute or ()),
            gi.mask,
            len(gi.compute) + 1 if compute is None else len(gi.compute) - len(compute),
        )
        for compute in fates
    )


def _fates(gi: GpuInstance, may_change: bool) -> Iterator[tuple[ComputeInstance, ...] | None]:
    """What may become of an instance, without ways that differ only in which of two equal parts goes."""
    used = tuple(ci for ci in gi.compute if ci.in_use)
    idle = [ci for ci in gi.compute if not ci.in_use]
    yield gi.compute
    if not used:
        yield None
    if may_change and idle and len(parts_of(gi.profile.slices)) > 1:
        by_size = [list(same) for _, same in groupby(sorted(idle), key=lambda ci: ci.slices)]
        for counts in product(*(range(len(same) + 1) for same in by_size)):
            left = [ci for same, count in zip(by_size, counts, strict=True) for ci in same[:count]]
            if len(left) < len(idle):
                yield (*used, *left)


def _complete(
    space: MigSpace, fates: Sequence[_Kept], sizes: Mapping[GiProfile, tuple[int, ...]], exactly: bool
) -> _Outcome | None:
    """The best way to add what is missing once so much is kept, or None.

    `sizes`: the compute instances that are wanted in instances of each profile, the largest first.
    """
    occupied, counts = 0, list(space.none)
    kept: dict[GiProfile, list[_Kept]] = {profile: [] for profile in sizes}
    for fate in fates:
        if fate.compute is not None:
            occupied += fate.mask
            if fate.index is not None:
                counts[fate.index] += 1
            if exactly or fate.gi.profile in sizes:
                kept.setdefault(fate.gi.profile, []).append(fate)
    memory, created = occupied.bit_count(), list(space.none)
    packings: list[tuple[GiProfile, _Packing]] = []
    for profile, mine in kept.items():
        missing = list(sizes.get(profile, ()))
        for fate in mine:
            for size in fate.held:
                if size in missing:
                    missing.remove(size)
                elif exactly:
                    return None
        # An instance that holds nothing is no device: it must be filled, or it goes.
        empty = frozenset(i for i, fate in enumerate(mine) if not fate.compute) if exactly else _NONE
        if not missing and not empty:
            continue
        packing = _pack(tuple(missing), tuple(fate.room for fate in mine), empty, profile.slices)
        memory += len(packing.new) * profile.size if packing is not None else 0
        if packing is None or memory > space.geometry.memory_slices:
            return None
        index = space.index(profile)
        assert index is not None
        created[index] += len(packing.new)
        packings.append((profile, packing))
    filling = space.fill(occupied, tuple(counts), tuple(created))
    return None if filling is None else _Outcome(tuple(fates), tuple(packings), filling)


@lru_cache(4096)
def _pack(
    sizes: tuple[int, ...], rooms: tuple[int, ...], must_fill: frozenset[int], capacity: int
) -> _Packing | None:
    """Compute instances, the largest first, into kept instances with so much room and as few new as possible.

    None if an instance of `must_fill` would stay empty.
    """
    best: list[_Packing] = []

    def go(position: int, left: list[int], inside: list[list[int]]) -> None:
        if best and len(inside) - len(rooms) >= len(best[0].new):
            return
        if position == len(sizes):
            if all(inside[i] for i in must_fill):
                into = tuple(map(tuple, inside[: len(rooms)]))
                best[:] = [_Packing(into, tuple(map(tuple, inside[len(rooms) :])))]
            return
        size = sizes[position]
        tried: set[tuple[int, bool]] = set()
        # The tightest room first; equal rooms are tried once.
        for i in sorted(range(len(left)), key=lambda i: (left[i], i)):
            alike = (left[i], i in must_fill and not inside[i])
            if left[i] < size or alike in tried:
                continue
            tried.add(alike)
            left[i] -= size
            inside[i].append(size)
            go(position + 1, left, inside)
            inside[i].pop()
            left[i] += size
        go(position + 1, [*left, capacity - size], [*inside, [size]])

    go(0, list(rooms), [[] for _ in rooms])
    return best[0] if best else None


def _steps(now: MigLayout, outcome: _Outcome) -> MigPlan:
    geometry = now.geometry
    steps: list[Step] = []
    for fate in outcome.kept:
        gi = fate.gi
        steps += destroy_parts(gi, [ci for ci in gi.compute if ci not in (fate.compute or ())])
        if fate.compute is None:
            steps.append(step_of(Action.DESTROY_GI, gi.profile, gi.start, gi.id))
    for profile, packing in outcome.packings:
        mine = [fate for fate in outcome.kept if fate.compute is not None and fate.gi.profile == profile]
        for fate, parts in zip(mine, packing.into, strict=True):
            steps += create_parts(fate.gi.profile, fate.gi.start, fate.gi.id, parts, fate.compute or ())
    contents = {profile: iter(sorted(packing.new, reverse=True)) for profile, packing in outcome.packings}
    for profile, start in outcome.filling.starts:
        number = geometry.gi_id(profile, start)
        steps.append(step_of(Action.CREATE_GI, profile, start, number))
        steps += create_parts(profile, start, number, next(contents[profile]), ())
    return MigPlan(now, tuple(steps), outcome.filling.future)
