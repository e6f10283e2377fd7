"""Pods that swap places on a node, seen one at a time.

kubelet may start a pod, or a container of it, at the place that was planned for another one of the same
size; the agent then says so on both, in two writes. Read literally, the moment between them shows one GPU
twice taken and the other free, and a scheduler would give that room away. So whoever was planned at a place
that another pod turns up at is counted at the place which that one left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuslice import names
from gpuslice.cluster.records import PodRecord
from gpuslice.requests.allocation import Charge


def is_assigned(record: PodRecord) -> bool:
    """True once the node has said where the pod is; until then its GPU is a plan."""
    return (names.MEM_ASSIGNED, "true") in record.hints


def swap_places(old: PodRecord, new: PodRecord, others: Iterable[PodRecord]) -> list[PodRecord]:
    """A pod turned up elsewhere than it was counted: the records that are to be counted elsewhere for it.

    `others`: the node's other pods, in any order. Only plans give way. Where just so much was planned for a
    pod that this one can have been taken for (kubelet asks for ids by their number alone), the two change
    places, and the totals of the GPUs stay as they were. Where plans are of other amounts, since containers
    that share a GPU are counted together, it cannot be told which part of whom goes where: each then counts
    at both places until the node says where its pod is.
    """
    plans = {record.uid: record for record in others if not is_assigned(record)}
    moved: dict[str, PodRecord] = {}
    left, gained = _beyond(old.charges, new.charges), _beyond(new.charges, old.charges)
    unsure = _shared(left) > _shared(gained)  # it counted at both places itself, for another one's sake
    if unsure:
        gained = [charge for charge in gained if charge.whole] + [c for c in new.charges if not c.whole]
    for gain in gained:
        here = sorted((r for r in plans.values() if _taken(r, gain)), key=lambda r: (r.key, r.uid))
        place = next((c for c in left if c.whole == gain.whole and (c.whole or c.mib == gain.mib)), None)
        loser = next((r for r in here if gain in r.charges and (gain.whole or _alike(r, new))), None)
        if place is not None and loser is not None and (gain.whole or not unsure):
            left.remove(place)
            rest = tuple(charge for charge in loser.charges if charge != gain)
            plans[loser.uid] = moved[loser.uid] = replace(loser, charges=_with(rest, place, place.mib))
        elif not gain.whole:
            for record in here:
                charges = record.charges
                for place in left:
                    if not place.whole:
                        charges = _with(charges, place, _might_move(record, gain, place))
                if charges != record.charges:
                    plans[record.uid] = moved[record.uid] = replace(record, charges=charges)
    return list(moved.values())


def _might_move(record: PodRecord, gain: Charge, place: Charge) -> int:
    """MiB that a plan may have to give up where `gain` is and find at `place`.

    However often that happens to it, it counts nowhere with more than it holds in all.
    """
    if record.allocation is None:
        return 0
    most = _shared(record.allocation.charges(record.request)) - _taken(record, place)
    return max(min(gain.mib, place.mib, _taken(record, gain), most), 0)


def _shared(charges: Iterable[Charge]) -> int:
    """MiB of memory shares."""
    return sum(charge.mib for charge in charges if not charge.whole)


def _alike(one: PodRecord, other: PodRecord) -> bool:
    """True if kubelet asks for as much memory for a container of one as for a container of the other."""
    return not {c.units for c in one.request.shares}.isdisjoint(c.units for c in other.request.shares)


def _beyond(charges: tuple[Charge, ...], known: tuple[Charge, ...]) -> list[Charge]:
    """What is charged that was not known, by GPU."""
    more = [replace(c, mib=c.mib - sum(k.mib for k in known if _same(k, c))) for c in charges if not c.whole]
    return [c for c in charges if c.whole and c not in known] + [c for c in more if c.mib > 0]


def _taken(record: PodRecord, charge: Charge) -> int:
    """MiB of the GPU of a charge that a pod counts with, in the same way."""
    return sum(c.mib for c in record.charges if _same(c, charge))


def _with(charges: tuple[Charge, ...], place: Charge, mib: int) -> tuple[Charge, ...]:
    """The charges with so much more at a place."""
    if not mib:
        return charges
    before = 0 if place.whole else sum(c.mib for c in charges if _same(c, place))
    return (*(c for c in charges if not _same(c, place)), replace(place, mib=before + mib))


def _same(one: Charge, other: Charge) -> bool:
    return one.gpu == other.gpu and one.whole == other.whole
