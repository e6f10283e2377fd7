"""Which ids a container should get: GetPreferredAllocation's question, answered from values. Pure.

The scheduler's plan is followed if it can be; a container without one, or whose planned GPU has no room any
more, goes where the placement engine puts it, beside what other pods were promised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from gpuslice import names
from gpuslice.devices.availability import closed
from gpuslice.devices.found import FoundGpu
from gpuslice.devices.inventory import Apart, NodeGpus
from gpuslice.devices.preferred import nearest
from gpuslice.devices.sharing import device_of
from gpuslice.node.deviceids import DeviceIds
from gpuslice.node.holdings import Held, Owner, Refusal, Wish, amount
from gpuslice.node.nodepod import NodePod
from gpuslice.placement.node import place
from gpuslice.placement.room import GpuRoom
from gpuslice.placement.verdict import Verdict
from gpuslice.placement.whole import pick
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role

_NOT_OFFERED: Final = closed("the kubelet does not offer it")

Free = Mapping[str, Sequence[str]]
"""Ids that may be given out, by the UUID of their GPU."""


def free_ids(ids: DeviceIds, resource: str, offered: Collection[str], held: Iterable[Held]) -> Free:
    """The ids that the kubelet offers and that really are free, on available GPUs in the right mode."""
    taken: set[str] = set()
    closed: set[str] = {gpu.uuid for gpu in ids.gpus.gpus if not gpu.available}
    for holding in held:
        if holding.resource == resource:
            taken |= holding.ids
        if holding.resource != resource or resource != names.GPU_MEM:
            closed |= holding.gpus.keys()
    found = ids.per_gpu(resource, [device_id for device_id in offered if device_id not in taken])
    return {uuid: mine for uuid, mine in found.items() if uuid not in closed}


def beside(
    ids: DeviceIds,
    resource: str,
    free: Free,
    kept: Sequence[str],
    size: int,
    pods: Mapping[str, NodePod],
    held: Sequence[Held],
    machine: Sequence[FoundGpu] = (),
) -> tuple[str, ...] | Refusal:
    """Ids for a container that must include those its pod's init containers leave to it (`kept`)."""
    where = ids.per_gpu(resource, kept)
    shut = [gpu for uuid in where if (gpu := ids.gpus.find(uuid)) is not None and not gpu.available]
    if shut:
        return Refusal(f"GPU {shut[0].index}, which the pod's init container used, is {shut[0].availability}")
    missing = size - len(kept)
    if resource != names.GPU_MEM:
        spare = _more(ids.gpus, resource, free, kept, missing, pods, held, machine)
    elif len(where) == 1:
        spare = [device_id for device_id in free.get(next(iter(where)), ()) if device_id not in kept]
    else:
        return Refusal(
            "the init containers of this pod hold ids of several GPUs; delete the pod and start it again"
        )
    if len(spare) < missing:
        return Refusal(
            f"the container needs {_say(ids.gpus, resource, missing)} beside what its pod's init container "
            f"leaves to it, but only {_say(ids.gpus, resource, len(spare))} are free there"
        )
    return (*kept, *spare[:missing])


def choose(
    ids: DeviceIds,
    resource: str,
    free: Free,
    size: int,
    wishes: Sequence[Wish],
    pods: Mapping[str, NodePod],
    held: Sequence[Held],
    machine: Sequence[FoundGpu] = (),
) -> tuple[tuple[str, ...], Owner | None] | Refusal:
    """Exactly `size` ids and the container that they are probably for, or why there are none.

    Where nobody planned it, whole GPUs are near to each other: `machine` says which are.
    """
    if resource == names.GPU_MEM and (safe := _safe_for_all(ids.gpus, free, size, wishes, pods, held)):
        return safe
    for wish in wishes:
        for gpus in _favourites(wish, resource, held):
            if gpus != wish.planned:
                # Not where it was planned: what others were promised there stays theirs.
                rooms = _rooms(ids.gpus, resource, free, pods, held, wish.pod.uid)
                if any(room.uuid in gpus and room.free_mib < ids.gpus.unit.to_mib(size) for room in rooms):
                    continue
            if (taken := _take(free, gpus, size)) is not None:
                return taken, wish.owner
    for asking in wishes or (None,):
        request = _rest(asking, resource) if asking else PodRequest((_stranger(resource, size),))
        rooms = _rooms(ids.gpus, resource, free, pods, held, asking.pod.uid if asking else "")
        placed = place(request, ids.gpus.unit, rooms)
        if isinstance(placed, Verdict):
            continue
        gpus = tuple(grant.gpu for grant in placed.of(request.containers[0].name))
        gpus = _near(machine, rooms, resource, gpus)
        if (taken := _take(free, gpus, size)) is not None:
            return taken, asking.owner if asking else None
    return _why_not(ids.gpus, resource, free, size, wishes)


def _near(
    machine: Sequence[FoundGpu],
    rooms: Sequence[GpuRoom],
    resource: str,
    gpus: tuple[str, ...],
    kept: Collection[str] = (),
) -> tuple[str, ...]:
    """As many whole GPUs, the nearest to each other that are free; `kept` are there already."""
    uuids = {gpu.uuid for gpu in machine if gpu.links}
    wanted = {*gpus, *kept}
    if resource == names.GPU_MEM or len(wanted) < 2 or not wanted <= uuids:
        return gpus
    free = [room.uuid for room in rooms if room.resource == resource and room.untouched]
    found = nearest(machine, free, kept, len(wanted))
    return tuple(uuid for uuid in found if uuid not in kept)


def _more(
    gpus: NodeGpus,
    resource: str,
    free: Free,
    kept: Sequence[str],
    missing: int,
    pods: Mapping[str, NodePod],
    held: Sequence[Held],
    machine: Sequence[FoundGpu],
) -> list[str]:
    """Ids for a container beside those that it has, not promised to other pods if that can be."""
    asking = ContainerRequest("", Role.APP, whole=missing, resource=resource)
    pod = next((h.owner.uid for h in held if h.owner and h.ids & frozenset(kept)), "")
    for considered in (pods, {}):
        rooms = _rooms(gpus, resource, free, considered, held, pod)
        untouched = [room for room in rooms if room.resource == resource and room.untouched]
        if len(untouched) >= missing and (chosen := pick([asking], untouched, rooms, beside=kept)):
            found = tuple(room.uuid for room in chosen[0])
            return list(_near(machine, rooms, resource, found, kept))
    return []


def _safe_for_all(
    gpus: NodeGpus,
    free: Free,
    size: int,
    wishes: Sequence[Wish],
    pods: Mapping[str, NodePod],
    held: Sequence[Held],
) -> tuple[tuple[str, ...], Owner] | None:
    """A GPU that is right whichever of these containers is asking, if an init container is among them.

    What a pod's init container gets binds the containers after it to that GPU, and they may need more. So
    containers of this size are not interchangeable: where another was planned, the pod may not fit.
    None if there is no doubt, or no such GPU.
    """
    needs = [_need_here(wish) for wish in wishes]
    if len(set(needs)) < 2 or any(wish.container.across > 1 for wish in wishes):
        return None
    rooms = _rooms(gpus, names.GPU_MEM, free, pods, held, "")
    planned = [uuid for wish in wishes for uuid in wish.planned]
    rest = [room.uuid for room in sorted(rooms, key=lambda room: (room.free_mib, room.index))]
    left = {room.uuid: room.free_mib for room in rooms if room.available}
    for uuid in dict.fromkeys(planned + rest):
        taken = _take(free, (uuid,), size)
        if taken is not None and all(
            left.get(uuid, 0) + _promised_to(wish.pod, uuid) >= gpus.unit.to_mib(need)
            for wish, need in zip(wishes, needs, strict=True)
        ):
            # An init container shows itself by the next call, which takes its ids over; the others do not.
            modest = [wish for wish, need in zip(wishes, needs, strict=True) if need == min(needs)]
            return taken, next((w.owner for w in modest if w.planned == (uuid,)), modest[0].owner)
    return None


def _need_here(wish: Wish) -> int:
    """Units that must be free on the GPU of this container: for an init container, those of its whole pod."""
    if wish.container.role is not Role.INIT:
        return wish.container.units
    return _rest(wish, names.GPU_MEM).units


def _promised_to(pod: NodePod, uuid: str) -> int:
    """MiB of a GPU that were planned for a pod."""
    charges = pod.planned.charges(pod.request) if pod.planned else ()
    return sum(charge.mib for charge in charges if charge.gpu == uuid and not charge.whole)


def _favourites(wish: Wish, resource: str, held: Sequence[Held]) -> list[tuple[str, ...]]:
    """GPUs to try: where the pod's other containers are already, then where it was planned."""
    if wish.pod.planned is None:
        return []
    planned = wish.planned
    mine = {
        uuid
        for holding in held
        if holding.resource == resource and holding.owner and holding.owner.uid == wish.pod.uid
        for uuid in holding.gpus
    }
    together = len(set(wish.pod.planned.gpus)) == 1 and resource == names.GPU_MEM
    if together and len(mine) == 1 and wish.container.across == 1 and (*mine,) != planned:
        return [(*mine,), planned]
    return [planned]


def _take(free: Free, gpus: Sequence[str], size: int) -> tuple[str, ...] | None:
    """Equal parts from each of these GPUs, or None if one has not enough."""
    if not gpus or size % len(gpus):
        return None
    each = size // len(gpus)
    if any(len(free.get(uuid, ())) < each for uuid in gpus):
        return None
    return tuple(device_id for uuid in gpus for device_id in free[uuid][:each])


def _rest(wish: Wish, resource: str) -> PodRequest:
    """A container and those of its pod that come after it."""
    later = wish.pod.request.containers[wish.position :]
    return PodRequest(tuple(container for container in later if amount(container, resource)))


def _stranger(resource: str, size: int) -> ContainerRequest:
    """A container of a pod that we have not heard of."""
    if resource == names.GPU_MEM:
        return ContainerRequest("", Role.APP, units=size)
    return ContainerRequest("", Role.APP, whole=size, resource=resource)


def _rooms(
    gpus: NodeGpus,
    resource: str,
    free: Free,
    pods: Mapping[str, NodePod],
    held: Sequence[Held],
    but: str,
) -> list[GpuRoom]:
    """What is left of each GPU once every planned pod but one has come into its own."""
    promised: dict[str, int] = {}
    busy: set[str] = {uuid for holding in held for uuid in holding.gpus}
    # Ids of another plugin (gpushare's, before us) name no GPU: where their pod is only its record says.
    owned = {holding.owner for holding in held if holding.gpus}
    for pod in pods.values():
        if pod.uid == but or not pod.alive or pod.planned is None:
            continue
        if all(Owner(pod.uid, container.name) in owned for container in pod.request.containers):
            continue
        for charge in pod.planned.charges(pod.request):
            has = sum(
                gpus.unit.to_mib(holding.gpus.get(charge.gpu, 0))
                for holding in held
                if holding.owner and holding.owner.uid == pod.uid and holding.resource == names.GPU_MEM
            )
            promised[charge.gpu] = promised.get(charge.gpu, 0) + max(0, charge.mib - has)
            busy.add(charge.gpu)
    rooms = []
    for gpu in gpus.gpus:
        spare = len(free.get(gpu.uuid, ()))
        mib = gpus.unit.to_mib(spare) if resource == names.GPU_MEM else spare * gpu.memory_mib
        left = mib - promised.get(gpu.uuid, 0)
        rooms.append(
            GpuRoom(
                gpu.index,
                gpu.uuid,
                left,
                gpu.memory_mib,
                int(gpu.uuid in busy),
                # What the kubelet does not offer is no choice, however little it is.
                gpu.availability if resource == names.GPU_MEM or spare or gpu.uuid in busy else _NOT_OFFERED,
                gpu.resource,
                gpu.parent,
                gpu.shareable,
                gpu.apart,
                gpu.packed,
            )
        )
    return rooms


def _why_not(gpus: NodeGpus, resource: str, free: Free, size: int, wishes: Sequence[Wish]) -> Refusal:
    across = wishes[0].container.across if wishes else 1
    if resource != names.GPU_MEM:
        of_kind = sum(gpu.resource == resource for gpu in gpus.gpus)
        apart = {g.apart for g in gpus.gpus if g.uuid in free} - {Apart.NO}
        if apart and size > 1 and len(free) >= size:
            return Refusal(
                f"invalid request: maximum request size for shared resources is 1; found {size}"
                if Apart.ALONE in apart
                else f"the container asks for {size} {resource}, which are to be of as many different GPUs; "
                f"{len({device_of(uuid) for uuid in free})} have one that is free and not promised to others"
            )
        return Refusal(
            f"the container asks for {_say(gpus, resource, size)}, but {len(free)} of this node's "
            f"{of_kind} are available, free of shares and not promised to other pods"
        )
    each = size // across
    most = max((len(mine) for mine in free.values()), default=0)
    wanted = (
        f"{gpus.unit.say(each)} on each of {across} GPUs"
        if across > 1
        else f"{gpus.unit.say(each)} of one GPU"
    )
    return Refusal(
        f"the container asks for {wanted}, but no such room is left on this node: the GPU with the most has "
        f"{gpus.unit.say(most)} free, part of which may be promised to other pods"
    )


def _say(gpus: NodeGpus, resource: str, count: int) -> str:
    if resource == names.WHOLE_GPU and not any(gpu.uuid != gpu.device for gpu in gpus.gpus):
        return f"{count} whole GPU{'s' if count != 1 else ''}"
    if resource != names.GPU_MEM:
        return f"{count} {resource}"
    return gpus.unit.say(count)
