"""The three ways to wire the scheduler, one after the other by `helm upgrade` of the same release: each places pods on
single GPUs, says why one waits, and goes on when the replica that acts is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpuslice import names

from .cluster import ApiError, Object, RealCluster
from .images_of_ours import load_busybox_as, load_kube_scheduler
from .installation import Installation
from .node import Node
from .sides import allocation, assert_sides_agree, environment
from .test_stories import EXAMPLES, IMAGES
from .wiring import GPUSLICE, configured, options, save_client_files, scheduler_kubeconfig

SERVICE = 77
"""The last number of the extender's ClusterIP, chosen so that kube-scheduler's configuration can name it."""


@pytest.fixture(scope="module", autouse=True)
def as_it_was(gpus: Installation) -> Iterator[None]:
    before = gpus.values
    yield
    gpus.clear()
    gpus.values = before
    gpus.upgrade({})


@pytest.fixture
def emptied(gpus: Installation) -> Iterator[Installation]:
    yield gpus
    gpus.clear()


def in_mode(gpus: Installation, mode: str, **service: str) -> None:
    if gpus.mode != mode:
        gpus.upgrade({"scheduler": {"mode": mode, "service": service}})


def assert_places(gpus: Installation) -> None:
    """Each node has GPUs of 14 and 31 units; two pods of 20 leave 25 on each, and room for 20 on none."""
    cluster = gpus.cluster
    cluster.apply([gpus.pod("big-1", 20), gpus.pod("big-2", 20)])
    pods = gpus.wait_for_pods(2)
    assert len({uuid for pod in pods for held in allocation(pod).values() for uuid in held}) == 2
    cluster.apply(gpus.pod("big-3", 20))
    cluster.wait(lambda: gpus.events("big-3", "FailedScheduling"), 60, "an event that says why big-3 waits")
    assert "Insufficient GPU Memory in one device" in gpus.events("big-3", "FailedScheduling")[-1]
    # What came later and fits is not held up.
    cluster.apply(gpus.pod("small", 10, 3))
    gpus.wait_for_pods(3)
    assert cluster.phase("big-3") == "Pending"
    assert_sides_agree(cluster)
    cluster.kubectl("delete", "pod", "big-1")
    gpus.wait_for_pods(3)
    assert cluster.phase("big-3") == "Running"
    assert_sides_agree(cluster)


def assert_fails_over(gpus: Installation) -> None:
    """Without the replica that acts the other one acts, and places a pod."""
    cluster = gpus.cluster

    def holder() -> str:
        lease = gpus.object("coordination.k8s.io/v1", "leases", f"{gpus.full}-scheduler")
        return str(lease["spec"].get("holderIdentity") or "")

    first = cluster.wait(holder, 30, "a replica to act")
    cluster.kubectl("delete", "pod", f"--namespace={gpus.namespace}", first.partition("_")[0])
    cluster.apply(gpus.pod("after", 2))
    gpus.wait_for_pods(1, timeout=90)
    assert holder() not in ("", first)
    assert_sides_agree(cluster)
    gpus.wait_until_ready()


def test_bundled_places(emptied: Installation) -> None:
    assert emptied.mode == "bundled"
    assert_places(emptied)


def test_bundled_fails_over(emptied: Installation) -> None:
    assert_fails_over(emptied)


def test_own_places(emptied: Installation) -> None:
    in_mode(emptied, "own")
    assert_places(emptied)


def test_own_fails_over(emptied: Installation) -> None:
    in_mode(emptied, "own")
    assert_fails_over(emptied)


# --- the cluster's own kube-scheduler ----------------------------------------------------------------


@pytest.fixture
def extender(emptied: Installation, tmp_path: Path) -> list[str]:
    """The extender, behind its Service; and what `gpuslice install scheduler-config` has to be told of it."""
    address = emptied.cluster.plane.slot.service_address(SERVICE)
    in_mode(emptied, "extender", clusterIP=address)
    save_client_files(emptied.cluster, f"{emptied.full}-tls", emptied.namespace, tmp_path)
    return options(f"https://{address}", f"{emptied.full}-extender.{emptied.namespace}.svc", tmp_path)


@pytest.fixture
def kubeconfig(real_cluster: RealCluster) -> Path:
    return scheduler_kubeconfig(real_cluster)


@pytest.fixture
def wired(emptied: Installation, extender: list[str], kubeconfig: Path) -> Iterator[Installation]:
    """The cluster's kube-scheduler runs with the printed configuration."""
    with configured(emptied.cluster, extender, kubeconfig):
        yield emptied


def test_the_clusters_own_scheduler_places(wired: Installation) -> None:
    assert_places(wired)


def test_manifests_of_gpushare_work_unchanged(wired: Installation) -> None:
    cluster = wired.cluster
    load_busybox_as(cluster, *IMAGES)
    for file, running in (("01-gpu-share-test.yaml", 1), ("02-binpack.yaml", 4)):
        cluster.apply((EXAMPLES / file).read_text())
        pods = wired.wait_for_pods(running)
    assert len({uuid for pod in pods for held in allocation(pod).values() for uuid in held}) == 1
    assert_sides_agree(cluster)


def test_the_extender_fails_over(wired: Installation) -> None:
    assert_fails_over(wired)


def test_kubeadms_static_pod_is_wired_and_unwired(
    emptied: Installation, extender: list[str], kubeconfig: Path
) -> None:
    """On a node that is a control plane's as kubeadm leaves it, with the command of docs/install.md."""
    cluster, node = emptied.cluster, emptied.cluster.nodes[0]
    load_kube_scheduler(cluster)
    cluster.scheduler.stop()
    manifest = node.path("/etc/kubernetes/manifests/kube-scheduler.yaml")
    command = [
        str(GPUSLICE),
        "install",
        "scheduler-config",
        "--manifest=/etc/kubernetes/manifests/kube-scheduler.yaml",
    ]
    try:
        node.path("/etc/kubernetes/scheduler.conf").write_text(kubeconfig.read_text())
        manifest.write_text(yaml.safe_dump(static_pod(cluster)))
        before = manifest.read_text()
        unwired = wait_for_static_pod(cluster, node, "")
        node.run(*command, *extender)
        wired = wait_for_static_pod(cluster, node, unwired)
        cluster.apply(emptied.pod("one", 5))
        (pod,) = emptied.wait_for_pods(1)
        ((uuid, _),) = allocation(pod)["main"].items()
        assert environment(cluster, "one")[names.VISIBLE_DEVICES] == uuid
        node.run(*command, "--undo")
        assert yaml.safe_load(manifest.read_text()) == yaml.safe_load(before)
        wait_for_static_pod(cluster, node, wired)
        # Nobody chose a GPU for this one: the node does, and the scheduler's choice is not missed.
        cluster.apply(emptied.pod("two", 5))
        emptied.wait_for_pods(2)
    finally:
        manifest.unlink(missing_ok=True)
        with contextlib.suppress(RuntimeError):
            cluster.kubectl(
                "delete", "pod", "--namespace=kube-system", f"kube-scheduler-{node.name}", "--timeout=60s"
            )
        cluster.scheduler.start()


def wait_for_static_pod(cluster: RealCluster, node: Node, not_this: str) -> str:
    """Wait until another kube-scheduler than this one leads; its identity."""

    def holder() -> str:
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
        try:
            found = str(cluster.request("GET", path)["spec"].get("holderIdentity") or "")
        except ApiError:
            return ""
        return found if found not in ("", not_this) and found.startswith(node.name) else ""

    return cluster.wait(holder, 90, "the static pod of kube-scheduler to lead")


def static_pod(cluster: RealCluster) -> Object:
    """What kubeadm writes."""
    version = cluster.request("GET", "/version")["gitVersion"]
    conf = "/etc/kubernetes/scheduler.conf"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "kube-scheduler",
            "namespace": "kube-system",
            "labels": {"component": "kube-scheduler", "tier": "control-plane"},
        },
        "spec": {
            "containers": [
                {
                    "name": "kube-scheduler",
                    "image": f"registry.k8s.io/kube-scheduler:{version}",
                    "imagePullPolicy": "IfNotPresent",
                    "command": [
                        "kube-scheduler",
                        f"--authentication-kubeconfig={conf}",
                        f"--authorization-kubeconfig={conf}",
                        "--bind-address=127.0.0.1",
                        f"--kubeconfig={conf}",
                        "--leader-elect=true",
                    ],
                    "resources": {"requests": {"cpu": "100m"}},
                    # kubeadm's runs as root, and may read its kubeconfig.
                    "securityContext": {"runAsUser": 0},
                    "volumeMounts": [{"mountPath": conf, "name": "kubeconfig", "readOnly": True}],
                }
            ],
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "priority": 2000001000,
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"hostPath": {"path": conf, "type": "FileOrCreate"}, "name": "kubeconfig"}],
        },
    }
