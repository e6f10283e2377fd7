"""What the scheduler placed is admitted, whatever the order: the ledger refuses nothing without need."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from node_world import NodeWorld, Part, app

from gpuslice.node.grants.identity import Identity
from gpuslice.scheduler.bindorder import can_be_confused

SHAPES = [
    app(2),
    app(3),
    app(5),
    app(8),
    app(2, 3),
    app(2, 2),
    (Part("s", 2, sidecar=True), Part("c0", 3)),
    (Part("c0", whole=1),),
]
INITS = [
    (Part("i", 2, init=True), Part("c0", 2)),
    (Part("i", 2, init=True), Part("c0", 5)),
    (Part("i", 5, init=True), Part("c0", 2), Part("c1", 2)),
    (Part("i", 3, init=True), Part("j", 2, init=True), Part("c0", 3)),
]


def assert_starts(world: NodeWorld, uid: str) -> None:
    """Every container starts at the first attempt, as itself."""
    for answer in world.start(uid):
        assert isinstance(answer, Identity), answer
        assert answer.pod.uid == uid


def fill(world: NodeWorld, shapes: list[tuple[Part, ...]]) -> list[str]:
    return [uid for shape in shapes if (uid := world.create(shape)) is not None]


@given(
    st.lists(st.sampled_from(SHAPES), min_size=1, max_size=14),
    st.randoms(use_true_random=False),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_a_burst_that_was_placed_is_admitted_in_any_order(
    shapes: list[tuple[Part, ...]], random: Random, told: bool
) -> None:
    """Up to the last unit, also when kubelet hears of the pods before the agent does."""
    world = NodeWorld(8, 8, 16, 10, seed=random.randint(0, 999))
    uids = fill(world, shapes)
    if told:
        world.tell()
    for uid in random.sample(uids, len(uids)):
        assert world.admit(uid), world.failures
    for uid in random.sample(uids, len(uids)):
        assert_starts(world, uid)


@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=14), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_room_that_a_pod_leaves_is_given_to_the_next_at_once(
    shapes: list[tuple[Part, ...]], random: Random
) -> None:
    """The scheduler is woken by the end of a pod; kubelet may ask for the next before we looked again."""
    world = NodeWorld(8, 8, 16, 10, seed=random.randint(0, 999))
    uids = fill(world, shapes)
    for uid in uids:
        assert world.admit(uid)
        world.start(uid)
    leaving = random.sample(uids, random.randint(1, len(uids)))
    for uid in leaving:
        parts = world.runs[uid].parts
        world.end(uid)
        successor = world.create(parts)
        assert successor is not None
        assert world.admit(successor), world.failures
        assert_starts(world, successor)


@given(st.lists(st.sampled_from(SHAPES + INITS), min_size=1, max_size=14), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_nobody_is_turned_away_from_a_packed_node_if_binds_wait_their_turn(
    shapes: list[tuple[Part, ...]], random: Random
) -> None:
    """Up to the last unit, and with init containers, which cannot go elsewhere once they have their ids.

    Pods are bound, admitted and started as it comes, the bind of each as the binder does it.
    """
    world = NodeWorld(8, 8, 16, 10, seed=random.randint(0, 999))
    held: list[str] = []
    bound: list[str] = []
    admitted: list[str] = []
    while shapes or bound or admitted:
        step = random.choice(["create"] * bool(shapes) + ["admit"] * bool(bound) + ["start"] * bool(admitted))
        if step == "create":
            uid = world.create(shapes.pop(), bind=False)
            held += [uid] if uid else []
        elif step == "admit":
            uid = bound.pop(random.randrange(len(bound)))
            if random.random() < 0.5:
                world.tell()
            assert world.admit(uid), world.failures
            admitted.append(uid)
        else:
            assert_starts(world, admitted.pop(random.randrange(len(admitted))))
        for uid in list(held):
            request = world.cluster.pod(uid).request
            ahead = [*bound, *admitted, *held[: held.index(uid)]]
            if not any(can_be_confused(request, world.cluster.pod(other).request) for other in ahead):
                held.remove(uid)
                world.bind(uid)
                bound.append(uid)


@given(st.data(), st.integers(0, 999))
@settings(max_examples=150, deadline=None)
def test_a_burst_of_equal_pods_is_admitted_whatever_comes_between(data: st.DataObject, seed: int) -> None:
    """Deletions before and after admission, crashes and restarts: nothing holds on to room that is free.

    Which of two equal pods was admitted is not known until it starts; when it is deleted before, what it
    held must not be taken for the other's.
    """
    world, units = NodeWorld(5, 4, seed=seed), data.draw(st.integers(2, 4))
    for _ in range(data.draw(st.integers(5, 40))):
        step = data.draw(st.sampled_from(["fill", "admit", "admit", "start", "delete", "delete", "rest"]))
        waiting = sorted(u for u, run in world.runs.items() if not run.admitted)
        if step == "fill":
            while world.create(app(units)):
                pass
        elif step == "admit" and waiting:
            uid = data.draw(st.sampled_from(waiting))
            crash = data.draw(st.sampled_from([-1, -1, -1, 0]))
            assert world.admit(uid, crash_at=crash) or crash == 0, world.failures
            assert not world.failures
        elif step == "start" and (ready := sorted(u for u, run in world.runs.items() if run.admitted)):
            assert_starts(world, data.draw(st.sampled_from(ready)))
        elif step == "delete" and world.runs:
            uid = data.draw(st.sampled_from(sorted(world.runs)))
            world.runs.pop(uid)
            world.remove(uid)
        elif step == "rest":
            data.draw(st.sampled_from([world.tell, world.restart_agent, world.publish, world.reconcile]))()


@given(st.data(), st.integers(0, 999))
@settings(max_examples=100, deadline=None)
def test_rounds_of_unequal_bursts_with_deletions_between(data: st.DataObject, seed: int) -> None:
    """Also with restarts and crashes in between: every pod finds the room that its scheduler saw."""
    world = NodeWorld(8, 8, 16, 10, seed=seed)
    for _ in range(data.draw(st.integers(1, 4))):
        burst = fill(world, data.draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=12)))
        for uid in data.draw(st.permutations(burst)):
            if data.draw(st.booleans()):
                data.draw(
                    st.sampled_from([world.tell, world.restart_agent, world.reconcile, world.publish])
                )()
            if data.draw(st.integers(0, 9)) == 0:
                assert not world.admit(uid, crash_at=0)
                assert not world.failures
            assert world.admit(uid), world.failures
        for uid in data.draw(st.permutations(burst)):
            assert_starts(world, uid)
        for uid in data.draw(st.lists(st.sampled_from(sorted(world.runs)), unique=True)):
            world.runs.pop(uid)
            world.remove(uid)


def test_an_init_container_that_was_taken_for_another_leaves_its_place_to_that_one() -> None:
    """It shows itself by the next call, which takes its ids over; who waits then goes where it was planned."""
    world = NodeWorld(16, 16)
    like_first, grows, large, first = fill(
        world,
        [
            app(3),
            (Part("i", 2, init=True), Part("c0", 5)),
            app(8),
            (Part("i", 3, init=True), Part("j", 2, init=True), Part("c0", 3)),
        ],
    )
    for uid in (large, first, like_first, grows):
        assert world.admit(uid), world.failures


def test_a_gpu_changes_its_mode_as_soon_as_the_last_share_has_ended() -> None:
    """Shares out, whole in, and back: admitted and started without waiting for a look at pod-resources."""
    world = NodeWorld(8)
    for parts in (app(8), (Part("c0", whole=1),), app(3)):
        uid = world.create(parts)
        assert uid is not None
        assert world.admit(uid), world.failures
        assert_starts(world, uid)
        world.end(uid)
