"""DaemonSet: one pod on every node that suits it.

The pods name their node in an affinity and are bound by the scheduler like all others, so that it
accounts for them. Source: kubernetes `pkg/controller/daemon`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from gpuslice.cluster.predicates import node_refusal, only_nodes, rules_of
from gpuslice.kube import wire
from gpuslice.kube.wire import Toleration
from gpuslice.local.controllers.history import REVISION_LABEL, History
from gpuslice.local.controllers.objects import (
    ControllerRevision,
    DaemonSet,
    DaemonSetStatus,
    Json,
    Managed,
    Node,
    Pod,
)
from gpuslice.local.controllers.podcontrol import PodControl, claim
from gpuslice.local.controllers.pods import available_in, new_pod, ready
from gpuslice.local.controllers.replicaset import pod_listener
from gpuslice.local.controllers.rollout import resolve
from gpuslice.local.controllers.runtime import EXPECTATION_SECONDS, SETTLE_SECONDS, Controller, Shared

TOLERATED: Final = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
"""What a daemon bears without asking: it often is what repairs the node."""
_STAY = Toleration(operator="Exists", effect="NoSchedule")


@dataclass(frozen=True, slots=True)
class _View:
    """One set as it is: which nodes want a pod, which bear one, and who is where."""

    item: DaemonSet
    wanted: frozenset[str]
    borne: frozenset[str]
    pods: dict[str, list[Pod]]


class DaemonSetController(Controller):
    """Creates a pod per suitable node, removes the others, replaces old ones."""

    name: ClassVar[str] = "daemonset"
    reads: ClassVar[tuple[type[Managed], ...]] = (DaemonSet, Node, Pod, ControllerRevision)

    def __init__(self, shared: Shared, control: PodControl) -> None:
        super().__init__(shared)
        self._control = control
        self._history = History(shared)
        self._sets = shared.informers.of(DaemonSet)
        self._nodes = shared.informers.of(Node)
        self._pods = shared.informers.of(Pod)
        self.own(self._sets)
        self._pods.listeners.append(pod_listener(self, DaemonSet))
        self._nodes.listeners.append(self._on_node)

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        if before is not None and after is not None and _suits(before) == _suits(after):
            return  # a heartbeat
        for key in self._sets.items:
            self.queue.add_after(key, SETTLE_SECONDS)

    async def reconcile(self, key: str) -> None:
        """Bring every node to the one pod it should have, then write status."""
        item = self._sets.get(key)
        if item is None or item.deleting or item.selects.empty:
            return
        pods = await claim(self.shared, self._pods, item, item.selects)
        revision, old = await self._history.current(item, item.selects, item.spec.template)
        digest = revision.name.removeprefix(f"{item.name}-")
        view = self._look(item, pods)
        if self.shared.expectations.satisfied(item.uid):
            await self._place(view, digest)
            if item.spec.update_strategy.type == "RollingUpdate" and self.shared.expectations.satisfied(
                item.uid
            ):
                await self._update(view, digest)
        else:
            self.queue.add_after(key, EXPECTATION_SECONDS)
        await self._status(item, digest)
        used = {revision.name, *(f"{item.name}-{pod.labels.get(REVISION_LABEL)}" for pod in pods)}
        await self._history.forget(old, item.spec.revision_history_limit, used)

    def _look(self, item: DaemonSet, pods: list[Pod]) -> _View:
        rules = rules_of(msgspec.convert(_tolerant(item.spec.template.spec), wire.PodSpec, strict=False))
        lenient = dataclasses.replace(rules, tolerations=(*rules.tolerations, _STAY))
        wanted, borne = set(), set()
        for node in self._nodes.items.values():
            seen = wire.Node(metadata=node.metadata, spec=node.spec)
            if not node_refusal(rules, seen):
                wanted.add(node.name)
            if not node_refusal(lenient, seen):
                borne.add(node.name)
        by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            by_node.setdefault(_node_of(pod), []).append(pod)
        return _View(item, frozenset(wanted), frozenset(borne), by_node)

    async def _place(self, view: _View, digest: str) -> None:
        doomed, missing = [], []
        for node in sorted(view.wanted | view.pods.keys()):
            there = [pod for pod in view.pods.get(node, ()) if not pod.deleting]
            ended = [pod for pod in there if pod.status.phase in ("Failed", "Succeeded")]
            living = [pod for pod in there if pod not in ended]
            doomed += ended
            if ended:
                phase, name = ended[0].status.phase.lower(), ended[0].key
                text = f"Found {phase} daemon pod {name} on node {node}, will try to kill it"
                self.shared.record(view.item, "Warning", "FailedDaemonPod", text)
            if node not in view.borne:
                doomed += living
            elif not view.pods.get(node) and node in view.wanted:
                missing.append(node)
            else:
                living.sort(key=lambda pod: (not ready(pod), pod.metadata.creation_timestamp or "", pod.name))
                doomed += living[1:]
        await self._control.delete_some(view.item, doomed)
        await self._control.create_some(
            view.item, [partial(_daemon, view.item, node, digest) for node in missing]
        )

    async def _update(self, view: _View, digest: str) -> None:
        rolling = view.item.spec.update_strategy.rolling_update
        wish = 1 if rolling is None or rolling.max_unavailable is None else rolling.max_unavailable
        budget = max(1, resolve(wish, len(view.wanted), up=True))
        sick: list[Pod] = []
        well: list[Pod] = []
        for node in sorted(view.wanted):
            pods = [pod for pod in view.pods.get(node, ()) if not pod.deleting]
            serving = [pod for pod in pods if self._wait(view.item, pod) == 0]
            budget -= not serving
            for pod in pods:
                if pod.labels.get(REVISION_LABEL) != digest:
                    (well if pod in serving else sick).append(pod)
        await self._control.delete_some(view.item, [*sick, *well[: max(0, budget)]])

    def _wait(self, item: DaemonSet, pod: Pod) -> float | None:
        return available_in(pod, item.spec.min_ready_seconds, self.shared.clock.now_ns())

    async def _status(self, seen: DaemonSet, digest: str) -> None:
        item = self._sets.latest(seen)
        view = self._look(item, self._pods.controlled_by(item.uid))
        at = [[pod for pod in view.pods.get(node, ()) if not pod.deleting] for node in view.wanted]
        first = [min(pods, key=lambda pod: not ready(pod)) for pods in at if pods]
        waits = [self._wait(item, pod) for pod in first]
        available = sum(wait == 0 for wait in waits)
        status = DaemonSetStatus(
            observed_generation=seen.metadata.generation,
            current_number_scheduled=len(first),
            desired_number_scheduled=len(view.wanted),
            number_misscheduled=sum(bool(node) and node not in view.wanted for node in view.pods),
            number_ready=sum(ready(pod) for pod in first),
            number_available=available,
            number_unavailable=len(view.wanted) - available,
            updated_number_scheduled=sum(pod.labels.get(REVISION_LABEL) == digest for pod in first),
        )
        await self.write_status(self._sets, item, status)
        if pending := [wait for wait in waits if wait]:
            self.queue.add_after(item.key, min(pending))


def _suits(node: Node) -> tuple[object, ...]:
    return node.labels, node.spec.taints or (), node.spec.unschedulable


def _node_of(pod: Pod) -> str:
    """The node it is on or is meant for; "" if it could be anywhere."""
    if pod.spec.node_name:
        return pod.spec.node_name
    named = only_nodes(rules_of(wire.PodSpec(affinity=pod.spec.affinity))) or frozenset()
    return next(iter(named), "")


def _tolerant(spec: Json) -> Json:
    added = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in TOLERATED]
    return {**spec, "tolerations": [*(spec.get("tolerations") or ()), *added]}


def _daemon(item: DaemonSet, node: str, digest: str, name: str) -> Json:
    spec = _tolerant(item.spec.template.spec)
    affinity = {**(spec.get("affinity") or {})}
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity["nodeAffinity"] = {
        **(affinity.get("nodeAffinity") or {}),
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [only]},
    }
    template = replace(item.spec.template, spec={**spec, "affinity": affinity})
    return new_pod(item, template, name, labels={REVISION_LABEL: digest})
