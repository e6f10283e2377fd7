"""Chooses the devices that the containers of a pod get whole: GPUs, MIG devices, replicas of either.

Two replicas of one device are given to one container unless its node's configuration forbids it: they make
nothing faster (NVIDIA's device plugin, issues 404 and 491).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from gpuslice import names
from gpuslice.devices.inventory import ReplicaRule
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.verdict import Code, Verdict, refusal, unavailable
from gpuslice.requests.allocation import Grant
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role

Rank = Callable[[FreeGpu], tuple[int, ...]]


def lacking(resource: str) -> Code:
    """The code of a node that has too few free devices of a resource."""
    if resource == names.WHOLE_GPU:
        return Code.NO_WHOLE_GPU
    return Code.NO_REPLICA if resource == names.SHARED_GPU else Code.NO_MIG_DEVICE


def whole_devices(
    request: PodRequest, devices: Sequence[FreeGpu], policy: Policy = BINPACK, *, node: str = ""
) -> tuple[Grant, ...] | Verdict:
    """The grants of all containers that ask for whole devices, or why there are none.

    Of untouched GPUs those that cannot be shared are taken, then the smallest: this leaves the most room for
    shares. MIG devices are taken beside others in use: a GPU of which nothing is in use can be repartitioned.
    Replicas are taken of the devices of which the fewest are given out or, if they are packed, the most
    (NVIDIA's policies).
    """
    if (refused := why_not_whole(request, devices, node=node)) is not None:
        return refused
    grants: list[Grant] = []
    for kind in (kind for kind in request.kinds if kind.whole):
        asking = [container for container in request.containers if container.kind == kind]
        untouched = [device for device in devices if kind.is_offered_by(device.gpu) and device.untouched]
        chosen = pick(asking, untouched, devices, policy)
        assert chosen is not None  # or it would have been refused
        for container, mine in zip(asking, chosen, strict=True):
            grants += [
                Grant(container.name, device.gpu.uuid, device.gpu.memory_mib, whole=True) for device in mine
            ]
    return tuple(grants)


def why_not_whole(request: PodRequest, devices: Sequence[FreeGpu], *, node: str = "") -> Verdict | None:
    """Why a node lacks the whole devices that a pod asks for; None if there are."""
    kinds = [kind for kind in request.kinds if kind.whole]
    for kind in kinds:
        wanted, offered = request.count(kind), [one for one in devices if kind.is_offered_by(one.gpu)]
        untouched = sum(device.untouched for device in offered)
        if untouched < wanted:
            numbers = {"wanted": wanted, "free": untouched}
            code = lacking(kind.resource)
            free = [device for device in offered if device.unused]
            if len(free) >= wanted:
                code = unavailable(sum(not device.gpu.availability.sick for device in free) >= wanted)
            return refusal(code, node, **numbers)
    for kind in kinds:
        asking = [container for container in request.containers if container.kind == kind]
        offered = [device for device in devices if kind.is_offered_by(device.gpu)]
        if not possible(0, (), [device for device in offered if device.untouched], asking, alone=True):
            code = Code.SAME_DEVICE
            free = [device for device in offered if device.unused]
            if possible(0, (), free, asking, alone=True):
                well = [device for device in free if not device.gpu.availability.sick]
                code = unavailable(possible(0, (), well, asking, alone=True))
            numbers = {
                "wanted": max(container.whole for container in asking),
                "free": len({_group(device) for device in offered if device.untouched}),
            }
            return refusal(code, node, **numbers)
    return None


def pick(
    asking: Sequence[ContainerRequest],
    free: Sequence[FreeGpu],
    devices: Sequence[FreeGpu],
    policy: Policy = BINPACK,
    *,
    beside: Collection[str] = (),
) -> list[tuple[FreeGpu, ...]] | None:
    """Devices of one resource for each of these containers of a pod, from the `free` ones; None: impossible.

    `devices` are all of the node. `beside`: UUIDs that the first container has already; they are given out.
    Sidecars and apps get devices of their own, init containers what is left when their turn comes.
    """
    if any(device.gpu.replica_rule is ReplicaRule.ALONE for device in devices if device.gpu.uuid in beside):
        return None
    # Where no device minds what else a container has, whatever is left will do for the others.
    plain = all(device.gpu.replica_rule is ReplicaRule.ANY for device in free)
    left = list(free)
    chosen: list[tuple[FreeGpu, ...]] = []
    for position, container in enumerate(asking):
        later = asking[position + 1 :] if container.role is not Role.INIT else ()
        mine: list[FreeGpu] = []
        barred = {_group(one) for one in devices if one.gpu.uuid in beside} if not position else set()
        alone = container.whole == 1 and not barred
        while len(mine) < container.whole:
            taken = {device.gpu.uuid for device in free} - {device.gpu.uuid for device in left}
            rank = _rank(devices, taken.union(beside), mine, policy)
            suited = [
                one
                for one in left
                if _group(one) not in barred and (alone or one.gpu.replica_rule is not ReplicaRule.ALONE)
            ]
            missing = container.whole - len(mine) - 1
            for device in sorted(suited, key=rank):
                rest = [one for one in left if one is not device]
                if plain or possible(missing, barred | {_group(device)}, rest, later, alone=alone):
                    break
            else:
                return None
            mine.append(device)
            left = rest
            barred.add(_group(device))
        chosen.append(tuple(mine))
        if container.role is Role.INIT:
            left = [*mine, *left]
    return chosen


def _group(device: FreeGpu) -> str:
    """Of one group a container can have one."""
    return device.gpu.uuid if device.gpu.replica_rule is ReplicaRule.ANY else device.gpu.device


def _rank(
    devices: Sequence[FreeGpu], taken: Collection[str], mine: Sequence[FreeGpu], policy: Policy
) -> Rank:
    """How good a device is, the lower the better. `taken` for the pod, `mine` of it for this container.

    What is taken counts as given out, as with NVIDIA's plugin: packed ones of one container are of one GPU.
    """
    out = Counter(
        device.gpu.device
        for device in devices
        if device.gpu.uuid != device.gpu.device and (device.holders or device.gpu.uuid in taken)
    )
    picked = Counter(device.gpu.device for device in mine)
    in_use = Counter(device.gpu.parent for device in devices if device.holders and device.gpu.parent)

    def rank(device: FreeGpu) -> tuple[int, ...]:
        given = -out[device.gpu.device] if device.gpu.packed else out[device.gpu.device]
        return (
            device.gpu.shareable,
            given,
            picked[device.gpu.device],
            device.gpu.memory_mib,
            policy.device(in_use[device.gpu.parent]),
            device.gpu.index,
        )

    return rank


def possible(
    missing: int,
    barred: Collection[str],
    left: Sequence[FreeGpu],
    later: Sequence[ContainerRequest],
    *,
    alone: bool,
) -> bool:
    """Can a container get so many more, none of `barred`, and those after it what they ask for?

    Taking of the groups with the most left loses nothing: where a container could have one of a smaller
    group instead, it can change places with another that has one of the larger.
    """
    sizes = Counter(map(_group, left))
    lonely = {_group(device) for device in left if device.gpu.replica_rule is ReplicaRule.ALONE}

    def take(count: int, barred: Collection[str], *, alone: bool, keep: bool = False) -> bool:
        groups = [
            group
            for group, size in sizes.items()
            if size and group not in barred and (alone or group not in lonely)
        ]
        if len(groups) < count:
            return False
        if not keep:
            for group in sorted(groups, key=lambda one: (one not in lonely, -sizes[one]))[:count]:
                sizes[group] -= 1
        return True

    return take(missing, barred, alone=alone) and all(
        take(c.whole, (), alone=c.whole == 1, keep=c.role is Role.INIT) for c in later
    )
