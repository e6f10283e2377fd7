"""How long to wait before the next try: exponential, capped, with jitter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """A schedule of delays in seconds: `base`, doubled per failure, at most `cap`."""

    base: float
    cap: float

    def delay(self, failures: int, random: Callable[[], float]) -> float:
        """Seconds to wait after that many failures in a row (>= 1), spread over the upper half.

        `random` answers in [0, 1): clients that failed together must not come back together.
        """
        full = min(self.cap, self.base * 2.0 ** min(failures - 1, 40))
        return full * (0.5 + 0.5 * random())
