"""Which pods of a node would have to go so that a more important one fits.

kube-scheduler's own preemption counts the node's sum and does not know single GPUs; here victims are
chosen so that they free one GPU. The order of values is kube-scheduler's: the highest priority among the
victims as low as possible, then the fewest victims, then the lowest sum of priorities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuslice.placement.node import place
from gpuslice.placement.room import GpuRoom
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.allocation import Charge
from gpuslice.requests.pod import PodRequest
from gpuslice.units import MemoryUnit


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod on the node: what it takes from which GPU, and how important it is."""

    uid: str
    priority: int
    charges: tuple[Charge, ...]

    @property
    def mib(self) -> int:
        return sum(charge.mib for charge in self.charges)


def cost(victims: Sequence[Holder]) -> tuple[int, int, int]:
    """What evicting them costs; smaller is better."""
    priorities = [victim.priority for victim in victims]
    return (max(priorities, default=-(2**31)), len(victims), sum(priorities))


def choose_victims(
    request: PodRequest, unit: MemoryUnit, rooms: Sequence[GpuRoom], holders: Iterable[Holder], priority: int
) -> tuple[Holder, ...] | None:
    """The cheapest pods below `priority` whose end makes the request fit.

    () if it fits as things are, None if even all of them together are not enough.
    """
    if fits_without(request, unit, rooms, ()):
        return ()
    lower = [holder for holder in holders if holder.priority < priority and holder.charges]
    groups = [[h for h in lower if any(c.gpu == room.uuid for c in h.charges)] for room in rooms]
    options = [
        victims
        for group in (*groups, lower)
        if (victims := _thin_out(request, unit, rooms, group)) is not None
    ]
    return min(options, key=cost, default=None)


def _thin_out(
    request: PodRequest, unit: MemoryUnit, rooms: Sequence[GpuRoom], group: Sequence[Holder]
) -> tuple[Holder, ...] | None:
    """Spare as many of a group as possible, the most important first, then the smallest."""
    if not fits_without(request, unit, rooms, group):
        return None
    victims = list(group)
    for holder in sorted(group, key=lambda h: (-h.priority, h.mib, h.uid)):
        rest = [victim for victim in victims if victim is not holder]
        if fits_without(request, unit, rooms, rest):
            victims = rest
    return tuple(victims)


def fits_without(
    request: PodRequest, unit: MemoryUnit, rooms: Sequence[GpuRoom], gone: Iterable[Holder]
) -> bool:
    """Does the request fit once these pods have ended?"""
    freed: dict[str, list[Charge]] = {}
    for holder in gone:
        for charge in holder.charges:
            freed.setdefault(charge.gpu, []).append(charge)
    after = [
        replace(
            room,
            free_mib=room.free_mib + sum(room.total_mib if c.whole else c.mib for c in freed[room.uuid]),
            holders=room.holders - len(freed[room.uuid]),
        )
        if room.uuid in freed
        else room
        for room in rooms
    ]
    return not isinstance(place(request, unit, after), Verdict)
