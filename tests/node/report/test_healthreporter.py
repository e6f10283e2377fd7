"""The agent tells of sick GPUs: a condition of its node, events on the node and on the pods, each once."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_world import GPUS, GUARD, NODE, World, container, world

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.config.devices import DevicesFile
from gpuslice.devices.sharing import UNSHARED, MigStrategy, Replicated, Sharing, SharingStrategy
from gpuslice.devices.xids import XidPolicy
from gpuslice.kube.wire import Event, Node, NodeCondition
from gpuslice.node.discovery.backend import DiscoveredGpus
from gpuslice.node.discovery.simulated import DirectDriver, SimulatedDriver

XID = "XID 79: the GPU has fallen off the bus"


def health(node: Node) -> NodeCondition:
    conditions = node.status.conditions or ()
    return next((one for one in conditions if one.type == names.UNHEALTHY_CONDITION), NodeCondition())


async def until(here: World, holds: Callable[[NodeCondition], bool]) -> Node:
    return await here.until(Node, NODE, lambda node: holds(health(node)))


async def events(here: World, count: int) -> list[tuple[str, str, str, int]]:
    """(object, reason, message, how often) of all that tell of health, once there are so many."""
    told: list[Any] = []
    async with asyncio.timeout(GUARD):
        while len(told) < count:
            listing = await here.client.list(Event)
            told = [e for e in listing.items if e.reason.startswith("GPU")]
            await asyncio.sleep(0)
    return sorted(
        (f"{e.involved_object.kind}/{e.involved_object.name}", e.reason, e.message, e.count) for e in told
    )


async def test_a_sick_gpu_is_in_the_condition_and_told_to_node_and_pods_once() -> None:
    async with world() as here:
        node = await until(here, lambda c: c.status == "False")
        assert health(node) == NodeCondition(
            names.UNHEALTHY_CONDITION, "False", "GPUsAreHealthy", "2 GPUs, none is sick"
        )
        await here.create("share", container("c", 5), on={"c": (1,)})
        await here.create("other", container("c", 5), on={"c": (0,)})
        await here.running("share")
        await here.running("other")
        here.backend.set_health(GPUS[1].uuid, False, XID)
        sick = await until(here, lambda c: c.status == "True")
        said = f"GPU 1 ({GPUS[1].uuid}): {XID}, held by default/share"
        assert (health(sick).reason, health(sick).message) == ("GPUUnhealthy", said)
        ours = ("Node/n1", "GPUUnhealthy", said, 1)
        pods = (
            "Pod/share",
            "GPUUnhealthy",
            f"GPU 1 ({GPUS[1].uuid}), which this pod holds or shares, is unhealthy: {XID}",
            1,
        )
        assert await events(here, 2) == [ours, pods]
        kinds = {condition.type for condition in sick.status.conditions or ()}
        assert {"Ready", "MemoryPressure", names.UNHEALTHY_CONDITION} <= kinds, "those of the kubelet stay"

        await here.stop("agent")
        await here.served(0)
        await here.start_agent()
        await here.served(14)
        here.backend.set_health(GPUS[1].uuid, True)
        well = await until(here, lambda c: c.status == "False")
        assert health(well).message == "2 GPUs, none is sick"
        message = f"GPU 1 ({GPUS[1].uuid}) is well again; it was unhealthy: {XID}"
        assert await events(here, 3) == [("Node/n1", "GPUHealthy", message, 1), ours, pods]


async def test_a_pod_that_has_ended_holds_it_no_more() -> None:
    async with world() as here:
        pod = await here.create("share", container("c", 5), on={"c": (1,)})
        await here.running("share")
        here.backend.set_health(GPUS[1].uuid, False, XID)
        await until(here, lambda c: "default/share" in c.message)
        await here.client.delete(pod.resource, "share", "default", grace_seconds=1)
        await until(here, lambda c: c.message.endswith("held by nobody"))


async def test_a_condition_that_somebody_removes_comes_back_without_a_word() -> None:
    async with world() as here:
        here.backend.set_health(GPUS[0].uuid, False, XID)
        await until(here, lambda c: c.status == "True")
        await events(here, 1)
        gone = {"status": {"conditions": [{"$patch": "delete", "type": names.UNHEALTHY_CONDITION}]}}
        await here.client.patch(Node, NODE, gone, patch_type="strategic", subresource="status")
        await until(here, lambda c: c.status == "True")
        assert [count for *_, count in await events(here, 1)] == [1]


async def test_a_sick_gpu_is_told_of_when_the_api_server_is_back() -> None:
    async with world() as here:
        await until(here, lambda c: c.status == "False")
        here.api_of_agent.fail_after(lambda method: method in ("PATCH", "POST"))
        here.backend.set_health(GPUS[0].uuid, False, XID)
        await here.served(14)
        here.api_of_agent.heal()
        await until(here, lambda c: c.status == "True")
        assert [count for *_, count in await events(here, 1)] == [1]


@asynccontextmanager
async def machine(
    gpus: str, strategy: MigStrategy, sharing: Sharing = UNSHARED
) -> AsyncIterator[tuple[World, SimulatedDriver]]:
    """A node with GPUs that can be partitioned and replicated, and its driver."""
    head = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: "
    driver = SimulatedDriver(DevicesFile.parse(f"{head}{{gpus: [{gpus}]}}").machine("n"))
    backend = DiscoveredGpus(DirectDriver(driver), XidPolicy(), SystemClock())
    await backend.start()
    backend.configure(strategy, sharing)
    folder = Path(tempfile.mkdtemp(prefix="node"))  # pytest's own folders are too long for a socket
    here = World(folder, backend.gpus())
    here.backend = backend
    await here.api.start()
    following = asyncio.create_task(backend.run())
    try:
        await here.start_kubelet()
        await here.start_agent()
        yield here, driver
    finally:
        following.cancel()
        for what in ("agent", "kubelet"):
            await here.stop(what)
        await here.api.stop()
        shutil.rmtree(folder)


def asking(resource: str) -> dict[str, Any]:
    return {"name": "c", "image": "busybox", "resources": {"limits": {resource: "1"}}}


async def test_pods_on_mig_devices_are_named_with_what_is_sick() -> None:
    """An XID of a GPU instance is about one pod, one of the GPU about all on it."""
    small, large = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
    gpus = "{model: A100-40, mig: [3g.20gb@4, 1g.5gb@0]}"
    async with machine(gpus, MigStrategy.MIXED) as (here, driver):
        await here.allocatable(1, small)
        await here.allocatable(1, large)
        await here.create("a", asking(small))
        await here.create("b", asking(large))
        await here.running("a")
        await here.running("b")
        gpu = driver.query().gpus[0]
        (mig,) = [device for device in gpu.mig_devices if device.profile.slices == 1]
        driver.raise_xid(gpu.uuid, 94, mig.gpu_instance)
        sick = await until(here, lambda c: c.status == "True")
        assert health(sick).message == (
            f"MIG 1g.5gb on GPU 0 ({mig.uuid}): XID 94: contained memory error, held by default/a"
        )
        driver.raise_xid(gpu.uuid, 79)
        sick = await until(here, lambda c: c.message.startswith("GPU 0 "))
        assert health(sick).message == f"GPU 0 ({gpu.uuid}): {XID}, held by default/a, default/b"
        told = [(who, message) for who, _, message, _ in await events(here, 5)]
        assert ("Pod/b", f"GPU 0 ({gpu.uuid}), which this pod holds or shares, is unhealthy: {XID}") in told


async def test_pods_that_hold_replicas_are_named() -> None:
    two = Sharing(SharingStrategy.TIME_SLICING, (Replicated("nvidia.com/gpu", 2),))
    async with machine("{model: T4}", MigStrategy.NONE, two) as (here, driver):
        await here.allocatable(2, "nvidia.com/gpu")
        for name in ("a", "b"):
            await here.create(name, asking("nvidia.com/gpu"))
            await here.running(name)
        driver.raise_xid(driver.query().gpus[0].uuid, 79)
        sick = await until(here, lambda c: c.status == "True")
        assert health(sick).message.endswith(f": {XID}, held by default/a, default/b")
        assert [who for who, *_ in await events(here, 3)] == ["Node/n1", "Pod/a", "Pod/b"]


async def test_a_machine_without_gpus_says_so() -> None:
    async with world(gpus=()) as here:
        assert health(await until(here, lambda c: c.status == "Unknown")).message == "the driver lists no GPU"
