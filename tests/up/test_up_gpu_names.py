"""Pods that name the GPUs they can use, in a whole cluster: in the words of 2017 and in today's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from up_world import PATIENCE, cluster_of, file

NAME = "alpha.kubernetes.io/nvidia-gpu-name"
MODELS = file(
    "{name: t4, gpus: [{model: T4, count: 8}]}, {name: k80, gpus: [{model: K80}]}, "
    "{name: p100, gpus: [{model: P100-16}]}"
)


def pod(name: str, resource: str = "nvidia.com/gpu", **more: Any) -> dict[str, Any]:
    """One that can run on a Tesla K80 or P100, as Kubernetes' documentation wrote it under spec.affinity."""
    one = {"key": NAME, "operator": "In", "values": ["Tesla K80", "Tesla P100"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [one]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    container = {"name": "main", "image": "cuda", "resources": {"limits": {resource: 1}}}
    old = {"annotations": {"scheduler.alpha.kubernetes.io/affinity": json.dumps(affinity)}}
    new = {} if resource.startswith("alpha") else {"affinity": affinity}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **({} if new else old)},
        "spec": {"containers": [container], **new, **more},
    }


async def test_affinity_to_gpu_names_chooses_among_models(tmp_path: Path) -> None:
    async with cluster_of(MODELS, tmp_path) as (_, kubectl):
        today = await kubectl.run(
            "apply", "-f", "-", stdin=json.dumps(pod("today", schedulerName="gpuslice"))
        )
        assert today.code == 0
        assert "Warning: spec.affinity.nodeAffinity" in today.err
        assert "write Tesla-K80, Tesla-P100, Tesla-P100-PCIE-12GB, Tesla-P100-PCIE-16GB" in today.err
        historical = json.dumps(pod("of-2017", "alpha.kubernetes.io/nvidia-gpu"))
        await kubectl("apply", "-f", "-", stdin=historical)
        ready = ("wait", "--for=condition=Ready", f"--timeout={int(PATIENCE)}s")
        await kubectl(*ready, "pod/today", "pod/of-2017")
        pods = (await kubectl.read("pods"))["items"]
        assert {one["spec"]["nodeName"] for one in pods} == {"k80", "p100"}
        await kubectl("apply", "-f", "-", stdin=json.dumps(pod("third")))
        unscheduled = "--for=jsonpath={.status.conditions[?(@.type=='PodScheduled')].status}=False"
        await kubectl("wait", unscheduled, f"--timeout={int(PATIENCE)}s", "pod/third")
        (why,) = (await kubectl.read("pod", "third"))["status"]["conditions"]
        assert "didn't match Pod's node affinity/selector" in why["message"], "the eight T4 are no choice"
