"""The agent on a node whose GPUs NVML tells about: what its kubelet can give out follows them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from agent_world import World, container
from nvml_world import Opened

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.devices.xids import XidPolicy
from gpuslice.node.discovery.backend import DiscoveredGpus, ThreadedDriver

GIB_OF_AN_A100 = 39


async def test_a_kubelet_gives_out_the_gpus_that_answer(switched_on: Opened) -> None:
    """NVML through the real binding, the agent, and a kubelet: eight A100, an XID on one, a pod on another."""
    driver, hardware = switched_on("8xA100-40")
    backend = DiscoveredGpus(ThreadedDriver(driver, SystemClock()), XidPolicy(), SystemClock())
    await backend.start()
    folder = Path(tempfile.mkdtemp(prefix="node"))  # pytest's own folders are too long for a socket
    here = World(folder, backend.gpus())
    here.backend = backend
    await here.api.start()
    try:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(backend.run())
            await here.start_kubelet()
            await here.start_agent()
            await here.allocatable(8, names.WHOLE_GPU)
            await here.allocatable(8 * GIB_OF_AN_A100)
            hardware.happens("xid", 3, 48)
            await here.allocatable(7, names.WHOLE_GPU)
            await here.allocatable(7 * GIB_OF_AN_A100)
            await here.create("shared", container("main", units=10))
            pod = await here.assigned("shared")
            assert pod.annotations[names.MEM_IDX] in {"0", "1", "2", "4", "5", "6", "7"}
            following.cancel()
    finally:
        for what in ("agent", "kubelet"):
            await here.stop(what)
        await here.api.stop()
        shutil.rmtree(folder)
