"""The arithmetic of rolling updates, walked to the end from any start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.local.controllers.objects import DeploymentSpec, RollingUpdate, UpdateStrategy
from gpuslice.local.controllers.rollout import Size, fenceposts, grow, proportional, resolve, shrink


def spec(
    replicas: int, surge: int | str | None = None, unavailable: int | str | None = None
) -> DeploymentSpec:
    return DeploymentSpec(
        replicas=replicas,
        strategy=UpdateStrategy("RollingUpdate", RollingUpdate(max_surge=surge, max_unavailable=unavailable)),
    )


@pytest.mark.parametrize(
    ("value", "up", "expected"),
    [
        (3, True, 3),
        ("25%", True, 3),
        ("25%", False, 2),
        ("0%", True, 0),
        (None, True, 0),
        ("nonsense", True, 0),
    ],
)
def test_percentages_round_up_or_down(value: int | str | None, up: bool, expected: int) -> None:
    assert resolve(value, 10, up=up) == expected


def test_a_rollout_that_could_not_move_may_lose_one_pod() -> None:
    assert fenceposts(spec(1, "0%", "25%")) == (0, 1)


limits = st.one_of(st.integers(0, 5), st.integers(0, 100).map(lambda n: f"{n}%"))


@given(st.integers(0, 12), limits, limits, st.lists(st.integers(0, 6), max_size=3), st.data())
def test_every_rolling_update_ends_within_its_bounds(
    replicas: int, surge: int | str, unavailable: int | str, old_sizes: list[int], data: st.DataObject
) -> None:
    """Whichever pods become available when: never more than allowed, never fewer available than promised."""
    wish = spec(replicas, surge, unavailable)
    max_surge, max_unavailable = fenceposts(wish)
    old = {f"old{n}": size for n, size in enumerate(old_sizes)}
    new, ready = 0, 0
    most = max(replicas + max_surge, sum(old.values()))
    least = min(replicas - max_unavailable, sum(old.values()))
    for _ in range(200):
        if new == replicas and not any(old.values()):
            break
        current = Size("new", new, ready, ("9", "new"))
        olds = [Size(name, size, size, (name, name)) for name, size in old.items()]
        grown = grow(wish, current, olds)
        if grown != new:
            new = grown
        else:
            old |= shrink(wish, current, olds)
        assert new + sum(old.values()) <= most
        assert ready + sum(old.values()) >= least
        ready = data.draw(st.integers(min(new, ready + (new > ready)), new))
    assert (new, sum(old.values())) == (replicas, 0)


sizes = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda two: (max(two), min(two)))


@given(st.integers(1, 12), limits, limits, sizes, st.lists(sizes, max_size=3))
def test_no_step_takes_pods_that_are_needed(
    replicas: int, surge: int | str, unavailable: int | str, new: tuple[int, int], old: list[tuple[int, int]]
) -> None:
    """Even if what is taken happens to be available: no fewer than promised, or than there were."""
    wish = spec(replicas, surge, unavailable)
    least = replicas - fenceposts(wish)[1]
    olds = [Size(f"old{n}", wanted, available, (f"{n}", "")) for n, (wanted, available) in enumerate(old)]
    after = shrink(wish, Size("new", *new, ("9", "")), olds)
    left = new[1]
    for one in olds:
        taken = one.wanted - after.get(one.name, one.wanted)
        left += one.available - max(0, taken - (one.wanted - one.available))
    assert left >= min(least, new[1] + sum(one.available for one in olds))


@given(st.integers(0, 30), st.integers(0, 30), limits, st.lists(st.integers(1, 9), min_size=2, max_size=4))
def test_scaling_in_the_middle_of_a_rollout_keeps_the_sum(
    before: int, after: int, surge: int | str, sizes: list[int]
) -> None:
    wish = spec(after, surge, 1)
    allowed = after + fenceposts(wish)[0] if after else 0
    annotated = before + fenceposts(spec(before, surge, 1))[0]
    every = [Size(f"rs{n}", size, size, (f"{n}", ""), annotated) for n, size in enumerate(sizes)]
    scaled = proportional(wish, every)
    assert all(size >= 0 for size in scaled.values())
    if allowed >= sum(sizes):
        assert sum(scaled.values()) == allowed
        assert all(scaled[one.name] >= one.wanted for one in every)


def test_unhealthy_old_pods_go_first() -> None:
    wish = spec(4, 1, 1)
    new = Size("new", 1, 0, ("3", ""))
    old = [Size("broken", 1, 0, ("1", "")), Size("works", 3, 3, ("2", ""))]
    assert shrink(wish, new, old) == {"broken": 0}
