"""Time as a parameter: everything that waits or stamps takes a `Clock`, so that tests never sleep."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Final, Protocol

_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux CLOCK_MONOTONIC stands still while the machine is suspended."""


class Clock(Protocol):
    """A source of time and the only way to wait."""

    def now_ns(self) -> int:
        """Unix time in nanoseconds."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back, and goes on while the machine sleeps."""

    async def sleep(self, seconds: float) -> None:
        """Wait for that many seconds of this clock."""


class SystemClock:
    """The machine's own time."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return time.clock_gettime(_STEADY)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def happened(event: asyncio.Event, clock: Clock, seconds: float) -> bool:
    """Wait until the event is set, but no longer than so many seconds of the clock; whether it is set."""
    timer = asyncio.create_task(clock.sleep(seconds))
    waiter = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((timer, waiter), return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        waiter.cancel()
    return event.is_set()


def rfc3339(ns: int) -> str:
    """A Kubernetes `metav1.Time`: whole seconds, UTC, suffix Z."""
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(ns: int) -> str:
    """A Kubernetes `metav1.MicroTime`: six decimals, UTC, suffix Z."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{rest // 1000:06d}Z"
