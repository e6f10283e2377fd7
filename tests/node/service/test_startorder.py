"""Init and app container with the same ids: each reads its own name in slice.json."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from builders import StoppedClock

from gpuslice.kube.wire import Pod
from gpuslice.node.service.startorder import StartOrder, first_to_start

BEGINS = {"waiting": {"reason": "PodInitializing"}}
RUNS = {"running": {}}
DONE = {"terminated": {"exitCode": 0}}
DIED = {"terminated": {"exitCode": 1}}
WAITS = {"waiting": {"reason": "CrashLoopBackOff"}}


def pod(*states: dict[str, Any]) -> Pod:
    """Its init containers i0, i1, ... and main have the same ids."""
    inits = [{"name": f"i{n}"} for n in range(len(states))]
    statuses = [{"name": f"i{n}", "state": state} for n, state in enumerate(states)]
    body = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "main"}], "initContainers": inits},
        "status": {"initContainerStatuses": statuses},
    }
    return msgspec.convert(body, Pod)


@pytest.mark.parametrize(
    ("states", "last", "starts"),
    [
        ([BEGINS], "", "i0"),
        ([DONE], "i0", "main"),
        ([DONE], "", "main"),
        ([DONE], "main", "main"),
        ([DIED], "i0", "i0"),
        ([WAITS], "i0", "i0"),
        ([RUNS], "i0", ""),
        ([BEGINS], "i0", ""),
        ([RUNS], "", ""),
        ([BEGINS], "main", "i0"),  # the pod begins anew
        ([DONE, BEGINS], "i0", "i1"),
        ([RUNS, BEGINS], "i0", ""),
        ([DONE, DONE], "i1", "main"),
    ],
)
def test_it_is_the_first_that_has_not_completed(states: list[dict[str, Any]], last: str, starts: str) -> None:
    found = pod(*states)
    names = [f"i{n}" for n in range(len(states))] + ["main"]
    assert first_to_start(found, names, last, sure=True) == starts


async def test_a_status_that_is_older_than_the_call_is_waited_for() -> None:
    """kubelet starts the next container before the API server knows that the one before has ended."""

    class Still(StoppedClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.Event().wait()

    known = {"u": pod(BEGINS)}
    same_ids = StartOrder(known.get, lambda _key: asyncio.sleep(0, True), Still())
    assert await same_ids.which(known["u"], ["i0", "main"]) == "i0"
    known["u"] = pod(RUNS)
    starts = asyncio.create_task(same_ids.which(known["u"], ["i0", "main"]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not starts.done()
    known["u"] = pod(DONE)
    same_ids.told()
    assert await starts == "main"


async def test_a_failure_of_before_is_not_taken_for_one_of_now() -> None:
    """The init container failed once and then did its work, which only the API server knows so far."""
    known = {"u": pod(BEGINS)}

    async def fetch(_key: str) -> bool:
        known["u"] = pod(DONE)
        return True

    same_ids = StartOrder(known.get, fetch, StoppedClock())
    assert await same_ids.which(known["u"], ["i0", "main"]) == "i0"
    known["u"] = pod(WAITS)
    assert await same_ids.which(known["u"], ["i0", "main"]) == "main"


async def test_without_news_the_next_one_is_meant() -> None:
    known = {"u": pod(RUNS)}
    same_ids = StartOrder(known.get, lambda _key: asyncio.sleep(0, False), StoppedClock())
    assert await same_ids.which(pod(BEGINS), ["i0", "main"]) == "i0"
    assert await same_ids.which(known["u"], ["i0", "main"]) == "main"
