"""Each defect of gpushare's extender (named 9.A.n in its description) as its users met it, against our answers.

Everything goes through the bytes that kube-scheduler sends and gets. Some defects show at other doors and are
tested there: 9.A.7 and 9.A.9 also in tests/scheduler/test_binder.py, 9.A.8 and 9.A.16 in
test_extender_service.py, 9.A.15 in test_waking.py, 9.A.17 in test_extender_http.py.
"""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from builders import agent_node, plain_node, pod
from test_extender_answers import World, args, with_version

from gpuslice import names
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Pod


@pytest.fixture
def world() -> World:
    return World()


def fits(world: World, one: Pod, *nodes: str) -> list[str]:
    answer = world.filter(one, list(nodes))
    assert answer["Error"] == ""
    found: list[str] = answer["NodeNames"]  # type: ignore[assignment]
    return found


async def shown(world: World, node: str) -> dict[str, object]:
    _, body = await world.extender.inspect(node)
    found: dict[str, object] = json.loads(body)["nodes"][0]
    return found


async def test_9a1_an_overcommitted_gpu_has_no_room_at_all(world: World) -> None:
    """gpushare: used 20 of 15 in unsigned numbers left 2**64 - 5 units; a pod of a million was let in."""
    world.cluster.set_node(plain_node("n", 15, 1))
    for name in ("a", "b"):
        world.cluster.set_pod(pod(name, 10, node="n", index=0, phase="Running"))
    assert fits(world, pod("million", 1_000_000), "n") == []
    assert fits(world, pod("one", 1), "n") == []
    one = with_version(pod("one", 1))
    world.api.add(one)
    assert await world.bind(one, "n") == (500, "Insufficient GPU Memory in one device")
    assert (await shown(world, "n"))["usedGPU"] == 20


def test_9a2_a_pod_recreated_under_its_name_leaks_nothing(world: World) -> None:
    """gpushare: five force-deleted incarnations of a StatefulSet's pod filled a GPU with nobody alive."""
    world.cluster.set_node(plain_node("n", 15, 1))
    for generation in range(5):
        world.cluster.set_pod(pod("db-0", 3, uid=f"u{generation}", node="n", index=0, phase="Running"))
        if generation:
            world.cluster.drop_pod(f"u{generation - 1}")
    assert fits(world, pod("a", 12), "n") == ["n"]
    world.cluster.drop_pod("u4")
    assert fits(world, pod("a", 15), "n") == ["n"]


async def test_9a3_the_cluster_may_change_while_it_is_being_shown(world: World) -> None:
    """gpushare: maps shared by goroutines without a lock; removals were lost, and the process could die."""
    for number in range(60):
        world.cluster.set_node(plain_node(f"n{number:02}", 15, 1))
    showing = asyncio.create_task(world.extender.inspect())
    await asyncio.sleep(0)
    assert not showing.done()
    for number in range(20, 60):
        world.cluster.drop_node(f"n{number:02}")
    world.cluster.set_node(plain_node("another", 15, 1))
    _, body = await showing
    shown_names = [node["name"] for node in json.loads(body)["nodes"]]
    assert shown_names == [f"n{number:02}" for number in range(20)]


def test_9a4_a_terminating_pod_holds_its_memory_until_its_containers_have_ended(world: World) -> None:
    """gpushare: freed at deletionTimestamp; the next pod ran out of memory beside the old process."""
    world.cluster.set_node(plain_node("n", 15, 1))
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 300}
    world.cluster.set_pod(pod("old", 10, node="n", index=0, phase="Running", **leaving))
    assert fits(world, pod("new", 10), "n") == []
    ended = [{"name": "c0", "state": {"terminated": {"exitCode": 0}}}]
    world.cluster.set_pod(
        pod("old", 10, node="n", index=0, phase="Succeeded", containerStatuses=ended, **leaving)
    )
    assert fits(world, pod("new", 10), "n") == ["n"]


async def test_9a5_new_gpus_are_seen_and_deleted_nodes_forgotten(world: World) -> None:
    """gpushare: 2 x 15 stayed 2 x 15 when the machine got one GPU of 80; deleted nodes stayed in inspect."""
    world.cluster.set_node(plain_node("n", 30, 2))
    assert fits(world, pod("a", 40), "n") == []
    world.cluster.set_node(plain_node("n", 80, 1))
    assert fits(world, pod("a", 40), "n") == ["n"]
    assert [dev["totalGPU"] for dev in (await shown(world, "n"))["devs"]] == [80]  # type: ignore[attr-defined]
    world.cluster.drop_node("n")
    answer = world.filter(pod("a", 40), ["n"])
    assert answer["FailedNodes"] == {"n": 'node "n" not found'}
    assert json.loads((await world.extender.inspect())[1]) == {"nodes": []}


def test_9a5_the_order_in_which_a_booting_node_reports_does_not_matter(world: World) -> None:
    """gpushare: gpu-count before gpu-mem left devices of size 0 for ever."""
    world.cluster.set_node(plain_node("n", 0, 2))
    assert fits(world, pod("a", 15), "n") == []
    world.cluster.set_node(plain_node("n", 30, 2))
    assert fits(world, pod("a", 15), "n") == ["n"]


def test_9a6_a_pod_on_a_vanished_node_stops_nobody(world: World) -> None:
    """gpushare: a crash loop at start, so that no GPU pod of the whole cluster was scheduled."""
    world.cluster.set_pod(pod("lost", 5, node="gone", index=0, phase="Running"))
    world.cluster.set_node(plain_node("n", 15, 1))
    assert fits(world, pod("a", 15), "gone", "n") == ["n"]
    world.cluster.set_node(plain_node("gone", 15, 1))
    assert fits(world, pod("a", 11), "gone") == []  # back again, with its pod


async def test_9a7_a_second_bind_leaves_a_bound_pods_annotations_alone(world: World) -> None:
    """gpushare patched the annotations before the binding; a retry moved a running pod on paper."""
    for name in ("n", "m"):
        world.cluster.set_node(agent_node(name, 15))
    one = with_version(pod("a", 5))
    world.api.add(one)
    assert (await world.bind(one, "n"))[0] == 200
    first = world.api.bindings[0]
    bound = with_version(pod("a", 5, node="n", index=0))
    world.api.add(bound)
    world.cluster.set_pod(bound)
    assert await world.bind(one, "n") == (200, "")
    assert (await world.bind(one, "m"))[0] == 500
    assert world.api.bindings == [first]
    assert world.api.writes == 1


async def test_9a9_sixty_binds_wait_for_nothing_but_the_api_server(world: World) -> None:
    """gpushare: 2.5 binds a second by its client's throttle; 45 of 60 ran over kube-scheduler's 5 s."""
    world.cluster.set_node(agent_node("n", *[60] * 8))
    pods = [with_version(pod(f"p{number}", 8)) for number in range(56)]
    for one in pods:
        world.api.add(one)
        world.filter(one, ["n"])
    answers = await asyncio.gather(*(world.bind(one, "n") for one in pods))
    assert set(answers) == {(200, "")}
    assert world.api.most_at_once == 56
    assert world.api.writes == 56


@pytest.mark.parametrize(("text", "left"), [("", 2), ("1, x", 1), ("x", 2), (" 0 ,1", 0), ("7,-1", 2)])
def test_9a11_a_word_that_is_no_index_disables_no_gpu(world: World, text: str, left: int) -> None:
    """gpushare took every word that is no number, even none at all, for GPU 0."""
    world.cluster.set_node(plain_node("n", 30, 2))
    world.cluster.set_unhealthy("n", text)
    assert fits(world, pod("a", 15), "n") == (["n"] if left else [])
    gpus = world.cluster.gpus("n")
    assert gpus is not None
    assert sum(gpu.available for gpu in gpus.gpus) == left


@pytest.mark.parametrize("index", [None, "9", "-1", "x"])
async def test_9a12_a_pod_whose_gpu_nobody_knows_still_counts(world: World, index: str | None) -> None:
    """gpushare did not see it, and gave its memory away a second time."""
    world.cluster.set_node(plain_node("n", 15, 1))
    world.cluster.set_pod(pod("stranger", 10, node="n", index=index, phase="Running"))
    assert fits(world, pod("a", 6), "n") == []
    assert fits(world, pod("a", 5), "n") == ["n"]
    assert b"gpuslice_cluster_pods_without_known_gpu 1.0" in await world.extender.metrics()


def test_9a14_packing_goes_across_nodes_even_when_they_differ_by_one_small_pod(world: World) -> None:
    """gpushare had no prioritize. On kube-scheduler's scale of 0..10 small differences must not vanish."""
    world.cluster.set_node(plain_node("empty", 30, 2))
    world.cluster.set_node(plain_node("used", 30, 2))
    world.cluster.set_pod(pod("x", 1, node="used", index=0, phase="Running"))
    body = args(pod("a", 15), ["empty", "used"])
    assert json.loads(world.extender.prioritize(body)) == [
        {"Host": "empty", "Score": 0},
        {"Host": "used", "Score": 10},
    ]


def test_9a18_pods_without_gpus_are_not_kept() -> None:
    """gpushare kept every pod and every ConfigMap of the cluster."""
    world = World()
    world.cluster.set_node(plain_node("n", 15, 1))
    world.cluster.set_pod(pod("web", 0, node="n", phase="Running"))
    assert world.cluster.pod("uid-web") is None
    feed = ClusterFeed(Client(world.api), world.cluster, clock=world.clock, random=lambda: 1.0)
    asyncio.run(_first_requests(feed))
    configs = [path for path in world.api.listed if path.endswith("/configmaps")]
    assert configs == ["/api/v1/namespaces/kube-system/configmaps"]


async def _first_requests(feed: ClusterFeed) -> None:
    running = asyncio.create_task(feed.run())
    async with asyncio.timeout(5):
        await feed.wait_synced()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_9a19_init_containers_and_bare_requests_count_in_filter_already(world: World) -> None:
    """gpushare: filter let them pass everywhere and the bind failed with 500."""
    world.cluster.set_node(plain_node("small", 4, 1))
    world.cluster.set_node(plain_node("large", 15, 1))
    amount = {names.GPU_MEM: "8"}
    for containers in (
        {"initContainers": [{"name": "i", "resources": {"limits": amount}}], "containers": [{"name": "c"}]},
        {"containers": [{"name": "c", "resources": {"requests": amount}}]},
    ):
        one = msgspec.convert({"metadata": {"name": "a", "uid": "u"}, "spec": containers}, Pod)
        assert fits(world, one, "small", "large") == ["large"]
