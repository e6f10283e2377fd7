from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from aks_world import World
from fakearm import FakeArm, running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeArm, Path]]:
    arm = FakeArm()
    with running(arm, tmp_path_factory.mktemp("arm")) as authority:
        yield arm, authority


@pytest.fixture
def world(served: tuple[FakeArm, Path]) -> World:
    arm, authority = served
    fresh = FakeArm(endpoint=arm.endpoint)
    vars(arm).update(vars(fresh))
    return World(arm, authority)
