"""What happens to nodes and running pods when gpuslice comes, changes and goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
import yaml

from gpuslice import names

from .alone import deployment
from .cluster import Object, RealCluster, condition
from .gpushare_plugin import FOLDER, gpushare_plugin, gpushare_pod
from .images_of_ours import REPOSITORY, TAG
from .installation import MIXED, Installation, clear, installed, restarts
from .sides import assert_sides_agree, environment, inspected

NEXT = "e2e-next"


def on(node: str) -> dict[str, Object]:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def runs(gpus: Installation, pod: str, units: int) -> bool:
    """True if the pod runs. One that kubelet turned away is made anew, as a ReplicaSet would."""
    phase = gpus.cluster.phase(pod)
    if phase == "Failed":
        gpus.cluster.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
        gpus.cluster.apply(gpus.pod(pod, units))
    return phase == "Running"


@pytest.fixture
def emptied(gpus: Installation) -> Iterator[Installation]:
    yield gpus
    gpus.clear()


def test_an_upgrade_leaves_running_pods_alone(emptied: Installation) -> None:
    gpus, cluster = emptied, emptied.cluster
    for node in cluster.nodes:
        node.ctr(
            "images", "tag", f"docker.io/library/{REPOSITORY}:{TAG}", f"docker.io/library/{REPOSITORY}:{NEXT}"
        )
    cluster.apply([gpus.pod("one", 3, 2, **on("node-1")), gpus.pod("two", 20, **on("node-2"))])
    pods = gpus.wait_for_pods(2)
    before, held = restarts(pods), {p["metadata"]["name"]: p["metadata"]["annotations"] for p in pods}
    agents = {p["metadata"]["uid"] for p in gpus.pods("agent")}
    values = gpus.values
    gpus.upgrade({"image": {"tag": NEXT}, "policy": "spread"})
    try:
        assert not agents & {p["metadata"]["uid"] for p in gpus.pods("agent")}
        pods = gpus.wait_for_pods(2)
        assert restarts(pods) == before
        assert {p["metadata"]["name"]: p["metadata"]["annotations"] for p in pods} == held
        cluster.apply(gpus.pod("later", 20))
        later = gpus.wait_for_pods(3)[0]
        assert later["spec"]["nodeName"] == "node-1", "node-2 has no other GPU of that size free"
        assert_sides_agree(cluster)
    finally:
        gpus.values = values
        gpus.upgrade({})


def test_pods_that_come_during_an_upgrade_run(emptied: Installation) -> None:
    """Whoever is turned away while a plugin is away is made anew by its owner; nobody waits for ever."""
    gpus, cluster = emptied, emptied.cluster
    values = gpus.values
    # Something in each template changes, so that every pod of ours is made anew.
    changed = {"podAnnotations": {"e2e": "upgraded"}}
    gpus.upgrade_only({"scheduler": changed, "agent": changed})
    pod = gpus.pod("", 5)
    cluster.apply(deployment("meanwhile", 8, pod))
    try:
        gpus.wait_until_ready()
        gpus.wait_for_pods(8)
        assert_sides_agree(cluster)
    finally:
        gpus.values = values
        gpus.upgrade({})


def test_a_node_leaves_the_pool_and_comes_back(emptied: Installation) -> None:
    gpus, cluster = emptied, emptied.cluster
    cluster.apply([gpus.pod("stays", 5, **on("node-1")), gpus.pod("other", 5, **on("node-2"))])
    pods = gpus.wait_for_pods(2)
    gpus.unlabel("node-1")
    cluster.wait(lambda: len(gpus.pods("agent")) == 1 and not allocatable(cluster, "node-1"), 60, "no offer")
    cluster.apply(gpus.pod("waits", 4, **on("node-1")))
    cluster.wait(lambda: gpus.events("waits", "FailedScheduling"), 60, "an event that says why it waits")
    assert inspected(cluster)["default", "stays"], "what runs there still counts"
    gpus.label("node-1")
    gpus.wait_until_ready()
    after = gpus.wait_for_pods(3)
    assert restarts(p for p in after if p["metadata"]["name"] != "waits") == restarts(pods)
    assert_sides_agree(cluster)


def test_a_deleted_node_is_forgotten_and_can_join_again(emptied: Installation) -> None:
    gpus, cluster = emptied, emptied.cluster
    cluster.apply([gpus.pod("goes", 20, **on("node-2")), gpus.pod("stays", 5, **on("node-1"))])
    gpus.wait_for_pods(2)
    cluster.kubectl("delete", "node", "node-2")
    cluster.wait(lambda: set(inspected(cluster)) == {("default", "stays")}, 90, "node-2 to be forgotten")
    # The controllers would take a minute.
    cluster.kubectl("delete", "pod", "goes", "--force", "--grace-period=0")
    cluster.apply(gpus.pod("one", 20))
    gpus.wait_for_pods(2)
    cluster.apply(gpus.pod("waits", 20))
    cluster.wait(lambda: gpus.events("waits", "FailedScheduling"), 60, "an event that says why it waits")
    cluster.nodes[1].kubelet.restart()
    cluster.wait_for_nodes()
    gpus.label("node-2")
    gpus.wait_until_ready()
    # Until kubelet has ended the container that was deleted by force, its GPU is in use and kubelet turns a
    # newcomer away for good: then its owner would make it anew.
    cluster.wait(lambda: runs(gpus, "waits", 20), 120, "the waiting pod to run on the node that came back")
    gpus.wait_for_pods(3)
    assert cluster.get("pods", "waits")["spec"]["nodeName"] == "node-2"
    assert_sides_agree(cluster)


def test_a_pod_that_no_gpu_scheduler_has_seen_gets_a_gpu_and_is_counted(emptied: Installation) -> None:
    """Bound by the cluster's scheduler, which knows the sum only: the node chooses, and writes down what it chose."""
    cluster = emptied.cluster
    cluster.apply(emptied.pod("stray", 5, schedulerName="default-scheduler"))
    emptied.wait_for_pods(1)
    assert_sides_agree(cluster)


# --- without the shared installation ------------------------------------------------------------------


def test_another_namespace_and_release_and_nothing_is_left_after(bare: RealCluster) -> None:
    values = {"policy": "spread", "agent": {"ports": {"probes": 9001}}}
    with installed(bare, values=values, namespace="gpu-pool", release="shared") as gpus:
        bare.apply([gpus.pod(f"pod-{number}", 2) for number in range(4)])
        pods = gpus.wait_for_pods(4)
        assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}, "not packed"
        assert_sides_agree(bare)
        agents = gpus.pods("agent")
        assert {p["spec"]["containers"][0]["ports"][0]["containerPort"] for p in agents} == {9001}
        bare.kubectl("delete", "pods", "pod-1", "pod-2", "pod-3")
        before = restarts([bare.get("pods", "pod-0")])
    assert_nothing_left(bare)
    assert restarts([bare.get("pods", "pod-0")]) == before, "a running pod keeps running"
    clear(bare)


def test_an_old_gpushare_is_taken_over(bare: RealCluster) -> None:
    """Its pods run on, with what their annotations say counted; its ConfigMap keeps new pods off an ill GPU."""
    node = bare.nodes[0]
    sizes, by_units = (14, 31), {9: 0, 25: 1}
    old = [gpushare_pod("old-t4", node.name, 0, 9, 14), gpushare_pod("old-v100", node.name, 1, 25, 31)]
    with gpushare_plugin(bare, node, sizes, by_units):
        bare.wait(lambda: allocatable(bare, node.name) == sum(sizes), 60, "gpushare's capacity")
        bare.apply(old)
        before = bare.wait_for_pods(2)
        seen = {name: environment(bare, name) for name in ("old-t4", "old-v100")}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"gpus": "1"}}
    bare.apply({**config, "metadata": {"name": "unhealthy-gpu-node-2", "namespace": "kube-system"}})
    try:
        with installed(bare, devices=MIXED) as gpus:
            uuids = {gpu["index"]: gpu["uuid"] for gpu in published(bare, node.name)}
            counted = inspected(bare)
            assert counted["default", "old-t4"] == {uuids[0]: 9 * 1024}
            assert counted["default", "old-v100"] == {uuids[1]: 25 * 1024}
            # 5 and 6 are free here: two pods that fill these, and one more that must wait; node-2 has 31 on an ill GPU.
            bare.apply([gpus.pod("fits-6", 6, **on("node-1")), gpus.pod("ill", 20, **on("node-2"))])
            bare.wait_for_pods(3)
            bare.apply(gpus.pod("fits-5", 5, **on("node-1")))
            bare.wait_for_pods(4)
            bare.apply(gpus.pod("too-much", 1, **on("node-1")))
            for name in ("ill", "too-much"):
                bare.wait(partial(gpus.events, name, "FailedScheduling"), 60, f"{name} to be refused")
            used = Counter[str]()
            for parts in inspected(bare).values():
                used.update(parts)
            assert [used[uuids[index]] // 1024 for index in uuids] == list(sizes)
            pods = [bare.get("pods", name) for name in ("old-t4", "old-v100")]
            assert restarts(pods) == restarts(before)
            assert {name: environment(bare, name) for name in seen} == seen
            for pod in pods:
                assert pod["metadata"]["annotations"][names.MEM_IDX] == (
                    "0" if "t4" in pod["metadata"]["name"] else "1"
                )
            clear(bare)
    finally:
        bare.kubectl("delete", "configmap", "--namespace=kube-system", "unhealthy-gpu-node-2")
        clear(bare)


def published(cluster: RealCluster, node: str) -> list[Object]:
    found: list[Object] = yaml.safe_load(
        cluster.get("nodes", node, None)["metadata"]["annotations"][names.NODE_GPUS]
    )
    return found


def allocatable(cluster: RealCluster, node: str) -> int:
    return int(cluster.get("nodes", node, None)["status"].get("allocatable", {}).get(names.GPU_MEM, 0))


def offers_nothing(cluster: RealCluster, node: str) -> bool:
    return not allocatable(cluster, node)


def assert_nothing_left(cluster: RealCluster) -> None:
    """No label, annotation or resource of ours on a node, no socket, and no object of ours anywhere."""
    for node in cluster.nodes:
        found = cluster.get("nodes", node.name, None)
        keys = {*found["metadata"]["labels"], *found["metadata"].get("annotations", {})}
        assert not {key for key in keys if "gpuslice" in key or "gpushare" in key}, node.name
        for resources in (found["status"]["capacity"], found["status"]["allocatable"]):
            assert names.GPU_COUNT not in resources, node.name
        cluster.wait(partial(offers_nothing, cluster, node.name), 30, f"{node.name} to offer nothing")
        sockets = {path.name for path in node.path(FOLDER).glob("*.sock")}
        assert sockets == {"kubelet.sock"}, node.name
    kinds = (
        "mutatingwebhookconfigurations,clusterroles,clusterrolebindings,roles,rolebindings,configmaps,secrets,"
        "services,endpoints,serviceaccounts,deployments,daemonsets,jobs,leases,poddisruptionbudgets"
    )
    left = cluster.kubectl("get", kinds, "--all-namespaces", "--output=name", "--ignore-not-found")
    assert not [name for name in left.splitlines() if "gpuslice" in name or "shared" in name]
    assert all(condition(node, "Ready") == "True" for node in cluster.objects("nodes", None))
