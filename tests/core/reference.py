"""The slow, obvious placement: every assignment of containers to GPUs, tried one by one.

It shares nothing with `gpuslice.placement` but the value types, and exists to disagree with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

from gpuslice.devices.availability import OK
from gpuslice.devices.inventory import ReplicaRule
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.pod import PodRequest, Role
from gpuslice.units import MemoryUnit


def possible(request: PodRequest, unit: MemoryUnit, free_gpus: Sequence[FreeGpu]) -> bool:
    """Can the pod be placed at all?"""
    return any(allowed(a, request, unit, free_gpus) for a in every_assignment(request, unit, free_gpus))


def every_assignment(
    request: PodRequest, unit: MemoryUnit, free_gpus: Sequence[FreeGpu]
) -> Iterator[Allocation]:
    """All ways to give each container the number of distinct GPUs that it asks for."""
    picks = []
    for container in request.containers:
        wanted = container.whole or container.across
        picks.append(list(combinations(free_gpus, wanted)))
    for chosen in product(*picks):
        grants = []
        for container, gpus in zip(request.containers, chosen, strict=True):
            for one in gpus:
                mib = (
                    one.gpu.memory_mib if container.whole else container.units // container.across * unit.mib
                )
                grants.append(Grant(container.name, one.gpu.uuid, mib, bool(container.whole)))
        yield Allocation(tuple(grants))


def allowed(
    allocation: Allocation, request: PodRequest, unit: MemoryUnit, free_gpus: Sequence[FreeGpu]
) -> bool:
    """Do these grants break no rule, moment by moment of the pod's life?"""
    by_uuid = {one.gpu.uuid: one for one in free_gpus}
    wholes = {g.gpu for g in allocation.grants if g.whole}
    shared = {g.gpu for g in allocation.grants if not g.whole}
    if wholes & shared:
        return False
    asked = {container.name: container for container in request.containers}
    for grant in allocation.grants:
        one = by_uuid[grant.gpu]
        if not (
            one.gpu.resource == asked[grant.container].kind.resource if grant.whole else one.gpu.shareable
        ):
            return False
    if any(by_uuid[uuid].gpu.availability != OK for uuid in wholes | shared):
        return False
    if any(by_uuid[u].holders or by_uuid[u].free_mib < by_uuid[u].gpu.memory_mib for u in wholes):
        return False
    for container in request.containers:
        mine = [by_uuid[grant.gpu] for grant in allocation.of(container.name) if grant.whole]
        if len(mine) > 1 and any(one.gpu.replica_rule is ReplicaRule.ALONE for one in mine):
            return False
        if any(
            a.gpu.replica_rule is ReplicaRule.OTHER_DEVICES and a.gpu.device == b.gpu.device
            for a, b in combinations(mine, 2)
        ):
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
    legs: Sequence[tuple[int, int]], free_gpus: Sequence[tuple[int, int]], policy: Policy
) -> list[tuple[int, ...]] | None:
    """For each (MiB, number of GPUs) in turn the GPUs that the policy likes best, of all ways that work.

    `free_gpus`: MiB free and index of each GPU.
    """
    if not legs:
        return []
    (mib, count), *rest = legs
    sign = 1 if policy is BINPACK else -1
    liked = sorted(range(len(free_gpus)), key=lambda at: (sign * free_gpus[at][0], free_gpus[at][1]))
    for pick in combinations([at for at in liked if free_gpus[at][0] >= mib], count):
        after = [(free - mib * (at in pick), index) for at, (free, index) in enumerate(free_gpus)]
        if (later := favourite(rest, after, policy)) is not None:
            return [tuple(sorted(pick)), *later]
    return None
