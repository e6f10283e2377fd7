"""ReplicaSet: keeps the desired number of pods of one template."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from gpuslice.errors import GpuSliceError
from gpuslice.local.controllers.objects import Condition, Managed, Pod, ReplicaSet, ReplicaSetStatus
from gpuslice.local.controllers.podcontrol import PodControl, claim
from gpuslice.local.controllers.pods import (
    active,
    available_in,
    deletion_order,
    new_pod,
    ready,
    set_condition,
)
from gpuslice.local.controllers.runtime import EXPECTATION_SECONDS, Controller, Shared, settle_seconds


class ReplicaSetController(Controller):
    """Creates what is missing, deletes what is too much, counts what is there."""

    name: ClassVar[str] = "replicaset"
    reads: ClassVar[tuple[type[Managed], ...]] = (ReplicaSet, Pod)

    def __init__(self, shared: Shared, control: PodControl) -> None:
        super().__init__(shared)
        self._control = control
        self._sets = shared.informers.of(ReplicaSet)
        self._pods = shared.informers.of(Pod)
        self.own(self._sets)
        self._pods.listeners.append(pod_listener(self, self._sets.kind))

    async def reconcile(self, key: str) -> None:
        """Bring the number of pods to spec.replicas and write status."""
        item = self._sets.get(key)
        if item is None:
            return
        pods = await claim(self.shared, self._pods, item, item.selects)
        failure: GpuSliceError | None = None
        if not self.shared.expectations.satisfied(item.uid):
            self.queue.add_after(key, EXPECTATION_SECONDS)
        elif not item.deleting:
            try:
                await self._scale(item, [pod for pod in pods if active(pod)])
            except GpuSliceError as error:
                failure = error
        await self._count(key, failure)
        if failure is not None:
            raise failure

    async def _scale(self, item: ReplicaSet, pods: list[Pod]) -> None:
        missing = item.spec.replicas - len(pods)
        if missing > 0:
            await self._control.create_some(item, [partial(new_pod, item, item.spec.template)] * missing)
        elif missing < 0:
            await self._control.delete_some(item, deletion_order(pods, self._siblings(item))[:-missing])

    def _siblings(self, item: ReplicaSet) -> list[Pod]:
        """Pods of all ReplicaSets of the same Deployment: a rolling update spreads them together."""
        family = self._sets.controlled_by(item.controller_uid) if item.controller_uid else [item]
        return [pod for one in family for pod in self._pods.controlled_by(one.uid)]

    async def _count(self, key: str, failure: GpuSliceError | None) -> None:
        item = self._sets.get(key)  # the newest: adoption and other writers may have changed it
        if item is None:
            return
        pods = [pod for pod in self._pods.controlled_by(item.uid) if active(pod)]
        waits = [available_in(pod, item.spec.min_ready_seconds, self.shared.clock.now_ns()) for pod in pods]
        template = (item.spec.template.metadata.labels or {}).items()
        conditions = tuple(one for one in item.status.conditions or () if one.type != "ReplicaFailure")
        if failure is not None:
            reason = "FailedCreate" if len(pods) < item.spec.replicas else "FailedDelete"
            problem = Condition("ReplicaFailure", "True", reason, str(failure))
            conditions = set_condition(item.status.conditions, problem, self.shared.now())
        status = ReplicaSetStatus(
            replicas=len(pods),
            fully_labeled_replicas=sum(template <= pod.labels.items() for pod in pods),
            ready_replicas=sum(ready(pod) for pod in pods),
            available_replicas=sum(wait == 0 for wait in waits),
            observed_generation=item.metadata.generation,
            conditions=conditions or None,
        )
        await self.write_status(self._sets, item, status)
        if pending := [wait for wait in waits if wait]:
            self.queue.add_after(key, min(pending))


def pod_listener(controller: Controller, kind: type[Managed]) -> Callable[[Pod | None, Pod | None], None]:
    """Wakes the owner of `kind` whose pod changed, or every owner that could adopt a free pod.

    Comings and goings count at once, changes of status after a moment, together.
    """
    owners, pods = controller.shared.informers.of(kind), controller.shared.informers.of(Pod)

    def wake(pod: Pod, *, at_once: bool) -> None:
        for ref in pod.metadata.owner_references:
            if ref.controller:
                if ref.kind == kind.resource.kind:
                    key = f"{pod.namespace}/{ref.name}"
                    wait = 0.0 if at_once else settle_seconds(pods.count_controlled_by(ref.uid))
                    controller.queue.add_after(key, wait)
                return
        for owner in owners.in_namespace(pod.namespace):
            selector = owner.selects  # type: ignore[attr-defined]
            if not selector.empty and selector.matches(pod.labels):
                controller.queue.add(owner.key)

    def listen(before: Pod | None, after: Pod | None) -> None:
        if before is not None and (after is None or before.controller_uid != after.controller_uid):
            wake(before, at_once=True)
        if after is not None:
            wake(after, at_once=before is not None and after.deleting and not before.deleting)

    return listen
