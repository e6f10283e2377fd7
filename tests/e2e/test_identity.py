"""Bursts under the real kubelet: whoever asks, in whatever order, every container has what everybody says it has.

The nodes are all but full: 60 pods ask for 150 of 168 GiB. A monitor asks each kubelet for pod-resources all the
time, as exporters of metrics do, which makes kubelet offer ids that are in use (see the specification of the agent).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice import names

from . import truth
from .alone import Alone, gpu_container, gpu_pod
from .cluster import Object, RealCluster
from .node import Node
from .processes import Process

SIZES = (2, 3)
COUNT = 60


@pytest.fixture
def cluster(alone: Alone) -> Iterator[RealCluster]:
    cluster = alone.cluster
    monitors = [_monitor(cluster, node) for node in cluster.nodes]
    for monitor in monitors:
        monitor.start()
    yield cluster
    for monitor in monitors:
        monitor.kill()
    cluster.kubectl("delete", "pods", "--all", "--wait=true", "--timeout=60s")
    truth.demand(cluster)


def _monitor(cluster: RealCluster, node: Node) -> Process:
    script = Path(__file__).with_name("monitor.py")
    return Process(
        f"monitor of {node.name}",
        lambda: node.enter(sys.executable, script, truth.KUBELET_SOCKET, "0.1"),
        cluster.work / "logs" / f"{node.name}-monitor.log",
        cluster.plane.slot.cgroup,
    )


def burst(first: int = 0, count: int = COUNT) -> list[Object]:
    return [gpu_pod(f"burst-{n:03}", SIZES[n % 2]) for n in range(first, first + count)]


def test_a_burst_over_two_sizes_and_two_nodes(cluster: RealCluster) -> None:
    """And again after half of them were deleted: others come while they still end, then some of the same name."""
    cluster.apply(burst())
    pods = truth.check(cluster, pods=COUNT)
    print(f"\n{COUNT} pods: {truth.pace(pods):.1f} per second from creation to Running")
    assert {p["spec"]["nodeName"] for p in pods} == {"node-1", "node-2"}
    half = [f"burst-{n:03}" for n in range(COUNT) if n % 4 < 2]
    cluster.kubectl("delete", "pods", *half, "--wait=false")
    cluster.apply(burst(COUNT, COUNT // 4))
    cluster.kubectl("wait", "--for=delete", "--timeout=60s", *(f"pod/{name}" for name in half))
    cluster.apply([pod for pod in burst() if pod["metadata"]["name"] in half[: COUNT // 4]])
    truth.check(cluster, pods=COUNT)


def test_a_burst_that_no_scheduler_placed(cluster: RealCluster) -> None:
    """The agent alone packs 30 pods on a node of four GPUs of 21 GiB; best fit wastes nothing."""
    pods = [gpu_pod(f"unplaced-{n:02}", SIZES[n % 2], nodeName="node-1") for n in range(30)]
    cluster.apply(pods)
    truth.check(cluster, pods=30)


def test_init_containers_whose_ids_the_others_do_not_get(cluster: RealCluster) -> None:
    """kubelet gives the third container one of seven ids at random: mostly none of the second's."""
    pods = []
    for n in range(24):
        pod = gpu_pod(f"inits-{n:02}", 1)
        pod["spec"]["initContainers"] = [
            gpu_container("large", 6, script="true"),
            gpu_container("small", 1, script="true"),
        ]
        pods.append(pod)
    cluster.apply(pods)
    truth.check(cluster, pods=24)


def test_an_init_container_reads_its_own_name(cluster: RealCluster) -> None:
    """It and the container after it have the same ids, of which alone kubelet tells before each start."""
    tells = f"cat {names.SLICE_DIR_IN_CONTAINER}/slice.json >/dev/termination-log"
    pods = []
    for n in range(16):
        pod = gpu_pod(f"named-{n:02}", 3)
        pod["spec"]["initContainers"] = [gpu_container(name, 3, script=tells) for name in ("one", "two")]
        pods.append(pod)
    cluster.apply(pods)
    for pod in truth.check(cluster, pods=16):
        for status in pod["status"]["initContainerStatuses"]:
            said = json.loads(status["state"]["terminated"]["message"])
            assert said["container"] == status["name"], pod["metadata"]["name"]


def test_packed_nodes_turn_no_pod_away_that_has_an_init_container(cluster: RealCluster) -> None:
    """Its init container asks for what others ask for as a whole, so the node could take it for one of these."""
    pods = []
    for n in range(60):
        pod = gpu_pod(f"packed-{n:02}", SIZES[n % 2])
        if n % 4 == 1:
            pod["spec"]["initContainers"] = [gpu_container("before", 2, script="true")]
        pods.append(pod)
    cluster.apply(pods)
    truth.check(cluster, pods=60)


def test_equal_pods_that_kubelet_takes_in_another_order(cluster: RealCluster) -> None:
    """Twelve equal pods were planned on two GPUs by turns: what each got is what its record says at last."""
    gpus = truth.gpus_of(cluster, cluster.nodes[0])
    pods = []
    for n in range(12):
        pod = gpu_pod(f"equal-{n:02}", 3, nodeName="node-1")
        pod["metadata"]["annotations"] = {
            names.MEM_IDX: str(n % 2),
            names.MEM_POD: "3",
            names.MEM_DEV: "21",
            names.MEM_ASSIGNED: "false",
            names.MEM_ASSUME_TIME: str(1_800_000_000_000_000_000 + n),
        }
        pods.append(pod)
    cluster.apply(pods)
    running = truth.check(cluster, pods=12)
    indexes = sorted(p["metadata"]["annotations"][names.MEM_IDX] for p in running)
    assert indexes == ["0"] * 6 + ["1"] * 6, f"of {[g.index for g in gpus.gpus]}"
