"""The demo tells its story to the end, and fails when what it checks is not so."""

from __future__ import annotations

import asyncio
import sys

import pytest

from gpuslice.cli.demo import command as demo
from gpuslice.cli.demo.world import DemoError
from gpuslice.clock import SystemClock

pytestmark = pytest.mark.timeout(90)


async def test_the_demo_ends_well() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuslice.cli.demo",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, errors = await process.communicate()
    story = out.decode()
    assert process.returncode == 0, story + errors.decode()
    assert errors.decode() == ""
    for line in (
        "Warning: container 'cuda': env NVIDIA_VISIBLE_DEVICES was removed",
        "too-large-for-one-gpu waits: 0/3 nodes are available: 3 Insufficient GPU Memory in one device",
        "checked: every pod sees the GPU that its annotation names",
        "25/101 (24%)",
        "checked: 8 x A100 in sevenths, strategy single: 56 nvidia.com/gpu",
        "checked: 8 x A100 in sevenths, strategy mixed: 56 nvidia.com/mig-1g.5gb",
        "second-trainer waits: 0/3 nodes are available",
        "checked: every container sees one MIG device, and no two the same",
    ):
        assert line in story


async def test_the_demo_fails_if_a_container_sees_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    async def blind(*_: object) -> dict[str, str]:
        return {"NVIDIA_VISIBLE_DEVICES": "all"}

    monkeypatch.setattr(demo, "environment", blind)
    with pytest.raises(DemoError, match="sees all and was given GPU-"):
        await demo.tell(SystemClock())
