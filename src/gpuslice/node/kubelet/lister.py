"""Reads kubelet's list of who holds what, no older than the call that needs it.

Containers start by the dozen, and each needs a list that is newer than its own Allocate: all callers that
wait share one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gpuslice.node.kubelet.messages import PodResources


class PodResourcesLister:
    """`ask` calls pod-resources; one call is under way at a time."""

    def __init__(self, ask: Callable[[], Awaitable[Sequence[PodResources]]]) -> None:
        self._ask = ask
        self._current: asyncio.Task[Sequence[PodResources]] | None = None
        self._next: asyncio.Task[Sequence[PodResources]] | None = None

    async def get(self) -> Sequence[PodResources]:
        """What kubelet lists, from a request that started after this call. Raises what `ask` raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._current))
            # The callers may have been cancelled meanwhile: then nobody has to hear of the failure.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def _after(self, earlier: asyncio.Task[Sequence[PodResources]] | None) -> Sequence[PodResources]:
        if earlier is not None:
            await asyncio.wait([earlier])
        # From here on the answer may be older than a new caller needs.
        self._current, self._next = self._next, None
        return await self._ask()
