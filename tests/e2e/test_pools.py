"""Node pools of existing nodes, and replicas of GPUs, under real kubelets."""

from __future__ import annotations

from collections import Counter

import pytest

from gpuslice import names

from .cluster import Object, RealCluster
from .installation import clear, installed
from .sides import environment, gpuslice
from .test_mig import document, offered, pod, recorded

TWO = document({"model": "A100-40", "count": 2})
CONFIG = "nvidia.com/device-plugin.config"
SHARED = """\
version: v1
sharing:
  timeSlicing:
    resources:
      - {name: nvidia.com/gpu, replicas: 3}
"""


def labels(cluster: RealCluster, node: str) -> dict[str, str]:
    found: dict[str, str] = cluster.get("nodes", node, None)["metadata"]["labels"]
    return found


@pytest.mark.timeout(900, func_only=True)
def test_a_pool_of_nodes_that_are_there_is_cut_and_cut_anew(bare: RealCluster) -> None:
    selector = "kubernetes.io/hostname=node-1"
    with installed(bare, devices=TWO, nodes=["node-1"]):
        gpuslice(
            bare, "nodepool", "add", "migpool", "--selector", selector, "--gpu-instance-profile", "MIG1g"
        )
        assert offered(bare, "node-1") == {names.WHOLE_GPU: 14}
        bare.apply(pod("one", names.WHOLE_GPU, nodeSelector={"agentpool": "migpool"}))
        bare.wait_for_pods(1, labelSelector="app=mig")
        (held,) = recorded(bare, 1).values()
        assert environment(bare, "one")[names.VISIBLE_DEVICES].split(",") == held
        # Another profile: the GPU without a pod at once, the other when its pod has ended; none is ended.
        words = ("nodepool", "update", "migpool", "--gpu-instance-profile", "MIG2g", "--no-wait")
        gpuslice(bare, *words)
        bare.wait(
            lambda: "default/one" in gpuslice(bare, "nodepool", "show", "migpool"), 60, "who is waited for"
        )
        assert bare.phase("one") == "Running"
        bare.kubectl("delete", "pod", "one")
        bare.wait(lambda: offered(bare, "node-1") == {names.WHOLE_GPU: 6}, 90, "six instances")
        product = "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb"
        bare.wait(lambda: labels(bare, "node-1")["nvidia.com/gpu.product"] == product, 30, f"label {product}")
        gpuslice(bare, "nodepool", "delete", "migpool")
        assert "agentpool" not in labels(bare, "node-1")
        clear(bare)
    bare.kubectl("label", "node", "node-1", f"{names.MIG_CONFIG}-", f"{names.MIG_CONFIG_STATE}-")


@pytest.mark.timeout(900, func_only=True)
def test_a_nodes_label_says_how_often_its_gpus_are_shared(bare: RealCluster) -> None:
    values: Object = {
        "agent": {"config": {"plain": "version: v1\n", "shared": SHARED}, "defaultConfig": "plain"}
    }
    with installed(bare, values=values, devices=TWO, nodes=["node-1"]):
        assert offered(bare, "node-1") == {names.WHOLE_GPU: 2}
        bare.kubectl("label", "node", "node-1", f"{CONFIG}=shared")
        bare.wait(lambda: offered(bare, "node-1") == {names.WHOLE_GPU: 6}, 60, "node-1 to offer six replicas")
        bare.wait(lambda: labels(bare, "node-1").get("nvidia.com/gpu.replicas") == "3", 30, "the label")
        # Of the cluster's own scheduler and of ours; three of two GPUs are too many for one container.
        bare.apply([pod(f"p{n}", names.WHOLE_GPU, schedulerName="gpuslice") for n in range(3)])
        bare.apply([pod(f"p{n}", names.WHOLE_GPU) for n in range(3, 5)])
        bare.wait_for_pods(5, labelSelector="app=mig")
        seen = Counter(environment(bare, f"p{n}")[names.VISIBLE_DEVICES] for n in range(5))
        assert sorted(seen.values()) == [2, 3]
        for name, (held,) in recorded(bare, 5).items():
            assert held.startswith(environment(bare, name)[names.VISIBLE_DEVICES])
        # Back to whole GPUs: each when its last pod has ended.
        bare.kubectl("label", "node", "node-1", f"{CONFIG}=plain", "--overwrite")
        clear(bare)
        bare.wait(
            lambda: offered(bare, "node-1") == {names.WHOLE_GPU: 2}, 90, "node-1 to offer two whole GPUs"
        )
        bare.apply(pod("both", names.WHOLE_GPU, 2))
        bare.wait_for_pods(1, labelSelector="app=mig")
        clear(bare)
    bare.kubectl("label", "node", "node-1", f"{CONFIG}-")


def named(name: str, *gpus: str) -> Object:
    """A pod for one of these GPUs, as the documentation of 2017 has it: names with blanks, as nvidia-smi has them."""
    wanted = {"key": names.HISTORICAL_GPU_NAME, "operator": "In", "values": list(gpus)}
    required = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return pod(name, names.WHOLE_GPU, affinity=affinity)


@pytest.mark.timeout(600, func_only=True)
def test_kube_scheduler_chooses_nodes_by_the_names_of_their_gpus(bare: RealCluster) -> None:
    with installed(bare, devices=document({"model": "Tesla K80", "count": 2}), nodes=["node-1"]) as gpus:
        bare.apply([named("old", "Tesla K80", "Tesla P100"), named("new", "Tesla V100")])
        bare.wait_for_pods(1, labelSelector="app=mig")
        assert bare.get("pods", "old")["spec"]["nodeName"] == "node-1"
        bare.wait(lambda: gpus.events("new", "FailedScheduling"), 60, "an event that says why new waits")
        assert "didn't match Pod's node affinity" in gpus.events("new", "FailedScheduling")[0]
        clear(bare)
