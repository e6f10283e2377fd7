"""Fake nodes beside the real ones: the real scheduler uses both, each where it is asked to."""

from __future__ import annotations

from .cluster import RealCluster
from .kwok import fake_nodes
from .test_bare import pod

COUNT = 50


def test_pods_run_on_fake_nodes(real_cluster: RealCluster) -> None:
    names = fake_nodes(
        real_cluster, COUNT, capacity={"example.com/gpu": "8"}, annotations={"example.com/kind": "fake"}
    )
    for number in range(COUNT):
        asking = pod(f"many-{number}", "true", nodeSelector={"type": "kwok"})
        asking["metadata"]["labels"] = {"app": "many"}
        asking["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "5"}}
        real_cluster.request("POST", "/api/v1/namespaces/default/pods", asking)
    pods = real_cluster.wait_for_pods(COUNT, labelSelector="app=many")
    assert {p["spec"]["nodeName"] for p in pods} == set(names), "five of eight: one pod to a node"
    many = "/api/v1/namespaces/default/pods"
    real_cluster.request("DELETE", many, {"gracePeriodSeconds": 0}, labelSelector="app=many")
    real_cluster.request("DELETE", "/api/v1/nodes", labelSelector="type=kwok")
    real_cluster.wait_for_nodes()
