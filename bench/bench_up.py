"""A whole cluster in one process: start, memory, pods per second from created to bound and to Running.

python bench/bench_up.py            # 3 nodes; one node with 200 pods; 100 nodes with 2,000 pods
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.cluster.state import Change
from gpuslice.config.cluster import ClusterFile
from gpuslice.kube.wire import Pod
from gpuslice.local.up import LocalCluster, Settings, local_cluster
from gpuslice.observe.logging import setup
from machine import report, resident_mib

CLUSTER = """
apiVersion: gpuslice.io/v1alpha1
kind: Cluster
spec:
  nodes:
  - {{namePrefix: node-, count: {nodes}, cpu: "64", memory: 256Gi, pods: {most},
      gpus: [{{model: A100-80, count: 8}}]}}
"""


def body(number: int) -> dict[str, object]:
    container = {"name": "c", "image": "x", "resources": {"limits": {names.GPU_MEM: "2", "cpu": "10m"}}}
    meta = {"name": f"pod-{number}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}


async def create(cluster: LocalCluster, pods: int) -> dict[str, object]:
    """Create pods, 20 at a time; count them as they are bound and as they run."""
    bound: set[str] = set()
    running: set[str] = set()
    times: dict[str, float] = {}
    done = asyncio.Event()
    start = time.perf_counter()

    def listen(change: Change) -> None:
        one = change.object
        if not isinstance(one, Pod):
            return
        if one.spec.node_name:
            bound.add(one.uid)
        if one.status.phase == "Running":
            running.add(one.uid)
        if len(bound) == pods and "bound" not in times:
            times["bound"] = time.perf_counter() - start
        if len(running) == pods:
            times["running"] = time.perf_counter() - start
            done.set()

    unsubscribe = cluster.cluster.subscribe(listen)
    numbers = iter(range(pods))

    async def worker() -> None:
        for number in numbers:
            await cluster.client.create(Pod.resource, body(number), "default")

    await asyncio.gather(*(worker() for _ in range(20)))
    times["created"] = time.perf_counter() - start
    async with asyncio.timeout(300):
        await done.wait()
    unsubscribe()
    return {
        "pods": pods,
        "seconds": {what: round(seconds, 2) for what, seconds in times.items()},
        "bound_per_second": round(pods / times["bound"]),
        "running_per_second": round(pods / times["running"]),
    }


async def measure(nodes: int, pods: int) -> dict[str, object]:
    # A kubelet takes 110 pods unless told otherwise.
    plan = ClusterFile.parse(CLUSTER.format(nodes=nodes, most=max(110, pods // nodes + 10))).plan()
    start = time.perf_counter()
    async with local_cluster(plan, Settings(), clock=SystemClock(), random=Random(1)) as cluster:
        async with asyncio.timeout(120):
            await cluster.ready()
        result: dict[str, object] = {
            "nodes": nodes,
            "gpus": nodes * 8,
            "ready_seconds": round(time.perf_counter() - start, 2),
            "resident_mib_ready": resident_mib(),
        }
        if pods:
            result |= await create(cluster, pods)
            result["resident_mib_after"] = resident_mib()
    return result


def cli_start() -> float:
    """Best of ten starts of the kubectl plugin's help, in milliseconds."""
    program = str(Path(sys.executable).parent / "gpuslice")
    best = 9.0
    for _ in range(10):
        start = time.perf_counter()
        subprocess.run([program, "inspect", "--help"], check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - start)
    return round(best * 1000)


def main() -> None:
    if len(sys.argv) == 3:
        setup(level="error")
        print(json.dumps(asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2])))))
        return
    runs = []
    # Each in its own process, so that memory is its own.
    for nodes, pods in ((3, 0), (1, 200), (100, 2000), (500, 0)):
        done = subprocess.run(
            [sys.executable, __file__, str(nodes), str(pods)], check=True, capture_output=True
        )
        runs.append(json.loads(done.stdout))
    report("up", {"runs": runs, "cli_start_ms": cli_start()})


if __name__ == "__main__":
    main()
