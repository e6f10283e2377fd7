"""Counts repeated logs instead of writing them: logs that a stranger can provoke must not fill a disk.

The first of equal events is written at once. Those within the next minute are counted, and the first one
after it says how many there were.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

QUIET_SECONDS: Final = 60.0
REMEMBERED: Final = 256
"""Number of events that are distinguished; beyond it the one written longest ago is forgotten."""


@dataclass(slots=True)
class _Told:
    at: float
    left_out: int = 0


class Repeats:
    """Writes warnings, equal ones at most once a minute. `monotonic`: seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._told: OrderedDict[str, _Told] = OrderedDict()

    def warning(self, event: str, key: str = "", **facts: Any) -> None:
        """Write or count it. `key`: what equal events share (default: their name); no stranger chooses it."""
        key = key or event
        now = self._monotonic()
        told = self._told.get(key)
        if told is not None and now - told.at < QUIET_SECONDS:
            told.left_out += 1
            return
        if told is not None and told.left_out:
            facts["repeated"] = told.left_out
        self._told[key] = _Told(now)
        self._told.move_to_end(key)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        structlog.get_logger(__name__).warning(event, **facts)


class StandardLibrary(logging.Handler):
    """Warnings of libraries (asyncio, uvicorn, grpc), which know only `logging`: as ours, and counted.

    Those with one template are equal, whatever was filled in.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._repeats = Repeats(monotonic)

    def emit(self, record: logging.LogRecord) -> None:
        """Write or count a record."""
        try:
            facts: dict[str, Any] = {"logger": record.name}
            if record.exc_info:
                facts["exc_info"] = record.exc_info
            key = f"{record.name} {str(record.msg)[:200]}"
            self._repeats.warning(record.getMessage().strip()[:2000], key=key, **facts)
        except Exception:
            self.handleError(record)
