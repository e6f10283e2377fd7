"""A kubelet gives a container a random subset of what its pod's init containers leave: every one of them is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import comb
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_world import NodeWorld, Part, app

from gpuslice.node.grants.identity import Identity


class Choices(Random):
    """Every outcome of `sample`, one after the other: `again` until it says no."""

    def __init__(self) -> None:
        super().__init__(0)
        self._path: list[tuple[int, int]] = []
        self._at = 0

    def sample(self, population: Sequence[Any], k: int, **_: Any) -> list[Any]:
        if self._at == len(self._path):
            self._path.append((0, comb(len(population), k)))
        chosen, _count = self._path[self._at]
        self._at += 1
        return list(next(c for n, c in enumerate(combinations(population, k)) if n == chosen))

    def again(self) -> bool:
        while self._path and self._path[-1][0] + 1 == self._path[-1][1]:
            self._path.pop()
        if not self._path:
            return False
        chosen, count = self._path.pop()
        self._path.append((chosen + 1, count))
        self._at = 0
        return True


def inits(*units: int) -> tuple[Part, ...]:
    return tuple(Part(f"i{n}", each, init=True) for n, each in enumerate(units))


SHAPES = [
    inits(6, 1) + app(1),
    inits(1, 6) + app(1),
    inits(3, 1, 1) + app(1),
    inits(2, 2) + app(1, 1),
    inits(3, 2) + app(1, 1),
    inits(3, 1, 2) + app(1),
    inits(2, 3) + app(4),
    (*inits(2, 1), Part("s", 1, sidecar=True), *app(1)),
    (*inits(2), Part("s", 2, sidecar=True), Part("j", 3, init=True), *app(1)),
    (*inits(2), Part("s", 2, sidecar=True), Part("j", 3, init=True), Part("c0")),
    (*inits(3, 1), Part("c0")),
    (*inits(2, 2), Part("c0")),
]


def worlds() -> Iterator[NodeWorld]:
    choices = Choices()
    while True:
        yield NodeWorld(16, random=choices)
        if not choices.again():
            return


shapes = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: ",".join(f"{part.name}={part.units}" for part in shape)
)


def assert_starts(world: NodeWorld, uid: str, part: Part) -> None:
    answer = world.pre_start(uid, part)
    assert isinstance(answer, Identity), f"{part.name}: {answer.message}; kubelet: {world.held(uid)}"
    assert answer.pod.uid == uid
    assert answer.held.ids == world.held(uid)[part.name]


@shapes
def test_every_container_starts_at_the_first_attempt(shape: tuple[Part, ...]) -> None:
    """And again: what failed is started anew, and all init containers are when the pod's sandbox is."""
    for world in worlds():
        uid = world.create(shape)
        assert uid
        assert world.admit(uid), world.failures
        for part in (*world.runs[uid].order, *world.runs[uid].order):
            assert_starts(world, uid, part)
        world.end(uid)
        world.tell()
        world.reconcile()
        assert world.ledger.held() == []


@shapes
def test_the_agent_may_restart_before_any_of_them(shape: tuple[Part, ...]) -> None:
    """Then nothing is known but what pod-resources lists."""
    for restart in range(len(shape)):
        for world in worlds():
            uid = world.create(shape)
            assert uid
            assert world.admit(uid), world.failures
            for step, part in enumerate(world.runs[uid].order):
                if step == restart:
                    world.restart_agent()
                assert_starts(world, uid, part)


def test_a_kubelet_that_died_at_an_init_container_asks_anew() -> None:
    """It has forgotten that grant, and gives the same container other ids."""
    for world in worlds():
        uid = world.create(inits(4, 1) + app(1))
        assert uid
        assert not world.admit(uid, crash_at=1)
        assert world.admit(uid), world.failures
        for part in world.runs[uid].order:
            assert_starts(world, uid, part)


@given(st.sampled_from(SHAPES), st.data(), st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_equal_pods_are_not_confused(shape: tuple[Part, ...], data: st.DataObject, seed: int) -> None:
    """Admitted in one order and started in another, container by container; each with ids of its own."""
    world = NodeWorld(16, 16, seed=seed)
    uids = [uid for _ in range(4) if (uid := world.create(shape))]
    for uid in data.draw(st.permutations(uids)):
        assert world.admit(uid), world.failures
    nameless = all(part.init for part in world.runs[uids[0]].order)
    turns = [uid for uid in uids for _ in world.runs[uid].order]
    for uid in data.draw(st.permutations(turns)):
        part = next(part for part in world.runs[uid].order if part.name not in world.runs[uid].started)
        if nameless:
            assert isinstance(world.pre_start(uid, part), Identity)
        else:
            assert_starts(world, uid, part)
