"""Room for pods that another scheduler left waiting because of single GPUs.

kube-scheduler believes that a pod which fits a node's sum of GPU memory needs no victims there, so it never
asks its extender to preempt. This controller, beside the extender, watches for such pods and makes room;
the end of the victims then wakes kube-scheduler by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from gpuslice.clock import Clock
from gpuslice.cluster.feed import ChangeKind, ClusterFeed
from gpuslice.cluster.joining import Joining
from gpuslice.cluster.nodetable import NodeTable
from gpuslice.cluster.resources import read_amounts
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.waiting import WaitingPod, read_waiting
from gpuslice.errors import InputError
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.gate import GatedClient
from gpuslice.kube.wire import KubeObject, Node, Pod
from gpuslice.placement.verdict import Code
from gpuslice.scheduler.nominations import Nominations
from gpuslice.scheduler.preemption import Planner, Preemptor

PAUSE_SECONDS: Final = 0.2
"""Changes within this time are looked at together; it also lets the other scheduler act first."""
RETRY_SECONDS: Final = 30.0
"""Disruption budgets change without an event that we see; so does who leads."""
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

    Every replica watches, so that it knows whose room is kept; only the one that leads makes room.
    """

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        feed: ClusterFeed,
        *,
        serves: Callable[[str], bool],
        clock: Clock,
        recorder: EventRecorder,
    ) -> None:
        self._cluster = cluster
        self._serves = serves
        self._clock = clock
        self._recorder = recorder
        self._table = NodeTable()
        self._nominations = Nominations(self._table, cluster)
        self._planner = Planner(self._table, cluster, self._nominations, allows=self._is_blind_spot)
        self._preemptor = Preemptor(
            GatedClient(client, cluster.gate),
            self._planner,
            self._nominations,
            recorder,
            withdraw=self._nominations.withdraw,
        )
        self._stuck: dict[str, WaitingPod] = {}
        self._said: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._joining = Joining(client, feed, self._on_change, clock=clock)

    async def run(self) -> None:
        """Make room until cancelled. The feed and the recorder are run by the caller."""
        await self._joining.catch_up()
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
        """Those of the nodes, which have room for the pod, where the room is kept for a more important one.

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
        for waiting in sorted(self._stuck.values(), key=lambda f: -f.demand.priority):
            await asyncio.sleep(0)
            if self._cluster.gate.closed():
                return True
            if waiting.uid in self._stuck and self._planner.worth_a_look(waiting) and not self._fits(waiting):
                try:
                    outcome = await self._preemptor.preempt(waiting)
                except Exception as error:  # one pod must not keep the others from room
                    self._stuck.pop(waiting.uid, None)
                    self._cluster.quarantine.hold(waiting.pod, error)
                    continue
                blocked |= outcome.passing
                if outcome.message and self._said.get(waiting.uid) != outcome.message:
                    self._said[waiting.uid] = outcome.message
                    self._recorder.record(
                        waiting.pod, "Normal" if outcome.node else "Warning", "Preemption", outcome.message
                    )
        return blocked

    def _fits(self, waiting: WaitingPod) -> bool:
        """True if some node that suits the pod can take it: its scheduler will find out by itself."""
        demand, table = waiting.demand, self._table
        room = table.alive & (table.answers(demand.rules).refusals == 0) & table.fits(demand.footprint)
        return bool(self._cluster.filter(demand.request, table.names[room].tolist()).fits)

    def _is_blind_spot(self, waiting: WaitingPod, node: str) -> bool:
        """True if the node's sum suffices and single GPUs do not: what kube-scheduler cannot see.

        Where the sum is short as well, it preempts by itself (with the extender's `preempt` verb).
        """
        request, row = waiting.demand.request, self._table.row(node)
        if row is None or self._cluster.check(request, node).code not in SINGLE_GPU:
            return False
        seen = self._table.node(node)
        if seen is None or self._table.shortages(waiting.demand.footprint, row):
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

    def _on_change(self, kind: ChangeKind, obj: KubeObject) -> None:
        match kind, obj:
            case "pod", Pod():
                self._set_pod(obj)
            case "pod-gone", Pod():
                self._table.drop_pod(obj.uid)
                self._forget(obj.uid)
            case "node", Node():
                self._table.set_node(obj)
            case "node-gone", Node():
                self._table.drop_node(obj.name)
        if self._stuck:
            self._changed.set()

    def _set_pod(self, pod: Pod) -> None:
        if pod.spec.node_name:
            self._table.set_pod(pod)
            self._forget(pod.uid)
            return
        nominated = pod.status.nominated_node_name
        own = self._nominations.of(pod.uid)
        theirs = bool(nominated) and (own is None or own.node != nominated)
        if theirs or not self._waits_for_a_gpu(pod):
            self._stuck.pop(pod.uid, None)
            return
        waiting = read_waiting(pod)
        if waiting.demand.request:
            self._stuck[pod.uid] = waiting

    def _waits_for_a_gpu(self, pod: Pod) -> bool:
        return (
            pod.spec.priority > 0
            and self._serves(pod.spec.scheduler_name)
            and pod.metadata.deletion_timestamp is None
            and any(
                c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
                for c in pod.status.conditions or ()
            )
        )

    def _forget(self, uid: str) -> None:
        self._stuck.pop(uid, None)
        self._said.pop(uid, None)
        self._nominations.withdraw(uid)
