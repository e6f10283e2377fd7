"""The queue: order, backoff, and waking exactly those whom a change could help."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from binder_world import StepClock, settle
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuslice.cluster.waiting import Demand, WaitingPod, read_waiting
from gpuslice.kube.wire import Pod
from gpuslice.names import SHARES_ACROSS
from gpuslice.scheduler.queue import FLUSH_SECONDS, Cause, SchedulingQueue


def waiting(uid: str, priority: int = 0, created: str = "", units: int = 1, **more: Any) -> WaitingPod:
    resources = {"limits": {"aliyun.com/gpu-mem": str(units)}}
    body = {
        "metadata": {"uid": uid, "name": uid, "creationTimestamp": created, **more.pop("metadata", {})},
        "spec": {"priority": priority, "containers": [{"name": "c", "resources": resources}], **more},
    }
    return read_waiting(msgspec.convert(body, Pod))


def names(queue: SchedulingQueue) -> list[str]:
    found = []
    while (next_one := queue.pop_nowait()) is not None:
        found.append(next_one.uid)
    return found


@pytest.fixture
def clock() -> StepClock:
    return StepClock()


@pytest.fixture
def queue(clock: StepClock) -> SchedulingQueue:
    return SchedulingQueue(clock=clock)


def always(_demand: Demand) -> bool:
    return True


def test_priority_goes_before_age(queue: SchedulingQueue) -> None:
    queue.set(waiting("old", 0, "2024-01-01T00:00:00Z"))
    queue.set(waiting("high", 9, "2024-01-03T00:00:00Z"))
    queue.set(waiting("older", 0, "2023-01-01T00:00:00Z"))
    assert names(queue) == ["high", "older", "old"]


def test_same_second_keeps_the_order_of_arrival(queue: SchedulingQueue) -> None:
    for uid in ("c", "a", "b"):
        queue.set(waiting(uid))
    assert names(queue) == ["c", "a", "b"]


def test_backoff_doubles_from_one_second_to_ten(queue: SchedulingQueue, clock: StepClock) -> None:
    queue.set(waiting("a"))
    for pause in (1, 2, 4, 8, 10, 10):
        assert names(queue) == ["a"]
        queue.retry("a")
        clock.advance(pause - 0.01)
        assert names(queue) == []
        clock.advance(0.01)
    assert names(queue) == ["a"]


async def test_consumer_sleeps_until_the_backoff_is_over(queue: SchedulingQueue, clock: StepClock) -> None:
    queue.set(waiting("a"))
    await queue.pop()
    queue.retry("a")
    consumer = asyncio.create_task(queue.pop())
    await settle()
    assert not consumer.done()
    clock.advance(1)
    assert (await consumer).uid == "a"


async def test_consumer_wakes_for_a_new_pod(queue: SchedulingQueue) -> None:
    consumer = asyncio.create_task(queue.pop())
    await settle()
    queue.set(waiting("a"))
    assert (await consumer).uid == "a"


def test_wakes_only_whom_the_change_could_help(queue: SchedulingQueue) -> None:
    """A node's label does not wake a pod that lacks GPU memory; and the helper has the last word."""
    for uid, units, causes in (
        ("gpu", 1, Cause.GPU),
        ("rules", 2, Cause.RULES),
        ("both", 3, Cause.GPU | Cause.RULES),
        ("large", 4, Cause.GPU),
    ):
        queue.set(waiting(uid, units=units))
        queue.pop_nowait()
        queue.wait(uid, causes)
    assert queue.wake(Cause.GPU, lambda demand: demand.request.units < 4) == 2
    assert sorted(names(queue)) == ["both", "gpu"]


def test_woken_pod_skips_the_backoff(queue: SchedulingQueue) -> None:
    """What it waited for is there: it is tried at once, however often it was refused before."""
    queue.set(waiting("a"))
    for _ in range(5):
        assert names(queue) == ["a"]
        queue.wait("a", Cause.GPU)
        queue.wake(Cause.GPU, always)
    assert names(queue) == ["a"]


def test_helper_is_asked_once_per_demand(queue: SchedulingQueue) -> None:
    """A thousand equal pods cost one look at the node."""
    for i in range(10):
        queue.set(waiting(f"p{i}"))
        queue.pop_nowait()
        queue.wait(f"p{i}", Cause.GPU)
    asked: list[Demand] = []
    assert queue.wake(Cause.GPU, lambda demand: bool(asked.append(demand)) or True) == 10
    assert len(asked) == 1


def test_change_during_the_decision_is_not_missed(queue: SchedulingQueue) -> None:
    """The GPU was freed while the pod was being decided about: it is tried again at once."""
    queue.set(waiting("a"))
    queue.pop_nowait()
    queue.wake(Cause.GPU, always)
    queue.wait("a", Cause.GPU)
    assert names(queue) == ["a"]


def test_gated_pod_is_not_handed_out_until_its_gate_is_gone(queue: SchedulingQueue) -> None:
    queue.set(waiting("a", schedulingGates=[{"name": "g"}]))
    queue.wake(Cause.GPU, always)
    assert names(queue) == []
    queue.set(waiting("a"))
    assert names(queue) == ["a"]


def test_own_status_patch_wakes_nobody(queue: SchedulingQueue) -> None:
    queue.set(waiting("a"))
    queue.pop_nowait()
    queue.wait("a", Cause.GPU)
    queue.set(waiting("a", metadata={"resourceVersion": "7"}))
    assert names(queue) == []
    queue.wake(Cause.GPU, always)
    woken = queue.pop_nowait()
    assert woken is not None
    assert woken.pod.metadata.resource_version == "7"


def test_edited_pod_is_tried_again(queue: SchedulingQueue) -> None:
    queue.set(waiting("a"))
    queue.pop_nowait()
    queue.wait("a", Cause.SELF)
    queue.set(waiting("a", nodeSelector={"x": "y"}))
    assert names(queue) == ["a"]


def test_pod_edited_during_its_decision_is_tried_again(queue: SchedulingQueue) -> None:
    queue.set(waiting("a"))
    queue.pop_nowait()
    queue.set(waiting("a", nodeSelector={"x": "y"}))
    queue.wait("a", Cause.SELF)
    assert names(queue) == ["a"]


def test_safety_flush_after_five_minutes(queue: SchedulingQueue, clock: StepClock) -> None:
    """A net under a missed event; a pod that only its owner can cure is not tried again."""
    for uid, causes in (("a", Cause.GPU), ("hopeless", Cause.SELF)):
        queue.set(waiting(uid))
        queue.pop_nowait()
        queue.wait(uid, causes)
    clock.advance(FLUSH_SECONDS - 1)
    assert names(queue) == []
    clock.advance(1)
    assert names(queue) == ["a"]


class QueueMachine(RuleBasedStateMachine):
    """Against a model that only knows: a pod is never lost, never handed out twice, and never too late."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = StepClock()
        self.queue = SchedulingQueue(clock=self.clock)
        self.there: dict[str, WaitingPod] = {}
        self.out: set[str] = set()
        self.due: dict[str, float] = {}  # backoff or flush: not before, and then certainly
        self.parked: dict[str, Cause] = {}
        self.attempts: Counter[str] = Counter()
        self.cured: dict[str, Cause] = {}  # of who is out: what has changed since

    uids = st.sampled_from([f"p{i}" for i in range(6)])
    causes = st.sampled_from([Cause.GPU, Cause.RULES, Cause.RESOURCES, Cause.GPU | Cause.RULES])

    @rule(uid=uids, priority=st.integers(0, 2), units=st.integers(1, 2))
    def add_or_edit(self, uid: str, priority: int, units: int) -> None:
        if uid in self.there:
            priority = self.there[uid].demand.priority
        self._set(waiting(uid, priority, units=units))

    @rule(uid=uids, spread=st.sampled_from(["1", "2", "0", "-1", "9" * 4301, ""]))
    def annotate(self, uid: str, spread: str) -> None:
        """At any time, also while it is decided about or bound: the pod alone is affected."""
        if uid in self.there:
            demand, annotations = self.there[uid].demand, {SHARES_ACROSS: spread}
            new = waiting(uid, demand.priority, units=2, metadata={"annotations": annotations})
            assert bool(new.problem) == (spread not in ("1", "2"))
            self._set(new)

    def _set(self, new: WaitingPod) -> None:
        uid = new.uid
        edited = uid in self.there and (
            self.there[uid].pod.spec != new.pod.spec or self.there[uid].pod.annotations != new.pod.annotations
        )
        self.there[uid] = new
        self.queue.set(new)
        if edited and uid not in self.out:
            self.due.pop(uid, None)
            self.parked.pop(uid, None)
        if edited and uid in self.out:
            self.edited_while_out.add(uid)

    @property
    def edited_while_out(self) -> set[str]:
        return self.__dict__.setdefault("_edited", set())

    @rule(uid=uids)
    def drop(self, uid: str) -> None:
        self.queue.drop(uid)
        for known in (self.there, self.due, self.parked, self.attempts, self.cured):
            known.pop(uid, None)
        self.out.discard(uid)
        self.edited_while_out.discard(uid)

    @rule()
    def pop(self) -> None:
        got = self.queue.pop_nowait()
        now = self.clock.monotonic()
        ready = [u for u in self.there if u not in self.out and self.due.get(u, 0) <= now]
        if got is None:
            assert not ready
            return
        assert got.uid in ready
        assert got.demand.priority == max(self.there[u].demand.priority for u in ready)
        assert got.pod.spec == self.there[got.uid].pod.spec
        assert got == self.there[got.uid]
        self.out.add(got.uid)
        self.attempts[got.uid] += 1
        self.cured[got.uid] = Cause(0)
        self.due.pop(got.uid, None)
        self.parked.pop(got.uid, None)
        self.edited_while_out.discard(got.uid)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.out)))
        self.queue.retry(uid)
        self.out.discard(uid)
        self.due[uid] = self.clock.monotonic() + min(2.0 ** (self.attempts[uid] - 1), 10)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), causes=causes)
    def refuse(self, data: st.DataObject, causes: Cause) -> None:
        uid = data.draw(st.sampled_from(sorted(self.out)))
        changed = self.cured[uid] & causes
        self.queue.wait(uid, causes)
        self.out.discard(uid)
        if not changed and uid not in self.edited_while_out:
            self.parked[uid] = causes
            self.due[uid] = float("inf")

    @rule(cures=causes, units=st.integers(0, 2))
    def change(self, cures: Cause, units: int) -> None:
        self.queue.wake(cures, lambda demand: demand.request.units <= units)
        for uid in self.out:
            self.cured[uid] |= cures
        for uid, causes in list(self.parked.items()):
            if causes & cures and self.there[uid].demand.request.units <= units:
                del self.parked[uid], self.due[uid]

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def nobody_is_lost(self) -> None:
        assert len(self.queue) == len(self.there)
        counts = self.queue.counts()
        assert counts["waiting"] == len(self.parked)
        assert counts["out"] == len(self.out)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
