"""Job: pods that run until enough of them have succeeded.

An ended pod keeps a finalizer until status has counted it, so that no success is lost when pods are
deleted, and none is counted twice when we crash in between: first its uid is noted in
status.uncountedTerminatedPods, then the finalizer goes, then the count grows and the uid goes.
Source: kubernetes `pkg/controller/job`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

from msgspec.structs import replace

from gpuslice.errors import NotFound
from gpuslice.local.controllers.indexes import INDEX, free, index_of, parse, show
from gpuslice.local.controllers.objects import (
    Condition,
    Conditions,
    Job,
    JobStatus,
    Json,
    Managed,
    Pod,
    PodTemplate,
    Uncounted,
)
from gpuslice.local.controllers.podcontrol import PodControl, claim
from gpuslice.local.controllers.pods import active, deletion_order, new_pod, ready, seconds, set_condition
from gpuslice.local.controllers.replicaset import pod_listener
from gpuslice.local.controllers.runtime import EXPECTATION_SECONDS, Controller, Shared

FINALIZER: Final = "batch.kubernetes.io/job-tracking"
FIRST_RETRY_SECONDS: Final = 10.0
LAST_RETRY_SECONDS: Final = 360.0
LABELS: Final = ("batch.kubernetes.io/controller-uid", "controller-uid")
NAME_LABELS: Final = ("batch.kubernetes.io/job-name", "job-name")


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a Job has failed for good."""

    reason: str
    message: str


@dataclass(slots=True)
class _Retry:
    """When pods may be created again after failures, on our monotonic clock."""

    failures: int = 0
    seen: set[str] = field(default_factory=set)
    not_before: float = 0.0


class JobController(Controller):
    """Starts, counts, retries and ends the pods of Jobs."""

    name: ClassVar[str] = "job"
    reads: ClassVar[tuple[type[Managed], ...]] = (Job, Pod)

    def __init__(self, shared: Shared, control: PodControl) -> None:
        super().__init__(shared)
        self._control = control
        self._jobs = shared.informers.of(Job)
        self._pods = shared.informers.of(Pod)
        self._retries: dict[str, _Retry] = {}
        self.own(self._jobs)
        self._jobs.listeners.append(self._on_job)
        self._pods.listeners.append(pod_listener(self, Job))
        self._pods.listeners.append(self._on_pod)

    def _on_job(self, before: Job | None, after: Job | None) -> None:
        if after is None and before is not None:
            self._retries.pop(before.uid, None)
            for pod in self._pods.controlled_by(before.uid):
                self.queue.add(_pod_key(pod))

    def _on_pod(self, _: Pod | None, after: Pod | None) -> None:
        """A pod that lost its Job keeps its finalizer: nobody but we would ever take it off."""
        held = after is not None and FINALIZER in after.metadata.finalizers
        if after is not None and held and self._jobs.by_uid(after.controller_uid) is None:
            self.queue.add(_pod_key(after))

    async def reconcile(self, key: str) -> None:
        """Count what has ended, then start or stop pods, then write status."""
        if key.startswith("pod/"):
            await self._release_lost(key.removeprefix("pod/"))
            return
        item = self._jobs.get(key)
        if item is None:
            return
        pods = await claim(self.shared, self._pods, item, item.selects)
        if item.deleting or _is(item.status.conditions, "Complete") or _is(item.status.conditions, "Failed"):
            await self._release(pods)
            await self._expire(item)
            return
        item, pods = await self._count(item, pods)
        failure = self._failure(item, pods)
        if failure is not None:
            await self._control.delete_some(item, [pod for pod in pods if active(pod)])
        elif self.shared.expectations.satisfied(item.uid):
            await self._run(item, pods)
        else:
            self.queue.add_after(key, EXPECTATION_SECONDS)
        await self._status(item, failure)

    # --- counting -----------------------------------------------------------------------------------
    async def _count(self, item: Job, pods: list[Pod]) -> tuple[Job, list[Pod]]:
        """Count ended pods, crash-safely. Returns the Job with its new numbers and the pods that are left."""
        status, held = item.status, {pod.uid for pod in pods if FINALIZER in pod.metadata.finalizers}
        before = status.uncounted_terminated_pods or Uncounted()
        counted = replace(
            status,
            succeeded=status.succeeded
            + (0 if _indexed(item) else sum(u not in held for u in before.succeeded)),
            failed=status.failed + sum(uid not in held for uid in before.failed),
        )
        good = [uid for uid in before.succeeded if uid in held]
        bad = [uid for uid in before.failed if uid in held]
        completed = parse(status.completed_indexes)
        for pod in pods:
            if pod.uid not in held or pod.uid in good or pod.uid in bad:
                continue
            index = index_of(pod)
            if pod.status.phase == "Succeeded":
                if not _indexed(item):
                    good.append(pod.uid)
                elif index is not None and index < (item.spec.completions or 0):
                    completed.add(index)
            elif (pod.status.phase == "Failed" or pod.deleting) and not item.spec.suspend:
                bad.append(pod.uid)
        if _indexed(item):
            counted = replace(counted, succeeded=len(completed), completed_indexes=show(completed) or None)
        uncounted = Uncounted(tuple(good), tuple(bad)) if good or bad else None
        item = await self.write_status(
            self._jobs, item, replace(counted, uncounted_terminated_pods=uncounted)
        )
        self._note_failures(item, pods)
        ended = [pod for pod in pods if not active(pod) and FINALIZER in pod.metadata.finalizers]
        await self._release(ended)
        if good or bad:
            self.queue.add(item.key)  # the finalizers have gone: now they count
        return item, pods

    async def _release(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            if FINALIZER in pod.metadata.finalizers:
                await self._drop_finalizer(pod)

    async def _release_lost(self, key: str) -> None:
        pod = self._pods.get(key)
        if pod is not None and self._jobs.by_uid(pod.controller_uid) is None:
            await self._release([pod])

    async def _drop_finalizer(self, pod: Pod) -> None:
        rest = [one for one in pod.metadata.finalizers if one != FINALIZER]
        meta = {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version, "finalizers": rest or None}
        try:
            await self.patch(self._pods, pod, {"metadata": meta})
        except NotFound:
            return

    # --- deciding -----------------------------------------------------------------------------------
    def _failure(self, item: Job, pods: Sequence[Pod]) -> _Failure | None:
        target = next((one for one in item.status.conditions or () if one.type == "FailureTarget"), None)
        if target is not None and target.status == "True":
            return _Failure(target.reason, target.message)
        failed = item.status.failed + len((item.status.uncounted_terminated_pods or Uncounted()).failed)
        if item.spec.template.spec.get("restartPolicy") == "OnFailure":
            failed += sum(
                status.restart_count
                for pod in pods
                if active(pod)
                for status in pod.status.container_statuses or ()
            )
        if failed > item.spec.backoff_limit:
            return _Failure("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        limit, since = item.spec.active_deadline_seconds, item.status.start_time
        if limit is not None and since is not None and not item.spec.suspend:
            left = seconds(since) + limit - self.shared.clock.now_ns() / 1e9
            if left <= 0:
                return _Failure("DeadlineExceeded", "Job was active longer than specified deadline")
            self.queue.add_after(item.key, left)
        return None

    def _note_failures(self, item: Job, pods: Sequence[Pod]) -> None:
        """Each failure doubles the wait before the next pod; a success ends the waiting."""
        retry = self._retries.setdefault(item.uid, _Retry())
        fresh = [pod for pod in pods if not active(pod) and pod.uid not in retry.seen]
        retry.seen.update(pod.uid for pod in fresh)
        if any(pod.status.phase == "Succeeded" for pod in fresh):
            retry.failures, retry.not_before = 0, 0.0
        elif any(pod.status.phase == "Failed" for pod in fresh):
            retry.failures += 1
            wait = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** (retry.failures - 1))
            retry.not_before = self.shared.clock.monotonic() + wait

    async def _run(self, item: Job, pods: Sequence[Pod]) -> None:
        running = [pod for pod in pods if active(pod)]
        done = item.status.succeeded + len((item.status.uncounted_terminated_pods or Uncounted()).succeeded)
        wanted = item.spec.parallelism
        if item.spec.suspend:
            wanted = 0
        elif item.spec.completions is not None:
            wanted = min(wanted, max(0, item.spec.completions - done))
        elif done:
            wanted = min(wanted, len(running))
        if len(running) > wanted:
            doomed = deletion_order(running)[: len(running) - wanted]
            # What we stop has not failed: without the finalizer it is not counted.
            await self._release(doomed)
            await self._control.delete_some(item, doomed)
        elif len(running) < wanted:
            wait = self._retries[item.uid].not_before - self.shared.clock.monotonic()
            if wait > 0:
                self.queue.add_after(item.key, wait)
                return
            await self._start(item, running, wanted - len(running))

    async def _start(self, item: Job, running: Sequence[Pod], count: int) -> None:
        if not _indexed(item):
            await self._control.create_some(item, [partial(_pod, item, None)] * count)
            return
        for index in free(item, parse(item.status.completed_indexes), running, count):
            make: list[Callable[[str], Json]] = [partial(_pod, item, index)]
            await self._control.create_some(item, make, base=f"{item.name}-{index}")

    # --- telling ------------------------------------------------------------------------------------
    async def _status(self, seen: Job, failure: _Failure | None) -> None:
        item, now = self._jobs.latest(seen), self.shared.now()
        pods = self._pods.controlled_by(item.uid)
        living = [pod for pod in pods if active(pod)]
        status = replace(
            item.status,
            active=len(living),
            ready=sum(ready(pod) for pod in living),
            terminating=sum(pod.deleting and pod.status.phase not in ("Succeeded", "Failed") for pod in pods),
        )
        status = self._suspension(item, status, now)
        settled = not living and status.uncounted_terminated_pods is None
        if failure is not None:
            status = _with(status, Condition("FailureTarget", "True", failure.reason, failure.message), now)
            if settled and not status.terminating:
                status = _with(status, Condition("Failed", "True", failure.reason, failure.message), now)
                self.queue.add(item.key)
                self.shared.record(item, "Warning", failure.reason, failure.message)
        elif _enough(item, status) and settled:
            reason, text = "CompletionsReached", "Reached expected number of succeeded pods"
            status = _with(status, Condition("SuccessCriteriaMet", "True", reason, text), now)
            status = _with(status, Condition("Complete", "True", reason, text), now)
            status = replace(status, completion_time=now)
            self.queue.add(item.key)  # its time to live begins
            self.shared.record(item, "Normal", "Completed", "Job completed")
        await self.write_status(self._jobs, item, status)

    def _suspension(self, item: Job, status: JobStatus, now: str) -> JobStatus:
        suspended = _is(status.conditions, "Suspended")
        if item.spec.suspend:
            if not suspended:
                status = _with(status, Condition("Suspended", "True", "JobSuspended", "Job suspended"), now)
                self.shared.record(item, "Normal", "Suspended", "Job suspended")
            return replace(status, start_time=None)
        if suspended:
            status = _with(status, Condition("Suspended", "False", "JobResumed", "Job resumed"), now)
            self.shared.record(item, "Normal", "Resumed", "Job resumed")
        return status if status.start_time else replace(status, start_time=now)

    async def _expire(self, item: Job) -> None:
        """Delete a finished Job spec.ttlSecondsAfterFinished after its end."""
        ttl = item.spec.ttl_seconds_after_finished
        if ttl is None or item.deleting:
            return
        ends = [one for one in item.status.conditions or () if one.type in ("Complete", "Failed")]
        ended = next((one.last_transition_time for one in ends if one.status == "True"), None)
        if ended is None:
            return
        left = seconds(ended) + ttl - self.shared.clock.now_ns() / 1e9
        if left > 0:
            self.queue.add_after(item.key, left)
            return
        await self.client.delete(
            Job.resource, item.name, item.namespace, uid=item.uid, propagation="Background"
        )


def _pod(item: Job, index: int | None, name: str) -> Json:
    labels = dict.fromkeys(LABELS, item.uid) | dict.fromkeys(NAME_LABELS, item.name)
    annotations: dict[str, str] = {}
    template, spec = item.spec.template, dict(item.spec.template.spec)
    if index is not None:
        labels[INDEX] = annotations[INDEX] = str(index)
        spec["hostname"] = f"{item.name}-{index}"
        for kind in ("containers", "initContainers"):
            spec[kind] = [_with_index(container, index) for container in spec.get(kind) or ()]
        spec = {key: value for key, value in spec.items() if value != []}
    return new_pod(
        item,
        PodTemplate(template.metadata, spec),
        name,
        labels=labels,
        annotations=annotations,
        finalizers=(FINALIZER,),
    )


def _with_index(container: Json, index: int) -> Json:
    given = container.get("env") or []
    if any(one.get("name") == "JOB_COMPLETION_INDEX" for one in given):
        return container
    return {**container, "env": [*given, {"name": "JOB_COMPLETION_INDEX", "value": str(index)}]}


def _enough(item: Job, status: JobStatus) -> bool:
    if item.spec.suspend:
        return False
    if item.spec.completions is not None:
        return status.succeeded >= item.spec.completions
    return status.succeeded > 0


def _indexed(item: Job) -> bool:
    return item.spec.completion_mode == "Indexed"


def _is(conditions: Conditions | None, kind: str) -> bool:
    return any(one.type == kind and one.status == "True" for one in conditions or ())


def _with(status: JobStatus, condition: Condition, now: str) -> JobStatus:
    conditions = set_condition(status.conditions, replace(condition, last_probe_time=now), now)
    return replace(status, conditions=conditions)


def _pod_key(pod: Pod) -> str:
    return f"pod/{pod.key}"
