"""The binder: one atomic request, and no lost answer ever promises the same memory twice."""

import asyncio
import random

from binder_world import GPU_MIB, World, settle
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuslice import names
from gpuslice.cluster.podcode import PodCode
from gpuslice.placement.verdict import Code, Verdict


async def test_one_request_carries_node_annotations_and_preconditions() -> None:
    """uid, resourceVersion, target and gpushare's annotations travel in a single POST."""
    world = World()
    pod = world.create("a", 5)
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    (request,) = world.waiting
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/default/pods/a/binding")
    meta = request.body["metadata"]
    assert (meta["uid"], meta["resourceVersion"]) == (pod.uid, pod.metadata.resource_version)
    assert meta["annotations"][names.MEM_IDX] == "0"
    assert meta["annotations"][names.MEM_POD] == "5"
    assert meta["annotations"][names.MEM_ASSIGNED] == "false"
    world.serve()
    assert (await bind).code is PodCode.BOUND
    assert world.posts == 1


async def test_reserves_before_anything_else_runs() -> None:
    """`start` returns with the GPU already taken, so the next decision counts it."""
    world = World()
    world.binder.start(world.create("a", 8), "n1")
    world.binder.start(world.create("b", 8), "n1")
    third = world.binder.start(world.create("c", 8), "n1")
    assert third.done()
    assert third.result().code is Code.INSUFFICIENT
    await world.binder.aclose()


async def test_bound_already_to_the_same_node_is_a_success() -> None:
    """A retry after a timeout finds the pod bound by the first request and changes nothing."""
    world = World()
    pod = world.create("a", 5)
    first = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    world.serve()
    await first
    annotations = world.get("a").annotations
    again = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    world.serve()  # the POST: 409
    await settle()
    world.serve()  # the look at the pod
    assert (await again).code is PodCode.BOUND
    assert world.get("a").annotations == annotations


async def test_bound_elsewhere_is_a_refusal_that_gives_the_memory_back() -> None:
    """Somebody else was faster with another node."""
    world = World()
    pod = world.create("a", 5)
    world.pods["a"]["spec"]["nodeName"] = "n2"
    world.touch("a")
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    for _ in range(2):
        await settle()
        world.serve()
    assert (await bind).code is PodCode.ALREADY_BOUND
    assert world.cluster.pod(pod.uid) is None


async def test_stale_version_is_read_again_and_bound() -> None:
    """The pod was touched between the decision and the bind."""
    world = World()
    pod = world.create("a", 5)
    world.touch("a")
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    for _ in range(3):
        await settle()
        world.serve()
    assert (await bind).code is PodCode.BOUND


async def test_gone_pod_gives_its_memory_back() -> None:
    world = World()
    pod = world.create("a", 5)
    world.delete("a")
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    for _ in range(2):
        await settle()
        world.serve()
    assert (await bind).code is PodCode.WRONG_POD
    assert world.cluster.pod(pod.uid) is None


async def test_same_name_recreated_is_not_bound() -> None:
    """A StatefulSet's new pod under the old name is another pod."""
    world = World()
    pod = world.create("a", 5)
    world.delete("a")
    world.create("a", 5)
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    for _ in range(2):
        await settle()
        world.serve()
    assert (await bind).code is PodCode.WRONG_POD
    assert not world.bound_ever


async def test_forbidden_is_a_plain_failure() -> None:
    """A certain no needs no second look: the reservation is rolled back at once."""
    world = World()
    pod = world.create("a", 5)
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    world.refuse(403)
    verdict = await bind
    assert verdict == Verdict(PodCode.API_FAILED, "binding failed: not today")
    assert world.cluster.pod(pod.uid) is None


async def test_lost_answer_keeps_the_reservation_and_learns_the_truth() -> None:
    """The server bound the pod, the connection broke: the caller still hears BOUND."""
    world = World()
    pod = world.create("a", 5)
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    world.lose_answer()
    await settle()
    assert world.cluster.pod(pod.uid) is not None
    world.serve()
    assert (await bind).code is PodCode.BOUND
    assert world.posts == 1


async def test_undecided_bind_answers_but_keeps_the_memory_until_the_truth_is_known() -> None:
    """API server away: the caller is told, the GPU stays taken until the lost request is fenced off."""
    world = World()
    pod = world.create("a", 8)
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    world.lose_request()
    for _ in range(3):
        await settle()
        world.lose_request()
        await settle()
        world.clock.advance(5)
    assert (await bind).code is PodCode.API_FAILED
    assert world.cluster.pod(pod.uid) is not None
    for _ in range(2):  # the API server is back: a look, then the fence
        await settle()
        world.serve()
    await settle()
    assert world.cluster.pod(pod.uid) is None
    while world.ghosts:  # the late binding arrives at last
        world.land()
    assert not world.bound_ever


async def test_cancelled_caller_does_not_stop_the_bind() -> None:
    """A client that hangs up changes nothing about what is true."""
    world = World()
    pod = world.create("a", 5)
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    bind.cancel()
    await settle()
    world.serve()
    await settle()
    assert world.bound_ever == {(pod.uid, "n1")}
    assert world.cluster.pod(pod.uid) is not None


async def test_who_leads_no_more_does_not_try_again() -> None:
    """Another one decides by now: what may be on its way is fenced, and the room is given back."""

    class Former:
        leads = False
        why = ""

        async def run(self) -> None:
            return

    world = World()
    bind = asyncio.create_task(world.binder.bind(world.create("a", 8), "n1"))
    await settle()
    world.lose_request()
    world.cluster.gate.leadership = Former()
    await settle()
    world.serve()  # the look at the pod
    await settle()
    assert world.waiting[0].method == "PATCH"
    world.serve()
    assert (await bind).code is PodCode.API_FAILED
    world.land()
    assert (world.posts, world.get("a").spec.node_name) == (1, "")
    assert world.cluster.pod(world.get("a").uid) is None
    refused = world.binder.start(world.create("b", 8), "n1")
    assert refused.result().code is PodCode.NOT_READY


async def test_second_bind_to_another_node_waits_for_the_first() -> None:
    """Two binds of one pod never overlap, and only one of them wins."""
    world = World()
    pod = world.create("a", 5)
    first = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    second = asyncio.create_task(world.binder.bind(pod, "n2"))
    await settle()
    assert len(world.waiting) == 1
    world.serve()
    await settle()
    world.serve()
    assert (await first).code is PodCode.BOUND
    assert (await second).code is PodCode.ALREADY_BOUND


async def test_pod_that_vanished_unseen_is_found_by_the_audit() -> None:
    """Bound, then deleted while the feed was away: nobody will ever report it, so somebody must look."""
    world = World()
    pod = world.create("a", 5)
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    world.serve()
    await bind
    world.delete("a")
    world.clock.advance(61)
    audit = asyncio.create_task(world.binder.audit())
    await settle()
    world.serve()
    await audit
    assert world.cluster.pod(pod.uid) is None


async def test_pod_without_gpu_is_bound_without_annotations() -> None:
    world = World()
    pod = world.create("a", 0)
    bind = asyncio.create_task(world.binder.bind(pod, "n1"))
    await settle()
    assert "annotations" not in world.waiting[0].body["metadata"]
    world.serve()
    assert (await bind).code is PodCode.BOUND


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), steps=st.integers(20, 120))
@example(seed=305, steps=63)  # old news of a pod, and the reservation of another at its place
def test_never_double_books_whatever_the_network_does(seed: int, steps: int) -> None:
    """Delays, losses before and after the effect, 5xx, 409s, deletions, recreations, a lagging feed."""
    asyncio.run(_chaos(random.Random(seed), steps))


async def _chaos(dice: random.Random, steps: int) -> None:
    world = World()
    known = {f"p{i}": world.create(f"p{i}", dice.choice([3, 5, 6, 8, 10])) for i in range(6)}
    binds: list[tuple[str, str, asyncio.Task[Verdict]]] = []

    def anything(options: list[object]) -> int:
        return dice.randrange(len(options))

    for _ in range(steps):
        name = f"p{dice.randrange(6)}"
        match dice.choices(range(10), weights=[20, 25, 8, 8, 3, 8, 4, 4, 15, 10])[0]:
            case 0:
                node = dice.choice(["n1", "n2"])
                pod = known[name]
                binds.append((pod.uid, node, asyncio.create_task(world.binder.bind(pod, node))))
            case 1 if world.waiting:
                world.serve(anything(world.waiting))
            case 2 if world.waiting:
                world.lose_answer(anything(world.waiting), dice.choice([0, 500, 504]))
            case 3 if world.waiting:
                world.lose_request(anything(world.waiting), dice.choice([0, 503]))
            case 4 if world.waiting:
                world.refuse(dice.choice([403, 409, 429]), anything(world.waiting))
            case 5 if world.ghosts:
                world.land(anything(world.ghosts))
            case 6 if name in world.pods:
                known[name] = world.touch(name)
            case 7:
                if name in world.pods:
                    world.delete(name)
                else:
                    known[name] = world.create(name, dice.choice([3, 5, 8]))
            case 8 if world.feed:
                world.tell_one()
            case 9:
                world.clock.advance(dice.choice([0.1, 1.0]))
            case _:
                pass
        if dice.random() < 0.7:
            await settle()
        _check_not_double_booked(world)

    for _ in range(400):  # calm weather: everything lands, everything is answered
        while world.ghosts:
            world.land()
        while world.waiting:
            world.serve()
        world.clock.advance(5)
        await settle()
        _check_not_double_booked(world)
        if all(task.done() for _, _, task in binds) and not world.binder.busy:
            break
    while world.feed:
        world.tell_one()
    for uid, node, task in binds:
        verdict = await task
        assert verdict.code is not PodCode.BOUND or (uid, node) in world.bound_ever
    alive = {p["metadata"]["uid"]: p["spec"].get("nodeName") for p in world.pods.values()}
    for uid in {uid for uid, _, _ in binds} | set(alive):
        record = world.cluster.pod(uid)
        assert (record.node if record else None) == alive.get(uid), "leaked or lost reservation"


def _check_not_double_booked(world: World) -> None:
    for gpu, mib in world.promised().items():
        assert mib <= GPU_MIB, f"{gpu} is promised twice: {mib} MiB"
