"""Makes room for a more important pod: chooses the pods that have to go, and evicts them.

kube-scheduler's preemption adds up a node and never looks at single GPUs; here the victims free one GPU (or
as many as the pod needs). Victims leave through the eviction API, so disruption budgets are respected: a pod
that its budget protects is passed over and other victims are tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuslice.cluster.actions import Evict, Patch, Record
from gpuslice.cluster.executor import Executor
from gpuslice.cluster.nodetable import AssignedPod
from gpuslice.cluster.nominations import Nominations
from gpuslice.cluster.podcode import PodCode
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.waiting import Demand, WaitingPod
from gpuslice.kube.wire import ObjectMeta, Pod
from gpuslice.placement.preempt import choose_victims, cost, fits_without
from gpuslice.placement.verdict import Verdict

CANDIDATES: Final = 100
"""Number of nodes with possible victims that are compared; kube-scheduler's minimum."""
ROUNDS: Final = 8
"""How often other victims are tried when disruption budgets, or changes meanwhile, protect the first
choice."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Evict these pods from this node, and the pod will fit."""

    node: str
    victims: tuple[AssignedPod, ...]

    @property
    def cost(self) -> tuple[int, int, int]:
        return cost(self.victims)


PASSING: Final = (PodCode.API_FAILED, PodCode.PROTECTED)
"""Refusals that may end without an event that we would see."""
NO_VICTIMS: Final = Verdict(PodCode.NO_VICTIMS, "")
"""The outcome that adds nothing to why the pod waits."""


class Planner:
    """Chooses victims on the current state. Changes nothing."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        allows: Callable[[WaitingPod, str], bool] = lambda _facts, _node: True,
    ) -> None:
        self._cluster = cluster
        self._table = cluster.table
        self._nominations = cluster.nominations
        self._allows = allows

    def worth_a_look(self, waiting: WaitingPod) -> bool:
        """False if the pod may not preempt, or no pod anywhere is less important."""
        lowest = self._table.lowest_priority
        if waiting.problem or not waiting.may_preempt or lowest is None or lowest >= waiting.demand.priority:
            return False
        own = self._nominations.of(waiting.uid)
        # Room is being made already: wait for it instead of evicting even more.
        return own is None or not self._nominations.leaving(own)

    def could_help(self, demand: Demand, node: str) -> bool:
        """True if such a pod would fit on the node after all less important pods have left it."""
        table, row, gpus = self._table, self._table.row(node), self._cluster.gpus(node)
        lower = [assigned for assigned in table.pods_on(node) if assigned.priority < demand.priority]
        if not lower or row is None or table.answers(demand.rules).refusals[row]:
            return False
        if table.shortages(demand.footprint, row, lower):
            return False
        if not demand.request:
            return True
        holders = [r.holder for r in self._cluster.pods_on(node) if r.priority < demand.priority]
        free_gpus = self._cluster.fleet.free_gpus(node)
        return gpus is not None and fits_without(demand.request, gpus.unit, free_gpus, holders)

    async def plan(self, waiting: WaitingPod, spared: Collection[str] = ()) -> Plan | None:
        """The cheapest way to make the pod fit somewhere, or None. `spared`: uids that must stay.

        Looking at many nodes takes a while, so other tasks run in between; the plan is true when it is
        returned.
        """
        for _ in range(ROUNDS):
            best = await self._search(waiting, spared)
            if best is None:
                return None
            now = self._on(waiting, best.node, spared)
            if now is not None:
                return now
        return None

    async def _search(self, waiting: WaitingPod, spared: Collection[str]) -> Plan | None:
        table = self._table
        suits = table.suits(table.answers(waiting.demand.rules))
        best: Plan | None = None
        found = 0
        for node in table.names[np.flatnonzero(suits)].tolist():
            # One node may take all the steps of the search, some 20 ms: other tasks run in between.
            await asyncio.sleep(0)
            plan = self._on(waiting, node, spared) if self._allows(waiting, node) else None
            if plan is not None:
                found += 1
                if best is None or plan.cost < best.cost:
                    best = plan
                if found >= CANDIDATES or best.cost[:2] <= (table.lowest_priority, 1):
                    break
        return best

    def _on(self, waiting: WaitingPod, node: str, spared: Collection[str]) -> Plan | None:
        demand, row = waiting.demand, self._table.row(node)
        kept = self._nominations.before(waiting, node)
        leaving = self._nominations.victims(kept)
        taken = {assigned.uid for assigned in leaving}
        lower = {
            t.uid: t
            for t in self._table.pods_on(node)
            if t.priority < demand.priority and t.uid not in spared and t.uid not in taken
        }
        if not lower or row is None:
            return None
        victims: list[AssignedPod] = []
        if demand.request:
            gpus = self._cluster.gpus(node)
            free_gpus = self._nominations.free_beside(kept, node, self._cluster.fleet.free_gpus(node))
            if gpus is None or free_gpus is None:
                return None
            holders = [r.holder for r in self._cluster.pods_on(node) if r.uid in lower]
            if not fits_without(demand.request, gpus.unit, free_gpus, holders):
                return None
            chosen = choose_victims(demand.request, gpus.unit, free_gpus, holders, demand.priority)
            if chosen is None:
                return None
            victims = [lower[holder.uid] for holder in chosen]
        extra = [nomination.waiting.demand.footprint for nomination in kept]

        def short(gone: Iterable[AssignedPod]) -> bool:
            return bool(self._table.shortages(demand.footprint, row, (*leaving, *gone), extra))

        more = self._for_resources(victims, lower, short)
        return Plan(node, tuple(more)) if more else None

    @staticmethod
    def _for_resources(
        victims: list[AssignedPod],
        lower: dict[str, AssignedPod],
        short: Callable[[Iterable[AssignedPod]], bool],
    ) -> list[AssignedPod] | None:
        """Add the least important pods until CPU, memory and the like suffice, then spare the pods that are
        not needed.
        """
        have = {victim.uid for victim in victims}
        queue = sorted(
            (assigned for assigned in lower.values() if assigned.uid not in have),
            key=lambda t: (not t.terminating, t.priority, t.created, t.uid),
        )
        added: list[AssignedPod] = []
        for assigned in queue:
            if not short((*victims, *added)):
                break
            added.append(assigned)
        if short((*victims, *added)):
            return None
        for assigned in list(reversed(added)):
            rest = [other for other in added if other is not assigned]
            if not short((*victims, *rest)):
                added = rest
        return victims + added


class Preemptor:
    """Carries plans out: keeps the room, evicts the victims, writes the nomination."""

    def __init__(
        self,
        planner: Planner,
        nominations: Nominations,
        executor: Executor,
        *,
        withdraw: Callable[[str], object],
    ) -> None:
        self._planner = planner
        self._nominations = nominations
        self._executor = executor
        self._withdraw = withdraw
        """Gives up a pod's nomination and lets others have the room."""

    async def preempt(self, waiting: WaitingPod) -> Verdict:
        """Make room for a pod if there is a way. The room is kept from the first moment on."""
        spared: set[str] = set()
        for _ in range(ROUNDS):
            plan = await self._planner.plan(waiting, spared)
            if plan is None:
                break
            self._nominations.nominate(waiting, plan.node, (victim.uid for victim in plan.victims))
            result = await self._executor.run(evictions(waiting, plan))
            if result.failed is not None:
                self._withdraw(waiting.uid)
                return Verdict(PodCode.API_FAILED, f"preemption failed: {result.failed}")
            if result.protected is None:
                await self.write_nomination(waiting.pod, plan.node)
                victims = ", ".join(f"{v.namespace}/{v.name}" for v in plan.victims)
                return Verdict(
                    PodCode.PREEMPTING,
                    f"preemption: {victims} must leave node {plan.node}.",
                    {"victims": len(plan.victims)},
                )
            spared.add(result.protected.uid)
        self._withdraw(waiting.uid)
        if spared:
            text = "preemption: the pods that would have to leave are protected by disruption budgets."
            return Verdict(PodCode.PROTECTED, text, {"protected": len(spared)})
        return NO_VICTIMS

    async def write_nomination(self, pod: Pod, node: str | None) -> None:
        """Show the node where room is being made (None: nowhere any more) in the pod's status.

        The status is for people and autoscalers; the nomination itself is kept in memory, so a failure
        changes nothing.
        """
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        await self._executor.run([Patch(Pod, pod.name, body, pod.namespace, "status")])


def evictions(waiting: WaitingPod, plan: Plan) -> list[Evict | Record]:
    """The actions that carry out a plan, in this order."""
    staying = [victim for victim in plan.victims if not victim.terminating]
    actions: list[Evict | Record] = []
    if len(staying) > 1:
        # Dry runs first, so that no pod leaves for nothing when another victim must stay.
        actions += [Evict(victim.namespace, victim.name, victim.uid, dry_run=True) for victim in staying]
    by = f"Preempted by pod {waiting.pod.key} with priority {waiting.demand.priority} on node {plan.node}"
    for victim in staying:
        about = Pod(metadata=ObjectMeta(name=victim.name, namespace=victim.namespace, uid=victim.uid))
        actions.append(Evict(victim.namespace, victim.name, victim.uid))
        actions.append(Record(about, "Normal", "Preempted", by, happened=True))
    return actions
