"""Placing one pod on the GPUs of one node, exactly.

The pod's containers become legs: a leg needs room on some number of distinct GPUs. All shares of a pod
go to one GPU if one has the room (gpushare's promise); otherwise every container may have its own.
The search is exhaustive with memory of dead ends: nodes have few GPUs and pods few containers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpuslice.placement.policy import Policy
from gpuslice.placement.room import GpuRoom
from gpuslice.placement.verdict import Code, Verdict, refusal
from gpuslice.placement.whole import whole_devices
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role
from gpuslice.units import MemoryUnit


@dataclass(frozen=True, slots=True)
class _Leg:
    """`mib` of room on each of `gpus` distinct GPUs, for these containers together."""

    containers: tuple[ContainerRequest, ...]
    mib: int
    gpus: int


def place(
    request: PodRequest,
    unit: MemoryUnit,
    rooms: Sequence[GpuRoom],
    policy: Policy = Policy.BINPACK,
    *,
    node: str = "",
) -> Allocation | Verdict:
    """Choose the GPUs for every container of a pod, or say why none do.

    `rooms` are the node's GPUs by index. Whole GPUs are taken first (`placement.whole`).
    """
    whole = whole_devices(request, rooms, policy, node=node)
    if isinstance(whole, Verdict):
        return whole
    grants = list(whole)
    taken = {grant.gpu for grant in grants}
    left = [room for room in rooms if room.healthy and room.shareable and room.uuid not in taken]
    for legs in _plans(request, unit):
        chosen = _search(legs, left, policy)
        if chosen is not None:
            grants += _grants(legs, chosen, unit)
            order = {c.name: i for i, c in enumerate(request.containers)}
            return Allocation(tuple(sorted(grants, key=lambda grant: order[grant.container])))
    return _why_not(request, unit, rooms, node)


def _plans(request: PodRequest, unit: MemoryUnit) -> Iterator[list[_Leg]]:
    """The ways to group a pod's shares, the preferred first."""
    shares = request.shares
    if all(c.across == 1 for c in shares):
        yield [_Leg(shares, unit.to_mib(request.units), 1)] if shares else []
        if len(shares) < 2 or any(c.role is Role.INIT for c in shares):
            # kubelet re-uses an init container's ids for the containers after it: they must share its GPU.
            return
    yield sorted(
        (_Leg((c,), unit.to_mib(c.units_per_gpu), c.across) for c in shares),
        key=lambda leg: (-leg.gpus, -leg.mib),
    )


def _search(
    legs: Sequence[_Leg], rooms: Sequence[GpuRoom], policy: Policy
) -> list[tuple[GpuRoom, ...]] | None:
    """GPUs for each leg, or None. Tries the policy's favourite first and backs up from dead ends."""
    free = [room.free_mib for room in rooms]
    dead: set[tuple[int, tuple[int, ...]]] = set()
    sign = 1 if policy is Policy.BINPACK else -1

    def descend(depth: int) -> list[tuple[GpuRoom, ...]] | None:
        if depth == len(legs):
            return []
        state = (depth, tuple(sorted(free)))
        if state in dead:
            return None
        leg = legs[depth]
        fitting = sorted(
            (i for i in range(len(rooms)) if free[i] >= leg.mib),
            key=lambda i: (sign * free[i], rooms[i].index),
        )
        for pick in combinations(fitting, leg.gpus):
            for i in pick:
                free[i] -= leg.mib
            rest = descend(depth + 1)
            for i in pick:
                free[i] += leg.mib
            if rest is not None:
                return [tuple(rooms[i] for i in sorted(pick)), *rest]
        dead.add(state)
        return None

    return descend(0)


def _grants(legs: Sequence[_Leg], chosen: Sequence[tuple[GpuRoom, ...]], unit: MemoryUnit) -> list[Grant]:
    return [
        Grant(container.name, room.uuid, unit.to_mib(container.units_per_gpu))
        for leg, rooms in zip(legs, chosen, strict=True)
        for container in leg.containers
        for room in rooms
    ]


def _why_not(request: PodRequest, unit: MemoryUnit, rooms: Sequence[GpuRoom], node: str) -> Verdict:
    shares = request.shares
    together = len(shares) == 1 or any(c.role is Role.INIT for c in shares)
    largest = max(unit.to_mib(c.units_per_gpu) for c in shares)
    if together and shares[0].across == 1:
        largest = unit.to_mib(request.units)
    across = max(c.across for c in shares)
    rooms = [room for room in rooms if room.shareable]
    best = max((room.free_mib for room in rooms if room.healthy), default=0)
    numbers = {"wanted_mib": largest, "largest_free_mib": best}
    with_room = sum(1 for room in rooms if room.healthy and room.free_mib >= largest)
    if with_room < across and across > 1:
        return refusal(Code.INSUFFICIENT_GPUS, node, wanted_gpus=across, gpus_with_room=with_room, **numbers)
    if best < largest and any(room.free_mib >= largest for room in rooms):
        return refusal(Code.UNHEALTHY, node, **numbers)
    return refusal(Code.INSUFFICIENT, node, **numbers)
