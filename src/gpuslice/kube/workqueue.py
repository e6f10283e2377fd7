"""A queue of keys to reconcile: each at most once in the queue and at most once in work.

A key that is added while somebody works on it comes again after `done`: no change is missed, and no
two workers touch one object. Failures wait per key, exponentially and with jitter.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from gpuslice.clock import Clock
from gpuslice.kube.backoff import Backoff

Key = TypeVar("Key", bound=Hashable)

BACKOFF: Final = Backoff(base=0.01, cap=60.0)


class WorkQueue(Generic[Key]):
    """Keys in order of arrival. It holds no task of its own: an idle queue costs nothing."""

    def __init__(self, *, clock: Clock, random: Callable[[], float], backoff: Backoff = BACKOFF) -> None:
        self._clock = clock
        self._random = random
        self._backoff = backoff
        self._ready: deque[Key] = deque()
        self._dirty: set[Key] = set()  # to be worked on: those in _ready, and those in work added again
        self._working: set[Key] = set()
        self._due: dict[Key, float] = {}  # monotonic seconds; the heap's entries that disagree are stale
        self._heap: list[tuple[float, int, Key]] = []
        self._sequence = 0
        self._failures: dict[Key, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """Keys that could be worked on now."""
        return len(self._ready)

    def add(self, key: Key) -> None:
        """Have the key worked on as soon as possible."""
        self._due.pop(key, None)
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._working:
            self._ready.append(key)
            self._wake()

    def add_after(self, key: Key, seconds: float) -> None:
        """Have the key worked on in that many seconds, or earlier if something else asks for it."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + seconds
        if key in self._dirty or self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, key))
        self._wake()

    def retry(self, key: Key) -> float:
        """Add the key after its backoff, one failure longer than last time. Returns the seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        seconds = self._backoff.delay(failures, self._random)
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: Key) -> None:
        """The key went well (or is of no more interest): its next failure starts the backoff anew."""
        self._failures.pop(key, None)

    async def get(self) -> Key:
        """Wait for the next key. The caller owes a `done` for it."""
        while True:
            pause = self._promote()
            if self._ready:
                key = self._ready.popleft()
                self._dirty.discard(key)
                self._working.add(key)
                return key
            await self._wait(pause)

    def done(self, key: Key) -> None:
        """Work on the key has ended, well or not."""
        self._working.discard(key)
        if key in self._dirty:
            self._ready.append(key)
            self._wake()

    def _promote(self) -> float | None:
        """Move what is due; seconds until the next one, or None."""
        now = self._clock.monotonic()
        while self._heap:
            due, _, key = self._heap[0]
            if self._due.get(key) != due:
                heapq.heappop(self._heap)  # asked for earlier meanwhile
            elif due <= now:
                heapq.heappop(self._heap)
                self.add(key)
            else:
                return due - now
        return None

    async def _wait(self, pause: float | None) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        timer = None if pause is None else asyncio.ensure_future(self._clock.sleep(pause))
        try:
            await asyncio.wait([waiter] if timer is None else [waiter, timer], return_when="FIRST_COMPLETED")
        except asyncio.CancelledError:
            if waiter.done():
                self._wake()  # the wake was meant for somebody who can still work
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if not waiter.done():
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
