"""Work that goes on beside a block of code, and no longer than it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

Start = Callable[[str, Coroutine[None, None, None]], asyncio.Task[None]]
"""Runs something beside everything else, under a name."""


@asynccontextmanager
async def background() -> AsyncIterator[Start]:
    """Yields a function that runs things beside the block; if one fails, so does the block (in a group)."""
    from_block: Exception | None = None
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []

        def start(name: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
            task = group.create_task(work, name=name)
            tasks.append(task)
            return task

        try:
            yield start
        except Exception as error:
            from_block = error  # as it is, not in a group
        finally:
            for task in tasks:
                task.cancel()
    if from_block is not None:
        raise from_block
