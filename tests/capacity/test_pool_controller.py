"""The controller of pools where machines are not ours to make: existing nodes are partitioned and labelled."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gpuslice import names
from gpuslice.capacity.nodepool import (
    DEFINITIONS,
    POOLS,
    READY,
    SCALING,
    GPUNodePool,
    PoolFields,
    definition,
    pool_object,
)
from gpuslice.capacity.poolcontroller import NodePoolController
from gpuslice.clock import SystemClock
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.state import Cluster
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.kube.client import Client
from gpuslice.kube.reflector import Reflector
from gpuslice.kube.wire import Node
from gpuslice.local.apiserver.api.app import ApiServer

A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
PATIENCE = 20


class World:
    """Nodes as their agents would leave them; the test plays the agents."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._news = asyncio.Event()
        self.watches = [self._watch(Node), self._watch(GPUNodePool)]

    def _watch(self, kind: type[Any]) -> Reflector[Any]:
        def heard(_obj: object) -> None:
            self._news.set()

        return Reflector(
            self.client, kind, on_set=heard, on_drop=heard, clock=SystemClock(), random=lambda: 0.5
        )

    async def node(self, name: str, labels: Mapping[str, str], *, gpus: int = 1, **spec: Any) -> None:
        offered = NodeGpus(tuple(Gpu(i, f"GPU-{name}-{i}", "NVIDIA A100", 40536) for i in range(gpus)))
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": dict(labels), "annotations": encode_gpus(offered)},
            "spec": spec,
        }
        await self.client.create(Node.resource, body)
        status = {
            "allocatable": {names.WHOLE_GPU: str(gpus), names.GPU_MEM: str(39 * gpus), "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await self.client.patch(Node, name, {"status": status}, subresource="status")

    async def pool(self, name: str, **fields: Any) -> None:
        await self.client.create(POOLS, pool_object(name, PoolFields(**fields)))

    async def get(self, name: str) -> Node:
        return await self.client.get(Node, name)

    async def until(self, look: Callable[[], Awaitable[object]]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await look():
                await self._news.wait()
                self._news.clear()

    async def said(self, pool: str, kind: str, reason: str, words: str = "") -> None:
        """Wait for a condition."""

        async def look() -> bool:
            found = (await self.client.get(GPUNodePool, pool)).condition(kind)
            return found is not None and found.reason == reason and words in found.message

        await self.until(look)

    async def told(self, name: str, config: str, strategy: str) -> None:
        """Wait until a node's labels say how its GPUs are to be."""

        async def look() -> bool:
            labels = (await self.get(name)).labels
            return (labels.get(names.MIG_CONFIG), labels.get(names.MIG_STRATEGY)) == (config, strategy)

        await self.until(look)

    async def partitioned(self, name: str, profile: str, number: int, state: str = "success") -> None:
        """Be the agent: the node's GPU is partitioned so."""
        parts = tuple(
            Gpu(
                i,
                f"MIG-{name}-{profile}-{i}",
                f"NVIDIA A100 MIG {profile}",
                4864,
                parent="GPU",
                shareable=False,
            )
            for i in range(number)
        )
        metadata = {"labels": {names.MIG_CONFIG_STATE: state}, "annotations": encode_gpus(NodeGpus(parts))}
        await self.client.patch(Node, name, {"metadata": metadata})
        status = {"allocatable": {names.WHOLE_GPU: str(number)}}
        await self.client.patch(Node, name, {"status": status}, subresource="status")


class Follows:
    """A replica that does not lead, until it is told to."""

    leads = False
    why = "another one does"


@asynccontextmanager
async def world(leadership: Any = None) -> AsyncIterator[World]:
    clock = SystemClock()
    server = ApiServer(clock=clock, new_uid=lambda: str(uuid.uuid4()), random=lambda: 0.5)
    await server.start()
    client = Client(server.transport())
    await client.create(DEFINITIONS, definition())
    cluster = Cluster(clock=clock)
    feed = ClusterFeed(client, cluster, clock=clock, random=lambda: 0.5, leadership=leadership)
    controller = NodePoolController(
        client,
        cluster,
        clock=clock,
        new_id=lambda: uuid.uuid4().hex[:16],
        random=lambda: 0.5,
    )
    made = World(client)
    runs = [feed.run(), controller.run(), *(watch.run() for watch in made.watches)]
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        yield made
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await server.stop()


async def test_nodes_of_a_selector_are_told_one_after_the_other() -> None:
    async with world() as w:
        for name in ("a", "b"):
            await w.node(name, {"rack": "r1", **A100})
        await w.pool("p", selector={"rack": "r1"}, gpu_instance_profile="MIG1g", node_labels={"team": "x"})
        await w.told("a", "all-1g.5gb", "single")
        await w.said(
            "p", READY, "Partitioning", "0 of 2 nodes are partitioned; node a: its GPUs are being partitioned"
        )
        b = await w.get("b")
        assert (names.MIG_CONFIG in b.labels, b.labels["team"], b.labels[names.POOL]) == (False, "x", "p")
        await w.partitioned("a", "1g.5gb", 7)
        await w.told("b", "all-1g.5gb", "single")
        await w.partitioned("b", "1g.5gb", 7)
        await w.said("p", READY, "Ready")
        await w.said("p", SCALING, "NotPossibleHere", "count, minCount and maxCount have no effect")
        status = (await w.client.get(GPUNodePool, "p")).status
        assert (status.nodes, status.ready_nodes, status.partitioned_nodes) == (2, 2, 2)


async def test_a_pool_of_aks_is_the_nodes_that_say_so() -> None:
    async with world() as w:
        await w.node("aks-mignode-1", {names.AKS_POOL: "mignode"})
        await w.node("other", {})
        await w.pool(
            "mignode", vm_size="Standard_ND96asr_v4", gpu_instance_profile="MIG3g", mig_strategy="mixed"
        )
        await w.told("aks-mignode-1", "all-3g.20gb", "mixed")
        assert names.POOL not in (await w.get("other")).labels


async def test_what_a_pool_put_on_goes_with_it_and_nothing_else() -> None:
    mine = {"key": "mine", "value": "1", "effect": "NoSchedule"}
    async with world() as w:
        await w.node("a", {"rack": "r1", "own": "1", **A100}, taints=[mine], unschedulable=True)
        dress = {"node_labels": {"team": "x"}, "node_taints": ("sku=gpu:NoSchedule",)}
        await w.pool("p", selector={"rack": "r1"}, gpu_instance_profile="MIG7g", **dress)
        await w.told("a", "all-7g.40gb", "single")
        await w.partitioned("a", "7g.40gb", 1)
        await w.said("p", READY, "Ready")
        assert {taint.key for taint in (await w.get("a")).spec.taints or ()} >= {"mine", "sku"}
        await w.client.delete(POOLS, "p")

        async def bare() -> bool:
            return names.POOL_RECORD not in (await w.get("a")).annotations

        await w.until(bare)
        a = await w.get("a")
        assert not {"team", names.POOL} & a.labels.keys()
        assert (a.labels["own"], a.labels[names.MIG_CONFIG]) == ("1", "all-7g.40gb")
        assert "mine" in {taint.key for taint in a.spec.taints or ()}
        assert "sku" not in {taint.key for taint in a.spec.taints or ()}
        assert a.spec.unschedulable, "somebody else's cordon"


async def test_a_node_is_in_one_pool() -> None:
    async with world() as w:
        await w.node("a", {"rack": "r1", **A100})
        await w.pool("first", selector={"rack": "r1"})
        await w.said("first", READY, "Ready")
        await w.pool("second", selector={"rack": "r1"}, gpu_instance_profile="MIG1g")
        await w.said("second", READY, "NoNodes", "no node has the labels rack=r1")
        a = await w.get("a")
        assert (a.labels[names.POOL], names.MIG_CONFIG in a.labels) == ("first", False)


async def test_what_cannot_be_is_said_and_nothing_is_touched() -> None:
    async with world() as w:
        await w.node("a", {"rack": "r1"})
        await w.pool("p", selector={"rack": "r1"}, gpu_instance_profile="MIG1g")
        await w.said("p", READY, "Invalid", "node a: the model of its GPUs is not known")
        await w.pool("q", vm_size="Standard_NC4as_T4_v3", gpu_instance_profile="MIG1g")
        await w.said("q", READY, "Invalid", "gpuInstanceProfile: MIG1g is not possible: Tesla T4")
        assert (await w.get("a")).labels == {"rack": "r1"}


async def test_a_cut_that_failed_stops_there() -> None:
    async with world() as w:
        for name in ("a", "b"):
            await w.node(name, {"rack": "r1", **A100})
        await w.pool("p", selector={"rack": "r1"}, gpu_instance_profile="MIG1g")
        await w.told("a", "all-1g.5gb", "single")
        reason = {"annotations": {names.MIG_CONFIG_REASON: "GPU 0: no"}}
        await w.client.patch(
            Node, "a", {"metadata": {"labels": {names.MIG_CONFIG_STATE: "failed"}, **reason}}
        )
        await w.said("p", READY, "PartitioningFailed", "node a: GPU 0: no")
        assert names.MIG_CONFIG not in (await w.get("b")).labels


async def test_without_a_profile_gpus_become_whole_again() -> None:
    async with world() as w:
        await w.node("a", {"rack": "r1", **A100})
        await w.pool("p", selector={"rack": "r1"}, gpu_instance_profile="MIG1g", mig_strategy="mixed")
        await w.told("a", "all-1g.5gb", "mixed")
        await w.partitioned("a", "1g.5gb", 7)
        await w.said("p", READY, "Ready")
        gone = {"spec": {"gpuInstanceProfile": None, "migStrategy": None}}
        await w.client.patch(GPUNodePool, "p", gone)
        await w.told("a", "all-disabled", "mixed")
        assert (await w.get("a")).labels[names.MIG_CONFIG_STATE] == "pending", "not the state of before"


async def test_only_the_replica_that_leads_acts() -> None:
    leadership = Follows()
    async with world(leadership) as w:
        await w.node("a", {"rack": "r1", **A100})
        await w.pool("p", selector={"rack": "r1"}, gpu_instance_profile="MIG1g")
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await w.get("a")).labels == {"rack": "r1", **A100}
        leadership.leads = True
        await w.client.patch(Node, "a", {"metadata": {"annotations": {"any": "change"}}})
        await w.told("a", "all-1g.5gb", "single")


def test_a_status_says_zero() -> None:
    """A merge patch leaves what it does not name."""
    assert msgspec.to_builtins(GPUNodePool().status)["nodes"] == 0
