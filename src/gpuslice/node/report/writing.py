"""Writes to the API server until what is there is as it should be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from gpuslice.clock import Clock, happened
from gpuslice.errors import ApiError, NotFound, Unavailable
from gpuslice.kube.backoff import Backoff

BACKOFF: Final = Backoff(base=0.2, cap=15.0)

_log = structlog.get_logger(__name__)


async def keep_written(
    what: str,
    write: Callable[[], Awaitable[None]],
    wake: asyncio.Event,
    *,
    every: float | None = None,
    clock: Clock,
    random: Callable[[], float],
) -> None:
    """Write whenever `wake` is set, and at an interval in seconds if one is given, for ever.

    After a failure it is tried again, with growing delays; only the first failure is logged, under the name
    `what`.
    """
    failures = 0
    while True:
        if every is None:
            await wake.wait()
        else:
            await happened(wake, clock, every)
        wake.clear()
        try:
            await write()
            failures = 0
        except NotFound:
            continue  # deleted in this moment; the watch brings it back
        except (Unavailable, ApiError) as error:
            failures += 1
            if failures == 1:
                _log.warning("cannot be written yet", what=what, error=str(error))
            await clock.sleep(BACKOFF.delay(failures, random))
            wake.set()
