"""`gpuslice agent` and `gpuslice extender` as plain processes under a real kubelet and kube-scheduler: one pod of
each kind, everything that a user can look at, and what kubectl says when a pod cannot be served.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpuslice import names

from . import truth
from .alone import Alone, gpu_container, gpu_pod
from .cluster import Object, RealCluster

LOOK = "env; echo slice; cat /run/gpuslice/slice.json; echo end; exec sleep 100000"


@pytest.fixture
def cluster(alone: Alone) -> Iterator[RealCluster]:
    cluster = alone.cluster
    yield cluster
    cluster.kubectl("delete", "pods", "--all", "--wait=true", "--timeout=60s")
    truth.demand(cluster)


def seen(cluster: RealCluster, pod: str, container: str = "main") -> tuple[dict[str, str], Object]:
    """The environment and the slice.json as a container's first process sees them (it runs LOOK)."""

    def said() -> str:
        text = cluster.kubectl("logs", pod, f"--container={container}")
        return text if "\nend\n" in text else ""

    lines, _, file = cluster.wait(said, 20, f"what {pod} says").partition("slice\n")
    content: Object = json.loads(file.removesuffix("end\n"))
    return dict(line.split("=", 1) for line in lines.splitlines()), content


def events(cluster: RealCluster, pod: str) -> list[str]:
    found = cluster.objects("events", fieldSelector=f"involvedObject.name={pod}")
    return [f"{event['reason']}: {event['message']}" for event in found]


def test_a_share_of_a_gpu(cluster: RealCluster) -> None:
    cluster.apply(gpu_pod("share", 5, script=LOOK))
    (pod,) = truth.check(cluster, pods=1)
    node = cluster.node(pod["spec"]["nodeName"])
    gpu = truth.gpus_of(cluster, node).gpus[0]
    environ, content = seen(cluster, "share")
    assert {key: environ[key] for key in environ if key.startswith(("ALIYUN", "NVIDIA"))} == {
        names.VISIBLE_DEVICES: gpu.uuid,
        names.MEM_IDX: "0",
        names.MEM_POD: "5",
        names.MEM_CONTAINER: "5",
        names.MEM_DEV: "21",
    }
    listed = cluster.kubectl("exec", "share", "--", "nvidia-smi", "-L")
    assert listed == f"GPU 0: {gpu.model} (UUID: {gpu.uuid})\n"
    assert content["gpus"] == [
        {"index": 0, "uuid": gpu.uuid, "model": gpu.model, "mib": 5120, "whole": False}
    ]
    annotations = pod["metadata"]["annotations"]
    assert json.loads(annotations[names.ALLOCATION]) == {"main": {gpu.uuid: 5120}}
    assert {key: annotations[key] for key in names.GPUSHARE_ANNOTATIONS[:4]} == {
        names.MEM_IDX: "0",
        names.MEM_POD: "5",
        names.MEM_DEV: "21",
        names.MEM_ASSIGNED: "true",
    }
    said = cluster.kubectl("exec", "share", "--", "env")
    assert f"{names.VISIBLE_DEVICES}={gpu.uuid}" in said.splitlines()


def test_a_whole_gpu_is_shared_with_nobody(cluster: RealCluster) -> None:
    on_one: Object = {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}
    cluster.apply([gpu_pod("whole", 1, names.WHOLE_GPU, script=LOOK, **on_one)])
    truth.check(cluster, pods=1)
    cluster.apply([gpu_pod(f"share-{n}", 15, **on_one) for n in range(3)])
    truth.check(cluster, pods=4)
    environ, content = seen(cluster, "whole")
    assert not any(key.startswith("ALIYUN") for key in environ)
    assert content["gpus"][0] == {**content["gpus"][0], "whole": True, "mib": 21504}
    assert environ[names.VISIBLE_DEVICES] == content["gpus"][0]["uuid"]
    # The shares have the other three GPUs; nothing is left that is whole.
    cluster.apply(gpu_pod("second", 1, names.WHOLE_GPU, **on_one))
    cluster.wait(
        lambda: [event for event in events(cluster, "second") if "FailedScheduling" in event],
        30,
        "the scheduler to say that there is no whole GPU left",
    )
    (said, *_) = [event for event in events(cluster, "second") if "FailedScheduling" in event]
    assert "whole GPU" in said, said


def test_init_containers_and_sidecars(cluster: RealCluster) -> None:
    pod = gpu_pod("several", 3)
    pod["spec"]["containers"] = [
        gpu_container("main", 3, script=LOOK),
        gpu_container("beside", 2, script=LOOK),
        gpu_container("plain", 0, script="sleep 100000"),
    ]
    pod["spec"]["initContainers"] = [
        gpu_container("prepare", 4, script="env; echo slice; cat /run/gpuslice/slice.json; echo end"),
        gpu_container("sidecar", 1, script=LOOK, restartPolicy="Always"),
    ]
    cluster.apply(pod)
    (pod,) = truth.check(cluster, pods=1)
    looked = {name: seen(cluster, "several", name) for name in ("prepare", "sidecar", "main", "beside")}
    for name, (environ, content) in looked.items():
        assert content["container"] == name
        assert [gpu["uuid"] for gpu in content["gpus"]] == [environ[names.VISIBLE_DEVICES]]
    mib = {name: content["gpus"][0]["mib"] for name, (_, content) in looked.items()}
    assert mib == {"prepare": 4096, "sidecar": 1024, "main": 3072, "beside": 2048}
    record = json.loads(pod["metadata"]["annotations"][names.ALLOCATION])
    assert {name: sum(where.values()) for name, where in record.items()} == mib
    plain = cluster.kubectl("exec", "several", "--container=plain", "--", "env")
    assert "NVIDIA" not in plain


def test_a_pod_that_nobody_placed_is_placed_and_annotated_by_the_agent(cluster: RealCluster) -> None:
    cluster.apply([gpu_pod("first", 10, nodeName="node-2"), gpu_pod("second", 5, nodeName="node-2")])
    truth.check(cluster, pods=2)
    # Best fit: where 6 are left, not where 21 are.
    cluster.apply(gpu_pod("third", 6, nodeName="node-2"))
    pods = truth.check(cluster, pods=3)
    assert {p["metadata"]["annotations"][names.MEM_IDX] for p in pods} == {"0"}


def test_why_a_pod_does_not_fit_is_said_where_users_look(cluster: RealCluster) -> None:
    cluster.apply([gpu_pod(f"filler-{n}", 12, nodeName="node-1") for n in range(4)])
    truth.check(cluster, pods=4)
    # 36 are free on the node, 9 on each GPU: kubelet sees room, the agent sees none.
    cluster.apply(gpu_pod("large", 10, nodeName="node-1"))
    cluster.wait(lambda: cluster.phase("large") == "Failed", 30, "kubelet to refuse the pod")
    status = cluster.get("pods", "large")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert (
        "desc = the container asks for 10 GiB of one GPU, but no such room is left on this node: "
        "the GPU with the most has 9 GiB free" in status["message"]
    ), status["message"]
    described = cluster.kubectl("describe", "pod", "large")
    assert "UnexpectedAdmissionError" in described
    assert "no such room is left on this node" in described
    cluster.kubectl("delete", "pod", "large")


def test_why_no_node_will_do_is_said_by_the_scheduler(cluster: RealCluster) -> None:
    cluster.apply([gpu_pod(f"filler-{n}", 12, nodeName=f"node-{1 + n % 2}") for n in range(8)])
    truth.check(cluster, pods=8)
    cluster.apply(gpu_pod("too-large", 10))
    cluster.wait(lambda: events(cluster, "too-large"), 30, "the scheduler to say why")
    (said, *_) = events(cluster, "too-large")
    assert said.startswith("FailedScheduling: 0/2 nodes are available: "), said
    assert "2 Insufficient GPU Memory in one device" in said, said
    assert cluster.phase("too-large") == "Pending"
    # Room that is made is used without anybody's help.
    cluster.kubectl("delete", "pod", "filler-3")
    truth.check(cluster, pods=8)
