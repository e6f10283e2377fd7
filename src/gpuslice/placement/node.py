"""Placing one pod on the GPUs of one node, exactly.

The pod's containers become legs: a leg needs room on some number of distinct GPUs. All shares of a pod
go to one GPU if one has the room (gpushare's promise); otherwise every container may have its own, as
`placement.search` divides them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.search import Leg, Steps, divide
from gpuslice.placement.verdict import Code, Verdict, refusal, unavailable
from gpuslice.placement.whole import whole_devices, why_not_whole
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role
from gpuslice.units import MemoryUnit


@dataclass(frozen=True, slots=True)
class _Party:
    """Containers that go to the same GPUs, and what they need there together."""

    containers: tuple[ContainerRequest, ...]
    leg: Leg


def place(
    request: PodRequest,
    unit: MemoryUnit,
    free_gpus: Sequence[FreeGpu],
    policy: Policy = BINPACK,
    *,
    node: str = "",
    steps: Steps | None = None,
) -> Allocation | Verdict:
    """Choose the GPUs for every container of a pod, or say why none do.

    `free_gpus` are the node's by index. Whole GPUs are taken first (`placement.whole`). `steps`: what the
    search may still use, if this is one of several questions (`placement.search`).
    """
    whole = whole_devices(request, free_gpus, policy, node=node)
    if isinstance(whole, Verdict):
        return whole
    grants = list(whole)
    taken = {grant.gpu for grant in grants}
    left = [one for one in free_gpus if one.gpu.available and one.gpu.shareable and one.gpu.uuid not in taken]
    code = Code.INSUFFICIENT
    lone = any(one.gpu.lone for one in left)
    for parties in _plans(request, unit):
        legs, free = [party.leg for party in parties], [(one.free_mib, one.gpu.index) for one in left]
        chosen = divide(legs, free, policy, steps)
        if lone and (len(legs) > 1 or any(leg.gpus > 1 for leg in legs)) and chosen is not Code.INSUFFICIENT:
            return refusal(Code.NEEDS_AGENT, node)
        if not isinstance(chosen, Code):
            grants += _grants(parties, [[left[i] for i in pick] for pick in chosen], unit)
            order = {c.name: i for i, c in enumerate(request.containers)}
            return Allocation(tuple(sorted(grants, key=lambda grant: order[grant.container])))
        code = chosen
    return refusal(code, node) if code is Code.UNDECIDED else _why_not(request, unit, free_gpus, node)


def why_not(
    request: PodRequest, unit: MemoryUnit, free_gpus: Sequence[FreeGpu], *, steps: Steps
) -> Verdict | None:
    """Why `place` would refuse a pod, None if it would place it. Whole devices cost a step per container."""
    if request.shares:
        outcome = place(request, unit, free_gpus, steps=steps)
        return outcome if isinstance(outcome, Verdict) else None
    if steps.left < len(request.containers):
        return refusal(Code.UNDECIDED, "")
    steps.left -= len(request.containers)
    return why_not_whole(request, free_gpus)


def _plans(request: PodRequest, unit: MemoryUnit) -> Iterator[list[_Party]]:
    """The ways to group a pod's shares, the preferred first."""
    shares = request.shares
    if all(c.across == 1 for c in shares):
        yield [_Party(shares, Leg(unit.to_mib(request.units)))] if shares else []
        if len(shares) < 2 or any(c.role is Role.INIT for c in shares):
            # kubelet re-uses an init container's ids for the containers after it: they must share its GPU.
            return
    yield _apart(request, unit)


def _apart(request: PodRequest, unit: MemoryUnit) -> list[_Party]:
    parties = (_Party((c,), Leg(unit.to_mib(c.units_per_gpu), c.across)) for c in request.shares)
    return sorted(parties, key=lambda party: (-party.leg.gpus, -party.leg.mib))


def legs_apart(request: PodRequest, unit: MemoryUnit) -> list[Leg]:
    """What a pod's shares need where each container has its own GPUs, in the order of the search."""
    return [party.leg for party in _apart(request, unit)]


def _grants(parties: Sequence[_Party], chosen: Sequence[Sequence[FreeGpu]], unit: MemoryUnit) -> list[Grant]:
    return [
        Grant(container.name, one.gpu.uuid, unit.to_mib(container.units_per_gpu))
        for party, free_gpus in zip(parties, chosen, strict=True)
        for container in party.containers
        for one in free_gpus
    ]


def _why_not(request: PodRequest, unit: MemoryUnit, free_gpus: Sequence[FreeGpu], node: str) -> Verdict:
    shares = request.shares
    together = len(shares) == 1 or any(c.role is Role.INIT for c in shares)
    largest = max(unit.to_mib(c.units_per_gpu) for c in shares)
    if together and shares[0].across == 1:
        largest = unit.to_mib(request.units)
    across = max(c.across for c in shares)
    free_gpus = [one for one in free_gpus if one.gpu.shareable]
    best = max((one.free_mib for one in free_gpus if one.gpu.available), default=0)
    numbers = {"wanted_mib": largest, "largest_free_mib": best}
    with_room = sum(1 for one in free_gpus if one.gpu.available and one.free_mib >= largest)
    if with_room < across and across > 1:
        return refusal(Code.INSUFFICIENT_GPUS, node, wanted_gpus=across, gpus_with_room=with_room, **numbers)
    others = [one for one in free_gpus if one.free_mib >= largest]
    if best < largest and others:
        return refusal(unavailable(not all(one.gpu.availability.sick for one in others)), node, **numbers)
    return refusal(Code.INSUFFICIENT, node, **numbers)
