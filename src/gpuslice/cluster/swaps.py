"""Counts pods that swap GPUs on a node correctly, although their records are seen one at a time.

kubelet may start a pod, or a container of it, on the GPU that was planned for another one of the same size;
the agent then writes so on both pods, in two writes. Read literally, between the two writes one GPU is taken
twice and the other one is free, and a scheduler would give that memory away. So when a pod turns up where
another pod was planned, the other pod is counted on the GPU that the first one left.
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
    """A pod turned up elsewhere than it was counted: the records of other pods that now count elsewhere
    because of it.

    `others`: the node's other pods, in any order. Only plans give way. If exactly as much was planned there
    for a pod with which this one can have been confused (kubelet asks for a number of ids and no more), the
    two change places, and the totals of the GPUs stay as they were. If the plans have other amounts, since
    containers that share a GPU are counted together, nobody can know which part of which pod goes where: each
    then counts at both places until the node says where its pod is.
    """
    plans = {record.uid: record for record in others if not is_assigned(record)}
    moved: dict[str, PodRecord] = {}
    left, gained = _beyond(old.charges, new.charges), _beyond(new.charges, old.charges)
    unsure = _shared(left) > _shared(gained)  # it counted at both places itself because of another pod
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
    """MiB that may have to move from where `gain` is planned to `place`.

    However often a plan is moved, it counts on no GPU with more than it holds in all.
    """
    if record.allocation is None:
        return 0
    most = _shared(record.allocation.charges(record.request)) - _taken(record, place)
    return max(min(gain.mib, place.mib, _taken(record, gain), most), 0)


def _shared(charges: Iterable[Charge]) -> int:
    """MiB of memory shares."""
    return sum(charge.mib for charge in charges if not charge.whole)


def _alike(one: PodRecord, other: PodRecord) -> bool:
    """True if kubelet asks for the same amount of memory for some container of both pods."""
    return not {c.units for c in one.request.shares}.isdisjoint(c.units for c in other.request.shares)


def _beyond(charges: tuple[Charge, ...], known: tuple[Charge, ...]) -> list[Charge]:
    """What is newly charged, by GPU."""
    more = [replace(c, mib=c.mib - sum(k.mib for k in known if _same(k, c))) for c in charges if not c.whole]
    return [c for c in charges if c.whole and c not in known] + [c for c in more if c.mib > 0]


def _taken(record: PodRecord, charge: Charge) -> int:
    """MiB that a pod counts with on a charge's GPU, for the same kind of charge."""
    return sum(c.mib for c in record.charges if _same(c, charge))


def _with(charges: tuple[Charge, ...], place: Charge, mib: int) -> tuple[Charge, ...]:
    """The charges with that much more at a place."""
    if not mib:
        return charges
    before = 0 if place.whole else sum(c.mib for c in charges if _same(c, place))
    return (*(c for c in charges if not _same(c, place)), replace(place, mib=before + mib))


def _same(one: Charge, other: Charge) -> bool:
    return one.gpu == other.gpu and one.whole == other.whole
