"""How long a node is without devices when its agent starts anew, by turns with another checkout.

python bench/bench_agent_start.py [ROUNDS] [OTHER/src]    # OTHER: a checkout to compare with

Each start is a process of its own beside an embedded API server (HTTPS) and a simulated kubelet, 8 GPUs on
paper. `registered`: kubelet has the ids of both resources, from the start of the process. `answers`: it gets
an answer to GetPreferredAllocation. `cpu`: what the process has used by then.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import uuid4

from gpuslice.clock import SystemClock
from gpuslice.kube.client import Client
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.serve import serving
from gpuslice.local.kubelet import Kubelet, NodeDescription
from gpuslice.names import GPU_MEM, WHOLE_GPU
from gpuslice.node.kubelet.messages import PreferredRequest
from gpuslice.node.kubelet.rpc import PluginClient
from machine import report

OWN = Path(__file__).parent.parent / "src"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.002)


async def start(source: Path, folder: Path, kubeconfig: Path, kubelet: Kubelet) -> dict[str, float]:
    """One start, ended by SIGKILL."""
    command = ["-m", "gpuslice.cli.main", "agent", "--node", "n1", "--devices", "8xA100-40"]
    command += ["--kubeconfig", str(kubeconfig), "--kubelet-dir", str(folder)]
    manager = kubelet.devices.manager
    began = time.perf_counter()
    # Compiled once, as in the image.
    cache = {"PYTHONPYCACHEPREFIX": str(folder / source.parent.name), "PYTHONDONTWRITEBYTECODE": ""}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        env={**os.environ, **cache, "PYTHONPATH": str(source)},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await until(lambda: all(manager.allocatable().get(one) for one in (GPU_MEM, WHOLE_GPU)))
        registered = time.perf_counter() - began
        client = PluginClient(folder / "device-plugins" / "gpuslice-gpu.sock")
        await client.prefer(PreferredRequest(tuple(manager.healthy_ids()[WHOLE_GPU]), (), 2))
        answers, cpu = time.perf_counter() - began, cpu_seconds(process.pid)
        await client.aclose()
    finally:
        process.kill()
        await process.wait()
    await until(lambda: not any(manager.allocatable().values()))
    return {"registered": round(registered, 3), "answers": round(answers, 3), "cpu": round(cpu, 2)}


async def main(rounds: int, other: Path | None) -> None:
    sources = {"this": OWN} | ({"other": other} if other else {})
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    server = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid4()))
    await server.start()
    with tempfile.TemporaryDirectory(prefix="agent-") as text:
        folder = Path(text)
        kubelet = Kubelet(
            Client(server.transport()),
            NodeDescription("n1", address="10.0.0.7"),
            root=folder,
            clock=SystemClock(),
            random=Random(1),
        )
        async with serving(server, clock=SystemClock(), kubeconfig=folder / "config"):
            task = asyncio.create_task(kubelet.run())
            await kubelet.ready.wait()
            for turn in range(rounds + 1):
                for name, source in sources.items():
                    run = await start(source, folder, folder / "config", kubelet)
                    if turn:  # the first fills the caches
                        runs[name].append(run)
            task.cancel()
            await asyncio.wait((task,))
    await server.stop()
    medians = {
        name: {key: sorted(run[key] for run in mine)[len(mine) // 2] for key in mine[0]}
        for name, mine in runs.items()
    }
    report("agent_start", {"unit": "seconds", "median": medians, "runs": runs})


if __name__ == "__main__":
    asyncio.run(
        main(
            int(sys.argv[1]) if len(sys.argv) > 1 else 5,
            Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None,
        )
    )
