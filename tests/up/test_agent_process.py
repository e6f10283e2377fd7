"""`gpuslice agent` as a process of its own beside a kubelet: comes, is killed, comes back, sees a GPU fall ill."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from up_world import cluster_of, deployment, file

from gpuslice import names

pytestmark = pytest.mark.timeout(90)

DEVICES = """
apiVersion: gpuslice.io/v1alpha1
kind: Devices
spec:
  gpus:
    - {model: T4, uuid: GPU-one}
    - {model: T4, uuid: GPU-two, healthy: %s}
"""


async def start_agent(tmp_path: Path, kubelet: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuslice.cli.main", "agent", "--kubeconfig", str(tmp_path / "kubeconfig"),
        "--node", "one", "--devices", str(tmp_path / "devices.yaml"), "--kubelet-dir", str(kubelet),
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip


async def test_an_agent_of_its_own_offers_its_gpus_and_survives_a_kill(tmp_path: Path) -> None:
    devices = tmp_path / "devices.yaml"
    devices.write_text(DEVICES % "true")
    async with cluster_of(file("{name: one}"), tmp_path) as (cluster, kubectl):

        def offers(units: int) -> bool:
            view = cluster.cluster.snapshot("one")
            return view is not None and view.allocatable_units == units

        agent = await start_agent(tmp_path, cluster.folders["one"])
        async with asyncio.timeout(20):
            await cluster.changed(lambda: offers(28))
        await kubectl("apply", "-f", "-", stdin=deployment("web", 2, 3))
        await kubectl("rollout", "status", "deploy/web", "--timeout=20s")
        agent.send_signal(signal.SIGKILL)
        await agent.wait()
        async with asyncio.timeout(20):
            await cluster.changed(lambda: offers(0))
        agent = await start_agent(tmp_path, cluster.folders["one"])
        async with asyncio.timeout(20):
            await cluster.changed(lambda: offers(28))
        await kubectl("scale", "deploy/web", "--replicas=4")
        await kubectl("rollout", "status", "deploy/web", "--timeout=20s")
        pods = (await kubectl.read("pods"))["items"]
        assert {pod["metadata"]["annotations"][names.MEM_ASSIGNED] for pod in pods} == {"true"}
        devices.write_text(DEVICES % "false")
        async with asyncio.timeout(20):
            await cluster.changed(lambda: offers(14))
        agent.terminate()
        async with asyncio.timeout(5):
            assert await agent.wait() == 0
