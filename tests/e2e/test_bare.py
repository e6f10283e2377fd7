"""The cluster itself: what every other end-to-end test takes for granted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .cluster import Object, RealCluster
from .images import BUSYBOX


def pod(name: str, command: str, **spec: object) -> Object:
    container = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


@pytest.fixture
def cluster(real_cluster: RealCluster) -> Iterator[RealCluster]:
    yield real_cluster
    real_cluster.kubectl("delete", "pods,services", "--all", "--wait=true", "--timeout=60s")


def test_a_pod_runs_on_each_node_and_answers_logs_and_exec(cluster: RealCluster) -> None:
    for node in cluster.nodes:
        cluster.apply(
            pod(
                f"on-{node.name}",
                "echo hello from $0; sleep 1000",
                nodeSelector={"kubernetes.io/hostname": node.name},
            )
        )
    pods = cluster.wait_for_pods(2)
    assert {p["spec"]["nodeName"] for p in pods} == {"node-1", "node-2"}
    for p in pods:
        name = p["metadata"]["name"]
        assert "hello from sh" in cluster.kubectl("logs", name)
        assert cluster.kubectl("exec", name, "--", "cat", "/etc/hostname").strip() == name


def test_nodes_have_host_paths_of_their_own(cluster: RealCluster) -> None:
    volume = {"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}
    for node in cluster.nodes:
        (node.path("/var/lib/kubelet/device-plugins") / "mark").write_text(f"{node.name}\n")
        looking = pod(
            f"on-{node.name}",
            "cat /plugins/mark; ls /plugins; sleep 1000",
            volumes=[volume],
            nodeName=node.name,
        )
        looking["spec"]["containers"][0]["volumeMounts"] = [{"name": "plugins", "mountPath": "/plugins"}]
        cluster.apply(looking)
    cluster.wait_for_pods(2)
    for node in cluster.nodes:
        said = cluster.kubectl("logs", f"on-{node.name}").split()
        assert said[0] == node.name
        assert "kubelet.sock" in said


def test_pods_reach_the_api_server_and_each_other_across_nodes(cluster: RealCluster) -> None:
    cluster.apply(pod("server", "echo answered | nc -l -p 8080; sleep 1000", nodeName="node-1"))
    (server,) = cluster.wait_for_pods(1)
    address = server["status"]["podIP"]
    asks = f"nc -w 5 {address} 8080; wget -q --no-check-certificate -O - https://$KUBERNETES_SERVICE_HOST/version; sleep 1000"
    cluster.apply(pod("client", asks, nodeName="node-2"))
    cluster.wait_for_pods(2)
    cluster.wait(lambda: "gitVersion" in cluster.kubectl("logs", "client"), 20, "the client's two answers")
    assert "answered" in cluster.kubectl("logs", "client")


def test_components_come_back_after_a_crash(cluster: RealCluster) -> None:
    cluster.apply(pod("lasting", "sleep 1000", nodeName="node-2"))
    (before,) = cluster.wait_for_pods(1)
    cluster.apiserver.kill()
    cluster.nodes[1].kubelet.kill()
    cluster.nodes[1].containerd.kill()
    cluster.apiserver.start()
    cluster.wait_for_apiserver()
    cluster.nodes[1].start_containerd()
    cluster.nodes[1].kubelet.start()
    cluster.apply(pod("next", "sleep 1000", nodeName="node-2"))
    after = {p["metadata"]["name"]: p for p in cluster.wait_for_pods(2)}
    assert after["lasting"]["status"]["containerStatuses"] == before["status"]["containerStatuses"]
