"""MIG on demand in a whole cluster in one process: pods that wait have GPUs partitioned, idle instances go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

import pytest
from up_world import device_pod, eventually

from gpuslice import names
from gpuslice.cli.inspect.explain import tell
from gpuslice.clock import SystemClock
from gpuslice.config.cluster import ClusterFile
from gpuslice.devices.miglayout import GpuInstance
from gpuslice.kube.reflector import Reflector
from gpuslice.kube.wire import Event, Node, Pod
from gpuslice.local.up import LocalCluster, Settings, local_cluster
from gpuslice.node.discovery.driver import DriverError, Trouble
from gpuslice.scheduler.explaining import explain

T = TypeVar("T")
PATIENCE = 60
SMALL, MEDIUM, LARGE, ALL = (
    f"{names.MIG_PREFIX}{profile}" for profile in ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
)
NEVER = 1e6


def nodes(*names_: str, policy: str = "on-demand", gpus: str = "{model: A100-40, count: 2}") -> str:
    entries = [
        f"    - {{name: {name}, gpus: [{gpus}], migStrategy: mixed, "
        f"labels: {{gpuslice.io/mig-policy: {policy}}}}}"
        for name in names_
    ]
    return "\n".join(["apiVersion: gpuslice.io/v1alpha1", "kind: Cluster", "spec:", "  nodes:", *entries])


@asynccontextmanager
async def up(file: str, idle: float = NEVER) -> AsyncIterator[LocalCluster]:
    plan = ClusterFile.parse(file).plan()
    settings = Settings(mig_idle_seconds=idle)
    async with local_cluster(plan, settings, clock=SystemClock(), random=Random(1)) as running:
        async with asyncio.timeout(PATIENCE):
            await running.ready()
        yield running


async def create(cluster: LocalCluster, *pods: dict[str, Any]) -> None:
    for body in pods:
        await cluster.client.create(Pod.resource, body, "default")


async def run(cluster: LocalCluster, *pods: dict[str, Any]) -> dict[str, str]:
    """Create pods and wait until they run; the physical GPU of each."""
    await create(cluster, *pods)
    wanted = {body["metadata"]["name"] for body in pods}

    async def running() -> dict[str, str]:
        found = {p.name: p for p in (await cluster.client.list(Pod, namespace="default")).items}
        assert not [p.name for p in found.values() if p.status.phase == "Failed"]
        ready = {
            name
            for name, p in found.items()
            if p.status.phase == "Running" and names.ALLOCATION in p.annotations
        }
        if not wanted <= ready:
            return {}
        parents = {}
        for name in wanted:
            record = cluster.cluster.pod(found[name].uid)
            gpus = cluster.cluster.gpus(found[name].spec.node_name)
            if record is None or record.allocation is None or gpus is None:
                return {}
            gpu = gpus.find(record.allocation.gpus[0])
            if gpu is None:
                return {}
            parents[name] = gpu.physical
        return parents

    return await eventually(cluster, running)


async def amounts(cluster: LocalCluster, node: str) -> dict[str, int]:
    found = (await cluster.client.get(Node, node)).status.allocatable or {}
    return {key: int(value) for key, value in found.items() if "nvidia" in key and int(value)}


async def until_offered(cluster: LocalCluster, node: str, wanted: dict[str, int]) -> None:
    async def look() -> bool:
        return await amounts(cluster, node) == wanted

    await eventually(cluster, look)


async def until_said(cluster: LocalCluster, pod_name: str, words: str) -> None:
    """Wait for an event of the pod with these words."""
    said = asyncio.Event()

    def heard(event: Event) -> None:
        if event.involved_object.name == pod_name and words in event.message:
            said.set()

    events = Reflector(
        cluster.client, Event, on_set=heard, on_drop=lambda _: None, clock=SystemClock(), random=lambda: 0.5
    )
    following = asyncio.create_task(events.run())
    try:
        async with asyncio.timeout(PATIENCE):
            await said.wait()
    finally:
        following.cancel()


async def test_a_pod_that_waits_has_a_free_gpu_cut_and_the_next_goes_beside_it() -> None:
    async with up(nodes("a")) as cluster:
        first = await run(cluster, device_pod("medium", MEDIUM))
        await until_said(cluster, "medium", "node a is told to create 1 x 2g.10gb on GPU ")
        second = await run(cluster, device_pod("large", LARGE))
        assert first["medium"] == second["large"], "no further GPU is opened"
        await until_offered(cluster, "a", {names.WHOLE_GPU: 1, MEDIUM: 1, LARGE: 1})
        # The other GPU is whole, and is given so.
        await run(cluster, device_pod("whole", names.WHOLE_GPU))


async def test_idle_instances_go_and_uncut_gpus_come_back_for_those_who_wait_for_them() -> None:
    async with up(nodes("a"), idle=0.1) as cluster:
        await run(cluster, device_pod("stays", MEDIUM), device_pod("goes", LARGE))
        await cluster.client.delete(Pod.resource, "goes", "default")
        await until_offered(cluster, "a", {names.WHOLE_GPU: 1, MEDIUM: 1})
        await cluster.client.delete(Pod.resource, "stays", "default")
        await until_offered(cluster, "a", {names.WHOLE_GPU: 1})
        await run(cluster, device_pod("both", names.WHOLE_GPU, 2))


async def test_only_with_drain_do_idle_instances_give_way_at_once() -> None:
    seven = "{model: A100-40, mig: [1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]}"
    async with up(nodes("a", policy="on-demand-drain", gpus=seven)) as cluster:
        await run(cluster, device_pod("large", LARGE))
        await until_offered(cluster, "a", {SMALL: 4, LARGE: 1})
        # What is in use does not give way.
        await create(cluster, device_pod("all", ALL))
        await until_said(cluster, "all", "no node has room for 1 x 7g.40gb besides the instances in use")
        waits = await cluster.client.get(Pod, "all", "default")
        text = tell(explain(waits, cluster.cluster))
        assert "its GPUs are partitioned on demand, but no node has room for 1 x 7g.40gb" in text
    async with up(nodes("a", policy="on-demand-drain", gpus=seven)) as cluster:
        await run(cluster, device_pod("whole", names.WHOLE_GPU))
    async with up(nodes("a", gpus=seven)) as cluster:
        await create(cluster, device_pod("large", LARGE))
        await until_said(cluster, "large", "no node has room for 1 x 3g.20gb")
        assert await amounts(cluster, "a") == {SMALL: 7}


async def test_what_no_gpu_has_is_said_and_nothing_is_given() -> None:
    async with up(nodes("a")) as cluster:
        await create(
            cluster,
            device_pod("odd", f"{names.MIG_PREFIX}1g.10gb"),
            device_pod("odder", f"{names.MIG_PREFIX}1g.6gb"),
        )
        await until_said(cluster, "odder", "no GPU has the MIG profile 1g.6gb")
        assert (await cluster.client.get(Pod, "odder", "default")).spec.node_name == ""


async def test_pods_of_other_nodes_have_nothing_cut_here() -> None:
    file = nodes("a") + "\n" + nodes("b", policy="static").split("\n")[-1]
    async with up(file) as cluster:
        await create(cluster, device_pod("there", MEDIUM, node="b"))
        await run(cluster, device_pod("here", LARGE, node="a"))
        assert (await cluster.client.get(Pod, "there", "default")).spec.node_name == ""
        assert await amounts(cluster, "b") == {names.WHOLE_GPU: 2}


async def test_an_agent_killed_in_between_comes_back_to_what_was_asked() -> None:
    async with up(nodes("a")) as cluster:
        await create(cluster, *(device_pod(f"p{n}", MEDIUM) for n in range(5)))
        cluster.agents["a"].kill()
        await run(cluster, device_pod("p5", MEDIUM))
        await until_offered(cluster, "a", {MEDIUM: 6})


async def test_a_node_whose_driver_refuses_is_left_alone_and_another_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with up(nodes("a", "b")) as cluster:
        driver = cluster.drivers["a"]

        def refuse(gpu: str, profile_id: int, start: int | None = None) -> GpuInstance:
            raise DriverError(Trouble.NO_PERMISSION, "only an administrator may")

        monkeypatch.setattr(driver, "create_gpu_instance", refuse)
        await run(cluster, device_pod("one", MEDIUM))
        assert (await cluster.client.get(Pod, "one", "default")).spec.node_name == "b"
        await until_offered(cluster, "a", {names.WHOLE_GPU: 2})


async def test_a_node_of_one_strategy_says_that_it_needs_another() -> None:
    file = nodes("a").replace("migStrategy: mixed", "migStrategy: single")
    async with up(file) as cluster:

        async def told() -> bool:
            found = await cluster.client.get(Node, "a")
            return "--mig-strategy mixed" in found.annotations.get(names.MIG_CONFIG_REASON, "")

        await eventually(cluster, told)
