"""Every fault is made for real in a cluster that was healthy a moment ago, and only it is found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import faults
import pytest
from doctor_world import NAMESPACE, SERVED, Site, micro, owner_of

from gpuslice import names
from gpuslice.doctor.finding import Finding, Level

OWNERLESS = "kubectl -n default delete pod"


@dataclass(frozen=True)
class Case:
    """How a fault is made and what must be said about it, and nothing else."""

    make: Callable[[Site], Awaitable[None]]
    code: str
    where: str
    sentence: str
    remedy: str
    level: Level = Level.ERROR


WARNING = Level.WARNING
SECRET = f"Secret/{NAMESPACE}/gpuslice-tls"
HOOK = "MutatingWebhookConfiguration/gpuslice"
WORKLOAD = f"Deployment/{NAMESPACE}/gpuslice-scheduler"
RESTART = f"kubectl -n {NAMESPACE} rollout restart deployment gpuslice-scheduler"
CASES = [
    Case(faults.kube_scheduler_of_another_age, "kube-scheduler-skew", WORKLOAD, "is v1.31.4, the API server v1.36", "image.tag=v1.36.0"),
    Case(faults.kubelet_of_another_age, "kubelet-skew", "Node/gpu-1", "kubelet of node gpu-1 is v1.30.9", "upgrade kubelet", WARNING),
    Case(faults.agents_of_another_version, "own-versions-differ", f"DaemonSet/{NAMESPACE}/gpuslice-agent", "runs gpuslice:0.0.9 and", "helm upgrade", WARNING),
    Case(faults.driver_that_does_not_answer, "driver-absent", "Node/gpu-1", "driver does not answer on node gpu-1: pod default/train", "nvidia-smi"),
    Case(faults.agent_that_finds_no_gpu, "driver-absent", "Node/gpu-2", "finds no GPU there, although the node has an NVIDIA card", "logs gpuslice-agent-gpu-2"),
    Case(faults.runtime_that_docker_does_not_know, "runtime-missing", "Node/gpu-2", "container runtime of node gpu-2 does not know NVIDIA's", "--runtime=docker --set-as-default"),
    Case(faults.runtime_of_which_nothing_shows, "runtime-unproven", "Node/gpu-1", "no RuntimeClass", "--runtime=containerd", WARNING),
    Case(faults.card_outside_the_pool, "card-not-in-pool", "Node/gpu-2", "nobody offers", "kubectl label node gpu-2 gpushare=true", WARNING),
    Case(faults.nvidias_plugin_beside_ours, "rival-plugin", "DaemonSet/kube-system/nvidia-device-plugin-daemonset", "on node gpu-1", "kubectl -n kube-system delete daemonset nvidia-device-plugin-daemonset"),
    Case(faults.feature_discovery_beside_ours, "feature-discovery", "DaemonSet/kube-system/gpu-feature-discovery", "on node gpu-1; the labels under nvidia.com/ there are its", "kubectl -n kube-system delete daemonset gpu-feature-discovery", WARNING),
    Case(faults.gpushares_extender_beside_ours, "rival-extender", "Deployment/kube-system/gpushare-schd-extender", "still runs", "kubectl -n kube-system delete deployment gpushare-schd-extender"),
    Case(faults.somebody_who_counts_otherwise, "foreign-count", "Node/gpu-1", "offers 8 nvidia.com/gpu, but its agent has published 2 GPUs", "spec.nodeName=gpu-1"),
    Case(faults.no_daemonset, "agent-not-installed", "DaemonSet", "node gpu-1 with the label gpushare=true offers no GPU", "helm upgrade --install"),
    Case(faults.no_node_labelled, "pool-empty", f"DaemonSet/{NAMESPACE}/gpuslice-agent", "no node has the label gpushare=true", "kubectl label node NODE gpushare=true"),
    Case(faults.agent_that_never_came, "agent-missing", "Node/gpu-2", 'violates PodSecurity "restricted:latest"', "describe daemonset gpuslice-agent"),
    Case(faults.agent_that_crashes, "agent-failing", f"Pod/{NAMESPACE}/gpuslice-agent-gpu-2", "CrashLoopBackOff: back-off 5m0s: error: /devices/devices.yaml: there is no such file", "logs gpuslice-agent-gpu-2 --previous"),
    Case(faults.plugin_kubelet_has_not_heard_of, "plugin-not-registered", "Node/gpu-1", "has published 2 GPUs, but kubelet offers 0 aliyun.com/gpu-mem", "delete pod gpuslice-agent-gpu-1"),
    Case(faults.record_that_cannot_be_read, "node-record-damaged", "Node/gpu-1", "cannot be read", "delete pod gpuslice-agent-gpu-1"),
    Case(faults.gpu_that_is_sick, "gpu-unhealthy", "Node/gpu-1", "GPU 1 (GPU-1): XID 79: the GPU has fallen off the bus, held by default/train", "nvidia-smi --gpu-reset", WARNING),
    Case(faults.node_that_cannot_be_partitioned, "mig-not-partitioned", "Node/gpu-1", "(all-9g.99gb): selected mig-config not present", "kubectl label node gpu-1 nvidia.com/mig.config=NAME", WARNING),
    Case(faults.configuration_that_is_not_there, "device-config-unusable", "Node/gpu-1", "specified config shard does not exist", "gpuslice validate FILE", WARNING),
    Case(faults.taint_that_keeps_the_agent_away, "agent-taint", "Node/gpu-2", "the taint dedicated=ml:NoSchedule", '{"key": "dedicated", "operator": "Exists"}'),
    Case(faults.taint_that_keeps_helms_agent_away, "agent-taint", "Node/gpu-2", "does not tolerate", """helm -n gpuslice-system upgrade shared deploy/helm/gpuslice --reset-then-reuse-values --set-json 'agent.tolerations=["""),
    Case(faults.no_scheduler, "scheduler-not-installed", "Deployment", "nobody chooses GPUs", "helm upgrade --install"),
    Case(faults.image_that_cannot_be_pulled, "scheduler-down", WORKLOAD, "container extender: ImagePullBackOff", "logs gpuslice-scheduler-"),
    Case(faults.one_replica_down, "scheduler-replica-down", f"Pod/{NAMESPACE}/gpuslice-scheduler-b", "one of 2 replicas", "logs gpuslice-scheduler-b", WARNING),
    Case(faults.lease_that_nobody_renews, "no-leader", f"Lease/{NAMESPACE}/gpuslice-scheduler", "by gpuslice-scheduler-a", RESTART),
    Case(faults.configuration_without_extender, "extender-not-configured", WORKLOAD, "no extender in ConfigMap gpuslice-system/gpuslice-scheduler manages aliyun.com/gpu-mem", "helm upgrade"),
    Case(faults.extender_on_another_port, "extender-not-configured", WORKLOAD, "asks http://127.0.0.1:32766/gpushare-scheduler, but the extender listens on port 40000", "helm upgrade"),
    Case(faults.pods_of_the_default_scheduler, "extender-bypassed", "Pod/default/old-1", "1 pod asking for aliyun.com/gpu-mem (default/old-1) got a node from default-scheduler without the extender being asked; kube-scheduler has no --config", "# and make it anew with spec.schedulerName: gpuslice"),
    Case(faults.scheduler_that_does_not_exist, "scheduler-unknown", "Pod/default/train", "with schedulerName gpushare-scheduler; ours are called gpuslice", "# and make it anew with spec.schedulerName: gpuslice"),
    Case(faults.extender_that_does_not_answer, "extender-unreachable", "Pod/default/train", "connection refused", "kubectl get pods -A -l app.kubernetes.io/name=gpuslice"),
    Case(faults.pod_that_gpushare_refused, "gpushare-refused", "Pod/default/train", "no-gpu-has-3GiB-to-run", f"{OWNERLESS} train"),
    Case(faults.no_webhook, "webhook-absent", "MutatingWebhookConfiguration", "sees every GPU", "webhook.enabled=true", WARNING),
    Case(faults.webhook_without_service, "webhook-unreachable", HOOK, "Service gpuslice-system/gpuslice-webhook, which does not exist", "helm upgrade"),
    Case(faults.webhook_without_endpoint, "webhook-unreachable", HOOK, "no ready endpoint, so the API server refuses pods", "get pods -l app.kubernetes.io/component=scheduler"),
    Case(faults.webhook_that_fails_open_without_endpoint, "webhook-unreachable", HOOK, "so pods are let in", "get pods", WARNING),
    Case(faults.bundle_that_is_none, "ca-bundle-broken", HOOK, "its caBundle holds no certificate", RESTART),
    Case(faults.no_authority, "ca-bundle-missing", HOOK, "is empty", RESTART),
    Case(faults.empty_secret, "certificate-missing", SECRET, "holds no certificate", RESTART),
    Case(faults.expired_certificate, "certificate-expired", SECRET, "expired on", RESTART),
    Case(faults.certificate_about_to_end, "certificate-ending", SECRET, "nobody has renewed it", RESTART, WARNING),
    Case(faults.certificate_of_the_future, "certificate-not-yet-valid", SECRET, "is a clock wrong?", RESTART),
    Case(faults.certificate_for_another_name, "certificate-wrong-name", SECRET, f"does not carry the name {SERVED}", RESTART),
    Case(faults.certificate_of_another_authority, "certificate-wrong-authority", SECRET, "not signed by the authority in the caBundle", RESTART),
    Case(faults.nodes_of_two_units, "unit-mismatch", "Node/gpu-2", "GiB on gpu-1 and 256MiB on gpu-2", "--set memoryUnit=GiB"),
    Case(faults.node_of_gpushare, "unit-unpublished", "Node/old-1", "without saying what one unit is", "gpushare-device-plugin-ds", WARNING),
    Case(faults.gpu_given_away_twice, "gpu-overcommitted", "Node/gpu-1", "has 15360 MiB, but 20480 MiB of it are promised, to pod default/a and default/b", f"{OWNERLESS} b"),
    Case(faults.pod_that_overrides, "visibility-overridden", "Pod/default/train", "may use any GPU of the node", f"{OWNERLESS} train"),
    Case(faults.pods_that_see_everything, "visibility-unasked", "Pod/default/miner-1", "(and default/miner-2 like it) on node gpu-1 asks for no GPU", "kubectl -n default set env deployment miner NVIDIA_VISIBLE_DEVICES-"),
    Case(faults.pod_that_mounts_a_device, "device-mounted", "Pod/default/raw", "mounts /dev/nvidia*", "hostPath"),
    Case(faults.privileged_pod, "privileged", "Pod/default/shell", "is privileged and asks for no GPU", "securityContext.privileged: false", WARNING),
    Case(faults.taint_that_keeps_a_pod_waiting, "pod-taint", "Pod/default/train", "pod default/train (and default/train-2 like it) fits on node gpu-1, but does not tolerate the taint nvidia.com/gpu there", "kubectl taint node gpu-1 nvidia.com/gpu-"),
    Case(faults.pod_on_a_gpu_that_is_gone, "pod-record-stale", "Pod/default/train", "a GPU that node gpu-1 does not have", f"{OWNERLESS} train"),
    Case(faults.pod_that_was_never_confirmed, "never-confirmed", "Pod/default/train", "for 31 minutes", "exec train -- env", WARNING),
    Case(faults.node_whose_agent_is_gone_for_good, "node-record-orphaned", "Node/gpu-2", "not in the pool", "kubectl annotate node gpu-2 gpuslice.io/gpus-", WARNING),
    Case(faults.marks_of_a_node_that_is_gone, "unhealthy-map-orphaned", "ConfigMap/kube-system/unhealthy-gpu-sold", "which does not exist", "delete configmap unhealthy-gpu-sold", WARNING),
    Case(faults.marks_of_a_gpu_that_is_not_there, "unhealthy-map-index", "ConfigMap/kube-system/unhealthy-gpu-gpu-1", "GPU 7, which node gpu-1 does not have", "edit configmap", WARNING),
]  # fmt: skip


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, "\n".join(f"{one.code}: {one.sentence}" for one in findings) or "nothing found"
    return findings[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.make.__name__)
async def test_a_fault_is_found_and_nothing_else(site: Site, case: Case) -> None:
    await site.install()
    # What has just been made may still be looked at; two minutes later it should have been.
    assert await site.findings() == []
    await case.make(site)
    late = datetime.now(UTC) + timedelta(seconds=61)
    if case.code != "no-leader":
        await site.patch("Lease", "gpuslice-scheduler", {"spec": {"renewTime": micro(late)}}, NAMESPACE)
    found = only(await site.findings(late))
    assert (found.code, found.level, found.object) == (case.code, case.level, case.where)
    assert case.sentence in found.sentence
    assert case.remedy in found.remedy


async def test_an_api_server_that_is_too_old(site: Site) -> None:
    await site.install("own")
    site.transport.version = "v1.24.17"
    found, *kubelets = await site.findings()
    assert (found.code, found.level) == ("server-too-old", Level.ERROR)
    assert "v1.24.17; gpuslice needs Kubernetes 1.25 or newer" in found.sentence
    assert [one.code for one in kubelets] == ["kubelet-skew"]


@pytest.mark.parametrize("mode", ["bundled", "own"])
async def test_pods_of_a_deployment_are_given_to_our_scheduler_by_one_command(site: Site, mode: str) -> None:
    """A control plane that hides its kube-scheduler, as every managed one does."""
    await site.install(mode)
    owner = owner_of("ReplicaSet", "train-7c9")
    record = {names.MEM_IDX: "0"}
    await site.pod(
        "train-7c9-a", 2, on="gpu-1", scheduler="default-scheduler", owner=owner, annotations=record
    )
    found = only(await site.findings())
    assert found.code == "extender-bypassed"
    assert found.remedy == (
        "kubectl -n default patch deployment train "
        """-p='{"spec": {"template": {"spec": {"schedulerName": "gpuslice"}}}}'"""
    )


async def test_pods_that_gpushare_has_bound_before_us_stay_unblamed(site: Site) -> None:
    site.clock.ahead = timedelta(days=-30)
    await site.pod("old", 2, on="gpu-1", index=0, scheduler="default-scheduler")
    site.clock.ahead = timedelta()
    await site.install()
    assert await site.findings() == []


async def test_nothing_is_installed(site: Site) -> None:
    await site.node(published=False, offered=False)
    found = only(await site.findings())
    assert (found.code, found.level) == ("not-installed", Level.ERROR)
    assert found.remedy.startswith("helm install gpuslice ")


async def test_kube_scheduler_that_is_not_told_of_the_extender(site: Site) -> None:
    """The classic: everything runs, and nobody asks."""
    await site.install("extender")
    await site.kube_scheduler()
    found = only(await site.findings())
    assert (found.code, found.object) == ("kube-scheduler-not-wired", "Pod/kube-system/kube-scheduler-cp")
    assert "has no --config" in found.sentence
    assert found.remedy.startswith("sudo gpuslice install scheduler-config --url https://1")
    await site.pod("bound", 2, on="gpu-1", scheduler="default-scheduler")
    wired, bypassed = await site.findings()
    assert (wired.code, bypassed.code) == ("extender-bypassed", "kube-scheduler-not-wired")
    assert "default/bound" in wired.sentence


async def test_pods_that_came_while_kube_scheduler_was_not_wired(site: Site) -> None:
    await site.install("extender")
    await site.kube_scheduler("--config=/etc/kubernetes/gpuslice-scheduler.yaml")
    await site.pod("bound", 2, on="gpu-1", scheduler="default-scheduler")
    found = only(await site.findings())
    assert found.code == "extender-bypassed"
    assert found.remedy == f"{OWNERLESS} bound   # its controller makes it anew"


async def test_an_extender_that_no_service_leads_to(site: Site) -> None:
    await site.install("extender")
    await site.kube_scheduler("--config=x")
    await site.delete("EndpointSlice", "gpuslice-extender-x", NAMESPACE)
    found = only(await site.findings())
    assert (found.code, found.object) == ("extender-no-endpoint", f"Service/{NAMESPACE}/gpuslice-extender")


async def test_a_running_pod_still_needs_the_record_of_its_node(site: Site) -> None:
    """The label was taken off and pods still run: their memory is counted by that annotation."""
    await site.install()
    await site.node("gpu-2", labels={}, offered=False)
    await site.pod("train", 2, on="gpu-2", index=0)
    assert await site.findings() == []


@pytest.mark.parametrize(
    ("plural", "level"),
    [("secrets", WARNING), ("leases", WARNING), ("deployments", WARNING), ("daemonsets", WARNING), ("configmaps", WARNING),
     ("runtimeclasses", WARNING), ("services", WARNING), ("endpointslices", WARNING), ("events", WARNING),
     ("mutatingwebhookconfigurations", WARNING), ("pods", Level.ERROR), ("nodes", Level.ERROR)],
)  # fmt: skip
async def test_what_may_not_be_read_is_said_and_does_not_stop_the_rest(
    site: Site, plural: str, level: Level
) -> None:
    await site.install()
    await site.patch("Node", "gpu-1", {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
    site.transport.forbidden = {plural}
    first, *rest = sorted(await site.findings(), key=lambda one: one.code != "cannot-look")
    assert (first.code, first.level, first.object) == ("cannot-look", level, plural)
    assert f'cannot list resource "{plural}"' in first.sentence
    expected = [] if plural in ("nodes", "runtimeclasses") else ["runtime-unproven"]
    assert [one.code for one in rest] == expected
