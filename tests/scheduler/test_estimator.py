"""How many nodes that do not exist yet would take the pods that wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.cluster.state import Cluster
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.kube.wire import Node, Pod
from gpuslice.scheduler.estimator import NodeEstimator


def node(name: str, *, gpus: int = 2, gib: int = 16, cpu: str = "8", **spec: Any) -> Node:
    offered = NodeGpus(tuple(Gpu(i, f"{name}-{i}", "T4", gib * 1024) for i in range(gpus)))
    amounts = {names.GPU_MEM: str(gib * gpus), names.WHOLE_GPU: str(gpus), "cpu": cpu, "pods": "110"}
    body = {
        "metadata": {"name": name, "uid": name, "annotations": encode_gpus(offered), "labels": {"pool": "p"}},
        "spec": spec,
        "status": {"allocatable": amounts},
    }
    return msgspec.convert(body, Node)


def pod(name: str, limits: dict[str, str], on: str = "", **spec: Any) -> Pod:
    container = {"name": "c", "resources": {"limits": limits, "requests": limits}}
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [container], "nodeName": on, **spec},
    }
    return msgspec.convert(body, Pod)


def shares(number: int, gib: int, **spec: Any) -> list[Pod]:
    return [pod(f"p{i}", {names.GPU_MEM: str(gib)}, **spec) for i in range(number)]


def estimator(nodes: Sequence[Node] = (), pods: Sequence[Pod] = ()) -> NodeEstimator:
    """It knows these nodes and pods."""
    cluster = Cluster(clock=SystemClock())
    for one in nodes:
        cluster.set_node(one)
    for each in pods:
        cluster.set_pod(each)
    return NodeEstimator(cluster, SystemClock())


def on_each(found: Sequence[Sequence[Pod]]) -> list[int]:
    return [len(pods) for pods in found]


def test_as_few_nodes_as_the_engine_can_fill() -> None:
    """Three shares of 5 fit on a GPU of 16, and a node has two GPUs; kubelet's sum would say six and a half."""
    template = node("new")
    assert on_each(estimator().needed(shares(7, 5), template, 5)) == [6, 1]
    assert on_each(estimator().needed(shares(20, 5), template, 2)) == [6, 6], "never more than asked"
    assert estimator().needed(shares(1, 5), template, 0) == []


def test_a_pod_that_fits_on_what_is_there_needs_no_node() -> None:
    there = node("there")
    assert estimator([there]).needed(shares(1, 16), node("new"), 5) == []
    full = [pod(f"full{i}", {names.GPU_MEM: "10"}, on="there") for i in range(2)]
    # 6 GiB are left on each GPU: 12 in sum, but a share is on one.
    assert on_each(estimator([there], full).needed(shares(1, 7), node("new"), 5)) == [1]


def test_what_a_new_node_would_not_take_makes_none() -> None:
    template = node("new", taints=[{"key": "sku", "value": "gpu", "effect": "NoSchedule"}])
    assert estimator().needed(shares(1, 5), template, 5) == []
    tolerant = {"tolerations": [{"key": "sku", "operator": "Exists"}]}
    assert on_each(estimator().needed(shares(1, 5, **tolerant), template, 5)) == [1]
    assert estimator().needed(shares(1, 17), node("new"), 5) == [], "larger than a GPU"
    assert estimator().needed(shares(1, 5, nodeSelector={"pool": "q"}), node("new"), 5) == []
    assert on_each(estimator().needed(shares(1, 5, nodeSelector={"pool": "p"}), node("new"), 5)) == [1]


def test_cpu_counts_too() -> None:
    hungry = [pod(f"p{i}", {names.GPU_MEM: "1", "cpu": "5"}) for i in range(3)]
    assert on_each(estimator().needed(hungry, node("new", cpu="8"), 5)) == [1, 1, 1]
