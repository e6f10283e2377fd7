"""Pods per second of our own scheduler, from created to bound, in one process with the embedded API server.

    python bench/bench_scheduler.py                 # 2,000 pods on 100 nodes, and on 5,000 nodes

No kubelets: what is measured is decision, binding, watch and the API server's own work.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.cluster.state import Change
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Node, Pod
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.scheduler.core import SCHEDULER, Core
from gpuslice.scheduler.service import run_scheduler
from machine import report

GPUS, GIB_EACH = 8, 15


def node(number: int) -> dict[str, object]:
    gpus = NodeGpus(tuple(Gpu(i, f"GPU-{number}-{i}", "T4", GIB_EACH * 1024) for i in range(GPUS)))
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", names.GPU_MEM: str(GPUS * GIB_EACH)}
    return {
        "metadata": {"name": f"n{number:04}", "annotations": encode_gpus(gpus)},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(number: int, units: int) -> dict[str, object]:
    resources: dict[str, object] = {"requests": {"cpu": "10m"}}
    if units:
        resources["limits"] = {names.GPU_MEM: str(units)}
    container = {"name": "main", "image": "scratch", "resources": resources}
    spec = {"schedulerName": names.SCHEDULER_NAME, "containers": [container]}
    return {"metadata": {"name": f"p{number}", "namespace": "default"}, "spec": spec}


async def measure(nodes: int, pods: int, units: int) -> dict[str, object]:
    """Seconds from the first creation until the feed has shown the last pod bound."""
    clock = SystemClock()
    server = ApiServer(clock=clock, new_uid=lambda: str(uuid.uuid4()))
    await server.start()
    client = Client(server.transport())
    core = Core(
        client,
        component=SCHEDULER,
        clock=clock,
        random=random.random,
        new_id=lambda: uuid.uuid4().hex[:16],
    )
    bound: set[str] = set()
    done = asyncio.Event()

    def listen(change: Change) -> None:
        obj = change.object
        if isinstance(obj, Pod) and obj.spec.node_name:
            bound.add(obj.uid)
            if len(bound) == pods:
                done.set()

    core.cluster.subscribe(listen)
    for number in range(nodes):
        await client.create(Node.resource, node(number))
    async with core.running():
        scheduler = asyncio.create_task(run_scheduler(core))
        await core.feed.wait_synced()
        start = time.perf_counter()
        for number in range(pods):
            await client.create(Pod.resource, pod(number, units), "default")
            if number % 50 == 0:
                await asyncio.sleep(0)
        await done.wait()
        seconds = time.perf_counter() - start
        scheduler.cancel()
        await asyncio.gather(scheduler, return_exceptions=True)
    await server.stop()
    return {
        "nodes": nodes,
        "pods": pods,
        "gpu_mem": units,
        "seconds": round(seconds, 2),
        "pods_per_s": round(pods / seconds),
    }


async def main() -> None:
    runs = [await measure(nodes, 2000, units) for nodes, units in ((100, 3), (100, 0), (5000, 3))]
    report("scheduler", {"runs": runs})


if __name__ == "__main__":
    asyncio.run(main())
