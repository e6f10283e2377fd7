"""The end-to-end suite runs only when asked for by name: `make e2e`, or `pytest tests/e2e/...`.

It needs Linux, root and (once) Go. Where these are missing it is skipped with the sentence that says so; in CI
(`CI=true`) it fails with that sentence, so that nobody takes a suite that did not run for one that passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .alone import FOUR, Alone
from .cluster import RealCluster
from .installation import Installation, clear, installed
from .packages import MissingError

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out unless an argument names it or something in it."""
    named = [
        Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args
    ]
    wanted = any(path.is_relative_to(HERE) for path in named)
    return True if collection_path.is_relative_to(HERE) and not wanted else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Minutes, not the seconds of unit tests; and not counting the cluster's start."""
    for item in items:
        if item.path.is_relative_to(HERE) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600, func_only=True))
    # Those that need the cluster without the shared installation come last.
    items.sort(key=lambda item: "bare" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A cluster of two nodes that all tests of the session share; what a test creates it deletes."""
    try:
        cluster = RealCluster(tmp_path_factory.mktemp("cluster"))
    except MissingError as missing:
        cannot(str(missing))
    with cluster:
        yield cluster


@pytest.fixture
def bare(real_cluster: RealCluster) -> Iterator[RealCluster]:
    """The shared cluster without gpuslice: what the fixture `gpus` has installed is uninstalled."""
    shared = Installation(real_cluster)
    if shared.is_installed():
        shared.uninstall()
    yield real_cluster
    clear(real_cluster)


@pytest.fixture(scope="session")
def gpus(real_cluster: RealCluster) -> Iterator[Installation]:
    """The chart with its defaults on the shared cluster. A test that needs another set-up asks for `bare`."""
    try:
        with installed(real_cluster) as installation:
            yield installation
    except MissingError as missing:
        cannot(str(missing))


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    """Agents and an extender as plain processes, without a chart, on a cluster of their own."""
    try:
        cluster = RealCluster(tmp_path_factory.mktemp("alone"))
    except MissingError as missing:
        cannot(str(missing))
    with cluster:
        alone = Alone(cluster, [FOUR, FOUR])
        alone.start()
        yield alone


def cannot(sentence: str) -> None:
    """Skip with a sentence (in CI that fails: tests/conftest.py)."""
    pytest.skip(sentence)
