"""The queue of waiting pods: which one is next, and what the other pods wait for.

A pod is in one of four places. `active`: to be decided now, by priority, then age. `backoff`: its last
try failed for a reason that time may cure (a bind that failed); comes back after 1 s, doubling to 10 s.
`waiting`: no node can take it; comes back when something changes that could cure exactly that. `gated`:
its owner has not released it yet. There is no polling: the only timers are backoff and a safety net.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import Final

from gpuslice.clock import Clock
from gpuslice.cluster.waiting import Demand, WaitingPod

BACKOFF_FIRST: Final = 1.0
BACKOFF_MOST: Final = 10.0
FLUSH_SECONDS: Final = 300.0
"""Waiting pods are tried again after this time in any case: a safety net for a missed event."""


class Cause(Flag):
    """Why no node could take a pod; also the kind of refusal that a change in the cluster can cure."""

    RULES = auto()
    RESOURCES = auto()
    GPU = auto()
    SELF = auto()
    """Only a change of the pod itself can help."""


NODE_CAUSES: Final = Cause.RULES | Cause.RESOURCES | Cause.GPU


class _Place(StrEnum):
    ACTIVE = auto()
    BACKOFF = auto()
    WAITING = auto()
    GATED = auto()
    OUT = auto()
    """Being decided about or bound."""


@dataclass(slots=True)
class _Entry:
    waiting: WaitingPod
    place: _Place
    sequence: int
    attempts: int = 0
    causes: Cause = Cause.SELF
    since: float = 0.0
    """When it began to wait (monotonic seconds)."""
    due: float = 0.0
    changes: int = 0
    """The number of changes before it was taken out."""
    edited: bool = False
    """The pod itself was changed since it was taken out."""


class SchedulingQueue:
    """Pods by uid. One consumer calls `pop`; everything else is synchronous."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._active: list[tuple[int, str, int, str]] = []  # -priority, created, sequence, uid
        self._due: list[tuple[float, int, str]] = []
        self._waiting: dict[Demand, dict[str, _Entry]] = {}
        self._sequence = 0
        self._changes = 0
        self._changed_at: dict[Cause, int] = {}
        self._flush_at: float | None = None
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    def counts(self) -> dict[str, int]:
        """Pods per place, for metrics."""
        counts = {str(place): 0 for place in _Place}
        for entry in self._entries.values():
            counts[str(entry.place)] += 1
        return counts

    # --- what happens to pods ---------------------------------------------------------------------
    def set(self, waiting: WaitingPod) -> None:
        """A pod that has no node appeared or changed. Changes of its status alone move nothing."""
        entry = self._entries.get(waiting.uid)
        if entry is None:
            self._sequence += 1
            entry = self._entries[waiting.uid] = _Entry(waiting, _Place.OUT, self._sequence)
            self._put(entry)
            return
        old, pod = entry.waiting.pod, waiting.pod
        if old.spec == pod.spec and old.labels == pod.labels and old.annotations == pod.annotations:
            entry.waiting = waiting
            return
        if entry.place is _Place.OUT:
            entry.waiting = waiting
            entry.edited = True
            return
        self._take_out(entry)
        entry.waiting = waiting
        self._put(entry)

    def drop(self, uid: str) -> None:
        """The pod is gone, or has its node."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._take_out(entry)

    def get(self, uid: str) -> WaitingPod | None:
        """The pod as last seen, if it is here."""
        entry = self._entries.get(uid)
        return entry.waiting if entry else None

    def pop_nowait(self) -> WaitingPod | None:
        """Take the next pod out, or None. The caller owes it `drop`, `retry` or `wait`."""
        self._promote()
        while self._active:
            item = heapq.heappop(self._active)
            if self._is_active(item):
                entry = self._entries[item[3]]
                entry.place = _Place.OUT
                entry.attempts += 1
                entry.changes = self._changes
                entry.edited = False
                return entry.waiting
        return None

    async def pop(self) -> WaitingPod:
        """Wait for the next pod and take it out."""
        while True:
            self._some.clear()
            waiting = self.pop_nowait()
            if waiting is not None:
                return waiting
            await self._sleep_until(self._next_due())

    def put_back(self, uid: str) -> None:
        """No decision was made: the pod is next again, if it is still here."""
        entry = self._entries.get(uid)
        if entry is not None and entry.place is _Place.OUT:
            entry.attempts -= 1
            self._put(entry)

    def retry(self, uid: str) -> None:
        """A try failed for a passing reason: again after the backoff."""
        entry = self._entries.get(uid)
        if entry is not None and entry.place is _Place.OUT:
            entry.place = _Place.BACKOFF
            entry.due = self._clock.monotonic() + _backoff(entry.attempts)
            heapq.heappush(self._due, (entry.due, entry.sequence, uid))
            self._some.set()

    def wait(self, uid: str, causes: Cause) -> None:
        """No node can take the pod: let it wait for a change that could cure one of the causes.

        If such a change has come since it was taken out, it is tried again at once.
        """
        entry = self._entries.get(uid)
        if entry is None or entry.place is not _Place.OUT:
            return
        if entry.edited or any(self._changed_at.get(cause, 0) > entry.changes for cause in causes):
            self._put(entry)
            return
        entry.place, entry.causes, entry.since = _Place.WAITING, causes, self._clock.monotonic()
        if self._flush_at is None:
            self._flush_at = entry.since + FLUSH_SECONDS
            self._some.set()
        self._waiting.setdefault(entry.waiting.demand, {})[uid] = entry

    def wake(self, cures: Cause, helps: Callable[[Demand], bool]) -> int:
        """A change could cure `cures`: try the pods that it helps again. Returns how many.

        `helps` is called once per distinct demand. The pods skip the backoff: what they wait for is there.
        """
        self._note(cures)
        woken = 0
        for demand, group in list(self._waiting.items()):
            able = [entry for entry in group.values() if entry.causes & cures]
            if able and helps(demand):
                for entry in able:
                    self._take_out(entry)
                    self._put(entry)
                woken += len(able)
        return woken

    # --- inside -----------------------------------------------------------------------------------
    def _note(self, cures: Cause) -> None:
        self._changes += 1
        for cause in cures:
            self._changed_at[cause] = self._changes

    def _put(self, entry: _Entry) -> None:
        if entry.waiting.pod.spec.scheduling_gates:
            entry.place = _Place.GATED
            return
        entry.place = _Place.ACTIVE
        created = entry.waiting.pod.metadata.creation_timestamp or ""
        heapq.heappush(
            self._active, (-entry.waiting.demand.priority, created, entry.sequence, entry.waiting.uid)
        )
        self._some.set()

    def _take_out(self, entry: _Entry) -> None:
        """Take the pod out of whatever place it is in; heap entries that remain are recognised as stale."""
        if entry.place is _Place.WAITING:
            group = self._waiting[entry.waiting.demand]
            del group[entry.waiting.uid]
            if not group:
                del self._waiting[entry.waiting.demand]
        entry.place = _Place.OUT

    def _is_active(self, item: tuple[int, str, int, str]) -> bool:
        entry = self._entries.get(item[3])
        return (
            entry is not None
            and entry.place is _Place.ACTIVE
            and (item[0], item[2]) == (-entry.waiting.demand.priority, entry.sequence)
        )

    def _promote(self) -> None:
        """Move the pods whose time has come."""
        now = self._clock.monotonic()
        while self._due and self._due[0][0] <= now:
            due, _, uid = heapq.heappop(self._due)
            entry = self._entries.get(uid)
            if entry is not None and entry.place is _Place.BACKOFF and entry.due == due:
                self._put(entry)
        if self._flush_at is None or now < self._flush_at:
            return
        waiting = [e for group in self._waiting.values() for e in group.values()]
        for entry in [e for e in waiting if e.since + FLUSH_SECONDS <= now and NODE_CAUSES & e.causes]:
            self._take_out(entry)
            self._put(entry)
        self._flush_at = now + FLUSH_SECONDS if self._waiting else None

    def _next_due(self) -> float | None:
        times = [self._due[0][0]] if self._due else []
        if self._flush_at is not None:
            times.append(self._flush_at)
        return min(times, default=None)

    async def _sleep_until(self, due: float | None) -> None:
        if due is None:
            await self._some.wait()
            return
        pause = due - self._clock.monotonic()
        waits = {asyncio.ensure_future(self._some.wait()), asyncio.ensure_future(self._clock.sleep(pause))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _backoff(attempts: int) -> float:
    return min(BACKOFF_FIRST * 2.0 ** min(attempts - 1, 10), BACKOFF_MOST)
