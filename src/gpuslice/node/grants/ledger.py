"""The ledger: which ids are given out, from Allocate until nobody has them. The heart of the agent, pure.

A kubelet asks for ids without saying for whom, in no useful order, and sometimes offers ids that are in use.
So the ledger keeps what Allocate gave out until pod-resources and the API server agree that the pod is gone,
and until its processes have ended too: both forget a pod that is deleted by force while its processes still
run. The ledger guesses the owner at first (`choosing`, `claiming`) and learns it from pod-resources before
any process of the container runs (`identity`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuslice.devices.found import FoundGpu
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.node.grants import identity
from gpuslice.node.grants.choosing import Question, beside, choose
from gpuslice.node.grants.claiming import claimant, closed, heir, scattered
from gpuslice.node.grants.deviceids import DeviceIds
from gpuslice.node.grants.held import (
    GrantCode,
    Held,
    Owner,
    Unsure,
    WaitingContainer,
    inits,
    is_init,
    is_over,
    likeliest,
    waiting,
)
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.node.grants.table import GrantTable
from gpuslice.node.grants.transition import settle
from gpuslice.node.kubelet.messages import PodResources
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.allocation import Allocation
from gpuslice.requests.kinds import Kind

_NONE: Final[frozenset[str]] = frozenset()
SETTLED_SECONDS: Final = 10.0
"""After Allocate a kubelet needs a moment to write down what it gave out; by then it surely has."""
STRANGER_SECONDS: Final = 60.0
"""How long ids are kept that a kubelet does not list and for which no pod is known."""


class Ledger:
    """What is given out on one node. `pods` in the questions are the pods bound to it, by uid."""

    def __init__(self, gpus: NodeGpus) -> None:
        self._table = GrantTable(gpus)
        self._wanted = gpus
        self._plain: Sequence[Gpu] = gpus.gpus
        self.machine: Sequence[FoundGpu] = ()
        """The GPUs with what is known of their neighbourhood."""
        self.refused: Counter[str] = Counter()
        """How many calls of the kubelet were answered with no, by the verdict's code."""
        self.lingering: Collection[str] = frozenset()
        """Uids of pods that the API server has no more while their processes may run on."""
        self._current = ""
        self._over: list[Held] = []
        self._displaced: list[Held] = []
        self._preferred: tuple[Kind, frozenset[str], Owner | None] | None = None

    @property
    def ids(self) -> DeviceIds:
        return self._table.ids

    @property
    def gpus(self) -> NodeGpus:
        return self._table.ids.gpus

    def set_gpus(self, gpus: NodeGpus, plain: Sequence[Gpu] | None = None) -> None:
        """The node's GPUs have changed, their health, or how they are announced.

        `plain`: the devices as they would be if none were shared; None if none is shared.
        """
        self._wanted, self._plain = gpus, gpus.gpus if plain is None else plain
        self._settle()

    def _settle(self) -> None:
        """Close devices that are held in another way than they are announced; open those that have become
        free.
        """
        settled = settle(self._wanted, self._plain, self.gpus, self._table.held())
        if settled != self.gpus:
            self._table.ids = DeviceIds(settled)
            self._table.locate()

    def refuse(self, verdict: Verdict) -> str:
        """A call of the kubelet is answered with this no: counts it, and returns the sentence."""
        self.refused[verdict.code] += 1
        return verdict.message

    @property
    def calls(self) -> int:
        """How many Allocate calls the kubelet has made: it makes them one after the other."""
        return self._table.calls

    def held(self) -> list[Held]:
        """Everything that is given out, in the order of the kubelet's calls."""
        return self._table.held()

    def take_touched(self) -> set[str]:
        """Uids of the pods about which anything has changed since the last call."""
        return self._table.take_touched()

    def planned(self, pod: NodePod) -> Allocation | None:
        """Where a pod's containers are meant to be: the scheduler's plan, except for the parts that were
        swapped.
        """
        return self._table.planned(pod)

    def held_by(self, uid: str) -> list[Held]:
        """What a pod is believed to hold, certain or guessed."""
        return self._table.held_by(uid)

    def is_swapped(self, uid: str) -> bool:
        """True if a pod's plan is not what its scheduler wrote."""
        return self._table.is_swapped(uid)

    # --- the kubelet's questions ------------------------------------------------------------------
    def prefer(
        self,
        kind: Kind,
        available: Collection[str],
        must_include: Collection[str],
        size: int,
        pods: Mapping[str, NodePod],
    ) -> tuple[str, ...] | Verdict:
        """Exactly `size` ids, or why not: a short answer would be filled up with ids of other GPUs."""
        self._table.calls += 1
        self._preferred = None
        pods = self._table.replanned(pods)
        held = [h for h in self._table.held() if not is_over(h, pods)]
        ghosts = [h for h in (*self._table.held(), *self._displaced) if self._lingers(h)]
        question = Question(self.ids, kind, size, available, pods, (*held, *ghosts), self.machine)
        answer = self._answer(question, must_include)
        if isinstance(answer, Verdict) and ghosts:
            # A container that gets their ids must wait at its start until they have ended, which is better
            # than no ids.
            answer = self._answer(replace(question, held=held), must_include)
        return answer

    def _answer(self, question: Question, must_include: Collection[str]) -> tuple[str, ...] | Verdict:
        if must_include:
            return beside(question, sorted(must_include))
        chosen = choose(question, self._waiting(question.kind, question.size, question.pods))
        if isinstance(chosen, Verdict):
            return chosen
        self._preferred = (question.kind, frozenset(chosen[0]), chosen[1])
        return chosen[0]

    def is_doubtful(self, pods: Mapping[str, NodePod]) -> bool:
        """True if the ids that were preferred last are for no known container, or not where the scheduler
        counts it.

        Either may come from ids that are held for a container that does not have them.
        """
        if self._preferred is None:
            return False
        kind, ids, owner = self._preferred
        pod = pods.get(owner.uid) if owner else None
        if owner is None or pod is None:
            return True
        plan = self.planned(pod)
        gpus = self.ids.per_gpu(kind, ids)
        return plan is not None and {grant.gpu for grant in plan.of(owner.container)} != set(gpus)

    def expects(self, kind: Kind, size: int, pods: Mapping[str, NodePod]) -> bool:
        """True if a container that asks for that much is known to wait."""
        return any(True for _ in waiting(pods, self._table.held(), kind, size))

    def allocate(
        self, kind: Kind, ids: Collection[str], pods: Mapping[str, NodePod], now: float
    ) -> Held | Verdict:
        """Write down that these ids are given out. `now` in monotonic seconds."""
        self._table.calls += 1
        pods = self._table.replanned(pods)
        wanted = frozenset(ids)
        gpus = {uuid: len(mine) for uuid, mine in self.ids.per_gpu(kind, wanted).items()}
        if not wanted or sum(gpus.values()) < len(wanted):
            unknown = (one for one in ids if self.ids.gpu(kind, one) is None)
            return Verdict(
                GrantCode.UNKNOWN_IDS,
                f'invalid allocation request for "{kind.resource}": invalid request: unknown device: '
                f"{next(unknown, 'none')}; kubelet's list of ids is too old",
            )
        refusal = closed(self._table, kind, gpus, pods)
        if refusal is not None:
            return refusal
        shared = [h for h in self._table.held() if h.kind == kind and h.ids & wanted]
        for holding in [h for h in shared if is_over(h, pods)]:
            # The API server says that its pod is over, and so does the kubelet, by giving its ids to another.
            shared.remove(holding)
            self._table.release(holding)
            (self._displaced if self._lingers(holding) else self._over).append(holding)
        if shared:
            owner = heir(self._table, shared, kind, len(wanted), pods, self._waiting(kind, len(wanted), pods))
            if owner is None:
                return Verdict(
                    GrantCode.IDS_TAKEN,
                    f"kubelet gives this container {len(wanted)} ids, but {self._whose(shared[0], pods)} "
                    "holds some of them already; delete the pod and create it again",
                )
            if not kind.whole and len(gpus) > 1:
                return scattered(self.gpus, gpus, len(wanted))
        else:
            found = self._claim(kind, wanted, gpus, pods)
            if isinstance(found, Verdict):
                return found
            owner = found
        self._preferred = None
        if owner is not None:
            self._current = owner.uid
        return self._table.write(kind, wanted, owner, certain=False, now=now)

    def withdraw(self, holding: Held) -> None:
        """Allocate failed after all: the kubelet does not get these ids."""
        self._table.release(holding)

    # --- who is it --------------------------------------------------------------------------------
    def identify(
        self,
        kind: Kind,
        ids: Collection[str],
        listing: Iterable[PodResources],
        pods: Mapping[str, NodePod],
        now: float,
        *,
        fresh: bool,
    ) -> identity.Identity | Unsure | Verdict:
        """Whose container is about to start with these ids; see `identity.identify`."""
        return identity.identify(self._table, kind, ids, listing, pods, now, fresh=fresh)

    def sharing(self, found: identity.Identity) -> list[str]:
        """The containers of a pod that have exactly these ids, in the order of their start.

        Also init containers of that size of which nothing is known: a former run of the agent may have
        written their grants.
        """
        held, uid = found.held, found.pod.uid
        known = {h.owner.container: h for h in self._table.held_by(uid) if h.certain and h.owner}
        same = {name for name, h in known.items() if (h.kind, h.ids) == (held.kind, held.ids)}
        lost = {o.container for o in inits((), held.kind, len(held.ids), [found.pod])} - known.keys()
        order = [c.name for c in found.pod.request.containers]
        return sorted({found.container} | same | lost, key=order.index)

    def doubt(self, uid: str) -> None:
        """Make a guess uncertain: the API server says that this incarnation is gone, so its successor may
        have the ids.
        """
        for holding in self.held():
            if holding.owner is not None and holding.owner.uid == uid:
                self._table.change(holding, None, certain=False)

    # --- giving back ------------------------------------------------------------------------------
    def reconcile(
        self,
        listing: Iterable[PodResources],
        pods: Mapping[str, NodePod],
        calls: int,
        now: float,
        *,
        fresh: bool,
        complete: bool = True,
    ) -> list[Held]:
        """Release what pod-resources and the API server agree is over; returns what was released.

        `calls`: what `self.calls` was when the listing was asked for. A grant of an earlier call is known to
        the kubelet by then, since it makes its calls one after the other. `fresh`: `pods` was read from the
        API server after that call, so it has every pod that the kubelet may have admitted. Only if `pods` is
        `complete` are ids released because no known pod has them.
        """
        listing = list(listing)
        identity.learn(self._table, listing, pods, now)
        in_use: dict[str, set[str]] = {}
        for entry in listing:
            for container in entry.containers:
                for devices in container.devices:
                    in_use.setdefault(devices.resource, set()).update(devices.ids)
        released, self._over = self._over, []
        released += self._settle_displaced()
        for holding in self.held():
            if holding.ids & in_use.get(holding.kind.resource, _NONE):
                continue
            if not holding.certain and holding.call >= calls and now - holding.since < SETTLED_SECONDS:
                continue
            if not (holding.certain or complete or fresh) or self._may_live(holding, pods, now, fresh=fresh):
                continue
            self._table.release(holding)
            released.append(holding)
        self._table.forget_plans(pods)
        self._settle()
        return released

    def lingers(self, pods: Mapping[str, NodePod]) -> bool:
        """True if something is kept only because its pod has not ended on the node, or because a pod still to
        come may own it.
        """
        over = any(is_over(holding, pods) for holding in self._table.held())
        return bool(self._displaced) or over or self.has_strangers(pods)

    def has_strangers(self, pods: Mapping[str, NodePod]) -> bool:
        """True if ids are given out that no known pod may have."""
        return any(
            not holding.certain and (holding.owner is None or holding.owner.uid not in pods)
            for holding in self._table.held()
        )

    # --- inside -----------------------------------------------------------------------------------
    def _lingers(self, holding: Held) -> bool:
        """True if its pod is gone except for its processes. A grant that is not certain has started none."""
        return holding.certain and holding.owner is not None and holding.owner.uid in self.lingering

    def _settle_displaced(self) -> list[Held]:
        """Settle grants whose ids were given to others: those that have ended are returned, and each of the
        rest is put back once nobody else has its ids.
        """
        waiting, self._displaced = self._displaced, []
        ended = [holding for holding in waiting if not self._lingers(holding)]
        for holding in waiting:
            if holding in ended:
                continue
            if any(h.kind == holding.kind and h.ids & holding.ids for h in self._table.held()):
                self._displaced.append(holding)
            else:
                self._table.put_back(holding)
        return ended

    def _may_live(self, holding: Held, pods: Mapping[str, NodePod], now: float, *, fresh: bool) -> bool:
        """True if ids that pod-resources does not list may belong to a container all the same.

        Only ordinary init containers are never listed. So a guessed owner that is another kind of container
        did not get these ids: it still waits. The container that got them is gone, or is an init container;
        the latter can be ruled out if all pods are known.
        """
        pod = pods.get(holding.owner.uid) if holding.owner else None
        alive = pod is not None and pod.alive
        if holding.certain:
            return alive or self._lingers(holding)
        if pod is not None and alive and is_init(pod, holding.owner):
            return True
        explained = fresh or (holding.owner is not None and not alive)
        if alive and holding.owner is not None:
            self._table.replan(holding.owner, tuple(holding.gpus))
            self._table.change(holding, None, certain=False)
        owned = {h.owner for h in self._table.held()}
        living = [pod for pod in pods.values() if pod.alive]
        candidates = inits(self._table.held(), holding.kind, len(holding.ids), living)
        if explained and all(owner in owned for owner in candidates):
            return False
        return now - holding.since < STRANGER_SECONDS

    def _waiting(self, kind: Kind, size: int, pods: Mapping[str, NodePod]) -> list[WaitingContainer]:
        return likeliest(pods, self._table.held(), kind, size, self._current)

    def _waits(self, owner: Owner, kind: Kind, size: int, pods: Mapping[str, NodePod]) -> bool:
        """True if that container is still without its ids."""
        mine = {owner.uid: pod} if (pod := pods.get(owner.uid)) else {}
        return any(one.owner == owner for one, _ in waiting(mine, self._table.held(), kind, size))

    def _claim(
        self, kind: Kind, ids: frozenset[str], gpus: Mapping[str, int], pods: Mapping[str, NodePod]
    ) -> Owner | Verdict | None:
        """Who gets ids that nobody holds: the container that they were chosen for, else one that they
        suit.
        """
        if self._preferred is not None and self._preferred[:2] == (kind, ids):
            meant = self._preferred[2]
            if meant is None or self._waits(meant, kind, len(ids), pods):
                return meant
        return claimant(self._table, kind, len(ids), gpus, self._waiting(kind, len(ids), pods))

    def _whose(self, holding: Held, pods: Mapping[str, NodePod]) -> str:
        pod = pods.get(holding.owner.uid) if holding.owner else None
        return f"pod {pod.key}" if pod else "a pod that has not ended yet"
