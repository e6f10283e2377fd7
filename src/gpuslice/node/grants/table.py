"""The grants of one node: who has which ids, by guess or for certain, and which plans were swapped. Pure.

It only stores: `ledger` writes what a kubelet is given, `identity` whose it turned out to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuslice.devices.inventory import NodeGpus
from gpuslice.node.grants.deviceids import DeviceIds
from gpuslice.node.grants.held import Held, Owner
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.kinds import Kind
from gpuslice.requests.pod import Role


class GrantTable:
    """Grants by serial number. `pods` are the pods bound to the node, by uid."""

    def __init__(self, gpus: NodeGpus) -> None:
        self.ids = DeviceIds(gpus)
        self.calls = 0
        """How many calls of the kubelet there were: it makes them one after the other."""
        self._held: dict[int, Held] = {}
        self._by_pod: dict[str, set[int]] = {}
        self._serial = 0
        self._plans: dict[Owner, tuple[str, ...]] = {}
        self._touched: set[str] = set()

    # --- grants -----------------------------------------------------------------------------------
    def held(self) -> list[Held]:
        """Everything that is given out, in the order of the kubelet's calls."""
        return list(self._held.values())

    def held_by(self, uid: str) -> list[Held]:
        """What a pod is taken to hold."""
        return [self._held[serial] for serial in sorted(self._by_pod.get(uid, ()))]

    def get(self, serial: int) -> Held:
        """A grant as it is now."""
        return self._held[serial]

    def write(
        self,
        kind: Kind,
        ids: frozenset[str],
        owner: Owner | None,
        *,
        certain: bool,
        now: float,
    ) -> Held:
        """A new grant, of the kubelet's latest call. `now` in monotonic seconds."""
        self._serial += 1
        gpus = self._located(kind, ids)
        written = Held(self._serial, kind, ids, gpus, owner, certain, self.calls, now)
        self._put(written)
        if owner is not None:
            self._touched.add(owner.uid)
        return written

    def locate(self) -> None:
        """Note on which GPUs ids are that could not be located before: the node's GPUs have changed."""
        for holding in self.held():
            if not holding.gpus and (gpus := self._located(holding.kind, holding.ids)):
                self._put(replace(holding, gpus=gpus))

    def _located(self, kind: Kind, ids: frozenset[str]) -> dict[str, int]:
        found = {uuid: len(mine) for uuid, mine in self.ids.per_gpu(kind, ids).items()}
        if kind.whole:
            # A device that is now announced by another name is held all the same.
            found |= {uuid: 1 for uuid in sorted(ids) if self.ids.gpus.find(uuid)}
        return found

    def release(self, holding: Held) -> None:
        """Nobody has these ids any more."""
        known = self._held.pop(holding.serial, None)
        if known is not None:
            self._unlink(known)

    def put_back(self, holding: Held) -> None:
        """What was released is held after all."""
        self._put(holding)

    def give(self, serial: int, owner: Owner, *, certain: bool) -> None:
        """Make a container the owner of a grant; the guessed owner gets that container's grant in return."""
        holding = self._held[serial]
        if holding.owner == owner and (holding.certain or not certain):
            return
        former = holding.owner
        for other in self.held_by(owner.uid):
            if other.owner == owner and other.serial != serial:
                same = other.kind == holding.kind and len(other.ids) == len(holding.ids)
                self.change(other, former if same else None, certain=False)
        self.change(holding, owner, certain=certain)

    def change(self, holding: Held, owner: Owner | None, *, certain: bool) -> None:
        """Record the owner of one grant; the other grants stay as they are."""
        self._put(replace(holding, owner=owner, certain=certain))
        self._touched |= {one.uid for one in (holding.owner, owner) if one is not None}

    def _put(self, holding: Held) -> None:
        known = self._held.get(holding.serial)
        if known is not None:
            self._unlink(known)
        self._held[holding.serial] = holding
        if holding.owner is not None:
            self._by_pod.setdefault(holding.owner.uid, set()).add(holding.serial)

    def _unlink(self, holding: Held) -> None:
        if holding.owner is not None:
            mine = self._by_pod[holding.owner.uid]
            mine.discard(holding.serial)
            if not mine:
                del self._by_pod[holding.owner.uid]

    def take_touched(self) -> set[str]:
        """Uids of the pods of which something else is known than when this was last asked."""
        touched, self._touched = self._touched, set()
        return touched

    # --- plans ------------------------------------------------------------------------------------
    def planned(self, pod: NodePod) -> Allocation | None:
        """Where a pod's containers are meant to be: the scheduler's plan, except for the parts that were
        swapped.
        """
        if pod.planned is None:
            return None
        grants: list[Grant] = []
        for container in pod.request.containers:
            plan = pod.planned.of(container.name)
            swapped = self._plans.get(Owner(pod.uid, container.name), ())
            if len(swapped) == len(plan):
                plan = tuple(replace(g, gpu=uuid) for g, uuid in zip(plan, swapped, strict=True))
            grants += plan
        return Allocation(tuple(grants))

    def is_swapped(self, uid: str) -> bool:
        """True if a pod's plan is not what its scheduler wrote."""
        return any(owner.uid == uid for owner in self._plans)

    def hand_over(self, holding: Held, owner: Owner, pods: Mapping[str, NodePod]) -> None:
        """Before `give`: an owner that turned up where another container was planned leaves its own place to
        that container.

        That container is the guessed owner or, if the guess is forgotten, one that was planned there.
        """
        pod = pods.get(owner.uid)
        place = self._place(owner, pods)
        if pod is None or any(other.owner == owner for other in self.held_by(owner.uid)):
            return
        displaced = holding.owner
        if displaced is None and place and set(place) != set(holding.gpus):
            displaced = self._planned_at(holding, owner, pods)
        if displaced is not None and displaced != owner and displaced.uid in pods:
            self.replan(displaced, place)

    def replan(self, owner: Owner, gpus: tuple[str, ...]) -> None:
        """Plan a waiting container onto GPUs where there is enough for it."""
        self._plans[owner] = gpus
        self._touched.add(owner.uid)

    def _place(self, owner: Owner, pods: Mapping[str, NodePod]) -> tuple[str, ...]:
        plan = self.planned(pods[owner.uid]) if owner.uid in pods else None
        return tuple(grant.gpu for grant in plan.of(owner.container)) if plan else ()

    def _planned_at(self, holding: Held, but: Owner, pods: Mapping[str, NodePod]) -> Owner | None:
        """A container without ids that asks for as much and is planned on these GPUs."""
        owned = {other.owner for other in self._held.values()}
        for pod in sorted(pods.values(), key=lambda p: (p.since, p.key)):
            if not pod.alive or any(c.role is Role.INIT for c in pod.request.containers):
                continue
            for container in pod.request.containers:
                owner = Owner(pod.uid, container.name)
                if (
                    owner != but
                    and owner not in owned
                    and container.count(holding.kind) == len(holding.ids)
                    and set(self._place(owner, pods)) == set(holding.gpus)
                ):
                    return owner
        return None

    def replanned(self, pods: Mapping[str, NodePod]) -> Mapping[str, NodePod]:
        """The pods with the plans as they are now."""
        swapped = {owner.uid: pods[owner.uid] for owner in self._plans if owner.uid in pods}
        if not swapped:
            return pods
        return {**pods, **{uid: replace(pod, planned=self.planned(pod)) for uid, pod in swapped.items()}}

    def forget_plans(self, pods: Mapping[str, NodePod]) -> None:
        """Drop the swapped plans of pods that are gone."""
        self._plans = {owner: plan for owner, plan in self._plans.items() if owner.uid in pods}
