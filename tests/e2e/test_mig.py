"""MIG devices under real kubelets: the counts of NVIDIA's device plugin, each device to one container, known by name."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import yaml

from gpuslice import names

from .cluster import Object, RealCluster
from .installation import clear, installed
from .sides import allocation, environment

SMALL, LARGE = f"{names.MIG_PREFIX}1g.5gb", f"{names.MIG_PREFIX}3g.20gb"


def document(*gpus: Object) -> str:
    spec = {"apiVersion": "gpuslice.io/v1alpha1", "kind": "Devices", "spec": {"gpus": list(gpus)}}
    return yaml.safe_dump(spec)


def pod(name: str, resource: str, count: int = 1, **spec: object) -> Object:
    container = {
        "name": "main",
        "image": "busybox:e2e",
        "command": ["sleep", "100000"],
        "resources": {"limits": {resource: str(count)}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "mig"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


def offered(cluster: RealCluster, node: str) -> dict[str, int]:
    found = cluster.get("nodes", node, None)["status"]["allocatable"]
    return {key: int(value) for key, value in found.items() if key.startswith("nvidia.com/") and int(value)}


@pytest.mark.timeout(900, func_only=True)
def test_mixed_and_single_and_back(bare: RealCluster) -> None:
    """Placed by the cluster's own scheduler, which counts the resources; the node chooses and writes it down."""
    devices = document(
        {"model": "A100-40", "mig": ["3g.20gb", "1g.5gb", "1g.5gb"]},
        {"model": "A100-40", "mig": ["3g.20gb", "1g.5gb"]},
        {"model": "T4"},
    )
    values = {"agent": {"migStrategy": "mixed"}}
    with installed(bare, values=values, devices=devices, nodes=["node-1"]) as gpus:
        expected = {names.WHOLE_GPU: 1, SMALL: 3, LARGE: 2}
        bare.wait(lambda: offered(bare, "node-1") == expected, 60, f"node-1 to offer {expected}")
        labels = bare.get("nodes", "node-1", None)["metadata"]["labels"]
        assert labels["nvidia.com/mig.strategy"] == "mixed"
        assert labels["nvidia.com/mig-1g.5gb.count"] == "3"
        bare.apply([pod(f"small-{n}", SMALL) for n in range(3)] + [pod("large", LARGE, 2)])
        bare.apply(pod("mine", SMALL, schedulerName="gpuslice"))
        bare.wait_for_pods(4, labelSelector="app=mig")
        held = recorded(bare, 4)
        assert len(held["large"]) == 2
        devices_held = Counter(uuid for uuids in held.values() for uuid in uuids)
        assert set(devices_held.values()) == {1}, "no device is held twice"
        for name, uuids in held.items():
            assert sorted(environment(bare, name)[names.VISIBLE_DEVICES].split(",")) == sorted(uuids)
            listed = bare.kubectl("exec", name, "--", "nvidia-smi", "-L")
            assert sorted(re.findall(r"\(UUID: (MIG-[^)]+)\)", listed)) == sorted(uuids), listed
        bare.wait(lambda: gpus.events("mine", "FailedScheduling"), 60, "an event that says why mine waits")
        # A pod ends, and the one that waited has its device.
        bare.kubectl("delete", "pod", "small-0")
        bare.wait(lambda: bare.phase("mine") == "Running", 90, "mine to run")
        assert recorded(bare, 4)["mine"] == held["small-0"]

        # A label partitions the GPUs anew: the one that is free at once, the other when its last pod has ended.
        bare.kubectl("delete", "pods", "large", "mine", "small-1")
        (last,) = recorded(bare, 1)
        bare.kubectl("label", "node", "node-1", f"{names.MIG_CONFIG}=all-2g.10gb")
        bare.wait(
            lambda: last in reason(bare, "node-1"), 60, f"the node to name {last}, which has to end first"
        )
        bare.kubectl("delete", "pod", last)
        expected = {names.WHOLE_GPU: 1, f"{names.MIG_PREFIX}2g.10gb": 6}
        bare.wait(lambda: offered(bare, "node-1") == expected, 60, f"node-1 to offer {expected}")
        bare.wait(lambda: not reason(bare, "node-1"), 30, "the node to say no more why")
        bare.kubectl("label", "node", "node-1", f"{names.MIG_CONFIG}-", f"{names.MIG_CONFIG_STATE}-")
        clear(bare)

        gpus.values["agent"]["devices"]["simulated"] = document(
            {"model": "A30", "count": 2, "mig": ["1g.6gb"] * 4}
        )
        gpus.upgrade({"agent": {"migStrategy": "single"}})
        bare.wait(
            lambda: offered(bare, "node-1") == {names.WHOLE_GPU: 8}, 90, "node-1 to offer 8 nvidia.com/gpu"
        )
        bare.apply([pod(f"one-{n}", names.WHOLE_GPU) for n in range(8)])
        bare.wait_for_pods(8, labelSelector="app=mig")
        held = recorded(bare, 8)
        assert len({uuid for uuids in held.values() for uuid in uuids}) == 8
        labels = bare.get("nodes", "node-1", None)["metadata"]["labels"]
        assert labels["nvidia.com/gpu.product"] == "NVIDIA-A30-MIG-1g.6gb"
        assert "nvidia.com/mig-1g.5gb.count" not in labels
        for name, uuids in held.items():
            assert sorted(environment(bare, name)[names.VISIBLE_DEVICES].split(",")) == sorted(uuids)
        clear(bare)
    left = bare.get("nodes", "node-1", None)["metadata"]["labels"]
    assert not [key for key in left if "nvidia" in key]


@pytest.mark.timeout(900, func_only=True)
def test_pods_that_wait_have_gpus_cut_and_give_them_back(bare: RealCluster) -> None:
    """Pods of two kube-schedulers, neither of which knows of MIG instances that do not exist yet."""
    devices = document({"model": "A100-40", "count": 2})
    values = {"agent": {"migStrategy": "mixed"}, "migIdleSeconds": 3}
    policy = f"{names.MIG_POLICY}=on-demand"
    bare.kubectl("label", "node", "node-1", policy)
    with installed(bare, values=values, devices=devices, nodes=["node-1"]) as gpus:
        bare.wait(
            lambda: offered(bare, "node-1") == {names.WHOLE_GPU: 2}, 60, "node-1 to offer two whole GPUs"
        )
        greedy = pod("small", SMALL)
        greedy["spec"]["containers"][0]["env"] = [{"name": names.VISIBLE_DEVICES, "value": "all"}]
        bare.apply([greedy, pod("large", LARGE), pod("mine", SMALL, schedulerName="gpuslice")])
        bare.wait_for_pods(3, labelSelector="app=mig")
        assert any("told to create" in said for said in gpus.events("large", "PartitioningGPU"))
        held = recorded(bare, 3)
        assert len({uuid for uuids in held.values() for uuid in uuids}) == 3
        for name, uuids in held.items():
            assert sorted(environment(bare, name)[names.VISIBLE_DEVICES].split(",")) == sorted(uuids)
        expected = {names.WHOLE_GPU: 1, SMALL: 2, LARGE: 1}
        bare.wait(lambda: offered(bare, "node-1") == expected, 60, f"node-1 to offer {expected}")
        # Idle instances go; then a pod that needs both GPUs whole gets them.
        clear(bare)
        bare.wait(
            lambda: offered(bare, "node-1") == {names.WHOLE_GPU: 1}, 60, "node-1 to have no MIG device left"
        )
        bare.apply(pod("both", names.WHOLE_GPU, 2))
        bare.wait_for_pods(1, labelSelector="app=mig")
        assert len(recorded(bare, 1)["both"]) == 2
        clear(bare)
    bare.kubectl("label", "node", "node-1", f"{names.MIG_POLICY}-", f"{names.MIG_CONFIG_STATE}-")
    left = bare.get("nodes", "node-1", None)["metadata"]
    assert not [key for key in left.get("annotations", {}) if "mig" in key]


def reason(cluster: RealCluster, node: str) -> str:
    """Why the node's GPUs are not yet as its label says."""
    found: str = (
        cluster.get("nodes", node, None)["metadata"].get("annotations", {}).get(names.MIG_CONFIG_REASON, "")
    )
    return found


def recorded(cluster: RealCluster, count: int) -> dict[str, list[str]]:
    """Pod -> the UUIDs of the devices that its annotation names, once `count` pods say so."""

    def all_of_them() -> dict[str, list[str]]:
        pods = [p for p in cluster.objects("pods") if p["status"]["phase"] == "Running"]
        found = {p["metadata"]["name"]: [*allocation(p).get("main", {})] for p in pods}
        return found if len(found) == count and all(found.values()) else {}

    return cluster.wait(all_of_them, 60, f"{count} pods to say which devices they hold")
