"""The cluster itself: what every other end-to-end test takes for granted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .cluster import Object, RealCluster, condition
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
    real_cluster.kubectl("delete", "pods,services", "--selector=!provider", "--wait=true", "--timeout=60s")


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


def test_pods_of_different_nodes_reach_each_other_services_and_the_api_server(cluster: RealCluster) -> None:
    cluster.apply(pod("server", "while true; do echo answered | nc -l -p 8080; done", nodeName="node-1"))
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "server"},
            "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
        }
    )
    (server,) = cluster.wait_for_pods(1)
    addresses = [
        f"{server['status']['podIP']} 8080",
        f"{cluster.get('services', 'server')['spec']['clusterIP']} 80",
    ]
    asks = [f"until nc -w 5 {address}; do sleep 0.2; done" for address in addresses]
    # The API server tells whoever speaks plain HTTP to it that this is an HTTPS server.
    asks.append(
        r"printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT"
    )
    cluster.apply(pod("client", "; ".join([*asks, "sleep 1000"]), nodeName="node-2"))
    cluster.wait_for_pods(2)
    cluster.wait(
        lambda: "HTTPS server" in cluster.kubectl("logs", "client"), 20, "the client's three answers"
    )
    assert cluster.kubectl("logs", "client").split().count("answered") == 2


def test_a_node_that_is_cut_off_is_missed_and_comes_back(cluster: RealCluster) -> None:
    node = cluster.nodes[1]

    def ready() -> str:
        return condition(cluster.get("nodes", node.name, namespace=None), "Ready")

    node.cut_off()
    try:
        cluster.wait(lambda: ready() == "Unknown", 120, f"{node.name} to be missed")
    finally:
        node.reconnect()
    cluster.wait_for_nodes()


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
