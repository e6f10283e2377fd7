"""GPUs on paper change when their file does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent_world import GPUS, SimulatedBackend

from gpuslice.devices.inventory import Gpu
from gpuslice.errors import InputError
from gpuslice.node.discovery.following import follow


class Steps:
    """A clock whose sleepers wait for `step`."""

    def __init__(self) -> None:
        self._turn: asyncio.Queue[None] = asyncio.Queue()
        self.asleep = asyncio.Event()

    def now_ns(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.asleep.set()
        await self._turn.get()
        self.asleep.clear()

    async def step(self) -> None:
        await self.asleep.wait()
        self.asleep.clear()
        self._turn.put_nowait(None)
        await self.asleep.wait()


def load(path: Path) -> tuple[Gpu, ...]:
    count = path.read_text().strip()
    if not count.isdecimal():
        raise InputError(f"{count!r} is no number of GPUs")
    return GPUS[: int(count)]


async def test_a_file_is_followed_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "devices"
    path.write_text("1\n")
    backend, clock = SimulatedBackend(GPUS[:1]), Steps()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        following = group.create_task(follow(path, load, backend.set_gpus, clock=clock))
        await clock.asleep.wait()
        path.write_text("broken")
        await clock.step()
        assert backend.gpus() == GPUS[:1]
        path.write_text("2     \n")
        await clock.step()
        assert backend.gpus() == GPUS
        await backend.changed()
        following.cancel()
