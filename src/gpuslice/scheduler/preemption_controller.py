"""Makes room for pods that another scheduler leaves waiting because of single GPUs.

kube-scheduler believes that a pod which fits a node's sum of GPU memory needs no victims there, so it never
asks its extender to preempt. This controller, beside the extender, watches for such pods and makes room;
the end of the victims then wakes kube-scheduler by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal

from gpuslice.clock import Clock
from gpuslice.cluster.executor import Executor
from gpuslice.cluster.resources import read_amounts
from gpuslice.cluster.state import Change, Cluster
from gpuslice.cluster.waiting import WaitingPod, read_waiting
from gpuslice.errors import InputError
from gpuslice.kube.client import Client
from gpuslice.kube.events import ChangeRecorder, EventRecorder
from gpuslice.kube.wire import Pod
from gpuslice.placement.verdict import Code
from gpuslice.scheduler.preemption import PASSING, Planner, Preemptor

PAUSE_SECONDS: Final = 0.2
"""Changes within this time are handled together; it also lets the other scheduler act first."""
RETRY_SECONDS: Final = 30.0
"""How often to look without a change: we see no event when disruption budgets or the leader change."""
SINGLE_GPU: Final = frozenset(
    (
        Code.INSUFFICIENT,
        Code.INSUFFICIENT_GPUS,
        Code.NEEDS_AGENT,
        Code.NO_WHOLE_GPU,
        Code.NO_MIG_DEVICE,
        Code.NO_REPLICA,
        Code.SAME_DEVICE,
    )
)


class PreemptionController:
    """Serves the pods of those schedulers, by name, for which `serves` is true (our own preempts by itself).

    Every replica watches, so that it knows for which pods room is kept; only the leader makes room.
    """

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        *,
        serves: Callable[[str], bool],
        clock: Clock,
        recorder: EventRecorder,
    ) -> None:
        self._cluster = cluster
        self._serves = serves
        self._clock = clock
        self._nominations = cluster.nominations
        self._planner = Planner(cluster, allows=self._is_blind_spot)
        executor = Executor(client, cluster, recorder, clock=clock)
        self._preemptor = Preemptor(
            self._planner, self._nominations, executor, withdraw=self._nominations.withdraw
        )
        self._reasons = ChangeRecorder(recorder)
        self._changed = asyncio.Event()
        cluster.subscribe(self._on_change)

    async def run(self) -> None:
        """Make room until cancelled. The feed and the recorder are run by the caller."""
        self._changed.set()
        async with asyncio.TaskGroup() as group:
            reminder: asyncio.Task[None] | None = None
            while True:
                await self._changed.wait()
                await self._clock.sleep(PAUSE_SECONDS)
                self._changed.clear()
                blocked = await self._round()
                if blocked and (reminder is None or reminder.done()):
                    reminder = group.create_task(self._remind())

    def kept(self, pod: Pod, nodes: Sequence[str]) -> list[str]:
        """Those of the nodes, all of which have room for the pod, where the room is kept for a more important
        pod.

        For the extender's filter: kube-scheduler itself keeps the node's sum for a nominated pod, not a GPU.
        """
        held = self._nominations.nodes.intersection(nodes) if len(self._nominations) else ()
        if not held:
            return []
        waiting = read_waiting(pod)
        return sorted(node for node in held if not self._nominations.allow(waiting, node))

    async def _remind(self) -> None:
        await self._clock.sleep(RETRY_SECONDS)
        self._changed.set()

    async def _round(self) -> bool:
        """Look at every stuck pod once. True if something stood in the way that may pass."""
        blocked = False
        stuck = filter(self._is_stuck, self._cluster.unschedulable())
        for waiting in sorted(stuck, key=lambda w: -w.demand.priority):
            await asyncio.sleep(0)
            if self._cluster.gate.closed():
                return True
            if not self._cluster.is_unschedulable(waiting.uid):
                continue
            # If there is room already, its scheduler will find it by itself.
            if self._planner.worth_a_look(waiting) and not self._cluster.suitable(waiting.demand):
                try:
                    outcome = await self._preemptor.preempt(waiting)
                except Exception as error:  # one pod must not keep other pods from getting room
                    self._cluster.quarantine.hold(waiting.pod, error)
                    continue
                blocked |= outcome.code in PASSING
                if outcome.message:
                    kind: Literal["Normal", "Warning"] = "Normal" if outcome.ok else "Warning"
                    self._reasons.record(waiting.pod, kind, "Preemption", outcome.message)
        return blocked

    def _is_blind_spot(self, waiting: WaitingPod, node: str) -> bool:
        """True if the node's sum suffices and single GPUs do not: what kube-scheduler cannot see.

        Where the sum is short as well, kube-scheduler preempts by itself (with the extender's `preempt`
        verb).
        """
        request, row = waiting.demand.request, self._cluster.table.row(node)
        if row is None or self._cluster.check(request, node).code not in SINGLE_GPU:
            return False
        seen = self._cluster.node(node)
        if seen is None or self._cluster.table.shortages(waiting.demand.footprint, row):
            return False
        try:
            offered = read_amounts(seen.status.allocatable or {}, "status.allocatable")
        except InputError:
            return False
        taken = [record.request for record in self._cluster.pods_on(node)]
        return all(
            request.count(kind) + sum(t.count(kind) for t in taken) <= offered.get(kind.resource, 0)
            for kind in request.kinds
        )

    def _on_change(self, change: Change) -> None:
        if self._cluster.has_unschedulable:
            self._changed.set()

    def _is_stuck(self, waiting: WaitingPod) -> bool:
        """True for a pod of a scheduler that we serve, if that scheduler does not make room for it itself."""
        pod = waiting.pod
        nominated, own = pod.status.nominated_node_name, self._nominations.of(pod.uid)
        return (
            waiting.demand.priority > 0
            and bool(waiting.demand.request)
            and self._serves(pod.spec.scheduler_name)
            and (not nominated or (own is not None and own.node == nominated))
        )
