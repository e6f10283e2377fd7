"""What an installation leaves on the nodes is taken back, and nothing of anybody else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from gpuslice import names
from gpuslice.cli.install.cleaning import clean
from gpuslice.clock import SystemClock
from gpuslice.kube.client import Client
from gpuslice.kube.leading import Lease
from gpuslice.kube.wire import Node
from gpuslice.local.apiserver.api.app import ApiServer

COUNTS = {names.GPU_COUNT: "2", names.GPU_MEM: "28", "cpu": "4"}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Node `ours` with what an agent writes; `theirs` with a gpushare that stays; `plain` without GPUs."""
    server = ApiServer(clock=SystemClock(), new_uid=iter(map(str, range(100))).__next__)
    await server.start()
    made = Client(server.transport())
    annotations = {names.NODE_GPUS: "[]", names.MEMORY_UNIT: "GiB", "mine": "stays"}
    for name, notes, counts in (
        ("ours", annotations, COUNTS),
        ("theirs", {}, COUNTS),
        ("plain", {}, {"cpu": "1"}),
    ):
        meta = {"name": name, "annotations": notes, "labels": {"gpushare": "true"}}
        await made.create(Node.resource, {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        status = {"status": {"capacity": counts, "allocatable": counts}}
        await made.patch(Node, name, status, subresource="status")
    yield made
    await server.stop()


async def test_nodes_are_as_before_the_installation(client: Client) -> None:
    assert await clean(client, lease=None) == [
        "node ours: no annotations and labels of ours, no aliyun.com/gpu-count, no condition GPUUnhealthy"
    ]
    ours = msgspec.json.decode(await client.read(Node.resource.path(None, "ours")))
    assert ours["metadata"]["annotations"] == {"mine": "stays"}
    assert ours["metadata"]["labels"] == {"gpushare": "true"}
    for kind in ("capacity", "allocatable"):
        assert ours["status"][kind] == {names.GPU_MEM: "28", "cpu": "4"}
    theirs = await client.get(Node, "theirs")
    assert (theirs.status.capacity or {})[names.GPU_COUNT] == "2"


async def test_a_second_time_there_is_nothing_to_do(client: Client) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}}
    await client.create(Lease.resource, lease, "default")
    assert (await clean(client, lease=("default", "l")))[-1] == "lease default/l: deleted"
    assert await clean(client, lease=("default", "l")) == []


async def test_a_pools_labels_and_taints_are_taken_off_and_nobody_elses(client: Client) -> None:
    """Its GPUs stay partitioned: pods hold them."""
    record = '{"pool":"p","labels":["agentpool","team"],"taints":["sku=gpu:NoSchedule"],"cordoned":true}'
    labels = {
        "agentpool": "p",
        "team": "a",
        "mine": "b",
        names.MIG_CONFIG: "all-1g.5gb",
        names.MIG_STRATEGY: "mixed",
    }
    taints = [{"key": "sku", "value": "gpu", "effect": "NoSchedule"}, {"key": "mine", "effect": "NoSchedule"}]
    body = {
        "metadata": {"labels": labels, "annotations": {names.POOL_RECORD: record}},
        "spec": {"taints": taints, "unschedulable": True},
    }
    await client.patch(Node, "ours", body)
    await clean(client, lease=None)
    ours = await client.get(Node, "ours")
    assert ours.labels == {"gpushare": "true", "mine": "b", names.MIG_CONFIG: "all-1g.5gb"}
    assert (ours.annotations, ours.spec.unschedulable) == ({"mine": "stays"}, False)
    assert [taint.key for taint in ours.spec.taints or ()] == ["mine"]
