"""`gpuslice agent` as a process of its own beside a kubelet: comes, is killed, comes back, sees a GPU fall ill."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from pathlib import Path

import httpx2
import pytest
from up_world import cluster_of, deployment, file

from gpuslice import names
from gpuslice.node.kubelet.inotify import FolderWatch

pytestmark = pytest.mark.timeout(90)

DEVICES = """
apiVersion: gpuslice.io/v1alpha1
kind: Devices
spec:
  gpus:
    - {model: T4, uuid: GPU-one}
    - {model: T4, uuid: GPU-two, healthy: %s}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def ask(port: int, path: str) -> tuple[int, str]:
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"http://127.0.0.1:{port}{path}")
        return answer.status_code, answer.text


async def start_agent(tmp_path: Path, kubelet: Path, *more: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuslice.cli.main", "agent", "--kubeconfig", str(tmp_path / "kubeconfig"),
        "--node", "one", "--devices", str(tmp_path / "devices.yaml"), "--kubelet-dir", str(kubelet), *more,
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
        assert re.fullmatch(
            r"GPU 0: Tesla T4 \(UUID: GPU-(one|two)\)\n",
            await kubectl("exec", "deploy/web", "--", "nvidia-smi", "-L"),
        )
        agent.send_signal(signal.SIGKILL)
        await agent.wait()
        async with asyncio.timeout(20):
            await cluster.changed(lambda: offers(0))
        port = free_port()
        agent = await start_agent(
            tmp_path,
            cluster.folders["one"],
            *("--probes", f"127.0.0.1:{port}", "--device-list-strategy", "volume-mounts"),
        )
        async with asyncio.timeout(20):
            await cluster.changed(lambda: offers(28))
        await kubectl("scale", "deploy/web", "--replicas=4")
        await kubectl("rollout", "status", "deploy/web", "--timeout=20s")
        pods = (await kubectl.read("pods"))["items"]
        named = [
            re.search(
                "NVIDIA_VISIBLE_DEVICES=(.*)", await kubectl("exec", pod["metadata"]["name"], "--", "env")
            )
            for pod in pods
        ]
        assert sorted(found[1].partition("-")[0] for found in named if found) == [
            *["/var/run/nvidia"] * 2,
            *["GPU"] * 2,
        ]
        assert {pod["metadata"]["annotations"][names.MEM_ASSIGNED] for pod in pods} == {"true"}
        assert await ask(port, "/healthz") == (200, "ok")
        assert await ask(port, "/readyz") == (200, "ok")
        metrics = (await ask(port, "/metrics"))[1]
        held = [
            line for line in metrics.splitlines() if line.startswith("gpuslice_gpu_memory_allocated_mib{")
        ]
        assert sum(float(line.split()[-1]) for line in held) == 4 * 3 * 1024
        assert {line.partition('uuid="')[2].partition('"')[0] for line in held} == {"GPU-one", "GPU-two"}
        devices.write_text(DEVICES % "false")
        async with asyncio.timeout(20):
            await cluster.changed(lambda: offers(14))
        agent.terminate()
        async with asyncio.timeout(5):
            assert await agent.wait() == 0


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def written(path: Path, text: str) -> None:
    """Wait until a file has this text in it."""
    news = asyncio.Event()
    watch = FolderWatch(path.parent, (path.name,), news.set)
    try:
        while text not in await asyncio.to_thread(_text, path):
            await news.wait()
            news.clear()
    finally:
        watch.close()


async def test_an_agent_of_its_own_follows_the_device_plugins_configuration(tmp_path: Path) -> None:
    """Replicas by the node's label, an edited file, and the labels for Node Feature Discovery."""
    (tmp_path / "devices.yaml").write_text(DEVICES % "true")
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "default").write_text("version: v1\n")
    slicing = (
        "flags: {gfd: {outputFile: %s}}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: %d}]}}\n"
    )
    features = tmp_path / "features.d" / "gfd"
    features.parent.mkdir()
    (configs / "shared").write_text(slicing % (features, 4))
    async with cluster_of(file("{name: one}"), tmp_path) as (cluster, kubectl):

        def offers(devices: int) -> bool:
            view = cluster.cluster.snapshot("one")
            return view is not None and view.allocatable_devices == devices

        kubelet = cluster.folders["one"]
        agent = await start_agent(
            tmp_path, kubelet, "--config-dir", str(configs), "--config-fallbacks", "named"
        )
        try:
            async with asyncio.timeout(60):
                await cluster.changed(lambda: offers(2))
                await kubectl("label", "node", "one", "nvidia.com/device-plugin.config=shared")
                await cluster.changed(lambda: offers(8))
                (configs / "shared").write_text(slicing % (features, 3))
                await cluster.changed(lambda: offers(6))

                def labelled() -> bool:
                    node = cluster.cluster.node("one")
                    return node is not None and node.labels.get("nvidia.com/gpu.replicas") == "3"

                await cluster.changed(labelled)
                await written(features, "nvidia.com/gpu.product=Tesla-T4-SHARED\n")
            agent.send_signal(signal.SIGTERM)
            await agent.wait()
            assert not features.exists()
        finally:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()
