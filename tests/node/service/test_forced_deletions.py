"""A pod that is deleted by force runs on for seconds, while its ids are free: nobody starts beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agent_world import GPUS, GUARD
from builders import StoppedClock
from service_world import Bench

from gpuslice.kube.wire import Pod
from gpuslice.node.kubelet.rpc import RpcError
from gpuslice.requests.kinds import SHARES, WHOLE_GPUS, Kind


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def run(bench: Bench, name: str, size: int, ids: tuple[str, ...] = (), kind: Kind = SHARES) -> Pod:
    """A pod whose container has started; kubelet makes its folder first."""
    pod = bench.api.add(name, f"uid-{name}", size, kind.resource)
    bench.service.set_pod(pod)
    (bench.pods / pod.uid).mkdir()
    await start(bench, name, ids or await bench.admit(size), kind)
    return pod


async def start(bench: Bench, name: str, ids: tuple[str, ...], kind: Kind = SHARES) -> None:
    await bench.service.allocate(kind, ids)
    bench.lister.held[name] = ids
    await bench.service.pre_start(kind, ids)


def force(bench: Bench, pod: Pod) -> None:
    """The API server and kubelet forget the pod; its processes run on."""
    del bench.lister.held[pod.name], bench.api.pods[pod.name]
    bench.service.drop_pod(pod)


async def waits(bench: Bench, name: str, ids: tuple[str, ...], kind: Kind = SHARES) -> asyncio.Task[None]:
    """The start of a container, which does not come to an end by itself."""
    task = asyncio.create_task(start(bench, name, ids, kind))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not task.done()
    assert [s["pod"] for s in bench.slices()].count(name) == 0
    return task


async def ends(bench: Bench, pod: Pod, task: asyncio.Task[None]) -> None:
    """Its last process ends, upon which the other starts."""
    (bench.pods / pod.uid).rmdir()
    async with asyncio.timeout(GUARD):
        await task


async def test_the_next_pod_with_its_ids_starts_when_it_has_ended(bench: Bench) -> None:
    """Measured: 42 of 21 GiB were in use at once, in 4 of 10 rounds."""
    old = await run(bench, "old", 14)
    ids = bench.lister.held["old"]
    force(bench, old)
    bench.service.set_pod(bench.api.add("new", "uid-new", 14))
    task = await waits(bench, "new", ids)
    other = await run(bench, "other", 5)
    assert other.name in bench.lister.held, "whoever has other ids is not held up"
    await ends(bench, old, task)
    assert {s["pod"] for s in bench.slices()} == {"new", "other"}
    await bench.service.reconcile()
    assert {h.owner.uid for h in bench.ledger.held() if h.owner} == {"uid-new", "uid-other"}


async def test_its_ids_are_the_last_that_are_preferred(bench: Bench) -> None:
    old = await run(bench, "old", 5)
    ids = bench.lister.held["old"]
    force(bench, old)
    bench.service.set_pod(bench.api.add("a", "uid-a", 14))
    bench.service.set_pod(bench.api.add("b", "uid-b", 14))
    first = await bench.admit(14)
    assert not set(first) & set(ids)
    await start(bench, "a", first)
    assert set(ids) < set(await bench.admit(14)), "rather these than none"


async def test_a_gpu_of_its_is_not_used_in_another_way_either(bench: Bench) -> None:
    old = await run(bench, "old", 1, (GPUS[0].uuid,), WHOLE_GPUS)
    force(bench, old)
    bench.service.set_pod(bench.api.add("new", "uid-new", 5))
    bench.start()  # the one that remembers is killed
    bench.service.set_pod(bench.api.add("new", "uid-new", 5))
    bench.service.sweep()
    ids = bench.ids_on(GPUS[0], 5)
    task = await waits(bench, "new", ids)
    await ends(bench, old, task)


async def test_a_start_that_waited_in_vain_says_for_whom(tmp_path: Path) -> None:
    """kubelet gives up after 30 s and tries again; a process that cannot be killed must not be forgotten."""
    bench = Bench(tmp_path, StoppedClock())
    old = await run(bench, "old", 14)
    ids = bench.lister.held["old"]
    force(bench, old)
    bench.service.set_pod(bench.api.add("new", "uid-new", 14))
    before = bench.clock.monotonic()
    with pytest.raises(RpcError, match=r"pod default/old, which was deleted by force, .*/uid-old exists"):
        await start(bench, "new", ids)
    assert bench.clock.monotonic() - before < 30
    (bench.pods / old.uid).rmdir()
    await bench.service.pre_start(SHARES, ids)


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_it_reads_of_its_slice_stays_as_long_as_it_runs(bench: Bench, restarted: bool) -> None:
    """Six containers found their slice.json empty at their start."""
    old = await run(bench, "old", 14)
    force(bench, old)
    if restarted:
        bench.start()
    await bench.service.reconcile()
    bench.service.sweep()
    assert [s["pod"] for s in bench.slices()] == ["old"]
    if not restarted:
        assert bench.ledger.held()
    (bench.pods / old.uid).rmdir()
    await bench.service.reconcile()
    bench.service.sweep()
    assert bench.slices() == []
    assert bench.ledger.held() == []


async def test_ids_that_were_given_on_and_back_are_still_in_use(bench: Bench) -> None:
    """The next pod is gone before it could start: what runs is still the first, and its GPU keeps its way."""
    old = await run(bench, "old", 14)
    ids = bench.lister.held["old"]
    force(bench, old)
    new = bench.api.add("new", "uid-new", 14)
    bench.service.set_pod(new)
    await bench.service.allocate(SHARES, ids)
    bench.lister.held["new"] = ids
    await bench.service.reconcile()
    force(bench, new)
    for _ in range(2):
        await bench.service.reconcile()
    assert [h.owner and h.owner.uid for h in bench.ledger.held()] == ["uid-old"]
    bench.service.set_pod(bench.api.add("third", "uid-third", 14))
    await ends(bench, old, await waits(bench, "third", ids))


async def test_who_ended_in_order_is_not_waited_for(bench: Bench) -> None:
    """kubelet removes a folder some time after the end, too: that the pod has ended is known from its status."""
    old = await run(bench, "old", 14)
    ids = bench.lister.held["old"]
    bench.api.pods["old"]["status"] = {"phase": "Succeeded"}
    bench.service.set_pod(bench.api.pod("old"))
    force(bench, old)
    await run(bench, "new", 14, ids)


async def test_folders_of_pods_that_have_ended_go_after_a_restart(bench: Bench) -> None:
    """Their objects can stay for days, as those of Jobs do."""
    await run(bench, "done", 5)
    bench.lister.held = {}
    bench.api.pods["done"]["status"] = {"phase": "Succeeded"}
    bench.start()
    bench.service.set_pod(bench.api.pod("done"))
    await bench.service.reconcile()
    bench.service.sweep()
    assert bench.slices() == []
    assert not any(bench.folder.iterdir())
