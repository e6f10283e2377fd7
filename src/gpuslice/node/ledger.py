"""The ledger: which ids were given out, and whose they are. The heart of the agent, pure.

A kubelet asks for ids without saying for whom, in no useful order, and sometimes offers ids that are in
use. So the ledger keeps what Allocate gave out until pod-resources and the API server agree that the pod is
gone; it guesses the owner at first (`choosing`) and learns it from pod-resources before any process of the
container runs. A guess that was wrong is swapped with the one it was confused with: containers that ask for
the same are interchangeable, their records must only say so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuslice import names
from gpuslice.devices.inventory import NodeGpus
from gpuslice.node.choosing import beside, choose, free_ids
from gpuslice.node.deviceids import DeviceIds
from gpuslice.node.holdings import Held, Owner, Refusal, Unsure, Wish, amount, wishes
from gpuslice.node.kubeletmessages import PodResources
from gpuslice.node.nodepod import NodePod
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.pod import ContainerRequest, Role

SETTLED_SECONDS: Final = 10.0
"""After Allocate a kubelet needs a moment to write down what it gave out; by then it surely has."""
STRANGER_SECONDS: Final = 60.0
"""How long ids are kept that a kubelet does not list and for which no pod is known."""
RESOURCES: Final = (names.GPU_MEM, names.WHOLE_GPU)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose container is about to start."""

    pod: NodePod
    container: str
    held: Held


class Ledger:
    """What is given out on one node. `pods` in the questions are the pods bound to it, by uid."""

    def __init__(self, gpus: NodeGpus) -> None:
        self.ids = DeviceIds(gpus)
        self.calls = 0
        """How many calls of the kubelet there were: it makes them one after the other."""
        self._held: dict[int, Held] = {}
        self._serial = 0
        self._current = ""
        self._plans: dict[Owner, tuple[str, ...]] = {}
        self._touched: set[str] = set()
        self._over: list[Held] = []
        self._preferred: tuple[str, frozenset[str], Owner | None] = ("", frozenset(), None)

    @property
    def gpus(self) -> NodeGpus:
        return self.ids.gpus

    def set_gpus(self, gpus: NodeGpus) -> None:
        """The node's GPUs have changed, or their health."""
        self.ids = DeviceIds(gpus)

    def held(self) -> list[Held]:
        """Everything that is given out, in the order of the kubelet's calls."""
        return list(self._held.values())

    def take_touched(self) -> set[str]:
        """Uids of the pods of which something else is known than when this was last asked."""
        touched, self._touched = self._touched, set()
        return touched

    def planned(self, pod: NodePod) -> Allocation | None:
        """Where a pod's containers are meant to be: the scheduler's plan with the parts that were swapped."""
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

    # --- the kubelet's questions ------------------------------------------------------------------
    def prefer(
        self,
        resource: str,
        available: Collection[str],
        must_include: Collection[str],
        size: int,
        pods: Mapping[str, NodePod],
    ) -> tuple[str, ...] | Refusal:
        """Exactly `size` ids, or why not: a short answer would be filled up with ids of other GPUs."""
        self.calls += 1
        self._preferred = ("", frozenset(), None)
        pods = self._replanned(pods)
        held = [h for h in self._held.values() if not _is_over(h, pods)]
        free = free_ids(self.ids, resource, available, held)
        if must_include:
            return beside(self.ids, resource, free, sorted(must_include), size)
        chosen = choose(self.ids, resource, free, size, self._wishes(resource, size, pods), pods, held)
        if isinstance(chosen, Refusal):
            return chosen
        self._preferred = (resource, frozenset(chosen[0]), chosen[1])
        return chosen[0]

    def is_doubtful(self, pods: Mapping[str, NodePod]) -> bool:
        """True if what was preferred last is for nobody known, or not where the scheduler counts it.

        Either may come from ids that are held for a container that does not have them.
        """
        resource, ids, owner = self._preferred
        pod = pods.get(owner.uid) if owner else None
        if owner is None or pod is None:
            return bool(ids)
        plan = self.planned(pod)
        gpus = self.ids.per_gpu(resource, ids)
        return plan is not None and {grant.gpu for grant in plan.of(owner.container)} != set(gpus)

    def expects(self, resource: str, size: int, pods: Mapping[str, NodePod]) -> bool:
        """True if a container that asks for that much is known to wait."""
        return bool(self._wishes(resource, size, pods))

    def allocate(
        self, resource: str, ids: Collection[str], pods: Mapping[str, NodePod], now: float
    ) -> Held | Refusal:
        """Write down that these ids are given out. `now` in monotonic seconds."""
        self.calls += 1
        pods = self._replanned(pods)
        wanted = frozenset(ids)
        gpus = {uuid: len(mine) for uuid, mine in self.ids.per_gpu(resource, wanted).items()}
        if not wanted or sum(gpus.values()) < len(wanted):
            return Refusal("kubelet gives out ids that this node does not have; its list of them is too old")
        refusal = self._closed(resource, gpus, pods)
        if refusal is not None:
            return refusal
        shared = [h for h in self._held.values() if h.resource == resource and h.ids & wanted]
        for holding in [h for h in shared if _is_over(h, pods)]:
            # The API server says that its pod is over, and the kubelet by giving its ids to another.
            shared.remove(holding)
            self._over.append(self._held.pop(holding.serial))
        if shared:
            owner = self._heir(shared, resource, len(wanted), pods)
            if owner is None:
                return Refusal(
                    f"kubelet gives out {len(wanted)} ids of which {self._whose(shared[0], pods)} holds "
                    "some; they are not given to two, the pod has to be made anew"
                )
            if resource == names.GPU_MEM and len(gpus) > 1:
                return self._scattered(gpus, len(wanted))
        else:
            found = self._claim(resource, wanted, gpus, pods)
            if isinstance(found, Refusal):
                return found
            owner = found
        self._preferred = ("", frozenset(), None)
        if owner is not None:
            self._current = owner.uid
        return self._write(resource, wanted, gpus, owner, certain=False, now=now)

    def withdraw(self, holding: Held) -> None:
        """Allocate failed after all: the kubelet does not get these ids."""
        self._held.pop(holding.serial, None)

    # --- who is it --------------------------------------------------------------------------------
    def identify(
        self,
        resource: str,
        ids: Collection[str],
        listing: Iterable[PodResources],
        pods: Mapping[str, NodePod],
        now: float,
        *,
        fresh: bool,
    ) -> Identity | Unsure | Refusal:
        """Whose container is about to start with these ids.

        `fresh`: `pods` was read from the API server just now, so what it lacks does not exist.
        """
        listing = list(listing)
        self.learn(listing, pods, now)
        wanted = frozenset(ids)
        listed = {
            f"{entry.namespace}/{entry.name}": entry
            for entry in listing
            if any(c.ids(resource) & wanted for c in entry.containers)
        }
        if len(listed) > 1:
            ended = {pod.key for pod in pods.values() if not pod.alive}
            listed = {key: entry for key, entry in listed.items() if key not in ended} or listed
        if len(listed) > 1:
            return Refusal(
                f"kubelet gave ids of this container to {' and to '.join(sorted(listed))}; it can start when "
                "the others have ended"
            )
        if not listed:
            return self._unlisted(resource, wanted, listing, pods, now, fresh=fresh)
        key, entry = next(iter(listed.items()))
        pod = next((p for p in pods.values() if p.key == key), None)
        if pod is None or (not pod.alive and not fresh):
            return Refusal(f"the API server does not know pod {key}") if fresh else Unsure(key)
        exact = next((c.name for c in entry.containers if c.ids(resource) == wanted), None)
        holding = self._of_pod(resource, wanted, pod, exact)
        if holding is None or holding.owner is None:
            if not fresh:
                return Unsure(key)
            if exact is None:
                return Refusal(
                    f"kubelet gave ids of this container to {key}, which asks for another number of them; "
                    "it can start when that one has ended"
                )
            return Refusal(
                f"pod {key} as the API server has it does not ask for the {len(wanted)} ids that its "
                "container was given; delete the pod and make it anew"
            )
        return self._in_order(Identity(pod, holding.owner.container, holding), listing, pods)

    def learn(self, listing: Iterable[PodResources], pods: Mapping[str, NodePod], now: float) -> None:
        """Take pod-resources' word for who holds what. Repeating it changes nothing."""
        listing = list(listing)
        pods = self._replanned(pods)
        by_key = {pod.key: pod for pod in pods.values()}
        settled = {(h.resource, h.ids): h.owner for h in self._held.values() if h.certain}
        for entry in listing:
            pod = by_key.get(f"{entry.namespace}/{entry.name}")
            for container in entry.containers:
                for resource in RESOURCES:
                    ids = container.ids(resource)
                    known = settled.get((resource, ids)) if ids and pod else None
                    if pod and known is not None and known == Owner(pod.uid, container.name):
                        continue
                    if ids:
                        asked = pod.request.container(container.name) if pod else None
                        fits = asked is not None and amount(asked, resource) == len(ids)
                        owner = Owner(pod.uid, container.name) if pod and fits else None
                        self._learn_one(resource, ids, owner, pods, now)
        if all(holding.certain for holding in self._held.values()):
            return
        for entry in listing:
            pod = by_key.get(f"{entry.namespace}/{entry.name}")
            if pod is not None:
                self._learn_inits(entry, pod)

    def doubt(self, uid: str) -> None:
        """The API server says that this incarnation is gone: who was taken for it may be its successor."""
        for holding in self.held():
            if holding.owner is not None and holding.owner.uid == uid:
                self._change(holding, None, certain=False)

    # --- giving back ------------------------------------------------------------------------------
    def reconcile(
        self,
        listing: Iterable[PodResources],
        pods: Mapping[str, NodePod],
        calls: int,
        now: float,
        *,
        fresh: bool,
    ) -> list[Held]:
        """Release what pod-resources and the API server agree is over; returns what was released.

        `calls`: what `self.calls` was when the listing was asked for. A grant of an earlier call is known
        to the kubelet by then, since it makes its calls one after the other. `fresh`: `pods` was read from
        the API server after that call, so it has every pod that the kubelet may have admitted.
        """
        listing = list(listing)
        self.learn(listing, pods, now)
        in_use: dict[str, set[str]] = {resource: set() for resource in RESOURCES}
        for entry in listing:
            for container in entry.containers:
                for resource in RESOURCES:
                    in_use[resource] |= container.ids(resource)
        released, self._over = self._over, []
        for holding in self.held():
            if holding.ids & in_use[holding.resource]:
                continue
            if not holding.certain and holding.call >= calls and now - holding.since < SETTLED_SECONDS:
                continue
            if self._may_live(holding, pods, now, fresh=fresh):
                continue
            del self._held[holding.serial]
            released.append(holding)
        self._plans = {owner: plan for owner, plan in self._plans.items() if owner.uid in pods}
        return released

    # --- inside -----------------------------------------------------------------------------------
    def _may_live(self, holding: Held, pods: Mapping[str, NodePod], now: float, *, fresh: bool) -> bool:
        """True if ids that pod-resources does not list may be somebody's all the same.

        Only those of ordinary init containers are never listed. So who was taken for the owner and is
        another kind of container did not get these ids: it waits still. The one that got them is gone, or is
        an init container; which can be ruled out if all pods are known.
        """
        pod = pods.get(holding.owner.uid) if holding.owner else None
        alive = pod is not None and pod.alive
        if holding.certain:
            return alive
        if pod is not None and alive and _is_init(pod, holding.owner):
            return True
        explained = fresh or (holding.owner is not None and not alive)
        if alive:
            self._change(holding, None, certain=False)
        owned = {h.owner for h in self._held.values()}
        living = [pod for pod in pods.values() if pod.alive]
        inits = self._inits(holding.resource, len(holding.ids), living)
        if explained and all(owner in owned for owner in inits):
            return False
        return now - holding.since < STRANGER_SECONDS

    def _wishes(self, resource: str, size: int, pods: Mapping[str, NodePod]) -> list[Wish]:
        return wishes(pods, self._held.values(), resource, size, self._current)

    def _closed(self, resource: str, gpus: Mapping[str, int], pods: Mapping[str, NodePod]) -> Refusal | None:
        """Why one of these GPUs must not give out anything of this resource."""
        for uuid in gpus:
            gpu = self.gpus.find(uuid)
            if gpu is None or not gpu.healthy:
                index, reason = (gpu.index, gpu.reason) if gpu else ("?", "")
                return Refusal(
                    f"GPU {index} is unhealthy{f' ({reason})' if reason else ''} and gets no container"
                )
            if any(
                uuid in h.gpus and h.resource != resource and not _is_over(h, pods)
                for h in self._held.values()
            ):
                how = "shared" if resource == names.WHOLE_GPU else "held whole"
                return Refusal(
                    f"GPU {gpu.index} is {how} by another container; it can be used in one way only"
                )
        return None

    def _heir(
        self, shared: Sequence[Held], resource: str, size: int, pods: Mapping[str, NodePod]
    ) -> Owner | None:
        """The container that takes over ids of its pod's init containers, or None if that is impossible.

        A kubelet serves one pod at a time, so what it gave out since must belong to the same pod.
        """
        uids = {h.owner.uid if h.owner else "" for h in shared}
        pod = pods.get(next(iter(uids))) if len(uids) == 1 else None
        if pod is not None and all(_is_init(pod, h.owner) for h in shared):
            found = next((w for w in self._wishes(resource, size, pods) if w.pod.uid == pod.uid), None)
            if found is not None:
                return found.owner
        first = min(h.call for h in shared)
        for candidate in sorted(pods.values(), key=lambda p: (p.since, p.key)):
            run = self._run(candidate, shared, first, resource, size)
            if run:
                containers = candidate.request.containers
                for holding, container in zip(run, containers, strict=False):
                    self._give(holding.serial, Owner(candidate.uid, container.name), certain=False)
                return Owner(candidate.uid, containers[len(run)].name)
        return None

    def _run(
        self, pod: NodePod, shared: Sequence[Held], first: int, resource: str, size: int
    ) -> list[Held] | None:
        """The latest grants, if they can be those of this pod's first containers and these its next ids."""
        if not pod.alive:
            return None
        latest = sorted(self._held.values(), key=lambda h: h.call)
        least = sum(h.call >= first for h in latest)
        containers = pod.request.containers
        for count in range(least, min(len(latest), len(containers) - 1) + 1):
            run = latest[len(latest) - count :]
            fits = all(
                not h.certain and amount(c, h.resource) == len(h.ids)
                for h, c in zip(run, containers, strict=False)
            )
            lent = all(
                c.role is Role.INIT
                for h, c in zip(run, containers, strict=False)
                if any(h.serial == s.serial for s in shared)
            )
            if fits and lent and amount(containers[count], resource) == size:
                return run
        return None

    def _claim(
        self, resource: str, ids: frozenset[str], gpus: Mapping[str, int], pods: Mapping[str, NodePod]
    ) -> Owner | Refusal | None:
        """Who gets ids that nobody holds: the container that they were chosen for, or whom they suit."""
        waiting = self._wishes(resource, len(ids), pods)
        if self._preferred[:2] == (resource, ids):
            meant = self._preferred[2]
            if meant is None or any(wish.owner == meant for wish in waiting):
                return meant
        if resource == names.WHOLE_GPU:
            return waiting[0].owner if waiting else None
        even = len(set(gpus.values())) == 1
        suited = [wish for wish in waiting if even and wish.container.across == len(gpus)]
        if len(gpus) > 1 and not suited:
            return self._scattered(gpus, len(ids))
        if waiting and not suited:
            return Refusal(
                f"the container is to have its memory on {waiting[0].container.across} GPUs, but kubelet "
                "gives out all that is left, which is on one"
            )
        planned = [wish for wish in suited if set(wish.planned) == set(gpus)]
        best = next(iter(planned or suited), None)
        return best.owner if best else None

    def _scattered(self, gpus: Mapping[str, int], size: int) -> Refusal:
        parts = ", ".join(
            f"{self.gpus.unit.say(count)} on GPU {gpu.index}"
            for uuid, count in gpus.items()
            if (gpu := self.gpus.find(uuid)) is not None
        )
        return Refusal(
            f"the container asks for {self.gpus.unit.say(size)} of one GPU's memory, but what is left lies "
            f"apart: {parts}"
        )

    def _learn_one(
        self,
        resource: str,
        ids: frozenset[str],
        owner: Owner | None,
        pods: Mapping[str, NodePod],
        now: float,
    ) -> None:
        matches = [h for h in self._held.values() if h.resource == resource and h.ids == ids]
        mine = next((h for h in matches if owner is not None and h.owner == owner), None)
        # An app container can hold exactly its init container's ids: the later grant is its own.
        holding = mine or next((h for h in reversed(matches) if not h.certain), None)
        if holding is None:
            if not matches:
                gpus = {uuid: len(part) for uuid, part in self.ids.per_gpu(resource, ids).items()}
                self._write(resource, ids, gpus, None, certain=False, now=now)
                holding = next(reversed(self._held.values()))
            else:
                return
        if owner is not None:
            self._swap_plans(holding.owner, owner, pods)
            self._give(holding.serial, owner, certain=True)

    def _learn_inits(self, entry: PodResources, pod: NodePod) -> None:
        """Ids of which a pod's containers hold some, and which are not theirs, were its init container's."""
        for resource in RESOURCES:
            unsure = [h for h in self._held.values() if h.resource == resource and not h.certain]
            if not unsure:
                continue
            theirs = frozenset().union(*(c.ids(resource) for c in entry.containers))
            for holding in unsure:
                if not holding.ids & theirs:
                    continue
                for container in pod.request.containers:
                    owner = Owner(pod.uid, container.name)
                    if (
                        container.role is Role.INIT
                        and amount(container, resource) == len(holding.ids)
                        and not any(h.owner == owner and h.certain for h in self._held.values())
                    ):
                        self._give(holding.serial, owner, certain=True)
                        break

    def _of_pod(self, resource: str, ids: frozenset[str], pod: NodePod, container: str | None) -> Held | None:
        """The grant of exactly these ids that is certainly this pod's."""
        mine = [
            h
            for h in self._held.values()
            if h.resource == resource and h.ids == ids and h.certain and h.owner and h.owner.uid == pod.uid
        ]
        named = next((h for h in mine if h.owner and h.owner.container == container), None)
        if named or mine:
            return named or mine[0]
        if container is not None:
            return None
        # An ordinary init container whose grant a former run of the agent wrote down: it restarts.
        for wish in self._inits(resource, len(ids), [pod]):
            gpus = {uuid: len(part) for uuid, part in self.ids.per_gpu(resource, ids).items()}
            return self._write(resource, ids, gpus, wish, certain=True, now=0.0)
        return None

    def _unlisted(
        self,
        resource: str,
        ids: frozenset[str],
        listing: Sequence[PodResources],
        pods: Mapping[str, NodePod],
        now: float,
        *,
        fresh: bool,
    ) -> Identity | Unsure | Refusal:
        """An init container of a pod whose other containers ask for nothing: pod-resources has no word on it.

        Pods that ask for the same in this way cannot be told apart; nor need they be, but by name.
        """
        holding = next((h for h in self._held.values() if h.resource == resource and h.ids == ids), None)
        alone = [pod for pod in pods.values() if pod.alive and _only_init(pod, resource)]
        owner = holding.owner if holding else None
        if owner is None or not any(pod.uid == owner.uid for pod in alone):
            owner = next(iter(self._inits(resource, len(ids), alone)), None)
        if owner is None:
            if not fresh:
                return Unsure("")
            return Refusal(
                f"no pod of this node is known that holds these {len(ids)} ids; kubelet will try again"
            )
        if holding is None:
            gpus = {uuid: len(part) for uuid, part in self.ids.per_gpu(resource, ids).items()}
            holding = self._write(resource, ids, gpus, None, certain=False, now=now)
        self._give(holding.serial, owner, certain=True)
        found = Identity(pods[owner.uid], owner.container, self._held[holding.serial])
        return self._in_order(found, listing, pods)

    def _inits(self, resource: str, size: int, pods: Iterable[NodePod]) -> list[Owner]:
        """Init containers of that size without a certain grant; those without any first."""
        taken = {h.owner: h.certain for h in self._held.values()}
        found = [
            Owner(pod.uid, container.name)
            for pod in sorted(pods, key=lambda p: (p.since, p.key))
            for container in pod.request.containers
            if container.role is Role.INIT and amount(container, resource) == size
        ]
        return sorted((o for o in found if not taken.get(o)), key=lambda owner: owner in taken)

    def _in_order(
        self, identity: Identity, listing: Sequence[PodResources], pods: Mapping[str, NodePod]
    ) -> Identity | Refusal:
        """Fail closed: a container whose slice is not what it asked for does not start."""
        holding, asked = identity.held, identity.pod.request.container(identity.container)
        where = f"container {identity.container} of {identity.pod.key}"
        if asked is None or amount(asked, holding.resource) != len(holding.ids):
            return Refusal(
                f"{where} holds {len(holding.ids)} ids, which is not what it asks for; delete the pod"
            )
        if holding.resource == names.GPU_MEM:
            counts = set(holding.gpus.values())
            if (
                len(holding.gpus) != asked.across
                or len(counts) != 1
                or sum(holding.gpus.values()) != asked.units
            ):
                return Refusal(
                    f"{where} asks for {self.gpus.unit.say(asked.units_per_gpu)} on {asked.across} GPU(s), "
                    f"but its ids lie on {len(holding.gpus)}; delete the pod"
                )
        for other in self._held.values():
            clash = other.resource != holding.resource and other.gpus.keys() & holding.gpus.keys()
            twice = other.resource == holding.resource and other.ids & holding.ids
            same = other.owner is not None and other.owner.uid == identity.pod.uid
            # What has ended, as the API server and kubelet agree, waits here for the next reconciliation.
            ended = _is_over(other, pods) and not _lists(listing, other)
            if (clash or twice) and not same and other.certain and not ended:
                return Refusal(
                    f"{where} holds ids of a GPU that another pod has; it starts when that one has ended"
                )
        return identity

    def _swap_plans(self, former: Owner | None, owner: Owner, pods: Mapping[str, NodePod]) -> None:
        """Somebody came who was taken for another: that one will come yet, and finds his place free."""
        if former is None or former == owner or former.uid not in pods:
            return
        if any(holding.owner == owner for holding in self._held.values()):
            return
        plan = pods[owner.uid].planned
        self._plans[former] = tuple(grant.gpu for grant in plan.of(owner.container)) if plan else ()
        self._touched.add(former.uid)

    def _replanned(self, pods: Mapping[str, NodePod]) -> Mapping[str, NodePod]:
        """The pods with the plans as they are now."""
        swapped = {owner.uid: pods[owner.uid] for owner in self._plans if owner.uid in pods}
        if not swapped:
            return pods
        return {**pods, **{uid: replace(pod, planned=self.planned(pod)) for uid, pod in swapped.items()}}

    def _give(self, serial: int, owner: Owner, *, certain: bool) -> None:
        """Make a container the owner of a grant; who was taken for it gets the other's in return."""
        holding = self._held[serial]
        if holding.owner == owner and (holding.certain or not certain):
            return
        former = holding.owner
        for other in self.held():
            if other.owner == owner and other.serial != serial:
                same = other.resource == holding.resource and len(other.ids) == len(holding.ids)
                self._change(other, former if same else None, certain=False)
        self._change(holding, owner, certain=certain)

    def _change(self, holding: Held, owner: Owner | None, *, certain: bool) -> None:
        self._held[holding.serial] = replace(holding, owner=owner, certain=certain)
        self._touched |= {one.uid for one in (holding.owner, owner) if one is not None}

    def _write(
        self,
        resource: str,
        ids: frozenset[str],
        gpus: Mapping[str, int],
        owner: Owner | None,
        *,
        certain: bool,
        now: float,
    ) -> Held:
        self._serial += 1
        written = Held(self._serial, resource, ids, gpus, owner, certain, self.calls, now)
        self._held[written.serial] = written
        if owner is not None:
            self._touched.add(owner.uid)
        return written

    def _whose(self, holding: Held, pods: Mapping[str, NodePod]) -> str:
        pod = pods.get(holding.owner.uid) if holding.owner else None
        return f"pod {pod.key}" if pod else "a pod that has not ended yet"


def _lists(listing: Iterable[PodResources], holding: Held) -> bool:
    """True if some container still has one of these ids, as kubelet sees it."""
    return any(c.ids(holding.resource) & holding.ids for entry in listing for c in entry.containers)


def _is_over(holding: Held, pods: Mapping[str, NodePod]) -> bool:
    """True if the owner is certain and the API server says that it has ended."""
    if not holding.certain or holding.owner is None:
        return False
    pod = pods.get(holding.owner.uid)
    return pod is None or not pod.alive


def _is_init(pod: NodePod, owner: Owner | None) -> bool:
    container: ContainerRequest | None = pod.request.container(owner.container) if owner else None
    return container is not None and container.role is Role.INIT


def _only_init(pod: NodePod, resource: str) -> bool:
    asking = [c for c in pod.request.containers if amount(c, resource)]
    return bool(asking) and all(c.role is Role.INIT for c in asking)
