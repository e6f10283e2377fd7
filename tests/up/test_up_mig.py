"""MIG in a whole cluster in one process: strategies, what pods get, what people see."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
import pytest_asyncio
from click.testing import CliRunner
from up_world import device_pod, eventually

from gpuslice import names
from gpuslice.cli.inspect import migtable
from gpuslice.cli.inspect.explain import tell
from gpuslice.cli.inspect.gpushare import summary
from gpuslice.cli.main import main
from gpuslice.clock import SystemClock
from gpuslice.cluster.state import Change
from gpuslice.config.cluster import ClusterFile
from gpuslice.devices.miglayout import GpuInstance
from gpuslice.devices.migstate import MigState
from gpuslice.kube.wire import Node, Pod
from gpuslice.local.up import LocalCluster, Settings, local_cluster
from gpuslice.node.discovery.driver import DriverError, Trouble
from gpuslice.scheduler.explaining import explain

T = TypeVar("T")
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


async def start(cluster: LocalCluster, *pods: dict[str, Any]) -> dict[str, Pod]:
    """Create pods and wait until they run with what they hold written down."""
    for body in pods:
        await cluster.client.create(Pod.resource, body, "default")
    wanted = {body["metadata"]["name"] for body in pods}

    async def running() -> dict[str, Pod]:
        found = {p.name: p for p in (await cluster.client.list(Pod, namespace="default")).items}
        ready = {
            name
            for name, p in found.items()
            if p.status.phase == "Running" and names.ALLOCATION in p.annotations
        }
        return found if wanted <= ready else {}

    return await eventually(cluster, running)


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
    """The second 2g goes beside the first pod's instance: the other GPU stays free to be repartitioned."""
    found = await start(cluster, device_pod("large", LARGE, 1))
    found = await start(
        cluster, device_pod("medium", MEDIUM, 1), device_pod("share", names.GPU_MEM, 5, "mixed")
    )
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
    await start(cluster, device_pod("first", LARGE, 1))
    await cluster.client.create(Pod.resource, device_pod("second", LARGE, 1), "default")
    second = await cluster.client.get(Pod, "second", "default")
    text = tell(explain(second, cluster.cluster))
    assert "none of 2 nodes can take it" in text
    assert "Insufficient free MIG devices of the profile (wanted 1, free 0)" in text
    assert "GPU0 to GPU55 NVIDIA A100-SXM4-40GB MIG 1g.5gb: is one nvidia.com/gpu" in text


async def test_56_pods_of_one_are_on_56_devices(cluster: LocalCluster) -> None:
    found = await start(cluster, *(device_pod(f"p{n}", names.WHOLE_GPU, 1, "single") for n in range(56)))
    held = Counter(uuid for p in found.values() for uuid in cluster.cluster.pod(p.uid).allocation.gpus)  # type: ignore[union-attr]
    assert len(held) == 56
    assert set(held.values()) == {1}


async def test_inspect_shows_mig_devices_beside_gpushares_table(cluster: LocalCluster) -> None:
    await start(cluster, device_pod("small", SMALL, 1))
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
    await start(cluster, device_pod("one", names.WHOLE_GPU, 1, "single"))
    words = ["doctor", "--strict", "--kubeconfig", str(tmp_path / "kubeconfig")]
    result = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert (result.exit_code, result.output) == (0, "nothing is wrong\n")


# --- the node's label says how its GPUs are to be ----------------------------------------------------------


async def wish(cluster: LocalCluster, node: str, config: str) -> None:
    body = {"metadata": {"labels": {names.MIG_CONFIG: config}}}
    await cluster.client.patch(Node, node, body)


async def told(cluster: LocalCluster, node: str, state: str, words: str = "") -> str:
    """Wait until the node's label says this state, for a reason with these words; the reason."""

    async def look() -> str:
        found = await cluster.client.get(Node, node)
        reason = found.annotations.get(names.MIG_CONFIG_REASON, "-")
        return (
            reason
            if (found.metadata.labels or {}).get(names.MIG_CONFIG_STATE) == state and words in reason
            else ""
        )

    return await eventually(cluster, look)


async def until_offered(cluster: LocalCluster, node: str, amounts: dict[str, int]) -> None:
    async def look() -> bool:
        return {k: v for k, v in (await allocatable(cluster, node)).items() if v} == amounts

    await eventually(cluster, look)


async def test_a_label_cuts_a_nodes_gpus_anew_and_labels_and_resources_follow(cluster: LocalCluster) -> None:
    await wish(cluster, "single", "all-2g.10gb")
    assert await told(cluster, "single", MigState.SUCCESS) == "-", "success needs no reason"
    await until_offered(cluster, "single", {names.WHOLE_GPU: 24})

    async def labelled() -> bool:
        labels = (await cluster.client.get(Node, "single")).metadata.labels or {}
        return labels["nvidia.com/gpu.product"].endswith("-MIG-2g.10gb")

    await eventually(cluster, labelled)
    await start(cluster, device_pod("one", names.WHOLE_GPU, 1, "single"))
    # MIG off again: the mode of the GPU that the pod is on cannot change before it ends.
    await wish(cluster, "single", "all-disabled")
    await told(cluster, "single", MigState.PENDING, "default/one")


async def test_what_is_in_use_is_never_cut_and_the_rest_goes_ahead(cluster: LocalCluster) -> None:
    """GPU 0's 3g has a pod; GPU 1 is cut at once, GPU 0 when the pod has ended; nobody gets what has to go."""
    await start(cluster, device_pod("stays", LARGE, 1))
    await wish(cluster, "mixed", "all-1g.5gb")
    await told(cluster, "mixed", MigState.PENDING, "GPU 0: default/stays")
    await until_offered(cluster, "mixed", {names.WHOLE_GPU: 1, names.GPU_MEM: 14, SMALL: 8})
    assert (await cluster.client.get(Pod, "stays", "default")).status.phase == "Running"
    await cluster.client.delete(Pod.resource, "stays", "default")
    await told(cluster, "mixed", MigState.SUCCESS)
    await until_offered(cluster, "mixed", {names.WHOLE_GPU: 1, names.GPU_MEM: 14, SMALL: 14})


async def test_what_cannot_be_changes_nothing_and_says_why(cluster: LocalCluster) -> None:
    before = await allocatable(cluster, "mixed")
    await wish(cluster, "mixed", "all-1g.6gb")
    assert "all-1g.6gb" in await told(cluster, "mixed", MigState.FAILED)
    await wish(cluster, "mixed", "nosuch")
    await told(cluster, "mixed", MigState.FAILED, "selected mig-config not present: nosuch")
    assert await allocatable(cluster, "mixed") == before


async def test_what_the_driver_refuses_is_undone_said_and_given_out_as_before(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = cluster.drivers["mixed"]
    create = driver.create_gpu_instance

    def no_small_ones(gpu: str, profile_id: int, start: int | None = None) -> GpuInstance:
        if profile_id == 19:
            raise DriverError(Trouble.NO_PERMISSION, "only an administrator may")
        return create(gpu, profile_id, start)

    monkeypatch.setattr(driver, "create_gpu_instance", no_small_ones)
    before = await allocatable(cluster, "mixed")
    await wish(cluster, "mixed", "all-1g.5gb")
    reason = await told(cluster, "mixed", MigState.FAILED, "only an administrator may")
    assert "everything is as it was before" in reason
    await until_offered(cluster, "mixed", {key: value for key, value in before.items() if value})
    await start(cluster, device_pod("large", LARGE, 1))


async def test_who_waits_for_a_pod_says_so_once(cluster: LocalCluster) -> None:
    """Not "being partitioned" and "waiting" by turns, which would write the node again and again."""
    await start(cluster, device_pod("stays", LARGE, 1), device_pod("too", MEDIUM, 2))
    said: list[str] = []

    def heard(change: Change) -> None:
        obj = change.object
        if isinstance(obj, Node) and obj.name == "mixed":
            said.append(obj.annotations.get(names.MIG_CONFIG_REASON, ""))

    cluster.cluster.subscribe(heard)
    await wish(cluster, "mixed", "all-1g.5gb")
    await told(cluster, "mixed", MigState.PENDING, "GPU 0: default/stays, default/too; GPU 1: default/too")
    assert "GPUs are being partitioned" not in said, "nothing can be partitioned yet"


async def test_an_agent_that_comes_back_goes_on_where_the_label_says(cluster: LocalCluster) -> None:
    """Killed in the middle; and after a reboot of the machine no instance is left."""
    await wish(cluster, "single", "all-3g.20gb")
    cluster.agents["single"].kill()
    await told(cluster, "single", MigState.SUCCESS)
    await until_offered(cluster, "single", {names.WHOLE_GPU: 16})
    driver = cluster.drivers["single"]
    for gpu in driver.query().gpus:
        for device in gpu.mig_devices:
            driver.destroy_compute_instance(gpu.uuid, device.gpu_instance, device.compute_instance)
            driver.destroy_gpu_instance(gpu.uuid, device.gpu_instance)
    cluster.agents["single"].kill()
    await until_offered(cluster, "single", {names.WHOLE_GPU: 16})
