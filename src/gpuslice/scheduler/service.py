"""The complete scheduler: pods in, bindings out, woken by what happens and by nothing else.

One loop decides, one pod at a time, on the state in memory. Reserving is part of the decision; the request to
the API server runs beside the next decisions. A pod's condition and events are written in the background too.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Final

import structlog

from gpuslice import names
from gpuslice.clock import Clock, rfc3339
from gpuslice.cluster.executor import Executor
from gpuslice.cluster.podcode import PodCode
from gpuslice.cluster.podstatus import has_ended
from gpuslice.cluster.state import Change, Cluster
from gpuslice.cluster.waiting import Demand, WaitingPod
from gpuslice.errors import ApiError, GpuSliceError
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.client import Client
from gpuslice.kube.events import ChangeRecorder, EventRecorder
from gpuslice.kube.wire import KubeObject, Node, Pod
from gpuslice.placement.verdict import Verdict
from gpuslice.scheduler.binder import Binder
from gpuslice.scheduler.core import Core
from gpuslice.scheduler.cycle import Cycle, Decision
from gpuslice.scheduler.preemption import PASSING, Planner, Preemptor
from gpuslice.scheduler.queue import NODE_CAUSES, Cause, SchedulingQueue

REFUSALS: Final = 512
"""Number of demands whose last refusal is remembered; a refusal holds until something is freed."""
REPORT_BACKOFF: Final = Backoff(base=0.5, cap=10.0)
REPORT_TRIES: Final = 4

_log = structlog.get_logger(__name__)


class Scheduler:
    """Schedules the pods whose spec.schedulerName is one of `scheduler_names`."""

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        *,
        scheduler_names: Collection[str],
        clock: Clock,
        recorder: EventRecorder,
        binder: Binder,
        random: Callable[[], float],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._names = frozenset(scheduler_names)
        self._clock = clock
        self._recorder = recorder
        self._binder = binder
        self._random = random
        self.queue = SchedulingQueue(clock=clock)
        self._nominations = cluster.nominations
        self._cycle = Cycle(cluster)
        self._planner = Planner(cluster)
        executor = Executor(client, cluster, recorder, clock=clock)
        self._preemptor = Preemptor(self._planner, self._nominations, executor, withdraw=self._withdraw)
        self._refusals: OrderedDict[Demand, Decision] = OrderedDict()
        self._hopeless: set[Demand] = set()  # no victims would help them; holds as long as refusals do
        self._freedom = 0  # how often something was freed
        self._reasons = ChangeRecorder(recorder)
        self._bound: set[str] = set()  # bound by us, not yet seen so in the feed
        self._to_say: OrderedDict[str, tuple[Pod, str]] = OrderedDict()
        self._something_to_say = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        cluster.subscribe(self._on_change)

    async def run(self) -> None:
        """Schedule until cancelled. The feed, the recorder and the binder are run by the caller."""
        await self._cluster.replay(self._on_change)
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._report())
            while True:
                await self._cluster.gate.opened(self._clock)
                waiting = await self.queue.pop()
                if self._cluster.gate.closed():
                    self.queue.put_back(waiting.uid)
                    continue
                try:
                    self.handle(waiting)
                except Exception as error:  # one pod must not keep other pods from their nodes
                    self._give_up(waiting, error)
                # Answers and changes are taken in between decisions.
                await asyncio.sleep(0)

    # --- decisions --------------------------------------------------------------------------------
    def handle(self, waiting: WaitingPod) -> None:
        """Decide about a pod that was taken out of the queue, and start to carry the decision out."""
        pod = waiting.pod
        if pod.metadata.deletion_timestamp is not None:
            self.queue.wait(pod.uid, Cause.SELF)
            return
        decision = self._decide(waiting)
        if decision.node:
            self._place(waiting, decision.node)
        elif (
            decision.causes & (Cause.GPU | Cause.RESOURCES)
            and waiting.demand not in self._hopeless
            and self._planner.worth_a_look(waiting)
        ):
            self._spawn(self._preempt(waiting, decision), f"preempt for {pod.key}")
        else:
            nomination = self._nominations.of(waiting.uid)
            if nomination is not None and not self._nominations.leaving(nomination):
                # Its victims have gone and it still does not fit: the room kept for it is of no use.
                self._withdraw(waiting.uid)
                self._spawn(self._preemptor.write_nomination(pod, None), f"clear nomination of {pod.key}")
            self._refuse(waiting, decision)

    def _decide(self, waiting: WaitingPod) -> Decision:
        known = self._refusals.get(waiting.demand)
        # Only more room can lift a refusal, and when there is more room these refusals are dropped.
        if known is not None and not waiting.problem and self._nominations.of(waiting.uid) is None:
            return known
        decision = self._cycle.decide(waiting)
        if not decision.node and not waiting.problem:
            self._refusals[waiting.demand] = decision
            if len(self._refusals) > REFUSALS:
                self._refusals.popitem(last=False)
        return decision

    def _place(self, waiting: WaitingPod, node: str) -> None:
        answer = self._binder.start(waiting.pod, node)
        if answer.done() and not answer.result().ok:
            self._failed(waiting, answer.result())
            return
        self._cluster.table.set_pod(waiting.pod, node)
        self._nominations.withdraw(waiting.uid)
        answer.add_done_callback(lambda done: self._answered(waiting, node, done))

    def _answered(self, waiting: WaitingPod, node: str, answer: asyncio.Future[Verdict]) -> None:
        if answer.cancelled():
            return
        verdict, pod = answer.result(), waiting.pod
        if verdict.ok:
            if pod.uid in self.queue:  # not yet shown as bound by the feed
                self._bound.add(pod.uid)
                self.queue.drop(pod.uid)
            self._to_say.pop(pod.uid, None)
            self._recorder.record(pod, "Normal", "Scheduled", f"Successfully assigned {pod.key} to {node}")
        elif pod.uid in self.queue:
            assigned = self._cluster.table.drop_pod(pod.uid)
            self._failed(waiting, verdict)
            if assigned is not None:
                self._freed(assigned.node, Cause.RESOURCES | Cause.GPU)

    def _failed(self, waiting: WaitingPod, verdict: Verdict) -> None:
        """The API server (or a change since the decision) did not let the pod be bound."""
        self._say(waiting.pod, verdict.message)
        self.queue.retry(waiting.uid)

    async def _preempt(self, waiting: WaitingPod, decision: Decision) -> None:
        freedom = self._freedom
        try:
            outcome = await self._preemptor.preempt(waiting)
        except Exception as error:
            self._give_up(waiting, error)
            return
        if outcome.code is PodCode.NO_VICTIMS and freedom == self._freedom:
            self._hopeless.add(waiting.demand)
        message = f"{decision.verdict.message} {outcome.message}".rstrip()
        if waiting.uid not in self.queue:
            self._withdraw(waiting.uid)
        elif outcome.code in PASSING:
            self._say(waiting.pod, message)
            self.queue.retry(waiting.uid)
        else:
            self._refuse(waiting, replace(decision, verdict=replace(decision.verdict, message=message)))

    def _refuse(self, waiting: WaitingPod, decision: Decision) -> None:
        self._say(waiting.pod, decision.verdict.message)
        self.queue.wait(waiting.uid, decision.causes)

    def _withdraw(self, uid: str) -> None:
        node = self._nominations.withdraw(uid)
        if node is not None:
            self._freed(node, Cause.RESOURCES | Cause.GPU)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        if self._group is None:
            raise RuntimeError("the scheduler does not run")
        self._group.create_task(work, name=name)

    def _give_up(self, waiting: WaitingPod, error: Exception) -> None:
        """The work for a pod failed with an unforeseen error: the pod waits until it is changed."""
        self._cluster.quarantine.hold(waiting.pod, error)
        self.queue.wait(waiting.uid, Cause.SELF)

    # --- changes ----------------------------------------------------------------------------------
    def _on_change(self, change: Change) -> None:
        if change.not_kept:
            self._freed(change.not_kept, Cause.RESOURCES | Cause.GPU)
        match change.kind, change.object:
            case "pod", Pod() as pod:
                self._set_pod(pod, change.before)
            case "pod-gone", Pod() as pod:
                self._drop_pod(pod.uid, change.node)
            case "node", Node() as node:
                self._set_node(node, change.before)
            case "node-gone", _:
                self._refusals.clear()  # the message counts the nodes
            case "unhealthy", _:
                self._freed(change.node, Cause.GPU)

    def _set_pod(self, pod: Pod, before: KubeObject | None) -> None:
        if pod.spec.node_name:
            self._done_with(pod.uid)
            # The GPU's memory may come back later than the rest: when the last container has ended.
            if has_ended(pod) or (_is_final(pod) and not (isinstance(before, Pod) and _is_final(before))):
                self._freed(pod.spec.node_name, Cause.RESOURCES | Cause.GPU)
        elif pod.spec.scheduler_name in self._names and pod.uid not in self._bound:
            waiting = self._cluster.waiting(pod.uid)
            if waiting is None or _is_final(pod):
                self._drop_pod(pod.uid, "")
            else:
                self.queue.set(waiting)

    def _drop_pod(self, uid: str, node: str) -> None:
        self._done_with(uid)
        if node:
            self._freed(node, Cause.RESOURCES | Cause.GPU)

    def _done_with(self, uid: str) -> None:
        self.queue.drop(uid)
        self._bound.discard(uid)
        self._to_say.pop(uid, None)

    def _set_node(self, node: Node, old: KubeObject | None) -> None:
        if not isinstance(old, Node):
            self._freed(node.name, NODE_CAUSES)
            return
        cures = Cause(0)
        if (old.metadata.labels, old.spec) != (node.metadata.labels, node.spec):
            cures |= Cause.RULES
        if old.status.allocatable != node.status.allocatable:
            cures |= Cause.RESOURCES | Cause.GPU
        if old.metadata.annotations != node.metadata.annotations:
            cures |= Cause.GPU
        if cures:
            self._freed(node.name, cures)

    def _freed(self, node: str, cures: Cause) -> None:
        """Something became free on a node: the pods that could use it are tried again at once."""
        self._freedom += 1
        self._refusals.clear()
        self._hopeless.clear()
        self.queue.wake(
            cures,
            lambda demand: self._cycle.helps(demand, node) or self._planner.could_help(demand, node),
        )

    # --- what people read -------------------------------------------------------------------------
    def _say(self, pod: Pod, message: str) -> None:
        """Record why a pod waits, once per reason."""
        if self._reasons.record(pod, "Warning", "FailedScheduling", message):
            self._to_say[pod.uid] = (pod, message)
            self._something_to_say.set()

    async def _report(self) -> None:
        """Write the PodScheduled conditions, the latest of each pod."""
        while True:
            await self._something_to_say.wait()
            while self._to_say:
                _, (pod, message) = self._to_say.popitem(last=False)
                await self._write_condition(pod, message)
            self._something_to_say.clear()

    async def _write_condition(self, pod: Pod, message: str) -> None:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
        known = {c.type: c.status for c in pod.status.conditions or ()}
        if known.get("PodScheduled") != "False":
            condition["lastTransitionTime"] = rfc3339(self._clock.now_ns())
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        for tries in range(1, REPORT_TRIES + 1):
            try:
                await self._client.patch(
                    Pod, pod.name, body, pod.namespace, patch_type="strategic", subresource="status"
                )
            except ApiError as error:
                if not error.retryable:
                    return  # gone, or another pod by now
            except GpuSliceError as error:
                _log.info("condition not written", pod=pod.key, error=str(error))
            else:
                return
            await self._clock.sleep(REPORT_BACKOFF.delay(tries, self._random))


def _is_final(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


async def run_scheduler(core: Core, scheduler_names: Collection[str] = (names.SCHEDULER_NAME,)) -> None:
    """Run a complete scheduler until cancelled. The core is run by the caller, and may be already."""
    core.cluster.quarantine.record_by(core.recorder)
    scheduler = Scheduler(
        core.client,
        core.cluster,
        scheduler_names=scheduler_names,
        clock=core.clock,
        recorder=core.recorder,
        binder=core.binder,
        random=core.random,
    )
    await scheduler.run()
