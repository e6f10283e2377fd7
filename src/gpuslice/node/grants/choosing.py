"""Chooses the ids that a container should get: the answer to GetPreferredAllocation. Pure.

The scheduler's plan is followed if it can be. A container without a plan, or whose planned GPU has too little
left, goes where the placement engine puts it, without what other pods were promised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuslice.devices.found import FoundGpu
from gpuslice.devices.inventory import NodeGpus, ReplicaRule
from gpuslice.devices.preferred import nearest
from gpuslice.devices.sharing import device_of
from gpuslice.node.grants.deviceids import DeviceIds
from gpuslice.node.grants.held import GrantCode, Held, Owner, WaitingContainer
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.node import place
from gpuslice.placement.verdict import Code, Verdict, unavailable
from gpuslice.placement.whole import lacking, pick
from gpuslice.requests.kinds import Kind
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role


@dataclass(frozen=True, slots=True)
class Question:
    """One choice to make, of `size` ids of a kind for a container, and all that it depends on.

    `available` is what the kubelet offers, `held` what others have. `machine` says which GPUs are near each
    other, where that is known.
    """

    ids: DeviceIds
    kind: Kind
    size: int
    available: Collection[str]
    pods: Mapping[str, NodePod]
    held: Sequence[Held]
    machine: Sequence[FoundGpu] = ()
    free: Mapping[str, Sequence[str]] = field(init=False)
    """The ids that may be given out, by the UUID of their GPU, which is available and in the right mode."""

    def __post_init__(self) -> None:
        taken: set[str] = set()
        shut: set[str] = {gpu.uuid for gpu in self.gpus.gpus if not gpu.available}
        for holding in self.held:
            if holding.kind == self.kind:
                taken |= holding.ids
            if self.kind.whole or holding.bars(self.kind):
                shut |= holding.gpus.keys()
        found = self.ids.per_gpu(self.kind, [one for one in self.available if one not in taken])
        object.__setattr__(self, "free", {uuid: ids for uuid, ids in found.items() if uuid not in shut})

    @property
    def gpus(self) -> NodeGpus:
        return self.ids.gpus

    def say(self, count: int) -> str:
        """The amount as messages name it."""
        return self.kind.say(self.gpus, count)

    def take(self, gpus: Sequence[str]) -> tuple[str, ...] | None:
        """Ids in equal parts from each of these GPUs, or None if one has too few."""
        if not gpus or self.size % len(gpus):
            return None
        each = self.size // len(gpus)
        if any(len(self.free.get(uuid, ())) < each for uuid in gpus):
            return None
        return tuple(device_id for uuid in gpus for device_id in self.free[uuid][:each])

    def free_gpus(self, but: str = "") -> list[FreeGpu]:
        """What is left of each GPU once every planned pod but that one has got what was planned for it."""
        promised, busy = self._promised(but)
        free_gpus = []
        for gpu in self.gpus.gpus:
            spare = len(self.free.get(gpu.uuid, ()))
            # A whole GPU of which the kubelet offers nothing cannot be chosen.
            offered = spare or not self.kind.whole or gpu.uuid in busy
            left = self.kind.mib(self.gpus, gpu.uuid, spare) - promised.get(gpu.uuid, 0)
            known = gpu if offered else gpu.closed("the kubelet does not offer it")
            free_gpus.append(FreeGpu(known, left, int(gpu.uuid in busy)))
        return free_gpus

    def _promised(self, but: str) -> tuple[Mapping[str, int], Collection[str]]:
        """MiB of each GPU that pods are still to get, and the GPUs that are held or promised."""
        promised: dict[str, int] = {}
        busy: set[str] = {uuid for holding in self.held for uuid in holding.gpus}
        # Ids of another plugin (gpushare's, before us) name no GPU: only the pod's record says where it is.
        owned = {holding.owner for holding in self.held if holding.gpus}
        for pod in self.pods.values():
            if pod.uid == but or not pod.alive or pod.planned is None:
                continue
            if all(Owner(pod.uid, container.name) in owned for container in pod.request.containers):
                continue
            for charge in pod.planned.charges(pod.request):
                has = sum(
                    self.gpus.unit.to_mib(holding.gpus.get(charge.gpu, 0))
                    for holding in self.held
                    if holding.owner and holding.owner.uid == pod.uid and not holding.kind.whole
                )
                promised[charge.gpu] = promised.get(charge.gpu, 0) + max(0, charge.mib - has)
                busy.add(charge.gpu)
        return promised, busy


def beside(question: Question, kept: Sequence[str]) -> tuple[str, ...] | Verdict:
    """Ids for a container that must include those its pod's init containers leave to it (`kept`)."""
    where = question.ids.per_gpu(question.kind, kept)
    shut = [gpu for uuid in where if (gpu := question.gpus.find(uuid)) is not None and not gpu.available]
    if shut:
        return Verdict(
            unavailable(shut[0].availability.closed),
            f"GPU {shut[0].index}, which the pod's init container used, is {shut[0].availability}",
        )
    missing = question.size - len(kept)
    if question.kind.whole:
        spare = _more(question, kept, missing)
    elif len(where) == 1:
        spare = [one for one in question.free.get(next(iter(where)), ()) if one not in kept]
    else:
        return Verdict(
            GrantCode.SCATTERED,
            "the init containers of this pod hold ids of several GPUs; delete the pod and start it again",
        )
    if len(spare) < missing:
        return Verdict(
            Code.INSUFFICIENT,
            f"the container needs {question.say(missing)} more on the GPU of its pod's init container, but "
            f"only {question.say(len(spare))} are free there",
        )
    return (*kept, *spare[:missing])


def choose(
    question: Question, waiting: Sequence[WaitingContainer]
) -> tuple[tuple[str, ...], Owner | None] | Verdict:
    """The ids, and the container that they are probably for; or why there are none.

    Whole GPUs that no scheduler planned are chosen near each other.
    """
    if not question.kind.whole and (safe := _safe_for_all(question, waiting)):
        return safe
    for one in waiting:
        for gpus in _favourites(question, one):
            if gpus != one.planned:
                # It cannot go where it was planned; what others were promised on other GPUs stays theirs.
                least = question.gpus.unit.to_mib(question.size)
                if any(r.gpu.uuid in gpus and r.free_mib < least for r in question.free_gpus(one.pod.uid)):
                    continue
            if (taken := question.take(gpus)) is not None:
                return taken, one.owner
    stranger = PodRequest((ContainerRequest("", Role.APP, question.kind, question.size),))
    for asking in waiting or (None,):
        request = _rest(asking, question.kind) if asking else stranger
        free_gpus = question.free_gpus(asking.pod.uid if asking else "")
        placed = place(request, question.gpus.unit, free_gpus)
        if isinstance(placed, Verdict):
            continue
        gpus = tuple(grant.gpu for grant in placed.of(request.containers[0].name))
        if (taken := question.take(_near(question, free_gpus, gpus))) is not None:
            return taken, asking.owner if asking else None
    return _why_not(question, waiting)


def _near(
    question: Question, free_gpus: Sequence[FreeGpu], gpus: tuple[str, ...], kept: Collection[str] = ()
) -> tuple[str, ...]:
    """As many free whole GPUs as asked for, nearest to each other; `kept` are among them already."""
    uuids = {gpu.uuid for gpu in question.machine if gpu.links}
    wanted = {*gpus, *kept}
    if not question.kind.whole or len(wanted) < 2 or not wanted <= uuids:
        return gpus
    free = [one.gpu.uuid for one in _untouched(question, free_gpus)]
    found = nearest(question.machine, free, kept, len(wanted))
    return tuple(uuid for uuid in found if uuid not in kept)


def _untouched(question: Question, free_gpus: Sequence[FreeGpu]) -> list[FreeGpu]:
    return [one for one in free_gpus if question.kind.is_offered_by(one.gpu) and one.untouched]


def _more(question: Question, kept: Sequence[str], missing: int) -> Sequence[str]:
    """More ids for a container that has some; ids that are promised to other pods come last."""
    asking = ContainerRequest("", Role.APP, question.kind, missing)
    pod = next((h.owner.uid for h in question.held if h.owner and h.ids & frozenset(kept)), "")
    for alone in (False, True):
        free_gpus = (replace(question, pods={}) if alone else question).free_gpus(pod)
        untouched = _untouched(question, free_gpus)
        if len(untouched) >= missing and (chosen := pick([asking], untouched, free_gpus, beside=kept)):
            return _near(question, free_gpus, tuple(one.gpu.uuid for one in chosen[0]), kept)
    return ()


def _safe_for_all(
    question: Question, waiting: Sequence[WaitingContainer]
) -> tuple[tuple[str, ...], Owner] | None:
    """A GPU that is right whichever of these containers is asking, if an init container is among them; None
    if there is no doubt, or no such GPU.

    What a pod's init container gets binds the containers after it to that GPU, and they may need more. So
    containers of this size are not interchangeable: where another was planned, the pod may not fit.
    """
    needs = [_need_here(one) for one in waiting]
    if len(set(needs)) < 2 or any(one.container.across > 1 for one in waiting):
        return None
    free_gpus = question.free_gpus()
    planned = [uuid for one in waiting for uuid in one.planned]
    rest = [one.gpu.uuid for one in sorted(free_gpus, key=lambda one: (one.free_mib, one.gpu.index))]
    left = {one.gpu.uuid: one.free_mib for one in free_gpus if one.gpu.available}
    for uuid in dict.fromkeys(planned + rest):
        taken = question.take((uuid,))
        if taken is not None and all(
            left.get(uuid, 0) + _promised_to(one.pod, uuid) >= question.gpus.unit.to_mib(need)
            for one, need in zip(waiting, needs, strict=True)
        ):
            # The next call shows whether it was an init container: it takes over an init container's ids and
            # no others.
            modest = [one for one, need in zip(waiting, needs, strict=True) if need == min(needs)]
            return taken, next((w.owner for w in modest if w.planned == (uuid,)), modest[0].owner)
    return None


def _need_here(one: WaitingContainer) -> int:
    """Units that must be free on the GPU of this container: for an init container, those of its whole pod."""
    if one.container.role is not Role.INIT:
        return one.container.units
    return _rest(one, one.container.kind).units


def _promised_to(pod: NodePod, uuid: str) -> int:
    """MiB of a GPU that were planned for a pod."""
    charges = pod.planned.charges(pod.request) if pod.planned else ()
    return sum(charge.mib for charge in charges if charge.gpu == uuid and not charge.whole)


def _favourites(question: Question, one: WaitingContainer) -> list[tuple[str, ...]]:
    """GPUs to try: first those where the pod's other containers are already, then the planned ones."""
    if one.pod.planned is None:
        return []
    planned = one.planned
    mine = {
        uuid
        for holding in question.held
        if holding.kind == question.kind and holding.owner and holding.owner.uid == one.pod.uid
        for uuid in holding.gpus
    }
    together = len(set(one.pod.planned.gpus)) == 1 and not question.kind.whole
    if together and len(mine) == 1 and one.container.across == 1 and (*mine,) != planned:
        return [(*mine,), planned]
    return [planned]


def _rest(one: WaitingContainer, kind: Kind) -> PodRequest:
    """A container and those of its pod that come after it."""
    later = one.pod.request.containers[one.position :]
    return PodRequest(tuple(container for container in later if container.kind == kind))


def _why_not(question: Question, waiting: Sequence[WaitingContainer]) -> Verdict:
    across = waiting[0].container.across if waiting else 1
    size, free, kind = question.size, question.free, question.kind
    if kind.whole:
        gpus = question.gpus.gpus
        of_kind = sum(map(kind.is_offered_by, gpus))
        rules = {g.replica_rule for g in gpus if g.uuid in free} - {ReplicaRule.ANY}
        if rules and size > 1 and len(free) >= size:
            return Verdict(
                Code.SAME_DEVICE,
                f"invalid request: maximum request size for shared resources is 1; found {size}"
                if ReplicaRule.ALONE in rules
                else f"the container asks for {size} {kind.resource}, which are to be of as many different "
                f"GPUs; {len({device_of(uuid) for uuid in free})} have one that is free and not promised to "
                "others",
            )
        return Verdict(
            lacking(kind.resource),
            f"the container asks for {question.say(size)}, but {len(free)} of this node's "
            f"{of_kind} are available, free of shares and not promised to other pods",
        )
    each = size // across
    most = max((len(mine) for mine in free.values()), default=0)
    where = f"on each of {across} GPUs" if across > 1 else "of one GPU"
    return Verdict(
        Code.INSUFFICIENT,
        f"the container asks for {question.say(each)} {where}, but no such room is left on this node: the "
        f"GPU with the most has {question.say(most)} free, part of which may be promised to other pods",
    )
