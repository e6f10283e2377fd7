"""The service between kubelet's calls, pod-resources and the API server."""

from __future__ import annotations

import asyncio
import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest
from agent_world import GPUS, container
from builders import StoppedClock
from service_world import ANNOTATIONS_LIMIT, Bench

from gpuslice import names
from gpuslice.devices.inventory import NodeGpus
from gpuslice.node.grants.ledger import SETTLED_SECONDS
from gpuslice.node.kubelet.inotify import FolderWatch
from gpuslice.node.kubelet.messages import PodResources
from gpuslice.node.kubelet.rpc import RpcCode, RpcError
from gpuslice.requests.kinds import SHARES, WHOLE_GPUS


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_the_admission_of_a_known_pod_asks_the_api_server_nothing(bench: Bench) -> None:
    """gpushare 9.B.5: it listed all pending pods of the cluster at every Allocate."""
    bench.service.set_pod(bench.api.add("a", "u1", 5))
    ids = await bench.admit(5)
    answer = await bench.service.allocate(SHARES, ids)
    assert bench.api.asked == []
    assert answer.envs == {
        "NVIDIA_VISIBLE_DEVICES": GPUS[0].uuid,
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "5",
        "ALIYUN_COM_GPU_MEM_DEV": "14",
        "CGPU_DISABLE": "true",
    }
    (mount,) = answer.mounts
    assert (mount.container_path, mount.read_only) == ("/run/gpuslice", True)
    assert [folder.name for folder in bench.folder.iterdir()] == [mount.host_path.rpartition("/")[2]]


async def test_nothing_is_answered_before_all_is_known(bench: Bench) -> None:
    """kubelet knows the plugin at once; what it asks waits for the ledger."""
    bench.service.rebuilt.clear()
    bench.service.set_pod(bench.api.add("a", "u1", 5))
    ids = bench.ids_on(GPUS[0], 5)
    questions = (
        bench.admit(5),
        bench.service.allocate(SHARES, ids),
        bench.service.pre_start(SHARES, ids),
    )
    tasks = [asyncio.create_task(question) for question in questions]
    for _ in range(50):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    assert not bench.ledger.held()
    bench.lister.held = {"a": ids}
    await bench.service.reconcile()
    bench.service.rebuilt.set()
    assert not set(await tasks[0]) & set(ids), "by then it is known whose those are"
    for task in tasks:
        task.cancel()


async def test_what_waits_for_too_long_says_for_what(tmp_path: Path) -> None:
    """kubelet starts and admits nothing else in the meantime."""
    bench = Bench(tmp_path, StoppedClock())
    bench.service.rebuilt.clear()
    bench.service.lacks = "the API server is silent"
    with pytest.raises(RpcError, match="the agent has just started, and the API server is silent; try again"):
        await bench.admit(5)


async def test_an_unknown_pod_costs_one_list_of_this_node(bench: Bench) -> None:
    """The kubelet's watch can be ahead of ours; the question names the node."""
    bench.api.add("a", "u1", 5)
    await bench.service.allocate(SHARES, await bench.admit(5))
    assert bench.api.asked == ["GET /api/v1/pods"]


async def test_the_pods_are_read_before_a_choice_that_half_of_them_would_explain(bench: Bench) -> None:
    """The first list is coming in: another pod that asks for as much may be the one, and is planned elsewhere."""
    bench.complete = False
    bench.service.set_pod(bench.api.add("a", "u1", 5))
    await bench.admit(5)
    assert bench.api.asked == ["GET /api/v1/pods"]
    bench.complete = True
    await bench.admit(5)
    assert len(bench.api.asked) == 1


async def test_a_pod_made_anew_under_the_same_name_is_told_apart(bench: Bench) -> None:
    """pod-resources has no uid: the API server's answer to the correction says who it really is."""
    bench.service.set_pod(bench.api.add("same", "old", 5))
    ids = await bench.admit(5)
    await bench.service.allocate(SHARES, ids)
    bench.lister.held = {"same": ids}
    bench.api.add("same", "new", 5)
    await bench.service.pre_start(SHARES, ids)
    assert [entry["uid"] for entry in bench.slices()] == ["new"]


def full(bench: Bench, name: str, lies: dict[str, str]) -> None:
    """Fill a pod's annotations up to the API server's limit, some of ours among them."""
    annotations = bench.api.pods[name]["metadata"]["annotations"]
    annotations |= lies
    used = sum(len(key) + len(value) for key, value in annotations.items())
    annotations["filling"] = "x" * (ANNOTATIONS_LIMIT - used - len("filling"))
    bench.service.set_pod(bench.api.pod(name))


async def test_full_annotations_do_not_keep_a_lie_from_being_corrected(bench: Bench) -> None:
    """What repeats the record for gpushare's clients gives way to the record."""
    bench.service.set_pod(bench.api.add("a", "u1", 5))
    ids = await bench.admit(5)
    await bench.service.allocate(SHARES, ids)
    bench.lister.held = {"a": ids}
    full(
        bench,
        "a",
        {names.ALLOCATION: "{}", names.GPUSHARE_ALLOCATION: '{"0":{"1":5}}', names.MEM_IDX: "1" * 99},
    )
    await bench.service.pre_start(SHARES, ids)
    annotations = bench.api.pods["a"]["metadata"]["annotations"]
    assert annotations[names.ALLOCATION] == f'{{"c":{{"{GPUS[0].uuid}":5120}}}}'
    assert not {names.GPUSHARE_ALLOCATION, names.MEM_IDX} & annotations.keys()
    assert bench.told == []


async def test_a_container_whose_gpus_cannot_be_recorded_does_not_start(bench: Bench) -> None:
    """Others would be promised its room. It starts as soon as its annotations are shortened."""
    bench.service.set_pod(bench.api.add("a", "u1", 5))
    ids = await bench.admit(5)
    await bench.service.allocate(SHARES, ids)
    bench.lister.held = {"a": ids}
    full(bench, "a", {names.ALLOCATION: "{}"})
    with pytest.raises(RpcError, match="leave no room for the record of the GPUs"):
        await bench.service.pre_start(SHARES, ids)
    ((who, sentence),) = bench.told
    assert (who, "Too long" in sentence) == ("default/a", True)
    assert bench.slices() == []
    del bench.api.pods["a"]["metadata"]["annotations"]["filling"]
    bench.service.set_pod(bench.api.pod("a"))
    await bench.service.pre_start(SHARES, ids)
    assert [entry["uid"] for entry in bench.slices()] == ["u1"]


@pytest.mark.parametrize("spread", ["0", "-1", "2", "9" * 4301])
async def test_a_running_pod_whose_spread_is_edited_keeps_what_it_has(bench: Bench, spread: str) -> None:
    """Its containers may start again, and nobody else is given their ids; nor after a restart of the agent."""
    bench.service.set_pod(bench.api.add("a", "u1", 5))
    ids = await bench.admit(5)
    await bench.service.allocate(SHARES, ids)
    bench.lister.held = {"a": ids}
    await bench.service.pre_start(SHARES, ids)
    bench.api.pods["a"]["metadata"]["annotations"][names.SHARES_ACROSS] = spread
    bench.service.set_pod(bench.api.pod("a"))
    await bench.service.pre_start(SHARES, ids)
    bench.start()
    bench.service.set_pod(bench.api.pod("a"))
    await bench.service.reconcile(fresh=True)
    await bench.service.pre_start(SHARES, ids)
    bench.service.set_pod(bench.api.add("b", "u2", 5))
    assert not set(await bench.admit(5)) & set(ids)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_record_that_names_a_gpu_of_another_node_changes_no_spread(
    bench: Bench, restarted: bool
) -> None:
    """Whoever edits it between bind and admission: two GPUs were asked for, two it gets."""
    bench.api.add("a", "u1", 4)
    annotations = bench.api.pods["a"]["metadata"]["annotations"]
    annotations[names.SHARES_ACROSS] = "2"
    bench.service.set_pod(bench.api.pod("a"))
    annotations[names.ALLOCATION] = '{"c":{"GPU-of-another-node":4096}}'
    if restarted:
        bench.start()
    bench.service.set_pod(bench.api.pod("a"))
    ids = await bench.admit(4)
    await bench.service.allocate(SHARES, ids)
    bench.lister.held = {"a": ids}
    await bench.service.pre_start(SHARES, ids)
    assert [[gpu["mib"] for gpu in entry["gpus"]] for entry in bench.slices()] == [[2048, 2048]]


async def test_a_list_that_fails_when_nobody_waits_for_it_any_more_is_no_traceback(bench: Bench) -> None:
    """As at the agent's end: its calls are cancelled, then the connection to kubelet is closed."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, said: told.append(said["message"]))
    asked, closed, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def listing(*, timeout: float) -> tuple[PodResources, ...]:
        asked.set()
        await closed.wait()
        failed.set()
        raise RpcError(RpcCode.CANCELLED, "the connection was closed during the call")

    bench.lister.list = listing  # type: ignore[method-assign]
    start = asyncio.create_task(bench.service.pre_start(SHARES, bench.all[:1]))
    await asked.wait()
    start.cancel()
    await asyncio.wait([start])
    closed.set()
    await failed.wait()
    bench.start()
    del start
    gc.collect()
    assert told == []


async def test_a_start_whose_ids_two_pods_have_is_refused(bench: Bench) -> None:
    """Fail closed: nobody starts on a slice that pod-resources names twice."""
    bench.service.set_pod(bench.api.add("a", "u1", 5))
    bench.service.set_pod(bench.api.add("b", "u2", 5))
    ids = await bench.admit(5)
    await bench.service.allocate(SHARES, ids)
    bench.lister.held = {"a": ids, "b": ids}
    with pytest.raises(RpcError, match="kubelet gave ids of this container to default/a and to default/b"):
        await bench.service.pre_start(SHARES, ids)
    assert bench.slices() == []


async def test_ids_in_use_are_refused_even_if_kubelet_offers_them(bench: Bench) -> None:
    """kubelet.md: its table can forget a running pod; GetPreferredAllocation and Allocate do not."""
    bench.service.set_pod(bench.api.add("a", "u1", 5))
    ids = await bench.admit(5)
    await bench.service.allocate(SHARES, ids)
    bench.lister.held = {"a": ids}
    bench.service.set_pod(bench.api.add("b", "u2", 9))
    assert not set(await bench.admit(9)) & set(ids)
    with pytest.raises(RpcError, match="but pod default/a holds some of them already"):
        await bench.service.allocate(SHARES, ids)


async def test_a_gpu_that_is_not_what_it_was_is_given_to_nobody(bench: Bench) -> None:
    """The driver is asked at each Allocate; what was taken for the container is free again."""
    bench.service.set_pod(bench.api.add("a", "u1", 5))
    ids = await bench.admit(5)
    bench.problem = "GPU 0 has just been partitioned in another way"
    with pytest.raises(RpcError, match="has just been partitioned in another way"):
        await bench.service.allocate(SHARES, ids)
    assert not bench.ledger.held()
    bench.problem = ""
    assert await bench.service.allocate(SHARES, ids)


async def test_released_slices_lose_their_folder(bench: Bench) -> None:
    pod = bench.api.add("a", "u1", 5)
    bench.service.set_pod(pod)
    ids = await bench.admit(5)
    await bench.service.allocate(SHARES, ids)
    bench.lister.held = {"a": ids}
    await bench.service.pre_start(SHARES, ids)
    await bench.service.reconcile()
    assert len(bench.slices()) == 1
    bench.lister.held = {}
    await bench.service.reconcile()
    assert bench.ledger.held(), "kubelet lists it no more, but the API server has it"
    bench.service.drop_pod(pod)
    await bench.service.reconcile()
    assert bench.ledger.held() == []
    assert not any(bench.folder.iterdir())


async def test_a_reboot_that_numbers_the_gpus_anew_shows_the_same_gpu(bench: Bench) -> None:
    """gpushare 9.B.9: kubelet uses the environment of before the reboot, which named the GPU by its number."""
    bench.service.set_pod(bench.api.add("a", "u1", 5))
    ids = await bench.admit(5)
    answer = await bench.service.allocate(SHARES, ids)
    uuid = answer.envs[names.VISIBLE_DEVICES]
    assert uuid in {gpu.uuid for gpu in GPUS}
    bench.lister.held["a"] = ids
    await bench.service.pre_start(SHARES, ids)
    before = next(gpu.index for gpu in GPUS if gpu.uuid == uuid)
    turned = tuple(replace(gpu, index=len(GPUS) - 1 - gpu.index) for gpu in GPUS)
    bench.service.set_gpus(NodeGpus(tuple(sorted(turned, key=lambda gpu: gpu.index))))
    await bench.service.pre_start(SHARES, ids)  # kubelet starts it again without a new Allocate
    (slice_,) = bench.slices()
    (part,) = slice_["gpus"]
    assert part["uuid"] == uuid
    assert part["index"] == len(GPUS) - 1 - before != before


@pytest.mark.parametrize("kernel", [True, False])
async def test_a_folder_watch_sees_what_comes_and_goes(
    tmp_path: Path, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By inotify, or by looking where there is none."""
    if not kernel:
        monkeypatch.setattr("gpuslice.node.kubelet.inotify.sys.platform", "other")
    seen = asyncio.Event()
    watch = FolderWatch(tmp_path, ("x",), seen.set)
    try:
        assert watch.instant == kernel
        name = tmp_path / "x"
        for change in (name.touch, name.unlink):
            seen.clear()
            change()
            async with asyncio.timeout(5):
                await seen.wait()
        seen.clear()
        os.rmdir(tmp_path)  # noqa: PTH106
        async with asyncio.timeout(5):
            await seen.wait()
        assert not watch.instant
    finally:
        watch.close()


async def test_a_folder_watch_does_not_wake_for_what_nobody_waits_for(tmp_path: Path) -> None:
    """A kubelet's checkpoint lies in the same folder and changes at every start of a container."""
    seen: list[bool] = []
    waited = asyncio.Event()
    mine = FolderWatch(tmp_path, ("mine",), lambda: seen.append((tmp_path / "mine").exists()))
    last = FolderWatch(tmp_path, ("last",), waited.set)
    try:
        if not mine.instant:
            pytest.skip("this system does not tell names")
        (tmp_path / "other").touch()
        (tmp_path / "other").rename(tmp_path / "another")
        (tmp_path / "mine").touch()
        (tmp_path / "last").touch()
        async with asyncio.timeout(5):
            await waited.wait()
        assert seen == [True]
    finally:
        mine.close()
        last.close()


async def test_a_kubelet_learns_where_a_device_is_near_and_why_an_id_is_refused(tmp_path: Path) -> None:
    """As from NVIDIA's plugin: a NUMA node with each device, and the same words for an id that nobody has."""
    world = Bench(tmp_path)
    near = tuple(replace(gpu, numa_node=gpu.index if gpu.index else None) for gpu in GPUS)
    world.service.set_gpus(NodeGpus(near))
    assert [(one.id, one.numa) for one in world.service.devices(WHOLE_GPUS)] == [
        (GPUS[0].uuid, ()),
        (GPUS[1].uuid, (1,)),
    ]
    assert not any(one.numa for one in world.service.devices(SHARES)), "the message has a limit"
    with pytest.raises(RpcError, match=r'for "nvidia.com/gpu": invalid request: unknown device: GPU-nope;'):
        await world.service.allocate(WHOLE_GPUS, ("GPU-nope",))


async def test_ids_of_a_pod_that_was_turned_away_unseen_are_free_again_soon(tmp_path: Path) -> None:
    """It came and went while the watch was cut: a real node kept its ids and its folder for 90 s."""
    clock = StoppedClock()
    bench = Bench(tmp_path, clock)
    await bench.service.allocate(SHARES, bench.ids_on(GPUS[0], 5))
    await clock.sleep(SETTLED_SECONDS)
    bench.api.away = True
    await bench.service.release()
    assert len(bench.ledger.held()) == 1, "nobody says that it is gone"
    bench.api.away = False
    assert bench.ledger.lingers(bench.service.pods), "so it is looked at again soon"
    await bench.service.release()
    assert not bench.ledger.held()
    assert not list(bench.folder.iterdir())


async def test_ids_of_a_pod_that_the_watch_has_not_told_of_stay(tmp_path: Path) -> None:
    clock = StoppedClock()
    bench = Bench(tmp_path, clock)
    ids = bench.ids_on(GPUS[0], 5)
    bench.api.add("a", "u1", 7)
    bench.api.pods["a"]["spec"]["initContainers"] = [container("prepare", 5)]
    await bench.service.allocate(SHARES, ids)
    await clock.sleep(SETTLED_SECONDS)
    await bench.service.release()
    assert [h.ids for h in bench.ledger.held()] == [frozenset(ids)], (
        "an init container's ids are never listed"
    )
