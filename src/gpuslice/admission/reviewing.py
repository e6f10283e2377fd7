"""Runs reviews in a thread of their own: the largest takes most of a second, too long for the event loop.

One review at a time, the smallest first, so that large reviews only hold up large ones. The number of waiting
reviews is bounded.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gpuslice.admission.mutate import review
from gpuslice.errors import Unavailable

LIMIT: Final = 3 * 1024 * 1024
"""Bytes of a review. etcd takes no object of more than 1.5 MiB; a larger review has been padded."""
LARGE: Final = 64 * 1024
"""Bytes from which on a review is large: few pods need as many, and others have been padded."""
PATIENCE_SECONDS: Final = 1.0
"""Seconds that a large review waits for its turn: after two the API server would admit the pod without our
answer."""
WAITING: Final = 64
WAITING_BYTES: Final = 8 * LIMIT
TOO_MANY: Final = "too many reviews wait; ask again"


class Reviews:
    """Answers AdmissionReviews, as `mutate.review` does."""

    def __init__(
        self,
        answer: Callable[[bytes], bytes] = review,
        *,
        waiting: int = WAITING,
        waiting_bytes: int = WAITING_BYTES,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._answer = answer
        self._most = waiting
        self._most_bytes = waiting_bytes
        self._patience = patience
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reviews")
        self._busy = False
        self._arrived = 0
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []

    async def __call__(self, body: bytes) -> bytes:
        """Raises what `mutate.review` raises, and Unavailable for a review that cannot wait for its turn."""
        if self._busy:
            turn = asyncio.get_running_loop().create_future()
            self._arrived += 1
            heapq.heappush(self._queue, (len(body), self._arrived, turn))
            self._make_room()
            try:
                async with asyncio.timeout(self._patience if len(body) >= LARGE else None):
                    await self._turn(turn)
            except TimeoutError:
                raise Unavailable(TOO_MANY) from None
        self._busy = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, body)
        finally:
            self._next()

    async def _turn(self, turn: asyncio.Future[None]) -> None:
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()  # its turn had come
            raise

    def _make_room(self) -> None:
        """Refuse the largest reviews until the remaining ones are within the bounds."""
        while len(self._queue) > self._most or sum(size for size, *_ in self._queue) > self._most_bytes:
            largest = max(self._queue)
            self._queue.remove(largest)
            heapq.heapify(self._queue)
            if not largest[2].done():
                largest[2].set_exception(Unavailable(TOO_MANY))

    def _next(self) -> None:
        self._busy = False
        while self._queue:
            turn = heapq.heappop(self._queue)[2]
            if not turn.done():
                self._busy = True
                turn.set_result(None)
                return
