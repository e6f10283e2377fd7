"""StatefulSet: pods with ordinals, one after the other; updated from the highest ordinal down.

Volumes are not implemented: a set that asks for volumeClaimTemplates gets an event and no pods, never
pods without their data. Source of the order: kubernetes `pkg/controller/statefulset`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from gpuslice.local.controllers.history import REVISION_LABEL, History, template_of
from gpuslice.local.controllers.objects import (
    ControllerRevision,
    Json,
    Managed,
    Pod,
    PodTemplate,
    StatefulSet,
    StatefulSetStatus,
)
from gpuslice.local.controllers.podcontrol import PodControl, claim
from gpuslice.local.controllers.pods import available_in, new_pod, ready
from gpuslice.local.controllers.replicaset import pod_listener
from gpuslice.local.controllers.runtime import EXPECTATION_SECONDS, Controller, Shared

NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"
UNSUPPORTED: Final = (
    "volumeClaimTemplates are not supported here, so no pods are created; "
    "remove them or run the set on a cluster with storage"
)


@dataclass(frozen=True, slots=True)
class _View:
    """One set as it is: its pods by ordinal, and which revision is old and which is new."""

    item: StatefulSet
    pods: dict[int, Pod]
    update: str
    current: str
    current_template: PodTemplate
    now_ns: int

    @property
    def ordinals(self) -> range:
        start = self.item.spec.ordinals.start if self.item.spec.ordinals else 0
        return range(start, start + self.item.spec.replicas)

    @property
    def partition(self) -> int:
        rolling = self.item.spec.update_strategy.rolling_update
        return self.ordinals.start + (rolling.partition if rolling else 0)

    def healthy(self, pod: Pod | None) -> bool:
        """Available and there to stay."""
        return pod is not None and not pod.deleting and self.wait(pod) == 0

    def wait(self, pod: Pod) -> float | None:
        return available_in(pod, self.item.spec.min_ready_seconds, self.now_ns)

    def new_pod(self, ordinal: int) -> Json:
        """The pod for an ordinal, of the old template below the partition."""
        spec = self.item.spec
        old = spec.update_strategy.type == "RollingUpdate" and ordinal < self.partition
        template, revision = (self.current_template, self.current) if old else (spec.template, self.update)
        name = f"{self.item.name}-{ordinal}"
        labels = {NAME_LABEL: name, INDEX_LABEL: str(ordinal), REVISION_LABEL: revision}
        identity: Json = {"hostname": name}
        if spec.service_name:
            identity["subdomain"] = spec.service_name
        return new_pod(self.item, template, name, labels=labels, spec=identity)


class StatefulSetController(Controller):
    """Creates, replaces and removes the pods of StatefulSets in their order."""

    name: ClassVar[str] = "statefulset"
    reads: ClassVar[tuple[type[Managed], ...]] = (StatefulSet, Pod, ControllerRevision)

    def __init__(self, shared: Shared, control: PodControl) -> None:
        super().__init__(shared)
        self._control = control
        self._history = History(shared)
        self._sets = shared.informers.of(StatefulSet)
        self._pods = shared.informers.of(Pod)
        self.own(self._sets)
        self._pods.listeners.append(pod_listener(self, StatefulSet))

    async def reconcile(self, key: str) -> None:
        """Take the next step of the set, then write status."""
        item = self._sets.get(key)
        if item is None or item.deleting or item.selects.empty:
            return
        if item.spec.volume_claim_templates:
            self.shared.record(item, "Warning", "UnsupportedVolumeClaims", UNSUPPORTED)
            return
        pods = await claim(self.shared, self._pods, item, item.selects)
        update, old = await self._history.current(item, item.selects, item.spec.template)
        current = next((one for one in old if one.name == item.status.current_revision), update)
        by_ordinal = {n: pod for pod in pods if (n := _ordinal(item, pod)) is not None}
        now = self.shared.clock.now_ns()
        view = _View(item, by_ordinal, update.name, current.name, template_of(current), now)
        if self.shared.expectations.satisfied(item.uid):
            await self._step(view)
        else:
            self.queue.add_after(key, EXPECTATION_SECONDS)
        await self._status(view)
        used = {update.name, current.name, *(pod.labels.get(REVISION_LABEL, "") for pod in pods)}
        await self._history.forget(old, item.spec.revision_history_limit, used)

    async def _step(self, view: _View) -> None:
        item, one_by_one = view.item, view.item.spec.pod_management_policy != "Parallel"
        for ordinal in view.ordinals:
            pod = view.pods.get(ordinal)
            if pod is None:
                await self._control.create(item, view.new_pod(ordinal))
            elif pod.status.phase in ("Failed", "Succeeded") and not pod.deleting:
                text = f"StatefulSet {item.key} is recreating {pod.status.phase.lower()} Pod {pod.name}"
                self.shared.record(item, "Warning", "RecreatingPod", text)
                await self._control.delete(item, pod)
            elif view.healthy(pod):
                continue
            if one_by_one:
                return
        condemned = sorted((n for n in view.pods if n not in view.ordinals), reverse=True)
        sick = next((n for n in sorted(view.pods) if not view.healthy(view.pods[n])), None)
        for ordinal in condemned:
            pod = view.pods[ordinal]
            if not pod.deleting:
                if one_by_one and not view.healthy(pod) and ordinal != sick:
                    return
                await self._control.delete(item, pod)
            if one_by_one:
                return
        if item.spec.update_strategy.type == "RollingUpdate":
            await self._update(view)

    async def _update(self, view: _View) -> None:
        """Replace the highest pod that is not of the new revision; wait for those above it first."""
        for ordinal in reversed(view.ordinals):
            pod = view.pods.get(ordinal)
            if ordinal < view.partition:
                return
            if pod is not None and pod.labels.get(REVISION_LABEL) != view.update:
                if not pod.deleting:
                    await self._control.delete(view.item, pod)
                return
            if not view.healthy(pod):
                return

    async def _status(self, view: _View) -> None:
        item = self._sets.latest(view.item)
        pods = [pod for pod in self._pods.controlled_by(item.uid) if _ordinal(item, pod) is not None]
        revisions = [pod.labels.get(REVISION_LABEL) for pod in pods if not pod.deleting]
        waits = [view.wait(pod) for pod in pods]
        updated, current = revisions.count(view.update), view.current
        ready_now = sum(ready(pod) for pod in pods)
        rolling = item.spec.update_strategy.type == "RollingUpdate"
        if rolling and updated == len(pods) == ready_now == item.spec.replicas:
            current = view.update  # the rollout is over
        status = StatefulSetStatus(
            observed_generation=view.item.metadata.generation,
            replicas=len(pods),
            ready_replicas=ready_now,
            available_replicas=sum(wait == 0 for wait in waits),
            current_replicas=revisions.count(current),
            updated_replicas=updated,
            current_revision=current,
            update_revision=view.update,
            collision_count=item.status.collision_count,
        )
        await self.write_status(self._sets, item, status)
        if pending := [wait for wait in waits if wait]:
            self.queue.add_after(item.key, min(pending))


def _ordinal(item: StatefulSet, pod: Pod) -> int | None:
    match = re.fullmatch(re.escape(item.name) + r"-(0|[1-9]\d*)", pod.name)
    return int(match[1]) if match else None
