"""MIG in a whole cluster in one process: strategies, what pods get, what people see."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest_asyncio
from click.testing import CliRunner

from gpuslice import names
from gpuslice.cli import migtable
from gpuslice.cli.explain import tell
from gpuslice.cli.explaining import explain
from gpuslice.cli.gpushare import summary
from gpuslice.cli.main import main
from gpuslice.clock import SystemClock
from gpuslice.config.cluster import ClusterFile
from gpuslice.kube.wire import Node, Pod
from gpuslice.local.up import LocalCluster, Settings, local_cluster

PATIENCE = 60
SEVEN = "[1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]"
FILE = f"""\
apiVersion: gpuslice.io/v1alpha1
kind: Cluster
spec:
  nodes:
    - name: single
      gpus: [{{model: A100-40, count: 8, mig: {SEVEN}}}]
      migStrategy: single
    - name: mixed
      gpus: [{{model: A100-40, mig: [3g.20gb, 2g.10gb, 1g.5gb]}}, {{model: A100-40, mig: [2g.10gb]}}, {{model: T4}}]
      migStrategy: mixed
"""
SMALL, MEDIUM, LARGE = (f"{names.MIG_PREFIX}{profile}" for profile in ("1g.5gb", "2g.10gb", "3g.20gb"))


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    plan = ClusterFile.parse(FILE).plan()
    settings = Settings(kubeconfig=tmp_path / "kubeconfig")
    async with local_cluster(plan, settings, clock=SystemClock(), random=Random(1)) as running:
        async with asyncio.timeout(PATIENCE):
            await running.ready()
        yield running


def pod(name: str, resource: str, count: int, node: str = "") -> dict[str, Any]:
    container = {"name": "main", "image": "cuda", "resources": {"limits": {resource: str(count)}}}
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], **selector},
    }


async def start(cluster: LocalCluster, *pods: dict[str, Any]) -> dict[str, Pod]:
    """Create pods and wait until they run with what they hold written down."""
    for body in pods:
        await cluster.client.create(Pod.resource, body, "default")
    wanted = {body["metadata"]["name"] for body in pods}
    async with asyncio.timeout(PATIENCE):
        while True:
            found = {p.name: p for p in (await cluster.client.list(Pod, namespace="default")).items}
            if all(
                found[name].status.phase == "Running" and names.ALLOCATION in found[name].annotations
                for name in wanted
            ):
                return found
            await cluster.changed(lambda: True)
            await asyncio.sleep(0)


async def allocatable(cluster: LocalCluster, node: str) -> dict[str, int]:
    found = (await cluster.client.get(Node, node)).status.allocatable or {}
    return {key: int(value) for key, value in found.items() if "nvidia" in key or key == names.GPU_MEM}


async def test_nodes_offer_what_nvidias_device_plugin_would(cluster: LocalCluster) -> None:
    assert await allocatable(cluster, "single") == {names.WHOLE_GPU: 56, names.GPU_MEM: 0}
    assert await allocatable(cluster, "mixed") == {
        names.WHOLE_GPU: 1,
        names.GPU_MEM: 14,
        SMALL: 1,
        MEDIUM: 2,
        LARGE: 1,
    }


async def test_labels_follow(cluster: LocalCluster) -> None:
    labels = (await cluster.client.get(Node, "single")).metadata.labels or {}
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/mig.strategy"]) == ("56", "single")


async def test_pods_get_mig_devices_and_pack_onto_gpus_in_use(cluster: LocalCluster) -> None:
    """The second 2g goes beside the first pod's instance: the other GPU stays free to be cut anew."""
    found = await start(cluster, pod("large", LARGE, 1))
    found = await start(cluster, pod("medium", MEDIUM, 1), pod("share", names.GPU_MEM, 5, "mixed"))
    parents = {
        gpu.uuid: gpu.parent for gpu in (cluster.cluster.gpus("mixed") or cluster.offered["mixed"]).gpus
    }
    held = {
        name: next(iter(cluster.cluster.pod(one.uid).allocation.gpus))  # type: ignore[union-attr]
        for name, one in found.items()
    }
    assert parents[held["large"]] == parents[held["medium"]] != ""
    assert parents[held["share"]] == "", "memory is shared on the T4"


async def test_a_pod_that_asks_for_more_than_is_left_waits_and_is_told_why(cluster: LocalCluster) -> None:
    await start(cluster, pod("first", LARGE, 1))
    await cluster.client.create(Pod.resource, pod("second", LARGE, 1), "default")
    nodes, pods = (await cluster.client.list(Node)).items, (await cluster.client.list(Pod)).items
    second = next(one for one in pods if one.name == "second")
    text = tell(explain(second, cluster.cluster, nodes, pods))
    assert "none of 2 nodes can take it" in text
    assert "Insufficient free MIG devices of the profile (wanted 1, free 0)" in text
    assert "GPU0 to GPU55 NVIDIA A100-SXM4-40GB MIG 1g.5gb: is one nvidia.com/gpu" in text


async def test_56_pods_of_one_are_on_56_devices(cluster: LocalCluster) -> None:
    found = await start(cluster, *(pod(f"p{n}", names.WHOLE_GPU, 1, "single") for n in range(56)))
    held = Counter(uuid for p in found.values() for uuid in cluster.cluster.pod(p.uid).allocation.gpus)  # type: ignore[union-attr]
    assert len(held) == 56
    assert set(held.values()) == {1}


async def test_inspect_shows_mig_devices_beside_gpushares_table(cluster: LocalCluster) -> None:
    await start(cluster, pod("small", SMALL, 1))
    views = cluster.cluster.snapshots()
    assert "MIG" not in summary(views)
    lines = migtable.table(views, details=False).split("\n")
    assert [line.split() for line in lines if SMALL in line] == [
        ["mixed", SMALL, "NVIDIA", "A100-SXM4-40GB", "MIG", "1g.5gb", "1/1"]
    ]
    assert "default/small" in migtable.table(views, details=True)


async def test_doctor_finds_nothing_wrong_with_nodes_that_share_no_memory(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await start(cluster, pod("one", names.WHOLE_GPU, 1, "single"))
    words = ["doctor", "--strict", "--kubeconfig", str(tmp_path / "kubeconfig")]
    result = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert (result.exit_code, result.output) == (0, "nothing is wrong\n")
