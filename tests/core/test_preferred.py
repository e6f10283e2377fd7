"""Which GPUs a container is best given: NVIDIA's scores, and an exhaustive oracle."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.devices.found import FoundGpu, Link, Nearness
from gpuslice.devices.preferred import nearest, pair_score
from gpuslice.errors import InputError


def machine(size: int, near: dict[tuple[int, int], Link | Nearness]) -> list[FoundGpu]:
    """GPUs of which the named pairs are near; all others have the whole system between them."""

    def link(one: int, other: int) -> Link:
        found = near.get((min(one, other), max(one, other)), Nearness.SYSTEM)
        return Link(f"GPU-{other}", found) if isinstance(found, Nearness) else found

    def links(one: int) -> tuple[Link, ...]:
        made = (link(one, other) for other in range(size) if other != one)
        others = (other for other in range(size) if other != one)
        return tuple(Link(f"GPU-{o}", m.nearness, m.nvlinks) for m, o in zip(made, others, strict=True))

    return [FoundGpu(i, f"GPU-{i}", "A100", 40960, 0, links=links(i)) for i in range(size)]


def uuids(*indexes: int) -> list[str]:
    return [f"GPU-{index}" for index in indexes]


def indexes(found: tuple[str, ...]) -> list[int]:
    return [int(uuid.removeprefix("GPU-")) for uuid in found]


@pytest.mark.parametrize(
    ("nearness", "nvlinks", "score"),
    [
        (Nearness.SYSTEM, 0, 10),
        (Nearness.NUMA_NODE, 0, 20),
        (Nearness.HOST_BRIDGE, 0, 30),
        (Nearness.SWITCHES, 0, 40),
        (Nearness.SWITCH, 0, 50),
        (Nearness.BOARD, 0, 60),
        (Nearness.SYSTEM, 12, 1210),
    ],
)
def test_pair_scores_are_nvidias(nearness: Nearness, nvlinks: int, score: int) -> None:
    one, other = machine(2, {(0, 1): Link("", nearness, nvlinks)})
    assert pair_score(one, other) == pair_score(other, one) == score


def test_two_of_eight_are_on_one_switch() -> None:
    pairs = {
        (0, 1): Nearness.SWITCH,
        (2, 3): Nearness.SWITCH,
        (4, 5): Nearness.SWITCH,
        (6, 7): Nearness.SWITCH,
    }
    gpus = machine(8, dict(pairs))
    assert indexes(nearest(gpus, uuids(*range(8)), (), 2)) == [0, 1]
    assert indexes(nearest(gpus, uuids(1, 2, 3, 4), (), 2)) == [2, 3]
    assert indexes(nearest(gpus, uuids(1, 2, 3, 4, 5), uuids(4), 2)) == [4, 5]


def test_what_is_left_stays_good() -> None:
    """1-2 is the best pair, but taking it would leave 0 and 3, which have the whole system between them."""
    near = {(1, 2): Nearness.SWITCHES, (0, 1): Nearness.HOST_BRIDGE, (2, 3): Nearness.HOST_BRIDGE}
    assert indexes(nearest(machine(4, dict(near)), uuids(0, 1, 2, 3), (), 2)) == [0, 1]


def test_a_gpu_that_has_gone_does_not_spoil_the_choice() -> None:
    """NVIDIA's device plugin, issues 231 and 1223: a lost GPU among the available ends the allocation."""
    gpus = machine(4, {(2, 3): Nearness.BOARD})
    assert indexes(nearest(gpus, [*uuids(0, 2, 3), "GPU-lost"], (), 2)) == [2, 3]


@pytest.mark.parametrize(
    ("available", "required", "size"), [((0,), (), 2), ((0, 1), (7,), 2), ((0, 1), (0, 1), 1)]
)
def test_what_cannot_be_is_said_in_nvidias_words(
    available: tuple[int, ...], required: tuple[int, ...], size: int
) -> None:
    with pytest.raises(InputError, match="not enough available devices to satisfy allocation"):
        nearest(machine(4, {}), uuids(*available), uuids(*required), size)


def test_many_gpus_are_chosen_at_once() -> None:
    near = dict.fromkeys(combinations(range(9, 13), 2), Nearness.BOARD)
    assert indexes(nearest(machine(16, dict(near)), uuids(*range(16)), (), 4)) == [9, 10, 11, 12]


LEVELS = st.sampled_from(Nearness)


@given(st.data())
def test_no_partition_into_pairs_is_better(data: st.DataObject) -> None:
    """Against every way to pair up six GPUs."""
    near = {pair: data.draw(LEVELS) for pair in combinations(range(6), 2)}
    gpus = machine(6, dict(near))
    chosen = nearest(gpus, uuids(*range(6)), (), 2)

    def pairings(left: tuple[int, ...]) -> list[list[tuple[int, int]]]:
        if not left:
            return [[]]
        return [
            [(left[0], other), *rest]
            for other in left[1:]
            for rest in pairings(tuple(one for one in left[1:] if one != other))
        ]

    def score(pairs: list[tuple[int, int]]) -> int:
        return sum(pair_score(gpus[a], gpus[b]) for a, b in pairs)

    ways = pairings(tuple(range(6)))
    best = max(map(score, ways))
    one, other = indexes(chosen)
    mine = [pairs for pairs in ways if (one, other) in pairs]
    assert max(map(score, mine)) == best
    ours = pair_score(gpus[one], gpus[other])
    assert any(score(pairs) == best and ours == max(score([pair]) for pair in pairs) for pairs in mine)


@given(st.integers(1, 7), st.integers(1, 7), st.sets(st.integers(0, 6), max_size=3))
def test_the_required_are_among_as_many_as_asked_for(count: int, size: int, required: set[int]) -> None:
    required = {one for one in required if one < count}
    if size > count or len(required) > size:
        return
    chosen = nearest(machine(count, {}), uuids(*range(count)), uuids(*required), size)
    assert len(set(chosen)) == size
    assert set(uuids(*required)) <= set(chosen)


def test_a_machine_of_many_gpus_is_not_tried_set_by_set() -> None:
    """16 of 32 are 600 million sets. Those behind one switch are found all the same."""
    near = dict.fromkeys(combinations(range(1, 32, 2), 2), Nearness.SWITCH)
    gpus = machine(32, near)
    assert indexes(nearest(gpus, uuids(*range(32)), [], 16)) == list(range(1, 32, 2))
    assert indexes(nearest(gpus, uuids(*range(32)), uuids(0), 16)) == [0, *range(1, 31, 2)]
