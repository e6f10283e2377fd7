"""Replicas of GPUs in a whole cluster in one process, as NVIDIA's device plugin configuration says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TypeVar

import pytest
from up_world import Kubectl, cluster_of, eventually

from gpuslice import names
from gpuslice.config.cluster import ClusterFile
from gpuslice.errors import InputError
from gpuslice.kube.wire import Pod
from gpuslice.local.up import LocalCluster
from gpuslice.scheduler.explaining import explain

EXAMPLE = Path(__file__).parents[2] / "examples" / "clusters" / "replicas.yaml"
LABEL = "nvidia.com/device-plugin.config"

pytestmark = pytest.mark.timeout(90)
T = TypeVar("T")


def pods(count: int, size: int = 1, node: str = "shared", prefix: str = "p") -> str:
    """Pods for `kubectl apply`, of so many replicas each."""
    container = {"name": "c", "image": "cuda", "resources": {"limits": {names.WHOLE_GPU: str(size)}}}
    spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}}
    made = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{prefix}{n}"}, "spec": spec}
        for n in range(count)
    ]
    return "\n".join(map(json.dumps, made))


async def offers(cluster: LocalCluster, kubectl: Kubectl, node: str, count: int) -> None:
    """Wait until kubectl shows so many nvidia.com/gpu allocatable."""

    async def shown() -> bool:
        path = r"jsonpath={.status.allocatable.nvidia\.com/gpu}"
        return await kubectl("get", "node", node, "-o", path) == str(count)

    await eventually(cluster, shown)


async def placed(cluster: LocalCluster, count: int) -> list[Pod]:
    """Wait until so many pods run, and what they hold is written down."""

    async def found() -> list[Pod]:
        pods = (await cluster.client.list(Pod, namespace="default")).items
        running = [p for p in pods if p.status.phase == "Running" and names.ALLOCATION in p.annotations]
        return running if len(running) >= count else []

    return await eventually(cluster, found)


def devices_of(pod: Pod) -> list[str]:
    """The GPUs that a pod's replicas are of."""
    (held,) = json.loads(pod.annotations[names.ALLOCATION]).values()
    return [uuid.partition("::")[0] for uuid in held]


async def test_forty_pods_take_turns_on_eight_gpus(tmp_path: Path) -> None:
    async with cluster_of(EXAMPLE.read_text(), tmp_path) as (cluster, kubectl):
        await offers(cluster, kubectl, "shared", 40)
        await offers(cluster, kubectl, "whole", 8)
        labels = json.loads((await kubectl.run("get", "node", "shared", "-o", "json")).out)["metadata"][
            "labels"
        ]
        said = {
            key: labels[f"nvidia.com/gpu.{key}"]
            for key in ("product", "count", "replicas", "sharing-strategy")
        }
        assert said == {
            "product": "NVIDIA-A100-SXM4-40GB-SHARED",
            "count": "8",
            "replicas": "5",
            "sharing-strategy": "time-slicing",
        }
        await kubectl("apply", "-f", "-", stdin=pods(8))
        running = await placed(cluster, 8)
        assert len({device for pod in running for device in devices_of(pod)}) == 8, "one on each GPU first"
        await kubectl("apply", "-f", "-", stdin=pods(32, prefix="q"))
        running = await placed(cluster, 40)
        held = Counter(device for pod in running for device in devices_of(pod))
        assert sorted(held.values()) == [5] * 8


async def test_a_container_that_asks_for_more_than_there_are_gpus_waits(tmp_path: Path) -> None:
    """NVIDIA's device plugin, issues 404 and 491: it would be given two replicas of one GPU."""
    async with cluster_of(EXAMPLE.read_text(), tmp_path) as (cluster, kubectl):
        await offers(cluster, kubectl, "shared", 40)
        await kubectl("apply", "-f", "-", stdin=pods(1, 8))
        (pod,) = await placed(cluster, 1)
        assert len(set(devices_of(pod))) == 8
        await kubectl("apply", "-f", "-", stdin=pods(1, 9, prefix="nine"))
        sentence = "Insufficient free replicas of as many different GPUs as a container asks for"

        async def said() -> bool:
            conditions = (await cluster.client.get(Pod, "nine0", "default")).status.conditions or ()
            return any(sentence in condition.message for condition in conditions)

        await eventually(cluster, said)


async def test_another_label_is_another_number_of_replicas_at_once(tmp_path: Path) -> None:
    """What pods hold stays theirs; their GPUs follow when they are free."""
    async with cluster_of(EXAMPLE.read_text(), tmp_path) as (cluster, kubectl):
        await offers(cluster, kubectl, "shared", 40)
        await kubectl("label", "node", "shared", f"{LABEL}=by-gpu", "--overwrite")
        await offers(cluster, kubectl, "shared", 2 * 4 + 10 * 2 + 2)
        await kubectl("apply", "-f", "-", stdin=pods(1))
        (pod,) = await placed(cluster, 1)
        await kubectl("label", "node", "shared", f"{LABEL}=unshared", "--overwrite")
        assert "::" in pod.annotations[names.ALLOCATION], "it holds a replica, the smallest that there is"
        await offers(cluster, kubectl, "shared", 7)
        shown = (await kubectl.run("get", "pod", "p0", "-o", "jsonpath={.status.phase}")).out
        assert shown == "Running"
        await kubectl("delete", "pod", "p0", "--now")
        await offers(cluster, kubectl, "shared", 8)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "config: unshared}",
            "config: unshraed}",
            r"spec.nodes\[1\].labels: .*specified config unshraed does not exist; there are by-gpu, default, unshared",
        ),
        ("replicas: 5", "replcas: 5", "spec.devicePluginConfigs.default: .*unknown key 'replcas'"),
    ],
)
def test_a_wrong_configuration_is_said_before_anything_starts(old: str, new: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ClusterFile.parse(EXAMPLE.read_text().replace(old, new)).plan()


async def test_explain_says_whose_replica_a_pod_holds_and_what_another_waits_for(tmp_path: Path) -> None:
    async with cluster_of(EXAMPLE.read_text(), tmp_path) as (cluster, kubectl):
        await kubectl("apply", "-f", "-", stdin=pods(1))
        (pod,) = await placed(cluster, 1)
        (where,) = explain(pod, cluster.cluster).where
        (device,) = devices_of(pod)
        assert where == (
            f"container c: a replica of NVIDIA A100-SXM4-40GB ({device}); 1 of its 5 are given out"
        )
        await kubectl("apply", "-f", "-", stdin=pods(1, 9, prefix="nine"))
        nine = await cluster.client.get(Pod, "nine0", "default")
        (shared, _) = explain(nine, cluster.cluster).nodes
        assert "different GPUs as a container asks for (wanted 9, free 8)" in shared.sentence
