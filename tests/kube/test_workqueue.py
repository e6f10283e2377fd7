"""The work queue: no key twice at once, none forgotten, failures wait."""

import asyncio

from kube_fakes import ManualClock, settle

from gpuslice.kube.backoff import Backoff
from gpuslice.kube.workqueue import WorkQueue


def queue(clock: ManualClock, random: float = 1.0) -> WorkQueue[str]:
    return WorkQueue(clock=clock, random=lambda: random, backoff=Backoff(base=1.0, cap=8.0))


async def test_a_key_added_many_times_comes_once_and_in_order() -> None:
    work = queue(ManualClock())
    for key in "abaab":
        work.add(key)
    assert [await work.get(), await work.get(), len(work)] == ["a", "b", 0]


async def test_a_key_added_while_in_work_comes_again_after_done_only() -> None:
    work = queue(ManualClock())
    work.add("a")
    await work.get()
    work.add("a")
    second = asyncio.create_task(work.get())
    await settle()
    assert not second.done(), "two workers on one key"
    work.done("a")
    assert await second == "a"


async def test_a_waiting_worker_is_woken_by_an_add() -> None:
    work = queue(ManualClock())
    workers = [asyncio.create_task(work.get()) for _ in range(2)]
    await settle()
    work.add("a")
    work.add("b")
    async with asyncio.timeout(5):
        assert sorted(await asyncio.gather(*workers)) == ["a", "b"]


async def test_delayed_keys_come_when_due_and_the_earlier_wish_wins() -> None:
    clock = ManualClock()
    work = queue(clock)
    worker = asyncio.create_task(work.get())
    work.add_after("a", 30)
    work.add_after("a", 10)
    work.add_after("a", 20)
    await settle()
    clock.advance(9)
    await settle()
    assert not worker.done()
    clock.advance(1)
    async with asyncio.timeout(5):
        assert await worker == "a"
    work.done("a")
    clock.advance(100)
    rest = asyncio.create_task(work.get())
    await settle()
    assert not rest.done(), "the later wishes were the same one"
    rest.cancel()


async def test_an_add_overtakes_the_delay() -> None:
    clock = ManualClock()
    work = queue(clock)
    work.add_after("a", 30)
    work.add("a")
    assert await work.get() == "a"
    work.done("a")
    clock.advance(60)
    assert len(work) == 0


async def test_failures_back_off_per_key_up_to_the_cap_until_forgotten() -> None:
    work = queue(ManualClock())
    assert [work.retry("a") for _ in range(5)] == [1, 2, 4, 8, 8]
    assert work.retry("b") == 1
    work.forget("a")
    assert work.retry("a") == 1


async def test_jitter_takes_up_to_half_of_the_delay_off() -> None:
    assert queue(ManualClock(), random=0.0).retry("a") == 0.5


async def test_a_cancelled_worker_does_not_swallow_the_wake() -> None:
    work = queue(ManualClock())
    first, second = asyncio.create_task(work.get()), asyncio.create_task(work.get())
    await settle()
    work.add("a")
    first.cancel()
    async with asyncio.timeout(5):
        assert await second == "a"
