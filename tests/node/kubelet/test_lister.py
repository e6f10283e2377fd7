"""One question to pod-resources for all containers that start together, and none gets an older answer."""

from __future__ import annotations

import asyncio

import pytest

from gpuslice.node.kubelet.lister import PodResourcesLister
from gpuslice.node.kubelet.messages import PodResources
from gpuslice.node.kubelet.rpc import RpcCode, RpcError


async def test_who_asks_while_a_question_is_under_way_shares_the_next() -> None:
    asked: list[asyncio.Future[tuple[PodResources, ...]]] = []
    under_way = asyncio.Event()

    async def ask() -> tuple[PodResources, ...]:
        asked.append(asyncio.get_running_loop().create_future())
        under_way.set()
        return await asked[-1]

    fresh = PodResourcesLister(ask)
    together = [asyncio.create_task(fresh.get()) for _ in range(3)]
    await under_way.wait()
    under_way.clear()
    later = [asyncio.create_task(fresh.get()) for _ in range(3)]
    asked[0].set_result(())
    assert await asyncio.gather(*together) == [(), (), ()]
    await under_way.wait()
    newer = (PodResources("default", "a", ()),)
    asked[1].set_result(newer)
    assert await asyncio.gather(*later) == [newer] * 3
    assert len(asked) == 2


async def test_a_question_that_fails_fails_for_those_who_wait_and_not_for_the_next() -> None:
    answers = [RpcError(RpcCode.UNAVAILABLE, "kubelet restarts"), None]

    async def ask() -> tuple[PodResources, ...]:
        if (error := answers.pop(0)) is not None:
            raise error
        return ()

    fresh = PodResourcesLister(ask)
    with pytest.raises(RpcError, match="kubelet restarts"):
        await fresh.get()
    assert await fresh.get() == ()
