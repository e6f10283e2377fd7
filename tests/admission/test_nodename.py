"""Pods that name their node themselves and ask there for a GPU: let in where the node has what they ask for."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from builders import StoppedClock, agent_node, plain_node

from gpuslice import names
from gpuslice.admission.mutate import review
from gpuslice.admission.visibility import RULES, Rules
from gpuslice.cluster.state import Cluster
from gpuslice.kube.gate import Gate

Object = dict[str, Any]


class Unread:
    """A list that is being read."""

    name = "nodes"
    whole = False


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("gpu-1", 16, 16, mig=("1g.5gb",)))
    return cluster


def said(cluster: Cluster, pod: Object, rules: Rules = RULES, **request: object) -> str:
    """Why the pod is not let in; "" if it is."""
    body = {"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": pod, **request}}
    answer = partial(review, rules=rules, offered=cluster.offered)(json.dumps(body).encode())
    response = json.loads(answer)["response"]
    message: str = response.get("status", {}).get("message", "")
    assert response["allowed"] is not bool(message)
    return message


def pod(node: str, resource: str = "", amount: str = "1", **more: Any) -> Object:
    one = {
        "name": "main",
        "image": "nvidia/cuda",
        "resources": {"limits": {resource: amount}} if resource else {},
    }
    return {"spec": {"nodeName": node, "containers": [{"name": "first"}, one]}, **more}


@pytest.mark.parametrize("resource", [names.GPU_MEM, names.WHOLE_GPU, "nvidia.com/mig-1g.5gb"])
def test_what_the_node_has_can_be_asked_for_there(cluster: Cluster, resource: str) -> None:
    assert said(cluster, pod("gpu-1", resource)) == ""


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/mig-2g.10gb",
        "nvidia.com/gpu.shared",
        "nvidia.com/gpu.mine",
        "x.example/gpu",
        "y.example/CUDA",
    ],
)
@pytest.mark.parametrize("rules", [Rules(), Rules(hide=False)])
def test_what_it_does_not_have_is_refused(cluster: Cluster, resource: str, rules: Rules) -> None:
    """kubelet would start the pod, and nobody would say which GPUs it sees."""
    said_of = said(cluster, pod("gpu-1", resource), rules)
    assert said_of.startswith(
        f"spec.nodeName: container 'main' asks for {resource}, which node 'gpu-1' does not have: kubelet"
    )
    init = pod("gpu-1")
    init["spec"]["initContainers"] = [{"name": "init", "resources": {"requests": {resource: 1}}}]
    assert "container 'init' asks for" in said(cluster, init, rules)


def test_an_amount_of_0_is_the_nodes_to_refuse(cluster: Cluster) -> None:
    """As while its device plugin is away: kubelet knows the resource, and refuses."""
    node = agent_node("away", 16)
    assert node.status.allocatable is not None
    node.status.allocatable["x.example/gpu"] = "0"
    cluster.set_node(node)
    assert said(cluster, pod("away", "x.example/gpu")) == ""


def test_who_asks_for_none_and_who_leaves_the_choice_to_a_scheduler_can_come(cluster: Cluster) -> None:
    cluster.gate = Gate(Unread())
    for node in ("gpu-1", "elsewhere"):
        assert said(cluster, pod(node)) == ""
        assert said(cluster, pod(node, "cpu")) == ""
        assert said(cluster, pod(node, "x.example/gpu", "0")) == ""
        assert said(cluster, pod(node, "vendor.example/nic")) == ""
    assert said(cluster, pod("", "x.example/gpu")) == ""
    assert said(cluster, {"spec": {"containers": pod("", names.WHOLE_GPU)["spec"]["containers"]}}) == ""


def test_what_is_not_known_is_refused_for_now(cluster: Cluster) -> None:
    elsewhere = said(cluster, pod("elsewhere", names.GPU_MEM))
    assert "whether node 'elsewhere' has that is not known: there is no such node; try again" in elsewhere
    cluster.gate = Gate(Unread())
    unread = said(cluster, pod("gpu-1", names.GPU_MEM))
    assert "is not known: the picture of the cluster is not complete: nodes are being read" in unread
    alone = {"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": pod("gpu-1", names.GPU_MEM)}}
    assert json.loads(review(json.dumps(alone).encode()))["response"]["allowed"] is False


def test_a_node_that_is_gone_is_not_known_any_more(cluster: Cluster) -> None:
    cluster.drop_node("gpu-1")
    assert "there is no such node" in said(cluster, pod("gpu-1", names.GPU_MEM))


def test_old_words_are_taken_as_what_they_become(cluster: Cluster) -> None:
    assert said(cluster, pod("gpu-1", names.HISTORICAL_GPU)) == ""
    cluster.set_node(plain_node("other", 16, 2))
    assert f"asks for {names.WHOLE_GPU}" in said(cluster, pod("other", names.HISTORICAL_GPU))


def test_what_kubelet_started_from_a_file_is_told_all_the_same(cluster: Cluster) -> None:
    """To refuse its mirror would only hide it."""
    mirror = pod("gpu-1", "x.example/gpu", metadata={"annotations": {names.MIRROR_POD: "hash"}})
    assert said(cluster, mirror) == ""


def test_a_container_that_is_added_for_debugging_asks_for_nothing(cluster: Cluster) -> None:
    running = pod("elsewhere", names.GPU_MEM)
    assert said(cluster, running, subResource="ephemeralcontainers", oldObject=running) == ""
