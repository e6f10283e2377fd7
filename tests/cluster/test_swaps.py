"""Equal pods that the node swaps: at no moment between the corrections does room appear that is not there."""

from __future__ import annotations

import msgspec
from builders import StoppedClock, agent_node, pod
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice import names
from gpuslice.cluster.state import Cluster
from gpuslice.kube.wire import Pod

GPU = st.integers(0, 2)


def at(name: str, gpu: int, units: int, *, assigned: bool) -> Pod:
    return pod(
        name,
        units,
        node="a",
        annotations={
            names.ALLOCATION: msgspec.json.encode({"c0": {f"GPU-a-{gpu}": units * 1024}}).decode(),
            names.MEM_ASSIGNED: "true" if assigned else "false",
        },
    )


def spread(name: str, containers: list[tuple[int, int]], *, assigned: bool) -> Pod:
    """A pod of containers of so many GiB on these GPUs."""
    record = {f"c{n}": {f"GPU-a-{gpu}": units * 1024} for n, (units, gpu) in enumerate(containers)}
    annotations = {
        names.ALLOCATION: msgspec.json.encode(record).decode(),
        names.MEM_ASSIGNED: "true" if assigned else "false",
    }
    return pod(name, tuple(units for units, _ in containers), node="a", annotations=annotations)


def used(cluster: Cluster) -> list[int]:
    view = cluster.snapshot("a")
    assert view is not None
    return [gpu.used_mib // 1024 for gpu in view.gpus]


def test_the_place_that_a_swapped_pod_left_is_not_given_away() -> None:
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("a", 10, 10))
    cluster.set_pod(at("one", 0, 6, assigned=False))
    cluster.set_pod(at("two", 1, 6, assigned=False))
    cluster.set_pod(at("one", 1, 6, assigned=True))
    assert used(cluster) == [6, 6]
    assert not cluster.check(cluster.request_of(pod("new", 6)), "a").ok
    cluster.set_pod(at("two", 0, 6, assigned=True))
    assert used(cluster) == [6, 6]


def test_a_pod_that_truly_moved_to_free_room_leaves_its_place_free() -> None:
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("a", 10, 10))
    cluster.set_pod(at("one", 0, 6, assigned=False))
    cluster.set_pod(at("one", 1, 6, assigned=True))
    assert used(cluster) == [0, 6]


def test_a_plan_that_moves_to_where_no_room_is_frees_none() -> None:
    """The node corrects a plan by what it knows; if that place is taken by then, nothing became free elsewhere."""
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("a", 10, 10))
    cluster.set_pod(at("runs", 1, 6, assigned=True))
    cluster.set_pod(at("one", 0, 6, assigned=False))
    cluster.set_pod(at("one", 1, 6, assigned=False))
    assert used(cluster) == [6, 6]
    assert not cluster.check(cluster.request_of(pod("new", 6)), "a").ok
    cluster.set_pod(at("one", 0, 6, assigned=True))
    assert used(cluster) == [6, 6]


def test_a_reservation_gives_way_to_nobody() -> None:
    """Who wrote of the other pod knew nothing of it: it was not bound then, and will be where it was promised."""
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("a", 10, 10))
    cluster.assume(pod("mine", 6), "a")
    cluster.assume(pod("other", 6), "a")
    assert used(cluster) == [6, 6]
    other = at("other", 0, 6, assigned=False)
    cluster.set_pod(other)  # an earlier bind of it, of which only now is heard
    cluster.drop_pod(other.uid)
    assert used(cluster) == [6, 0]


def test_a_running_pod_is_counted_where_the_node_says_whatever_others_do() -> None:
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("a", 10, 20))
    cluster.set_pod(at("runs", 1, 6, assigned=True))
    cluster.set_pod(at("one", 0, 6, assigned=False))
    cluster.set_pod(at("one", 1, 6, assigned=True))
    assert used(cluster) == [0, 12]


@given(st.permutations(range(6)), st.permutations(range(6)), st.booleans())
def test_any_permutation_told_in_any_order_keeps_the_sums(
    places: list[int], order: list[int], replanned: bool
) -> None:
    """Six equal pods on six GPUs end up in each other's places, and one more never fits in between."""
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("a", *([10] * 6)))
    for number in range(6):
        cluster.set_pod(at(f"p{number}", number, 6, assigned=False))
    if replanned:
        for number in order:
            cluster.set_pod(at(f"p{number}", places[number], 6, assigned=False))
            assert used(cluster) == [6] * 6
    for number in order:
        cluster.set_pod(at(f"p{number}", places[number], 6, assigned=True))
        assert used(cluster) == [6] * 6
    for number in range(6):
        view = cluster.snapshot("a")
        assert view is not None
        assert [share.name for share in view.gpus[places[number]].pods] == [f"p{number}"]


@given(
    st.lists(st.lists(st.tuples(st.sampled_from((1, 2, 4)), GPU), min_size=1, max_size=3), max_size=6),
    st.data(),
)
@settings(max_examples=200)
def test_containers_that_swap_with_any_of_their_size_free_nothing_in_between(
    planned: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Some are planned together on a GPU and turn up apart, or the other way round: whatever has been told so
    far, no GPU counts with less than it holds in the end."""
    true = [list(containers) for containers in planned]
    for size in (1, 2, 4):
        where = [(p, c) for p, pod in enumerate(planned) for c, (units, _) in enumerate(pod) if units == size]
        for (p, c), (q, d) in zip(where, data.draw(st.permutations(where)), strict=True):
            true[p][c] = planned[q][d]
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("a", *([64] * 3)))
    for number, containers in enumerate(planned):
        cluster.set_pod(spread(f"p{number}", containers, assigned=False))
    sums = used(cluster)
    for assigned in (False, True) if data.draw(st.booleans()) else (True,):
        for number in data.draw(st.permutations(range(len(planned)))):
            cluster.set_pod(spread(f"p{number}", true[number], assigned=assigned))
            assert all(now >= in_the_end for now, in_the_end in zip(used(cluster), sums, strict=True))
    assert used(cluster) == sums


def test_a_pod_at_the_place_of_one_of_another_size_leaves_that_one_where_it_was_planned() -> None:
    """Taken for each other they cannot have been: what is full with both must not look free."""
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("a", 20, 20))
    cluster.set_pod(spread("two", [(2, 1), (4, 1)], assigned=False))
    cluster.set_pod(at("one", 0, 6, assigned=False))
    cluster.set_pod(at("one", 1, 6, assigned=True))
    assert used(cluster)[1] == 12
    cluster.set_pod(spread("two", [(2, 1), (4, 1)], assigned=True))
    assert used(cluster) == [0, 12]


def test_a_plan_that_is_never_told_of_counts_nowhere_with_more_than_it_holds() -> None:
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("a", 20, 20))
    cluster.set_pod(spread("stuck", [(2, 1), (4, 1)], assigned=False))
    for number in range(5):
        cluster.set_pod(at(f"p{number}", 0, 4, assigned=False))
        cluster.set_pod(moved := at(f"p{number}", 1, 4, assigned=True))
        cluster.drop_pod(moved.uid)
    assert used(cluster) == [6, 6]
