"""PodDisruptionBudget status: how many pods may be evicted now. `kubectl drain` waits for it.

Source: kubernetes `pkg/controller/disruption`.
"""

from __future__ import annotations

from typing import ClassVar

from gpuslice.local.controllers.objects import (
    BudgetStatus,
    Condition,
    Deployment,
    DisruptionBudget,
    Managed,
    Pod,
    ReplicaSet,
    StatefulSet,
)
from gpuslice.local.controllers.pods import ready, set_condition
from gpuslice.local.controllers.rollout import resolve
from gpuslice.local.controllers.runtime import SETTLE_SECONDS, Controller, Shared


class DisruptionController(Controller):
    """Keeps status.disruptionsAllowed true."""

    name: ClassVar[str] = "disruption"
    reads: ClassVar[tuple[type[Managed], ...]] = (DisruptionBudget, Pod, ReplicaSet, Deployment, StatefulSet)

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        informers = shared.informers
        self._budgets = informers.of(DisruptionBudget)
        self._pods = informers.of(Pod)
        self._sets = informers.of(ReplicaSet)
        self._deployments = informers.of(Deployment)
        self._stateful = informers.of(StatefulSet)
        self.own(self._budgets)
        self._pods.listeners.append(self._on_pod)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        pod = after or before
        assert pod is not None
        for budget in self._budgets.in_namespace(pod.namespace):
            if _covers(budget, pod):
                self.queue.add_after(budget.key, SETTLE_SECONDS)

    async def reconcile(self, key: str) -> None:
        """Count and write status."""
        item = self._budgets.get(key)
        if item is None or item.deleting:
            return
        pods = [
            pod
            for pod in self._pods.in_namespace(item.namespace)
            if _covers(item, pod) and pod.status.phase not in ("Succeeded", "Failed")
        ]
        healthy = sum(ready(pod) and not pod.deleting for pod in pods)
        expected, desired = self._numbers(item, pods)
        allowed = max(0, healthy - desired) if expected > 0 else 0
        state = Condition(
            "DisruptionAllowed",
            "True" if allowed else "False",
            "SufficientPods" if allowed else "InsufficientPods",
            observed_generation=item.metadata.generation,
        )
        status = BudgetStatus(
            observed_generation=item.metadata.generation,
            disruptions_allowed=allowed,
            current_healthy=healthy,
            desired_healthy=desired,
            expected_pods=expected,
            conditions=set_condition(item.status.conditions, state, self.shared.now()),
        )
        await self.write_status(self._budgets, item, status)

    def _numbers(self, item: DisruptionBudget, pods: list[Pod]) -> tuple[int, int]:
        """(pods there should be, healthy pods there must be)."""
        least, most = item.spec.min_available, item.spec.max_unavailable
        if isinstance(least, int):
            return len(pods), least
        expected = self._scale(pods)
        if most is not None:
            return expected, max(0, expected - resolve(most, expected, up=True))
        return expected, resolve(least, expected, up=True)

    def _scale(self, pods: list[Pod]) -> int:
        """What the pods' owners want, each owner once; pods without a known owner count as themselves."""
        wanted: dict[str, int] = {}
        for pod in pods:
            owner = pod.controller_uid
            if replica_set := self._sets.by_uid(owner):
                top = self._deployments.by_uid(replica_set.controller_uid)
                if top is not None:
                    wanted[top.uid] = top.spec.replicas
                else:
                    wanted[owner] = replica_set.spec.replicas
            elif stateful := self._stateful.by_uid(owner):
                wanted[owner] = stateful.spec.replicas
            else:
                wanted[pod.uid] = 1
        return sum(wanted.values())


def _covers(item: DisruptionBudget, pod: Pod) -> bool:
    return item.spec.selector is not None and item.spec.selector.matches(pod.labels)
