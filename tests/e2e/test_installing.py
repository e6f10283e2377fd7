"""Further ways to install than the defaults, and what goes wrong on the way: other people's certificates, a NodePort,
plain manifests, a node that is lost, faults that `gpuslice doctor` must see."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from gpuslice import names

from . import truth
from .alone import FOUR, deployment, gpu_container, gpu_pod
from .certmanager import cert_manager
from .cluster import ApiError, Object, RealCluster
from .images import BUSYBOX
from .images_of_ours import REPOSITORY, TAG, load_gpuslice, load_kube_scheduler
from .installation import CHART, NAMESPACE, RELEASE, Installation, clear, installed, manifest_path
from .sides import assert_sides_agree, gpuslice
from .test_identity import SIZES
from .test_lifecycle import assert_nothing_left, on
from .wiring import configured, options, save_client_files, scheduler_kubeconfig

NODE_PORT = 32766


def codes(cluster: RealCluster) -> dict[str, Object]:
    """What `gpuslice doctor` finds, by code."""
    found = json.loads(gpuslice(cluster, "doctor", "--output=json", check=False))["findings"]
    return {finding["code"]: finding for finding in found}


# --- on the shared installation ------------------------------------------------------------------------


def test_doctor_sees_three_faults_at_once_and_says_what_mends_them(gpus: Installation) -> None:
    cluster = gpus.cluster
    assert not {code for code, finding in codes(cluster).items() if finding["level"] == "error"}
    agent = next(pod for pod in gpus.pods("agent") if pod["spec"]["nodeName"] == "node-2")
    cluster.kubectl("taint", "node", "node-2", "dedicated=ml:NoSchedule")
    cluster.kubectl("delete", "pod", f"--namespace={gpus.namespace}", agent["metadata"]["name"])
    looks = gpu_pod("looks", 0)
    # Of an unprivileged one it would be taken out.
    looks["spec"]["containers"][0] |= {
        "env": [{"name": names.VISIBLE_DEVICES, "value": "all"}],
        "securityContext": {"privileged": True},
    }
    cluster.apply(looks)
    cluster.kubectl("delete", "service", f"--namespace={gpus.namespace}", f"{gpus.full}-webhook")
    try:
        expected = {"agent-taint", "webhook-unreachable", "visibility-unasked"}
        found = cluster.wait(
            lambda: now if expected <= (now := codes(cluster)).keys() else None,
            60,
            f"doctor to say {expected}",
        )
        # Its own words are followed: what it prints is typed.
        clients = {"kubectl": cluster.kubectl, "helm": cluster.helm}
        for code in ("agent-taint", "visibility-unasked"):
            program, *arguments = shlex.split(found[code]["remedy"][0], comments=True)
            # The chart is named as seen from the repository's folder.
            clients[program](*(str(CHART) if one == "deploy/helm/gpuslice" else one for one in arguments))
        gpus.wait_until_ready()
        assert not codes(cluster).keys() & {"agent-taint", "visibility-unasked"}
    finally:
        cluster.kubectl("taint", "node", "node-2", "dedicated-", check=False)
        gpus.upgrade({})
    clear(cluster)
    assert not {code for code, finding in codes(cluster).items() if finding["level"] == "error"}


POD_SECURITY = "pod-security.kubernetes.io/enforce"
VOID = {names.VISIBLE_DEVICES: "void"}


def candidate(name: str, units: int = 0, annotations: Object | None = None, **main: object) -> Object:
    """A pod whose one container asks for that much, and is like that."""
    pod = gpu_pod(name, units)
    pod["metadata"]["annotations"] = annotations or {}
    pod["spec"]["containers"][0] |= main
    return pod


def admitted(cluster: RealCluster, pod: Object) -> list[dict[str, str]] | str:
    """The environments of the containers of a pod that the API server would take; else what it says."""
    try:
        made = cluster.request("POST", "/api/v1/namespaces/default/pods", pod, dryRun="All")
    except ApiError as error:
        return str(error)
    annotated = made["metadata"].get("annotations") or {}
    assert not {*annotated} & {names.ALLOCATION, names.MEM_IDX, "cdi.k8s.io/mine"}
    spec = made["spec"]
    return [
        {one["name"]: one.get("value", "") for one in container.get("env") or ()}
        for container in (*spec["containers"], *spec.get("initContainers", ()))
    ]


def test_what_is_admitted_with_our_webhook_and_what_without(gpus: Installation) -> None:
    """The API server evaluates who concerns us: while we are away only they must wait, and nobody gets more."""
    cluster = gpus.cluster
    says_all = [{"name": names.VISIBLE_DEVICES, "value": "all"}]
    beside = candidate("beside", 1)
    beside["spec"]["initContainers"] = [gpu_container("first", 0)]
    zero = candidate("zero", 1)
    zero["spec"]["containers"].append(
        gpu_container("none", 0, resources={"limits": {names.WHOLE_GPU: "0"}}, env=says_all)
    )
    settings: list[Object] = [{"configMapRef": {"name": "settings", "optional": True}}]
    prefixed = [settings[0] | {"prefix": "APP_"}]
    changed = {
        "says all": (candidate("a", env=says_all), [VOID]),
        "asks and says all": (candidate("b", 1, env=says_all), [{}]),
        "features": (candidate("c", 1, env=[{"name": "NVIDIA_IMEX_CHANNELS", "value": "0"}]), [{}]),
        "a container beside": (beside, [{}, VOID]),
        "one of zero": (zero, [{}, VOID]),
        "by CDI": (candidate("d", annotations={"cdi.k8s.io/mine": "nvidia.com/gpu=all"}), [VOID]),
        "by its own word": (candidate("e", 1, {names.ALLOCATION: "{}", names.MEM_IDX: "0"}), [{}]),
    }
    unchanged = {
        "asks": (candidate("f", 1), [{}]),
        "asks, with settings": (candidate("g", 1, envFrom=prefixed), [{}]),
        "asks for nothing": (candidate("h"), [VOID]),
        "settings": (candidate("i", envFrom=settings), [VOID]),
        "looks after GPUs": (candidate("j", securityContext={"privileged": True}), [{}]),
    }
    for what, (pod, expected) in (changed | unchanged).items():
        assert admitted(cluster, pod) == expected, what
    assert "spec.containers[0].envFrom[0]: container 'main' asks for a GPU" in admitted(
        cluster, candidate("k", 1, envFrom=settings)
    )

    there = candidate("there", 1)
    there["spec"]["nodeName"] = "node-1"
    elsewhere = candidate("elsewhere", resources={"limits": {"x.example/gpu": "1"}})
    assert admitted(cluster, elsewhere) == [{}], "no node has that, and no scheduler finds one"
    elsewhere["spec"]["nodeName"] = "node-1"
    assert admitted(cluster, there) == [{}]
    assert "asks for x.example/gpu, which node 'node-1' does not have" in admitted(cluster, elsewhere)

    cluster.apply(candidate("l"))
    debug = (
        "debug",
        "l",
        "--quiet",
        f"--image={BUSYBOX}",
        f"--env={names.VISIBLE_DEVICES}=all",
        "--",
        "true",
    )
    cluster.kubectl(*debug)
    (ephemeral,) = cluster.get("pods", "l")["spec"]["ephemeralContainers"]
    assert ephemeral["env"] == [{"name": names.VISIBLE_DEVICES, "value": "void"}]

    cluster.kubectl("label", "namespace", "default", f"{POD_SECURITY}=baseline")
    try:
        for spec in (
            {"securityContext": {"privileged": True}},
            {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
        ):
            assert 'violates PodSecurity "baseline' in admitted(cluster, candidate("m", **spec))
        mounts = candidate("n")
        mounts["spec"]["volumes"] = [{"name": "gpu", "hostPath": {"path": "/dev/nvidia0"}}]
        said = admitted(cluster, mounts)
        assert 'violates PodSecurity "baseline' in said
        assert admitted(cluster, candidate("o", 1)) == [{}], "who asks has nothing to do with it"
    finally:
        cluster.kubectl("label", "namespace", "default", f"{POD_SECURITY}-")

    scale = ("scale", "deployment", f"--namespace={gpus.namespace}", f"{gpus.full}-scheduler")
    cluster.kubectl(*scale, "--replicas=0")
    try:
        # As long as one of them ends, it may still answer.
        ours = "app.kubernetes.io/component=scheduler"
        cluster.wait(
            lambda: not cluster.objects("pods", gpus.namespace, labelSelector=ours), 60, "our replicas to end"
        )
        cluster.wait(
            lambda: "failed calling webhook" in admitted(cluster, changed["says all"][0]),
            30,
            "the API server to miss our webhook",
        )
        for what, (pod, _) in changed.items():
            assert 'failed calling webhook "pods.gpuslice.io"' in admitted(cluster, pod), what
        for what, (pod, _) in unchanged.items():
            assert admitted(cluster, pod) == [{}], what
        assert "failed calling webhook" in admitted(cluster, candidate("k", 1, envFrom=settings))
        assert 'failed calling webhook "pods.gpuslice.io"' in admitted(cluster, elsewhere)
    finally:
        cluster.kubectl(*scale, "--replicas=2")
        gpus.wait_until_ready()
        clear(cluster)


def test_the_other_replica_schedules_when_a_node_is_lost(gpus: Installation) -> None:
    """Nobody gives the Lease back: the node is cut off in the middle of everything."""
    cluster = gpus.cluster

    def holder() -> str:
        lease = gpus.object("coordination.k8s.io/v1", "leases", f"{gpus.full}-scheduler")
        return str(lease["spec"].get("holderIdentity") or "")

    first = cluster.wait(holder, 30, "a replica to act")
    leader = cluster.get("pods", first.partition("_")[0], gpus.namespace)
    lost = next(node for node in cluster.nodes if node.name == leader["spec"]["nodeName"])
    other = next(node for node in cluster.nodes if node is not lost)
    lost.cut_off()
    try:
        cluster.apply(gpus.pod("after", 2, **on(other.name)))
        gpus.wait_for_pods(1, timeout=90)
        assert holder() not in ("", first)
    finally:
        lost.reconnect()
        cluster.wait_for_nodes()
    gpus.wait_until_ready()
    assert_sides_agree(cluster)
    gpus.clear()


# --- without the shared installation --------------------------------------------------------------------


def test_a_burst_under_the_charts_agents_that_are_replaced_in_its_middle(bare: RealCluster) -> None:
    gpus = {"apiVersion": "gpuslice.io/v1alpha1", "kind": "Devices", "spec": {"gpus": list(FOUR)}}
    with installed(bare, devices=yaml.safe_dump(gpus)) as installation:
        pods = [gpu_pod(f"burst-{n:02}", SIZES[n % 2], schedulerName="gpuslice") for n in range(60)]
        bare.apply(pods)
        truth.check(bare, pods=60)
        clear(bare)
        bare.apply(
            [deployment(f"size-{size}", 20, gpu_pod("", size, schedulerName="gpuslice")) for size in SIZES]
        )
        bare.wait(
            lambda: any(pod["status"]["phase"] == "Running" for pod in bare.objects("pods")), 60, "one to run"
        )
        selector = "--selector=app.kubernetes.io/component=agent"
        bare.kubectl("delete", "pods", f"--namespace={installation.namespace}", selector, "--wait=false")
        truth.check(bare, pods=40)
        clear(bare)


@pytest.mark.parametrize("mode", ["own", "bundled"])
def test_plain_manifests(bare: RealCluster, mode: str) -> None:
    gpus = Installation(bare, values={"scheduler": {"mode": mode}})
    manifests = prepared(bare, gpus)
    bare.apply(manifests)
    try:
        gpus.wait_until_ready()
        bare.apply([gpus.pod("one", 5, **on("node-1")), gpus.pod("two", 5, **on("node-2"))])
        gpus.wait_for_pods(2)
        assert_sides_agree(bare)
        gpus.clear()
    finally:
        removed(bare, gpus, manifests)
    assert_nothing_left(bare)


def test_plain_manifests_beside_the_clusters_own_scheduler(bare: RealCluster, tmp_path: Path) -> None:
    gpus = Installation(bare, values={"scheduler": {"mode": "extender"}})
    manifests = prepared(bare, gpus)
    bare.apply(manifests)
    try:
        gpus.wait_until_ready()
        save_client_files(bare, f"{gpus.full}-tls", gpus.namespace, tmp_path)
        service = bare.get("services", f"{gpus.full}-extender", gpus.namespace)
        url = f"https://{service['spec']['clusterIP']}"
        extender = options(url, f"{gpus.full}-extender.{gpus.namespace}.svc", tmp_path)
        with configured(bare, extender, scheduler_kubeconfig(bare)):
            # The manifests' GPUs are T4s of 14 GiB, two on each node.
            bare.apply([gpus.pod("one", 10), gpus.pod("two", 10)])
            gpus.wait_for_pods(2)
            bare.apply(gpus.pod("three", 20))
            bare.wait(lambda: gpus.events("three", "FailedScheduling"), 60, "an event that says why it waits")
            assert_sides_agree(bare)
            gpus.clear()
    finally:
        removed(bare, gpus, manifests)
    assert_nothing_left(bare)


def test_own_certificates_and_a_node_port(bare: RealCluster, tmp_path: Path) -> None:
    """tls.mode `provided`: server and client certificates of an authority that we know nothing of."""
    authority = bare.plane.authority
    servers = [f"{RELEASE}-{what}.{NAMESPACE}.svc" for what in ("extender", "webhook")]
    address = bare.nodes[0].address
    server, server_key = authority.issue("provided", "gpuslice", names=[*servers, address])
    client, client_key = authority.issue("kube-scheduler-client", "kube-scheduler")
    bare.kubectl("create", "namespace", NAMESPACE)
    secret = ("create", "secret", f"--namespace={NAMESPACE}")
    bare.kubectl(*secret, "tls", "mine", f"--cert={server}", f"--key={server_key}")
    bare.kubectl(*secret, "generic", "clients", f"--from-file=ca.crt={authority.certificate}")
    for name, source in (
        ("ca.crt", authority.certificate),
        ("client.crt", client),
        ("client.key", client_key),
    ):
        (tmp_path / name).write_bytes(source.read_bytes())
    values = {
        "tls": {
            "mode": "provided",
            "provided": {"secretName": "mine", "caBundle": authority.certificate.read_text()},
        },
        "scheduler": {
            "mode": "extender",
            "service": {"type": "NodePort", "nodePort": NODE_PORT, "clientCASecret": "clients"},
        },
    }
    with installed(bare, values=values) as gpus:
        extender = options(f"https://{address}:{NODE_PORT}", address, tmp_path)
        with configured(bare, extender, scheduler_kubeconfig(bare)):
            pod = gpus.pod("one", 20)
            pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
            bare.apply(pod)
            (running,) = gpus.wait_for_pods(1)
            assert not running["spec"]["containers"][0].get("env"), "the webhook was asked"
            assert_sides_agree(bare)
            gpus.clear()
    assert_nothing_left(bare)


def test_certificates_of_cert_manager(bare: RealCluster) -> None:
    """Played by the suite; the webhook is asked over the certificate that it issued."""
    values = {"tls": {"mode": "certManager"}}
    secret = f"{RELEASE}-tls"
    with cert_manager(bare, NAMESPACE, secret, RELEASE), installed(bare, values=values) as gpus:
        pod = gpus.pod("one", 5)
        pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        bare.apply(pod)
        (running,) = gpus.wait_for_pods(1)
        assert not running["spec"]["containers"][0].get("env"), "the webhook was asked"
        gpus.clear()
    assert_nothing_left(bare)


def prepared(cluster: RealCluster, gpus: Installation) -> str:
    """The manifests of a mode with the image under test; nodes and images are ready for them."""
    text = manifest_path(gpus.mode).read_text()
    image = f"{REPOSITORY}:{version(text)}"
    assert image in text
    load_gpuslice(cluster)
    if gpus.mode == "bundled":
        load_kube_scheduler(cluster)
    cluster.log_namespaces.add(NAMESPACE)
    gpus.label("node-1", "node-2")
    return text.replace(image, f"{REPOSITORY}:{TAG}")


def removed(cluster: RealCluster, gpus: Installation, manifests: str) -> None:
    """As docs/install.md says."""
    cluster.kubectl("delete", "--filename=-", "--ignore-not-found", "--timeout=90s", stdin=manifests)
    gpuslice(cluster, "uninstall", f"--lease={NAMESPACE}/{RELEASE}-scheduler")
    gpus.unlabel("node-1", "node-2")


def version(manifests: str) -> str:
    deployments = [one for one in yaml.safe_load_all(manifests) if one and one["kind"] == "Deployment"]
    containers = deployments[0]["spec"]["template"]["spec"]["containers"]
    image: str = next(c["image"] for c in containers if c["image"].startswith(f"{REPOSITORY}:"))
    return image.partition(":")[2]
