"""Faults, each made for real in a healthy cluster: objects as users, kubelets and other installations leave them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from doctor_world import NAMESPACE, Json, Site, micro, owner_of, resource

from gpuslice import names
from gpuslice.units import MemoryUnit

SEES_ALL = {"env": [{"name": names.VISIBLE_DEVICES, "value": "all"}]}


def waiting(
    reason: str, message: str = "", *, name: str = "main", last: Json | None = None, restarts: int = 0
) -> Json:
    """The status of a pod whose container does not start."""
    return {
        "phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [
            {
                "name": name,
                "image": "x",
                "imageID": "",
                "ready": False,
                "restartCount": restarts,
                "state": {"waiting": {"reason": reason, "message": message}},
                "lastState": {"terminated": last} if last else {},
            }
        ],
    }


# --- versions ---------------------------------------------------------------------------------------
async def kube_scheduler_of_another_age(site: Site) -> None:
    image = [
        {
            "op": "replace",
            "path": "/spec/template/spec/containers/1/image",
            "value": "k8s.io/kube-scheduler:v1.31.4",
        }
    ]
    await site.patch("Deployment", "gpuslice-scheduler", image, NAMESPACE)


async def kubelet_of_another_age(site: Site) -> None:
    await site.patch("Node", "gpu-1", {"status": {"nodeInfo": {"kubeletVersion": "v1.30.9"}}}, None, "status")


async def agents_of_another_version(site: Site) -> None:
    image = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "gpuslice:0.0.9"}]
    await site.patch("DaemonSet", "gpuslice-agent", image, NAMESPACE)


# --- runtime ----------------------------------------------------------------------------------------
async def driver_that_does_not_answer(site: Site) -> None:
    said = "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown"
    await site.pod("train", 2, on="gpu-1", index=0, status=waiting("RunContainerError", said))


async def agent_that_finds_no_gpu(site: Site) -> None:
    labels = {"gpushare": "true", "feature.node.kubernetes.io/pci-0302_10de.present": "true"}
    await site.put(
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        }
    )
    await site.node("gpu-2", labels=labels, published=False, offered=False)
    await site.agent("gpu-2")


async def runtime_that_docker_does_not_know(site: Site) -> None:
    await site.node("gpu-2", runtime="docker://27.1.1")
    await site.agent("gpu-2")
    said = 'failed to create shim task: could not select device driver "nvidia" with capabilities: [[gpu]]'
    await site.pod("train", 2, on="gpu-2", index=0, status=waiting("CreateContainerError", said))


async def runtime_of_which_nothing_shows(site: Site) -> None:
    await site.patch("Node", "gpu-1", {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})


async def card_outside_the_pool(site: Site) -> None:
    await site.node(
        "gpu-2",
        labels={"feature.node.kubernetes.io/pci-10de.present": "true"},
        published=False,
        offered=False,
    )


# --- rivals -----------------------------------------------------------------------------------------
async def nvidias_plugin_beside_ours(site: Site) -> None:
    await site.pod(
        "nvidia-device-plugin-daemonset-x7",
        on="gpu-1",
        container={"image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"},
        owner=owner_of("DaemonSet", "nvidia-device-plugin-daemonset"),
        namespace="kube-system",
    )


async def feature_discovery_beside_ours(site: Site) -> None:
    await site.patch("Node", "gpu-1", {"metadata": {"labels": {"nvidia.com/gfd.timestamp": "1795220829"}}})
    await site.pod(
        "gpu-feature-discovery-x7",
        on="gpu-1",
        container={"name": "gpu-feature-discovery", "image": "nvcr.io/nvidia/gfd:v0.17.0"},
        owner=owner_of("DaemonSet", "gpu-feature-discovery"),
        namespace="kube-system",
    )


async def gpushares_extender_beside_ours(site: Site) -> None:
    await site.pod(
        "gpushare-schd-extender-5f6-x",
        on="cp",
        container={"image": "registry.example/acs/k8s-gpushare-schd-extender:1.11-d170d8a"},
        owner=owner_of("ReplicaSet", "gpushare-schd-extender-5f6"),
        namespace="kube-system",
    )


async def somebody_who_counts_otherwise(site: Site) -> None:
    amounts = {"capacity": {names.WHOLE_GPU: "8"}, "allocatable": {names.WHOLE_GPU: "8"}}
    await site.patch("Node", "gpu-1", {"status": amounts}, None, "status")


# --- agents -----------------------------------------------------------------------------------------
async def no_daemonset(site: Site) -> None:
    await site.delete("Pod", "gpuslice-agent-gpu-1", NAMESPACE)
    await site.delete("DaemonSet", "gpuslice-agent", NAMESPACE)
    await zero(site)


async def zero(site: Site) -> None:
    """What kubelet says when the plugin has gone."""
    await site.patch("Node", "gpu-1", {"status": {"allocatable": {names.GPU_MEM: "0"}}}, None, "status")


async def no_node_labelled(site: Site) -> None:
    await site.delete("Pod", "gpuslice-agent-gpu-1", NAMESPACE)
    await site.delete("Node", "gpu-1")
    await site.node("cpu-1", labels={}, published=False, offered=False)


async def agent_that_never_came(site: Site) -> None:
    await site.node("gpu-2", published=False, offered=False)
    said = 'Error creating: pods "gpuslice-agent-" is forbidden: violates PodSecurity "restricted:latest"'
    await site.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "x.1", "namespace": NAMESPACE},
            "involvedObject": {"kind": "DaemonSet", "name": "gpuslice-agent", "namespace": NAMESPACE},
            "type": "Warning",
            "reason": "FailedCreate",
            "message": said,
        }
    )


async def agent_that_crashes(site: Site) -> None:
    await site.node("gpu-2")
    last = {"exitCode": 2, "message": "error: /devices/devices.yaml: there is no such file"}
    await site.agent(
        "gpu-2", waiting("CrashLoopBackOff", "back-off 5m0s", name="agent", last=last, restarts=7)
    )


async def plugin_kubelet_has_not_heard_of(site: Site) -> None:
    await zero(site)


async def record_that_cannot_be_read(site: Site) -> None:
    await site.patch("Node", "gpu-1", {"metadata": {"annotations": {names.NODE_GPUS: "[{"}}})


async def gpu_that_is_sick(site: Site) -> None:
    said = "GPU 1 (GPU-1): XID 79: the GPU has fallen off the bus, held by default/train"
    condition = {"type": "GPUUnhealthy", "status": "True", "reason": "GPUUnhealthy", "message": said}
    await site.patch("Node", "gpu-1", {"status": {"conditions": [condition]}}, subresource="status")


async def node_that_cannot_be_partitioned(site: Site) -> None:
    labels = {"nvidia.com/mig.config": "all-9g.99gb", "nvidia.com/mig.config.state": "failed"}
    why = {"gpuslice.io/mig-config-reason": "selected mig-config not present: all-9g.99gb"}
    await site.patch("Node", "gpu-1", {"metadata": {"labels": labels, "annotations": why}})


async def configuration_that_is_not_there(site: Site) -> None:
    why = {
        "gpuslice.io/device-plugin-config-reason": "specified config shard does not exist; there are shared"
    }
    await site.patch("Node", "gpu-1", {"metadata": {"annotations": why}})


async def taint_that_keeps_the_agent_away(site: Site) -> None:
    await site.node("gpu-2", published=False, offered=False)
    taints = [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]
    await site.patch("Node", "gpu-2", {"spec": {"taints": taints}})


async def taint_that_keeps_helms_agent_away(site: Site) -> None:
    await taint_that_keeps_the_agent_away(site)
    owned = {"metadata": {"annotations": {"meta.helm.sh/release-name": "shared"}}}
    await site.patch("DaemonSet", "gpuslice-agent", owned, NAMESPACE)


# --- scheduler --------------------------------------------------------------------------------------
async def no_scheduler(site: Site) -> None:
    await site.delete("Deployment", "gpuslice-scheduler", NAMESPACE)


async def image_that_cannot_be_pulled(site: Site) -> None:
    for suffix in ("a", "b"):
        status = waiting("ImagePullBackOff", 'Back-off pulling image "gpuslice:0.1.0"', name="extender")
        await site.patch("Pod", f"gpuslice-scheduler-{suffix}", {"status": status}, NAMESPACE, "status")


async def one_replica_down(site: Site) -> None:
    status = waiting("CrashLoopBackOff", name="kube-scheduler")
    await site.patch("Pod", "gpuslice-scheduler-b", {"status": status}, NAMESPACE, "status")


async def lease_that_nobody_renews(site: Site) -> None:
    long_ago = micro(datetime.now(UTC) - timedelta(minutes=10))
    await site.patch("Lease", "gpuslice-scheduler", {"spec": {"renewTime": long_ago}}, NAMESPACE)


async def configuration_without_extender(site: Site) -> None:
    text = "kind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: gpuslice}]\n"
    await site.patch("ConfigMap", "gpuslice-scheduler", {"data": {"scheduler.yaml": text}}, NAMESPACE)


async def extender_on_another_port(site: Site) -> None:
    words = json.loads(await site.client.read(resource("Deployment").path(NAMESPACE, "gpuslice-scheduler")))
    args = words["spec"]["template"]["spec"]["containers"][0]["args"]
    position = next(i for i, word in enumerate(args) if word.startswith("--listen="))
    change = {
        "op": "replace",
        "path": f"/spec/template/spec/containers/0/args/{position}",
        "value": "--listen=127.0.0.1:40000",
    }
    await site.patch("Deployment", "gpuslice-scheduler", [change], NAMESPACE)


async def pods_of_the_default_scheduler(site: Site) -> None:
    await site.kube_scheduler()
    await site.pod("old-1", 2, on="gpu-1", scheduler="default-scheduler")
    await site.pod("old-2", 2, scheduler="default-scheduler")


async def scheduler_that_does_not_exist(site: Site) -> None:
    await site.pod("train", 2, scheduler="gpushare-scheduler", status={"phase": "Pending"})


async def extender_that_does_not_answer(site: Site) -> None:
    said = 'Post "http://127.0.0.1:32766/gpushare-scheduler/filter": dial tcp 127.0.0.1:32766: connect: connection refused'
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": said}
    await site.pod("train", 2, status={"phase": "Pending", "conditions": [condition]})


async def pod_that_gpushare_refused(site: Site) -> None:
    said = "nvidia-container-cli: device error: unknown device id: no-gpu-has-3GiB-to-run"
    await site.pod("train", 3, on="gpu-1", index=0, status=waiting("RunContainerError", said))


# --- webhook ----------------------------------------------------------------------------------------
async def no_webhook(site: Site) -> None:
    await site.delete("MutatingWebhookConfiguration", "gpuslice")


async def webhook_without_service(site: Site) -> None:
    await site.delete("Service", "gpuslice-webhook", NAMESPACE)


async def webhook_without_endpoint(site: Site) -> None:
    await site.patch(
        "EndpointSlice",
        "gpuslice-webhook-x",
        {"endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": False}}]},
        NAMESPACE,
    )


async def webhook_that_fails_open_without_endpoint(site: Site) -> None:
    await webhook_without_endpoint(site)
    await site.hook({"op": "replace", "path": "/failurePolicy", "value": "Ignore"})


async def bundle_that_is_none(site: Site) -> None:
    await site.hook({"op": "replace", "path": "/clientConfig/caBundle", "value": "bm9uc2Vuc2U="})


async def no_authority(site: Site) -> None:
    await site.hook({"op": "remove", "path": "/clientConfig/caBundle"})


async def empty_secret(site: Site) -> None:
    await site.patch("Secret", "gpuslice-tls", {"data": None}, NAMESPACE)


async def expired_certificate(site: Site) -> None:
    await site.trust(await site.certificate(made=datetime.now(UTC) - timedelta(days=91)))


async def certificate_about_to_end(site: Site) -> None:
    await site.trust(await site.certificate(made=datetime.now(UTC) - timedelta(days=80)))


async def certificate_of_the_future(site: Site) -> None:
    await site.trust(await site.certificate(made=datetime.now(UTC) + timedelta(days=2)))


async def certificate_for_another_name(site: Site) -> None:
    await site.trust(await site.certificate(name="gpuslice-webhook.elsewhere.svc"))


async def certificate_of_another_authority(site: Site) -> None:
    await site.certificate()


# --- units and memory -------------------------------------------------------------------------------
async def nodes_of_two_units(site: Site) -> None:
    await site.node("gpu-2", unit=MemoryUnit(256))
    await site.agent("gpu-2")


async def node_of_gpushare(site: Site) -> None:
    await site.node("old-1", published=False)
    await site.patch("Node", "old-1", {"metadata": {"labels": {"gpushare": None}}})


async def gpu_given_away_twice(site: Site) -> None:
    await site.pod("a", 10, on="gpu-1", index=0)
    await site.pod("b", 10, on="gpu-1", index=0)


# --- pods -------------------------------------------------------------------------------------------
async def pod_that_overrides(site: Site) -> None:
    await site.pod("train", 2, on="gpu-1", index=0, container=SEES_ALL)


async def pods_that_see_everything(site: Site) -> None:
    owner = owner_of("ReplicaSet", "miner-5f6")
    for name in ("miner-1", "miner-2"):
        await site.pod(name, on="gpu-1", container=SEES_ALL, owner=owner)


async def pod_that_mounts_a_device(site: Site) -> None:
    await site.pod("raw", on="gpu-1", volumes=[{"name": "gpu", "hostPath": {"path": "/dev/nvidia0"}}])


async def privileged_pod(site: Site) -> None:
    await site.pod("shell", on="gpu-1", container={"securityContext": {"privileged": True}})


async def taint_that_keeps_a_pod_waiting(site: Site) -> None:
    taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    await site.patch("Node", "gpu-1", {"spec": {"taints": taints}})
    await site.pod("train", 2)
    await site.pod("train-2", 2)
    await site.pod("tolerant", 2, tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])


# --- leftovers --------------------------------------------------------------------------------------
async def pod_on_a_gpu_that_is_gone(site: Site) -> None:
    record = json.dumps({"main": {"GPU-sold": 2048}})
    await site.pod("train", 2, on="gpu-1", annotations={names.ALLOCATION: record})


async def pod_that_was_never_confirmed(site: Site) -> None:
    bound = int((datetime.now(UTC) - timedelta(minutes=30)).timestamp() * 1e9)
    await site.pod(
        "train",
        2,
        on="gpu-1",
        annotations={names.MEM_IDX: "0", names.MEM_ASSIGNED: "false", names.MEM_ASSUME_TIME: str(bound)},
    )


async def node_whose_agent_is_gone_for_good(site: Site) -> None:
    await site.node("gpu-2", labels={}, offered=False)


async def marks_of_a_node_that_is_gone(site: Site) -> None:
    await marks(site, "sold", "0")


async def marks_of_a_gpu_that_is_not_there(site: Site) -> None:
    await marks(site, "gpu-1", "0,7")


async def marks(site: Site, node: str, gpus: str) -> None:
    meta = {"name": f"unhealthy-gpu-{node}", "namespace": "kube-system"}
    await site.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"gpus": gpus}})
