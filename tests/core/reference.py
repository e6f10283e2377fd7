"""The slow, obvious placement: every assignment of containers to GPUs, tried one by one.

It shares nothing with `gpuslice.placement` but the value types, and exists to disagree with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

from gpuslice.devices.availability import OK
from gpuslice.devices.inventory import Apart
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.room import GpuRoom
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.pod import PodRequest, Role
from gpuslice.units import MemoryUnit


def possible(request: PodRequest, unit: MemoryUnit, rooms: Sequence[GpuRoom]) -> bool:
    """Can the pod be placed at all?"""
    return any(allowed(a, request, unit, rooms) for a in every_assignment(request, unit, rooms))


def every_assignment(request: PodRequest, unit: MemoryUnit, rooms: Sequence[GpuRoom]) -> Iterator[Allocation]:
    """All ways to give each container the number of distinct GPUs that it asks for."""
    picks = []
    for container in request.containers:
        wanted = container.whole or container.across
        picks.append(list(combinations(rooms, wanted)))
    for chosen in product(*picks):
        grants = []
        for container, gpus in zip(request.containers, chosen, strict=True):
            for room in gpus:
                mib = room.total_mib if container.whole else container.units // container.across * unit.mib
                grants.append(Grant(container.name, room.uuid, mib, bool(container.whole)))
        yield Allocation(tuple(grants))


def allowed(allocation: Allocation, request: PodRequest, unit: MemoryUnit, rooms: Sequence[GpuRoom]) -> bool:
    """Do these grants break no rule, moment by moment of the pod's life?"""
    by_uuid = {room.uuid: room for room in rooms}
    wholes = {g.gpu for g in allocation.grants if g.whole}
    shared = {g.gpu for g in allocation.grants if not g.whole}
    if wholes & shared:
        return False
    asked = {container.name: container for container in request.containers}
    for grant in allocation.grants:
        room = by_uuid[grant.gpu]
        if not (room.resource == asked[grant.container].kind.resource if grant.whole else room.shareable):
            return False
    if any(by_uuid[uuid].availability != OK for uuid in wholes | shared):
        return False
    if any(by_uuid[u].holders or by_uuid[u].free_mib < by_uuid[u].total_mib for u in wholes):
        return False
    for container in request.containers:
        mine = [by_uuid[grant.gpu] for grant in allocation.of(container.name) if grant.whole]
        if len(mine) > 1 and any(room.apart is Apart.ALONE for room in mine):
            return False
        if any(a.apart is Apart.DEVICE and a.device == b.device for a, b in combinations(mine, 2)):
            return False
    # kubelet re-uses an ordinary init container's ids, so all shares must then be on one GPU.
    if any(c.role is Role.INIT and c.units for c in request.containers) and len(shared) > 1:
        return False
    for moment in moments(request):
        used: dict[str, int] = {}
        whole_users: dict[str, int] = {}
        for grant in allocation.grants:
            if grant.container in moment:
                if grant.whole:
                    whole_users[grant.gpu] = whole_users.get(grant.gpu, 0) + 1
                else:
                    used[grant.gpu] = used.get(grant.gpu, 0) + grant.mib
        if any(count > 1 for count in whole_users.values()):
            return False
        if any(mib > by_uuid[uuid].free_mib for uuid, mib in used.items()):
            return False
    return True


def moments(request: PodRequest) -> list[set[str]]:
    """The sets of containers that run at the same time."""
    sidecars: set[str] = set()
    found: list[set[str]] = []
    for container in request.containers:
        if container.role is Role.INIT:
            found.append(sidecars | {container.name})
        elif container.role is Role.SIDECAR:
            sidecars = sidecars | {container.name}
    found.append(sidecars | {c.name for c in request.containers if c.role is Role.APP})
    return found


def favourite(
    legs: Sequence[tuple[int, int]], rooms: Sequence[tuple[int, int]], policy: Policy
) -> list[tuple[int, ...]] | None:
    """For each (MiB, number of GPUs) in turn the GPUs that the policy likes best, of all ways that work.

    `rooms`: MiB free and index of each GPU.
    """
    if not legs:
        return []
    (mib, count), *rest = legs
    sign = 1 if policy is BINPACK else -1
    liked = sorted(range(len(rooms)), key=lambda at: (sign * rooms[at][0], rooms[at][1]))
    for pick in combinations([at for at in liked if rooms[at][0] >= mib], count):
        after = [(free - mib * (at in pick), index) for at, (free, index) in enumerate(rooms)]
        if (later := favourite(rest, after, policy)) is not None:
            return [tuple(sorted(pick)), *later]
    return None
