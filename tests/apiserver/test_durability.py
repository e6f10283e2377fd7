"""The SQLite file: what a restart brings back."""

from __future__ import annotations

from pathlib import Path

import pytest
from apikit import PODS, Api, StillClock, new_ids, pod
from test_kinds import DEFINITIONS, RAYS, definition

from gpuslice.errors import InputError
from gpuslice.local.apiserver.api.app import ApiServer


def started(path: Path, clock: StillClock) -> ApiServer:
    return ApiServer(clock=clock, new_uid=new_ids(), database=path)


async def test_restart_brings_everything_back(tmp_path: Path, clock: StillClock) -> None:
    """Objects, CRDs and the version survive; a watch from before the restart is told to list again."""
    path = tmp_path / "cluster.db"
    first = started(path, clock)
    await first.start()
    api = Api(first)
    made = await api.make(PODS, pod())
    await api.make(PODS, pod("gone"))
    await api("DELETE", f"{PODS}/gone")
    await api.make(DEFINITIONS, definition())
    await api.make(RAYS, {"metadata": {"name": "a"}, "spec": {"size": 1}})
    version = first.store.version
    await first.stop()

    second = started(path, clock)
    api = Api(second)
    assert await api.get(f"{PODS}/p") == made
    assert (await api("GET", f"{PODS}/gone")).status == 404
    assert (await api.get(f"{RAYS}/a"))["spec"]["size"] == 1
    assert second.store.version == version
    async with api.watch(PODS, resourceVersion=made["metadata"]["resourceVersion"]) as following:
        assert (await following())[1]["code"] == 410
    await second.stop()


async def test_a_crash_gives_no_version_twice(tmp_path: Path, clock: StillClock) -> None:
    """After a crash versions go on above everything that may have been handed out."""
    path = tmp_path / "cluster.db"
    first = started(path, clock)
    await first.start()
    await Api(first).make(PODS, pod("kept"))
    await clock.pass_(2)
    await Api(first).make(PODS, pod("lost"))
    second = started(path, clock)
    assert second.store.version > first.store.version
    assert (await Api(second).get(f"{PODS}/kept"))["metadata"]["name"] == "kept"
    await first.stop()
    await second.stop()


def test_a_file_that_is_no_database(tmp_path: Path, clock: StillClock) -> None:
    """One sentence, no traceback."""
    path = tmp_path / "x.db"
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 20)
    with pytest.raises(InputError, match="cannot be used as the cluster's database"):
        started(path, clock)
