"""The only place of the end-to-end tests that lets time pass: poll until something is so, or say why it is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NotInTime(AssertionError):
    """What was waited for did not come. The message has the logs that matter."""


def wait(
    condition: Callable[[], T | None],
    timeout: float,
    what: str,
    *,
    report: Callable[[], str] = lambda: "",
    pause: float = 0.1,
) -> T:
    """Poll `condition` until it answers something true, and return that.

    After `timeout` seconds raise `NotInTime` with `what`, the last exception of the condition and `report()`. An
    exception of the condition counts as "not yet": a server that restarts refuses connections. A `NotInTime` passes
    through, so that a condition can give up before its time.
    """
    deadline = time.monotonic() + timeout
    while True:
        started = time.monotonic()
        trouble: Exception | None = None
        try:
            if answer := condition():
                return answer
        except NotInTime:
            raise
        except Exception as error:  # whatever it is, it is shown if it lasts
            trouble = error
        if time.monotonic() > deadline:
            because = f" (last: {trouble})" if trouble else ""
            raise NotInTime(f"waited {timeout:g} s for {what}{because}\n{report()}") from trouble
        # Asking about a thousand pods is work, too: never more than half of the time.
        time.sleep(max(pause, time.monotonic() - started))
