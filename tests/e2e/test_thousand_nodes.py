"""A thousand nodes of eight GPUs, as our agents describe them, under the real kube-scheduler with our extender."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpuslice import names
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.units import GIB

from .alone import FOUR, Alone, gpu_pod
from .cluster import Object, RealCluster
from .conftest import cannot
from .kwok import fake_nodes
from .packages import MissingError

NODES = 1000
GPUS = NodeGpus(tuple(Gpu(i, f"GPU-{i}", "NVIDIA A100-SXM4-40GB", 40960) for i in range(8)), GIB)
CAPACITY = {names.GPU_MEM: "320", names.GPU_COUNT: "8", names.WHOLE_GPU: "8"}
PODS = "/api/v1/namespaces/default/pods"
FAKE: Any = {"nodeSelector": {"type": "kwok"}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """One of its own: nobody else's agents, and nothing to clean up."""
    try:
        made = RealCluster(tmp_path_factory.mktemp("thousand"), nodes=1)
    except MissingError as missing:
        cannot(str(missing))
    with made as cluster:
        fake_nodes(cluster, NODES, capacity=CAPACITY, annotations=encode_gpus(GPUS))
        alone = Alone(cluster, [FOUR])
        alone.start()
        yield cluster
        alone.stop()


def bound(cluster: RealCluster, count: int) -> list[Object]:
    def found() -> list[Object]:
        pods = [pod for pod in cluster.objects("pods") if pod["spec"].get("nodeName")]
        return pods if len(pods) == count else []

    return cluster.wait(found, 120, f"{count} pods to be bound")


def test_pods_are_packed_onto_single_gpus(cluster: RealCluster) -> None:
    def create(pod: Object) -> None:
        cluster.request("POST", PODS, pod)

    sizes = (17, 11, 23, 5)  # of 40 a GPU: 17 + 23, 11 + 23 + 5, ...
    pods = [gpu_pod(f"pod-{number}", sizes[number % 4], **FAKE) for number in range(400)]
    whole = [gpu_pod(f"whole-{number}", 2, names.WHOLE_GPU, **FAKE) for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, [*pods, *whole]))
    held: Counter[tuple[str, str]] = Counter()
    for pod in bound(cluster, 420):
        allocation = json.loads(pod["metadata"]["annotations"][names.ALLOCATION])["main"]
        asked = pod["spec"]["containers"][0]["resources"]["limits"]
        if names.GPU_MEM in asked:
            assert sum(allocation.values()) == int(asked[names.GPU_MEM]) * 1024
            assert len(allocation) == 1, "of one GPU"
        else:
            assert len(allocation) == 2
        for gpu, mib in allocation.items():
            held[pod["spec"]["nodeName"], gpu] += mib
    assert max(held.values()) <= 40960, "no GPU is promised more than it has"
    # Packed: 5,600 GiB of shares need 140 GPUs, and 40 are whole.
    assert len(held) <= 200
    assert len({node for node, _ in held}) <= 30


def test_what_fits_a_node_but_no_gpu_waits_with_the_reason(cluster: RealCluster) -> None:
    cluster.request("POST", PODS, gpu_pod("too-large", 41, **FAKE))

    def reason() -> str:
        conditions = cluster.get("pods", "too-large")["status"].get("conditions", ())
        return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")

    message = cluster.wait(reason, 60, "kube-scheduler to say why the pod waits")
    # Of a large cluster kube-scheduler looks at a part only.
    assert " Insufficient GPU Memory in one device" in message
