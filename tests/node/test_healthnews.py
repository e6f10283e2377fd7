"""The agent tells of sick GPUs: a condition of its node, events on the node and on the pods, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agent_world import GPUS, GUARD, NODE, World, container, world

from gpuslice.kube.wire import Event, Node, NodeCondition
from gpuslice.node.healthnews import CONDITION

XID = "XID 79: the GPU has fallen off the bus"


def health(node: Node) -> NodeCondition:
    conditions = node.status.conditions or ()
    return next((one for one in conditions if one.type == CONDITION), NodeCondition())


async def until(here: World, holds: Callable[[NodeCondition], bool]) -> Node:
    return await here.until(Node, NODE, lambda node: holds(health(node)))


async def events(here: World, count: int) -> list[tuple[str, str, str, int]]:
    """(object, reason, message, how often) of all that tell of health, once there are so many."""
    told: list[Any] = []
    async with asyncio.timeout(GUARD):
        while len(told) < count:
            listing = await here.client.list(Event)
            told = [e for e in listing.items if e.reason.startswith("GPU")]
            await asyncio.sleep(0.005)
    return sorted(
        (f"{e.involved_object.kind}/{e.involved_object.name}", e.reason, e.message, e.count) for e in told
    )


async def test_a_sick_gpu_is_in_the_condition_and_told_to_node_and_pods_once() -> None:
    async with world() as here:
        node = await until(here, lambda c: c.status == "False")
        assert health(node) == NodeCondition(CONDITION, "False", "GPUsAreHealthy", "2 GPUs, none is sick")
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
        assert {"Ready", "MemoryPressure", CONDITION} <= kinds, "those of the kubelet stay"

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
        gone = {"status": {"conditions": [{"$patch": "delete", "type": CONDITION}]}}
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


async def test_a_machine_without_gpus_says_so() -> None:
    async with world(gpus=()) as here:
        assert health(await until(here, lambda c: c.status == "Unknown")).message == "the driver lists no GPU"
