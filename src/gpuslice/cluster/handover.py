"""Equal pods that swap places on a node, seen one at a time.

kubelet may start a pod at the place that was planned for another one of the same size; the agent then says
so on both, in two writes. Read literally, the moment between them shows one GPU twice taken and the other
free, and a scheduler would give that room away. So whoever was planned at a place that another pod turns up
at is counted at the place which that one left.
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


def hand_over(old: PodRecord, new: PodRecord, others: Iterable[PodRecord]) -> list[PodRecord]:
    """A pod turned up elsewhere than it was counted: the records that are to be counted elsewhere for it.

    `others`: the node's other pods, in any order. Only plans give way, and only to an equal charge; the
    totals of the GPUs then stay as they were.
    """
    lost = [charge for charge in old.charges if charge not in new.charges]
    plans: list[PodRecord] | None = None
    moved: list[PodRecord] = []
    for gain in (charge for charge in new.charges if charge not in old.charges):
        left = next((c for c in lost if c.whole == gain.whole and (c.whole or c.mib == gain.mib)), None)
        if left is None:
            continue
        if plans is None:
            plans = [record for record in others if not is_assigned(record)]
        loser = min((r for r in plans if gain in r.charges), key=lambda r: (r.key, r.uid), default=None)
        if loser is None:
            continue
        lost.remove(left)
        plans.remove(loser)
        moved.append(replace(loser, charges=_exchanged(loser.charges, gain, left)))
    return moved


def _exchanged(charges: tuple[Charge, ...], taken: Charge, given: Charge) -> tuple[Charge, ...]:
    return tuple(given if charge == taken else charge for charge in charges)
