"""Chooses the pods of a node that have to go so that a more important one fits.

kube-scheduler's own preemption counts the node's sum and does not know single GPUs; here victims are
chosen so that they free one GPU. The order of values is kube-scheduler's: the highest priority among the
victims as low as possible, then the fewest victims, then the lowest sum of priorities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gpuslice.placement.freegpu import FreeGpu, after_charges
from gpuslice.placement.node import why_not
from gpuslice.placement.search import STEPS, Steps
from gpuslice.placement.verdict import Code, Reason
from gpuslice.requests.allocation import Charge
from gpuslice.requests.pod import PodRequest
from gpuslice.units import MemoryUnit

VICTIM_STEPS: Final = 10 * STEPS
"""Steps of the exact search for all questions about one pod and one node."""


LEAVING: Final = -(2**31)
"""The priority that a pod counts with once it is on its way out: evicting it costs nothing."""


class Victim(Protocol):
    """A pod that may have to go."""

    @property
    def priority(self) -> int: ...
    @property
    def terminating(self) -> bool: ...


def weight(victim: Victim) -> int:
    """How important a pod still is."""
    return LEAVING if victim.terminating else victim.priority


def cost(victims: Collection[Victim]) -> tuple[int, int, int]:
    """What evicting them costs; smaller is better."""
    weights = [weight(victim) for victim in victims]
    return (max(weights, default=LEAVING), len(weights), sum(weights))


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod on the node: what it takes from which GPU, and how important it is."""

    uid: str
    priority: int
    charges: tuple[Charge, ...]
    terminating: bool = False

    @property
    def mib(self) -> int:
        return sum(charge.mib for charge in self.charges)


def choose_victims(
    request: PodRequest,
    unit: MemoryUnit,
    free_gpus: Sequence[FreeGpu],
    holders: Iterable[Holder],
    priority: int,
    steps: Steps | None = None,
) -> tuple[Holder, ...] | None:
    """The cheapest pods below `priority` whose end makes the request fit.

    () if it fits as things are, None if even all of them together are not enough. No pod has to go where the
    exact search, which has `steps` in all for this, could not decide that the request does not fit, or which
    pods may stay.
    """
    steps = steps or Steps(VICTIM_STEPS)
    as_it_is = _ask(request, unit, free_gpus, (), steps)
    if as_it_is is None or as_it_is is Code.UNDECIDED:
        return () if as_it_is is None else None
    lower = [holder for holder in holders if holder.priority < priority and holder.charges]
    groups = [[h for h in lower if any(c.gpu == one.gpu.uuid for c in h.charges)] for one in free_gpus]
    options = [
        victims
        for group in (*groups, lower)
        if (victims := _thin_out(request, unit, free_gpus, group, steps)) is not None
    ]
    return min(options, key=cost, default=None)


def _thin_out(
    request: PodRequest, unit: MemoryUnit, free_gpus: Sequence[FreeGpu], group: Sequence[Holder], steps: Steps
) -> tuple[Holder, ...] | None:
    """Spare as many of a group as possible, the most important first, then the smallest; None: no way."""
    if _ask(request, unit, free_gpus, group, steps) is not None:
        return None
    victims = list(group)
    for holder in sorted(group, key=lambda h: (-weight(h), h.mib, h.uid)):
        rest = [victim for victim in victims if victim is not holder]
        if _ask(request, unit, free_gpus, rest, steps) is None:
            victims = rest
    return tuple(victims) if steps.left else None


def fits_without(
    request: PodRequest, unit: MemoryUnit, free_gpus: Sequence[FreeGpu], gone: Iterable[Holder]
) -> bool:
    """True if the request certainly fits once these pods have ended."""
    return _ask(request, unit, free_gpus, gone, Steps()) is None


def _ask(
    request: PodRequest,
    unit: MemoryUnit,
    free_gpus: Sequence[FreeGpu],
    gone: Iterable[Holder],
    steps: Steps,
) -> Reason | None:
    """Why the request does not fit once these pods have ended; None if it does."""
    after = after_charges(free_gpus, [charge for holder in gone for charge in holder.charges], 1)
    verdict = why_not(request, unit, after, steps=steps)
    return None if verdict is None else verdict.code
