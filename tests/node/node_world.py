"""A node for the ledger's tests: API server, scheduler and kubelet as pure models.

The kubelet's device manager is the one of `local.kubelet`, which follows the real one step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import msgspec
from builders import StoppedClock, agent_node

from gpuslice import names
from gpuslice.cluster.state import Cluster
from gpuslice.devices.availability import of_health
from gpuslice.devices.inventory import NodeGpus
from gpuslice.kube.wire import Pod
from gpuslice.local.kubelet.devicemanager import AllocationError, Ask, DeviceManager, Holding, Reusable
from gpuslice.names import GPU_MEM, WHOLE_GPU
from gpuslice.node.grants.deviceids import DeviceIds
from gpuslice.node.grants.held import Held, Unsure
from gpuslice.node.grants.identity import Identity
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.grants.nodepod import NodePod, read_pod
from gpuslice.node.kubelet.messages import (
    ContainerAllocation,
    ContainerDevices,
    ContainerResources,
    Device,
    PodResources,
)
from gpuslice.node.report.publishing import corrections
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.kinds import kind_of


@dataclass(frozen=True)
class Part:
    """One container of a pod: its role and what it asks for."""

    name: str
    units: int = 0
    whole: int = 0
    init: bool = False
    sidecar: bool = False
    resource: str = WHOLE_GPU


def app(*units: int) -> tuple[Part, ...]:
    return tuple(Part(f"c{i}", n) for i, n in enumerate(units))


def manifest(name: str, uid: str, parts: Sequence[Part], across: int = 1) -> dict[str, Any]:
    def container(part: Part) -> dict[str, Any]:
        wanted = {names.GPU_MEM: part.units, part.resource: part.whole}
        limits = {resource: str(count) for resource, count in wanted.items() if count}
        body: dict[str, Any] = {"name": part.name, "resources": {"limits": limits}}
        if part.sidecar:
            body["restartPolicy"] = "Always"
        return body

    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "annotations": {names.SHARES_ACROSS: str(across)} if across > 1 else {},
        },
        "spec": {
            "containers": [container(p) for p in parts if not (p.init or p.sidecar)],
            "initContainers": [container(p) for p in parts if p.init or p.sidecar],
        },
        "status": {"phase": "Pending"},
    }


@dataclass
class Run:
    """A pod inside the kubelet."""

    uid: str
    name: str
    parts: tuple[Part, ...]
    across: int = 1
    admitted: bool = False
    started: set[str] = field(default_factory=set)
    forgotten: bool = False
    """True if the agent has restarted since: what is listed nowhere it does not know any more."""
    damaged: bool = False
    """True while the record of its GPUs is what its owner has written over it."""
    misread: bool = False
    """True if the agent has restarted meanwhile: nobody remembers on how many GPUs it was put."""

    @property
    def order(self) -> list[Part]:
        """The containers that ask for a GPU, in the order in which kubelet serves them."""
        asking = [p for p in self.parts if p.units or p.whole]
        first = [p for p in asking if p.init or p.sidecar]
        return first + [p for p in asking if not (p.init or p.sidecar)]


class KubeletCrashError(Exception):
    """The kubelet died between our answer and its own record."""


class NodeWorld:
    """One node, with everything around the ledger."""

    def __init__(
        self, *gib: int, mig: tuple[str, ...] = (), seed: int = 0, random: Random | None = None
    ) -> None:
        self.random = random or Random(seed)
        self.clock = StoppedClock()
        self.node = agent_node("n1", *gib, mig=mig)
        self.cluster = Cluster(clock=self.clock)
        self.cluster.set_node(self.node)
        gpus = self.cluster.gpus("n1")
        assert gpus is not None
        self.gpus: NodeGpus = gpus
        self.ids = DeviceIds(gpus)
        self.api: dict[str, dict[str, Any]] = {}  # uid -> pod
        self.feed: list[tuple[str, Pod]] = []  # what the agent has not been told yet
        self.runs: dict[str, Run] = {}  # what the kubelet knows, by uid; gone = not active
        self.manager = DeviceManager(self.random)
        self._plug()
        self.ledger = Ledger(self.gpus)
        self.seen: dict[str, NodePod] = {}  # the pods as the agent knows them, by uid
        self.now = 0.0
        self.serial = 0
        self.failures: list[str] = []
        self._reserved: dict[str, tuple[dict[str, Any], Run]] = {}

    @property
    def resources(self) -> tuple[str, ...]:
        """All that this node's plugins offer."""
        return (GPU_MEM, *self.gpus.resources)

    def _plug(self) -> None:
        for resource in self.resources:
            self.manager.connect(resource)
            self.manager.set_devices(
                resource, [Device(*listed) for listed in DeviceIds(self.gpus).listed(kind_of(resource))]
            )

    def set_health(self, index: int, healthy: bool) -> None:
        """A GPU falls ill or recovers; kubelet and agent learn of it."""
        self.gpus = NodeGpus(
            tuple(
                replace(g, availability=of_health(healthy, "lost")) if g.index == index else g
                for g in self.gpus.gpus
            ),
            self.gpus.unit,
        )
        self.ledger.set_gpus(self.gpus)
        self._plug()

    # --- API server and scheduler -----------------------------------------------------------------
    def create(
        self,
        parts: Sequence[Part],
        *,
        name: str = "",
        placed: bool = True,
        across: int = 1,
        bind: bool = True,
    ) -> str | None:
        """Make a pod and bind it to the node, or only reserve its room; None if the scheduler finds none."""
        self.serial += 1
        uid = f"u{self.serial}"
        body = manifest(name or f"p{self.serial}", uid, parts, across)
        pod = msgspec.convert(body, Pod)
        outcome = self.cluster.assume(pod, "n1")
        if not isinstance(outcome, tuple):
            return None
        if placed:
            body["metadata"]["annotations"] |= self.cluster.annotations_for(pod, "n1", outcome[0])
        else:
            self.cluster.forget(uid)
        self._reserved[uid] = body, Run(uid, body["metadata"]["name"], tuple(parts), across)
        if bind:
            self.bind(uid)
        return uid

    def bind(self, uid: str) -> None:
        """Bind a pod whose room is reserved."""
        body, run = self._reserved.pop(uid)
        body["spec"]["nodeName"] = "n1"
        self.api[uid] = body
        self.runs[uid] = run
        self._changed(uid)

    def _pod(self, uid: str) -> Pod:
        return msgspec.convert(msgspec.json.decode(msgspec.json.encode(self.api[uid])), Pod)

    def _changed(self, uid: str) -> None:
        self.cluster.set_pod(self._pod(uid))
        self.feed.append(("set", self._pod(uid)))

    def set_phase(self, uid: str, phase: str) -> None:
        if uid in self.api:
            self.api[uid]["status"]["phase"] = phase
            self._changed(uid)

    def edit(self, uid: str, key: str, value: str) -> None:
        """Somebody who may edit the pod writes into its annotations what he likes."""
        self.api[uid]["metadata"]["annotations"][key] = value
        if uid in self.runs:
            self.runs[uid].damaged |= key == names.ALLOCATION
        self._changed(uid)

    def remove(self, uid: str) -> None:
        """The object vanishes from the API server."""
        if uid in self.api:
            pod = self._pod(uid)
            del self.api[uid]
            self.cluster.drop_pod(uid)
            self.feed.append(("drop", pod))

    def publish(self) -> None:
        """What the publisher does: write where the pods certainly are."""
        for uid, pod in list(self.seen.items()):
            if uid not in self.api or not pod.alive:
                continue
            changes = corrections(pod, self.ledger, now_ns=1)
            if changes:
                annotations = self.api[uid]["metadata"]["annotations"] | changes
                self.api[uid]["metadata"]["annotations"] = {
                    k: v for k, v in annotations.items() if v is not None
                }
                if uid in self.runs and (record := changes.get(names.ALLOCATION)):
                    across = self.runs[uid].across
                    self.runs[uid].damaged = any(
                        across not in (1, len(gpus)) for gpus in msgspec.json.decode(record).values()
                    )
                self._changed(uid)

    # --- the agent --------------------------------------------------------------------------------
    def tell(self, count: int | None = None) -> None:
        """The agent's watch catches up, wholly or by some events."""
        for _ in range(len(self.feed) if count is None else min(count, len(self.feed))):
            kind, pod = self.feed.pop(0)
            if kind == "drop":
                self.seen.pop(pod.uid, None)
                continue
            for uid in [u for u, known in self.seen.items() if known.name == pod.name and u != pod.uid]:
                del self.seen[uid]
            self.seen[pod.uid] = read_pod(pod, self.gpus, self.seen.get(pod.uid))

    def look_again(self) -> None:
        """The agent reads the pods of its node afresh, since what it knows does not explain a call."""
        self.tell()

    def listing(self) -> list[PodResources]:
        """pod-resources List. As in kubelet, it also rebuilds the table of ids in use."""
        self.manager.update(self.active())
        pods = []
        for run in self.runs.values():
            containers = []
            for part in run.order:
                if part.init:
                    continue
                entries = tuple(
                    ContainerDevices(h.resource, (device,))
                    for h in self.manager.holdings(run.uid, part.name)
                    for device in h.ids
                )
                containers.append(ContainerResources(part.name, entries))
            pods.append(PodResources("default", run.name, tuple(containers)))
        return pods

    def reconcile(self, *, fresh: bool = False, complete: bool = True) -> list[Held]:
        """The agent compares its ledger with pod-resources."""
        calls = self.ledger.calls
        return self.ledger.reconcile(
            self.listing(), self.seen, calls, self.now, fresh=fresh, complete=complete
        )

    def restart_agent(self) -> None:
        """The agent is killed and comes back: nothing but pod-resources and the API server is left."""
        self.ledger = Ledger(self.gpus)
        for run in self.runs.values():
            run.forgotten = True
            run.misread |= run.damaged
        self.feed = []
        self.seen = {uid: read_pod(self._pod(uid), self.gpus) for uid in self.api}
        self.reconcile()

    # --- the kubelet ------------------------------------------------------------------------------
    def active(self) -> set[str]:
        return set(self.runs)

    def restart_kubelet(self) -> None:
        holdings = list(self.manager.all_holdings())
        self.manager = DeviceManager(self.random)
        self.manager.restore(self.resources, holdings, 0.0)
        self._plug()

    def admit(self, uid: str, *, restart_agent_at: int = -1, crash_at: int = -1) -> bool:
        """Admission of one pod, container by container. A refusal fails the pod."""
        run, reusable = self.runs[uid], Reusable()
        for step, part in enumerate(run.order):
            if step == restart_agent_at:
                self.restart_agent()
            resource, size = (GPU_MEM, part.units) if part.units else (part.resource, part.whole)
            try:
                ids = self._allocate(run, part, resource, size, reusable, crash=step == crash_at)
            except KubeletCrashError:
                self.restart_kubelet()
                return False
            except AllocationError as error:
                self.manager.rollback()
                self.failures.append(str(error))
                del self.runs[uid]
                self.set_phase(uid, "Failed")
                return False
            (reusable.leave if part.init else reusable.keep)(resource, ids)
        run.admitted = True
        return True

    def _allocate(
        self, run: Run, part: Part, resource: str, size: int, reusable: Reusable, crash: bool
    ) -> frozenset[str]:
        self.manager.update(self.active())
        plan = self.manager.plan(run.uid, part.name, resource, size, reusable.of(resource), running=False)
        if plan is None:
            return self.manager.held(run.uid, part.name, resource) or frozenset()
        if isinstance(plan, Ask):
            plan = self.manager.settle(plan, self.prefer(plan))
        answer = self.ledger.allocate(kind_of(resource), plan.ids, self.seen, self.now)
        if isinstance(answer, Verdict):
            self.look_again()
            answer = self.ledger.allocate(kind_of(resource), plan.ids, self.seen, self.now)
        if isinstance(answer, Verdict):
            self.reconcile(fresh=True)
            answer = self.ledger.allocate(kind_of(resource), plan.ids, self.seen, self.now)
        if isinstance(answer, Verdict):
            raise AllocationError(answer.message)
        assert not plan.ids & self.in_others_hands(run.uid), "given out twice"
        if crash:
            raise KubeletCrashError
        self.manager.insert(Holding(run.uid, part.name, resource, plan.ids, ContainerAllocation()))
        return plan.ids

    def prefer(self, ask: Ask) -> tuple[str, ...]:
        if not self.ledger.expects(kind_of(ask.resource), ask.size, self.seen):
            self.look_again()
        answer = self.ledger.prefer(
            kind_of(ask.resource), ask.available, ask.must_include, ask.size, self.seen
        )
        if isinstance(answer, Verdict) or self.ledger.is_doubtful(self.seen):
            self.look_again()
            self.reconcile(fresh=True)
            answer = self.ledger.prefer(
                kind_of(ask.resource), ask.available, ask.must_include, ask.size, self.seen
            )
        if isinstance(answer, Verdict):
            raise AllocationError(answer.message)
        assert len(answer) == ask.size
        assert ask.must_include <= set(answer) <= ask.available
        return answer

    def pre_start(self, uid: str, part: Part) -> Identity | Verdict:
        """kubelet is about to start one container."""
        resource = GPU_MEM if part.units else part.resource
        ids = self.manager.held(uid, part.name, resource)
        assert ids
        listing = self.listing()
        answer = self._identify(resource, ids, listing)
        if isinstance(answer, Identity) and answer.pod.uid not in self.api:
            # Its annotations could not be written, since the pod is gone.
            self.ledger.doubt(answer.pod.uid)
            self.look_again()
            answer = self._identify(resource, ids, listing)
        if isinstance(answer, Identity):
            self.runs[uid].started.add(part.name)
        return answer

    def _identify(
        self, resource: str, ids: frozenset[str], listing: list[PodResources]
    ) -> Identity | Verdict:
        answer = self.ledger.identify(kind_of(resource), ids, listing, self.seen, self.now, fresh=False)
        if isinstance(answer, Unsure):
            self.look_again()
            answer = self.ledger.identify(kind_of(resource), ids, listing, self.seen, self.now, fresh=True)
        assert not isinstance(answer, Unsure)
        return answer

    def start(self, uid: str) -> list[Identity | Verdict]:
        """Start all containers of a pod."""
        answers = [self.pre_start(uid, part) for part in self.runs[uid].order]
        if all(isinstance(answer, Identity) for answer in answers):
            self.set_phase(uid, "Running")
        self.tell()
        self.publish()
        return answers

    def end(self, uid: str, phase: str = "Succeeded") -> None:
        """All containers have ended: the kubelet forgets them, then says so."""
        self.runs.pop(uid, None)
        self.set_phase(uid, phase)

    # --- the truth --------------------------------------------------------------------------------
    def held(self, uid: str) -> dict[str, frozenset[str]]:
        """What the kubelet gave each container."""
        run = self.runs[uid]
        out = {}
        for part in run.order:
            ids = self.manager.held(uid, part.name, GPU_MEM if part.units else part.resource)
            if ids:
                out[part.name] = ids
        return out

    def in_others_hands(self, uid: str) -> set[str]:
        """Ids that living pods hold, by what kubelet gave them and lists."""
        return {
            device
            for other, run in self.runs.items()
            if other != uid and other in self.api
            for part in run.parts
            if not part.init
            for holding in self.manager.holdings(other, part.name)
            for device in holding.ids
        }

    def gpus_of(self, uid: str) -> dict[str, set[str]]:
        """The GPUs of each container, by what the kubelet gave it."""
        return {
            name: {
                gpu
                for device in ids
                for resource in self.resources
                if (gpu := self.ids.locate(kind_of(resource), device))
            }
            for name, ids in self.held(uid).items()
        }
