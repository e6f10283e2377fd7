"""Binds a pod to a node: reserves its GPUs, then writes everything in one request.

The API server merges a Binding's annotations into the pod in the same write that sets its node
(`setPodNodeAndMetadata`), so no half-done state can remain; uid and resourceVersion are preconditions of that
write, so only the very pod that the decision was about is bound.

A lost answer (timeout, connection cut, 5xx) says nothing about the pod. The reservation then stays until the
outcome is known: the pod is read again, and if it is still unbound at the very version that the lost request
was for, the pod is changed (`_fence`), which makes that request fail if it is still on its way. Only then is
the reservation given back: at no moment can two pods be promised the same memory.

A pod that its node could confuse with another pod waits, its GPU reserved, until the node has reported where
the other pod is (`bindorder`): level-triggered by the cluster's state, and never for longer than
`HOLD_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from gpuslice import names
from gpuslice.clock import Clock, happened, rfc3339_micro
from gpuslice.cluster.podcode import PodCode
from gpuslice.cluster.state import Change, Cluster
from gpuslice.cluster.swaps import is_assigned
from gpuslice.errors import ApiError, Conflict, GpuSliceError, InputError, NotFound
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Pod
from gpuslice.placement.verdict import Code, Verdict
from gpuslice.scheduler.bindorder import can_be_confused

TRIES: Final = 3
"""Requests for one bind before its caller is told that it failed."""
BACKOFF: Final = Backoff(base=0.1, cap=5.0)
STALE_SECONDS: Final = 90.0
"""A request older than this cannot succeed any more: kube-apiserver ends every request after 60 s."""
UNCONFIRMED_SECONDS: Final = 60.0
"""A binding that the feed has not shown after this time is looked up (its pod may be gone for good)."""
HOLD_SECONDS: Final = 60.0
"""How long a bind waits at most for its turn on its node."""
ADMISSION_SECONDS: Final = 5.0
"""How long another pod waits for a bound pod: kubelet has that pod's ids long before, unless the node has
died."""
ANSWER_SECONDS: Final = 4.0
"""After this time a caller gets the answer that its pod still waits: kube-scheduler by default gives up after
5 s."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Attempt:
    """One bind in progress. `answer` may come before the end: the outcome is then still being looked for."""

    node: str
    answer: asyncio.Future[Verdict]
    task: asyncio.Task[None] | None = None
    versions: set[str] = field(default_factory=set)
    """The resourceVersions for which a binding may still be on its way."""
    sent: float = 0.0
    """When the last of those requests was sent (monotonic seconds)."""
    first: bool = False
    """True if certainly no request was ever sent to the API server for this pod before."""
    held: str = ""
    """Why it waits for its turn, for people; "" if it does not."""
    waits_for: str = ""
    """The uid of the pod that it waits for."""
    place: tuple[int, int] = (0, 0)
    """The order of turns: first by how many pods of its namespace waited on the node before it, then by
    arrival. So a namespace with many pods delays other namespaces by only one of them.
    """
    final: bool = False
    """True once it is known that the bind will not be tried again."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A binding that the API server has accepted and the feed has not shown yet."""

    pod: Pod
    at: float


class Binder:
    """Binds pods; any number at once, but one at a time for the same pod. There is no throttle."""

    def __init__(
        self, cluster: Cluster, client: Client, *, clock: Clock, random: Callable[[], float] = lambda: 1.0
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._clock = clock
        self._random = random
        self._attempts: dict[str, _Attempt] = {}
        self._bound: dict[str, _Bound] = {}
        self._waited_for: dict[str, float] = {}  # uid -> when somebody first waited for it, bound (monotonic)
        self._turns: dict[str, dict[str, asyncio.Event]] = {}
        """uid of a pod -> uids of those who wait for it, or of itself -> set when they are to look again."""
        self._held: set[str] = set()  # uids of those who wait for their turn
        self._started = 0
        cluster.subscribe(self._on_change)

    async def bind(self, pod: Pod, node: str) -> Verdict:
        """Bind a pod. BOUND also if it was bound to that node before; otherwise the refusal.

        Cancelling the caller does not stop a bind that has begun. Nor does the answer HELD, which means that
        it waits for its turn: the next call for the pod returns how it went on.
        """
        answer, attempt = self.start(pod, node), self._attempts.get(pod.uid)
        if attempt is not None and attempt.held:
            said = asyncio.Event()
            answer.add_done_callback(lambda _: said.set())
            if not await happened(said, self._clock, ANSWER_SECONDS) and attempt.held:
                return Verdict(PodCode.HELD, attempt.held)
        return await asyncio.shield(answer)

    def start(self, pod: Pod, node: str) -> asyncio.Future[Verdict]:
        """Reserve at once, before anything else runs, and bind in the background.

        If another bind of the same pod is in progress, the reservation waits for its end.
        """
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        running = self._attempts.get(pod.uid)
        if running is not None and running.node == node and not running.answer.done():
            return running.answer
        attempt = _Attempt(node, answer, place=self._place(pod, node))
        if running is not None or not pod.metadata.resource_version:
            if running is not None:
                attempt.held = f"waits for the end of its bind to node {running.node}"
            work = partial(self._after, running.task if running else None, attempt, pod)
        else:
            # An earlier bind may have succeeded without the feed showing it yet: then a refusal now proves
            # nothing.
            attempt.first = self._cluster.pod(pod.uid) is None
            annotations = self._reserve(pod, node)
            if isinstance(annotations, Verdict):
                answer.set_result(annotations)
                return answer
            work = partial(self._in_turn, attempt, pod, annotations)
            self._hold(attempt, pod)
        self._attempts[pod.uid] = attempt
        attempt.task = asyncio.create_task(self._work(attempt, pod.uid, work), name=f"bind {pod.key}")
        return answer

    async def run(self) -> None:
        """Give back reservations for pods that vanished before the feed ever saw them, for ever."""
        while True:
            await self._clock.sleep(UNCONFIRMED_SECONDS / 2)
            await self.audit()

    async def audit(self) -> None:
        """One round of `run`."""
        now = self._clock.monotonic()
        self._waited_for = {uid: at for uid, at in self._waited_for.items() if self._cluster.pod(uid)}
        for uid, bound in list(self._bound.items()):
            record = self._cluster.pod(uid)
            if record is None or not record.assumed:
                self._bound.pop(uid, None)
            elif now - bound.at >= UNCONFIRMED_SECONDS and uid not in self._attempts:
                try:
                    fresh = await self._read(bound.pod)
                except GpuSliceError:
                    return  # later: nothing is known while the API server is away
                if fresh is None:
                    self._cluster.forget(uid)
                    self._bound.pop(uid, None)

    @property
    def busy(self) -> bool:
        """Whether a bind is under way."""
        return bool(self._attempts)

    async def aclose(self) -> None:
        """Drop all work in progress; the next start learns its outcome from the API server."""
        tasks = [attempt.task for attempt in self._attempts.values() if attempt.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- inside -----------------------------------------------------------------------------------
    async def _work(self, attempt: _Attempt, uid: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            self._answer(attempt, Verdict(PodCode.API_FAILED, "the binder was stopped"))
            if self._attempts.get(uid) is attempt:
                del self._attempts[uid]
            self._held.discard(uid)
            self._wake(uid)

    async def _after(self, earlier: asyncio.Task[None] | None, attempt: _Attempt, pod: Pod) -> None:
        """Wait for the end of an earlier bind; the pod that the caller knows may be out of date then."""
        if earlier is not None:
            await asyncio.wait([earlier])
            attempt.held = ""
        try:
            fresh = await self._read(pod)
        except GpuSliceError as error:
            return self._answer(attempt, _failed(error))
        if fresh is None:
            return self._answer(attempt, _wrong_pod(pod))
        annotations = self._reserve(fresh, attempt.node)
        if isinstance(annotations, Verdict):
            return self._answer(attempt, annotations)
        self._hold(attempt, fresh)
        return await self._in_turn(attempt, fresh, annotations)

    async def _in_turn(self, attempt: _Attempt, pod: Pod, annotations: dict[str, str]) -> None:
        """Bind when no pod that this one could be confused with is on its way to a GPU of the node."""
        until = self._clock.monotonic() + HOLD_SECONDS
        waited = bool(attempt.held)
        if waited:
            self._hold(attempt, pod)  # the event that it waits for may have come meanwhile
        while attempt.held and (left := until - self._clock.monotonic()) > 0:
            turn, heard = asyncio.Event(), (attempt.waits_for, pod.uid)
            for uid in heard:
                self._turns.setdefault(uid, {})[pod.uid] = turn
            await happened(turn, self._clock, min(left, ADMISSION_SECONDS))
            for uid in heard:
                self._turns[uid].pop(pod.uid)
                if not self._turns[uid]:
                    del self._turns[uid]
            self._hold(attempt, pod)
        attempt.held = ""
        self._held.discard(pod.uid)
        if waited:
            # Its planned GPU may be another pod's by now, which really is there.
            outcome = self._reserve(pod, attempt.node)
            if isinstance(outcome, Verdict):
                if attempt.first:
                    self._cluster.forget(pod.uid)
                return self._answer(attempt, outcome)
            annotations = outcome
        return await self._bind(attempt, pod, annotations)

    def _on_change(self, change: Change) -> None:
        """A node has reported where a pod is, or the pod is gone: the pods that wait for it check again, and
        no others.
        """
        if self._turns and isinstance(change.object, Pod):
            record = self._cluster.pod(change.object.uid)
            if record is None or is_assigned(record):
                self._wake(change.object.uid)

    def _wake(self, uid: str) -> None:
        for turn in self._turns.get(uid, {}).values():
            turn.set()

    def _place(self, pod: Pod, node: str) -> tuple[int, int]:
        self._started += 1
        waiting = (record for uid in self._held if (record := self._cluster.pod(uid)) is not None)
        return sum(one.node == node and one.namespace == pod.namespace for one in waiting), self._started

    def _hold(self, attempt: _Attempt, pod: Pod) -> None:
        """Find out for which pod one with a reservation waits: the last of those whose turn comes before."""
        attempt.held = attempt.waits_for = ""
        self._held.discard(pod.uid)
        mine = self._cluster.pod(pod.uid)
        if mine is None or not mine.request.shares:
            return
        last, now = (-1, 0), self._clock.monotonic()
        for other in self._cluster.pods_on(attempt.node):
            theirs = self._attempts.get(other.uid)
            waits = theirs is not None and bool(theirs.held) and theirs.node == attempt.node
            place = theirs.place if theirs is not None and waits else (0, 0)
            if (
                other.uid == pod.uid
                or not last < place < attempt.place
                or is_assigned(other)
                or not can_be_confused(mine.request, other.request)
            ):
                continue
            if waits or now - self._waited_for.setdefault(other.uid, now) < ADMISSION_SECONDS:
                self._held.add(pod.uid)
                last, attempt.waits_for = place, other.uid
                attempt.held = (
                    f"waits until {other.key} has its GPU on {attempt.node}, which could give it this pod's"
                )

    def _reserve(self, pod: Pod, node: str) -> dict[str, str] | Verdict:
        """The annotations to bind with, once the GPUs are reserved; or why not."""
        if pod.spec.node_name:
            return _bound_to(pod, node)
        try:
            request = self._cluster.request_of(pod)
        except InputError as error:
            return Verdict(Code.BAD_REQUEST, str(error))
        if not request:
            return {}
        if why := self._cluster.gate.closed():
            return Verdict(PodCode.NOT_READY, why)
        outcome = self._cluster.assume(pod, node)
        if isinstance(outcome, Verdict):
            return outcome
        return self._cluster.annotations_for(pod, node, outcome[0])

    async def _bind(self, attempt: _Attempt, pod: Pod, annotations: dict[str, str]) -> None:
        """Send requests until the outcome is known; never give the reservation back before."""
        tries = 0
        while True:
            tries += 1
            version = pod.metadata.resource_version
            attempt.versions.add(version)
            attempt.sent = self._clock.monotonic()
            try:
                await self._post(pod, attempt.node, annotations)
            except GpuSliceError as error:
                if attempt.first and tries == 1 and _refused(error):
                    return self._give_up(attempt, pod, _failed(error))
                failure = error
            else:
                return self._done(attempt, pod)
            attempt.final = tries >= TRIES
            fresh = await self._learn(attempt, pod, failure)
            if fresh is None:
                return None
            if attempt.final or attempt.answer.done():
                return self._give_up(attempt, fresh, _failed(failure))
            if fresh.metadata.resource_version not in attempt.versions:
                # No request of ours is on its way any more: decide anew, in one step, for the pod as it is
                # now.
                attempt.versions.clear()
                self._cluster.forget(pod.uid)
                outcome = self._reserve(fresh, attempt.node)
                if isinstance(outcome, Verdict):
                    return self._answer(attempt, outcome)
                annotations = outcome
            pod = fresh

    async def _learn(self, attempt: _Attempt, pod: Pod, failure: GpuSliceError) -> Pod | None:
        """Read the pod until its state is known. Returns the unbound pod to try again with, or None if the
        bind is answered.

        If there will be no other try, the unbound pod is fenced, so that the reservation can be given back.
        There is no other try while the gate is closed: another replica may decide by now.
        """
        failures = 0
        while True:
            try:
                fresh = await self._read(pod)
                if fresh is None or (fresh.metadata.deletion_timestamp and not fresh.spec.node_name):
                    # The API server binds no pod that is being deleted, however late the request.
                    self._give_up(attempt, pod, _wrong_pod(pod))
                    return None
                if fresh.spec.node_name:
                    self._settle(attempt, fresh)
                    return None
                attempt.final |= bool(self._cluster.gate.closed())
                on_its_way = fresh.metadata.resource_version in attempt.versions
                stale = self._clock.monotonic() - attempt.sent >= STALE_SECONDS
                if on_its_way and not stale and (attempt.final or attempt.answer.done()):
                    fresh = await self._fence(fresh)
            except GpuSliceError as error:
                failures += 1
                if failures >= TRIES and not attempt.answer.done():
                    _log.warning("bind is undecided; its GPU stays reserved", pod=pod.key, error=str(error))
                    self._answer(attempt, _failed(failure))
                await self._clock.sleep(BACKOFF.delay(failures, self._random))
            else:
                return fresh

    async def _fence(self, pod: Pod) -> Pod:
        """Change the pod at exactly this version, so that no binding for this version can succeed any more.

        Raises Conflict if something else, perhaps that binding, was faster.
        """
        meta = {
            "uid": pod.uid,
            "resourceVersion": pod.metadata.resource_version,
            "annotations": {names.BIND_FENCE: rfc3339_micro(self._clock.now_ns())},
        }
        return await self._client.patch(Pod, pod.name, {"metadata": meta}, pod.namespace)

    async def _read(self, pod: Pod) -> Pod | None:
        """The pod as it is now; None if that incarnation is gone."""
        try:
            fresh = await self._client.get(Pod, pod.name, pod.namespace)
        except NotFound:
            return None
        return fresh if fresh.uid == pod.uid else None

    async def _post(self, pod: Pod, node: str, annotations: dict[str, str]) -> None:
        meta: dict[str, object] = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        if pod.metadata.resource_version:
            meta["resourceVersion"] = pod.metadata.resource_version
        if annotations:
            meta["annotations"] = annotations
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": meta,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._client.create(Pod.resource, binding, pod.namespace, name=pod.name, subresource="binding")

    def _done(self, attempt: _Attempt, pod: Pod) -> None:
        if self._cluster.pod(pod.uid) is not None:
            self._bound[pod.uid] = _Bound(pod, self._clock.monotonic())
        self._answer(attempt, Verdict(PodCode.BOUND, f"bound to {attempt.node}"))

    def _settle(self, attempt: _Attempt, bound: Pod) -> None:
        """The pod turned out to be bound, either by us, as meant, or to another node."""
        if bound.spec.node_name == attempt.node:
            self._done(attempt, bound)
        else:
            self._give_up(attempt, bound, _bound_to(bound, attempt.node))

    def _give_up(self, attempt: _Attempt, pod: Pod, verdict: Verdict) -> None:
        self._cluster.forget(pod.uid)
        self._answer(attempt, verdict)

    def _answer(self, attempt: _Attempt, verdict: Verdict) -> None:
        if not attempt.answer.done():
            attempt.answer.set_result(verdict)


def _refused(error: GpuSliceError) -> bool:
    """True if the server has certainly not bound the pod and will not: it refused, with a reason."""
    return isinstance(error, ApiError) and error.status < 500 and not isinstance(error, Conflict | NotFound)


def _bound_to(pod: Pod, node: str) -> Verdict:
    if pod.spec.node_name == node:
        return Verdict(PodCode.BOUND, f"bound to {node}")
    return Verdict(PodCode.ALREADY_BOUND, f"pod {pod.key} is bound to node {pod.spec.node_name} already")


def _wrong_pod(pod: Pod) -> Verdict:
    return Verdict(PodCode.WRONG_POD, f"pod {pod.key} with uid {pod.uid} is gone or being deleted")


def _failed(error: GpuSliceError) -> Verdict:
    return Verdict(PodCode.API_FAILED, f"binding failed: {error}")
