"""The real kubectl drives a cluster in one process: what a user does on the first day."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from up_world import TWO_NODES, Kubectl, cluster_of, deployment, file

from gpuslice import names
from gpuslice.local.up import LocalCluster

pytestmark = pytest.mark.timeout(120)


async def environment(kubectl: Kubectl, pod: str) -> dict[str, str]:
    lines = (await kubectl("exec", pod, "--", "env")).splitlines()
    return dict(line.split("=", 1) for line in lines)


async def assert_that_all_agree(cluster: LocalCluster, kubectl: Kubectl) -> dict[str, str]:
    """What each running pod sees, what it is annotated with and what is counted are the same. Pod -> UUID."""
    pods = [p for p in (await kubectl.read("pods"))["items"] if p["status"]["phase"] == "Running"]
    seen = {}
    for pod in pods:
        name, annotations = pod["metadata"]["name"], pod["metadata"]["annotations"]
        (gpus,) = json.loads(annotations[names.ALLOCATION]).values()
        env = await environment(kubectl, name)
        assert [env[names.VISIBLE_DEVICES]] == list(gpus)
        assert annotations[names.MEM_ASSIGNED] == "true"
        seen[name] = env[names.VISIBLE_DEVICES]
    counted = {
        share.name: gpu.gpu.uuid
        for view in cluster.cluster.snapshots()
        for gpu in view.gpus
        for share in gpu.pods
    }
    assert counted == seen
    for view in cluster.cluster.snapshots():
        assert all(one.used_mib <= one.gpu.memory_mib for one in view.gpus)
    return seen


async def test_a_deployment_lives_from_apply_to_delete(tmp_path: Path) -> None:
    async with cluster_of(TWO_NODES, tmp_path) as (cluster, kubectl):
        assert "deployment.apps/web created" in await kubectl(
            "apply", "-f", "-", stdin=deployment("web", 3, 2)
        )
        assert "successfully rolled out" in await kubectl("rollout", "status", "deploy/web", "--timeout=20s")
        seen = await assert_that_all_agree(cluster, kubectl)
        assert len(seen) == 3
        assert len(set(seen.values())) == 1, "bin-packing puts them on one GPU"

        await kubectl("scale", "deploy/web", "--replicas=8")
        await kubectl("rollout", "status", "deploy/web", "--timeout=20s")
        assert len(await assert_that_all_agree(cluster, kubectl)) == 8

        change = {
            "spec": {
                "template": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "b"}]}]}}
            }
        }
        await kubectl("patch", "deploy/web", "-p", json.dumps(change))
        await kubectl("rollout", "status", "deploy/web", "--timeout=30s")
        await kubectl("wait", "pod", "-l", "app=web", "--for=condition=Ready", "--timeout=20s")
        assert (await environment(kubectl, "deploy/web"))["A"] == "b"

        pods = (await kubectl.read("pods", "-l", "app=web"))["items"]
        description = await kubectl("describe", "pod", pods[-1]["metadata"]["name"])
        assert "Successfully assigned default/web-" in description
        assert "aliyun.com/gpu-mem:  2" in description

        await kubectl("delete", "deploy/web")
        await kubectl("wait", "pod", "-l", "app=web", "--for=delete", "--timeout=20s")
        async with asyncio.timeout(10):
            await cluster.changed(
                lambda: not any(g.used_mib for v in cluster.cluster.snapshots() for g in v.gpus)
            )


async def test_drain_moves_pods_to_the_other_node_and_uncordon_lets_them_back(tmp_path: Path) -> None:
    async with cluster_of(TWO_NODES, tmp_path) as (cluster, kubectl):
        await kubectl("apply", "-f", "-", stdin=deployment("web", 4, 3))
        await kubectl("rollout", "status", "deploy/web", "--timeout=20s")
        (node,) = {p["spec"]["nodeName"] for p in (await kubectl.read("pods"))["items"]}
        await kubectl("drain", node, "--timeout=20s")
        await kubectl("rollout", "status", "deploy/web", "--timeout=20s")
        await kubectl("wait", "pod", "-l", "app=web", "--for=condition=Ready", "--timeout=20s")
        pods = (await kubectl.read("pods"))["items"]
        assert {p["spec"]["nodeName"] for p in pods if "deletionTimestamp" not in p["metadata"]} == (
            {"gpu-0", "gpu-1"} - {node}
        )
        assert "SchedulingDisabled" in await kubectl("get", "node", node)
        await kubectl("uncordon", node)
        await kubectl("scale", "deploy/web", "--replicas=12")
        await kubectl("rollout", "status", "deploy/web", "--timeout=20s")
        assert len(await assert_that_all_agree(cluster, kubectl)) == 12


async def test_what_fits_no_gpu_waits_with_its_reason_until_a_gpu_is_free(tmp_path: Path) -> None:
    async with cluster_of(file("{name: one, gpus: [{model: T4, count: 2}]}"), tmp_path) as (cluster, kubectl):
        await kubectl("apply", "-f", "-", stdin=deployment("half", 2, 8))
        await kubectl("rollout", "status", "deploy/half", "--timeout=20s")
        # 12 of 28 GiB are free, but only 6 on each GPU.
        await kubectl("apply", "-f", "-", stdin=deployment("big", 1, 10))
        async with asyncio.timeout(20):
            while "Insufficient GPU Memory in one device" not in await kubectl(
                "get", "events", "--field-selector", "reason=FailedScheduling"
            ):
                pass
        await kubectl("scale", "deploy/half", "--replicas=1")
        await kubectl("rollout", "status", "deploy/big", "--timeout=20s")
        assert len(await assert_that_all_agree(cluster, kubectl)) == 2


async def test_logs_show_what_a_local_process_prints_with_its_own_environment(tmp_path: Path) -> None:
    async with cluster_of(TWO_NODES, tmp_path, run_processes=True) as (_cluster, kubectl):
        command = ["sh", "-c", "echo I see $NVIDIA_VISIBLE_DEVICES; exec sleep 1000"]
        manifest = json.loads(deployment("talk", 1, 4))
        manifest["spec"]["template"]["spec"]["containers"][0]["command"] = command
        await kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        await kubectl("rollout", "status", "deploy/talk", "--timeout=20s")
        uuid = (await environment(kubectl, "deploy/talk"))[names.VISIBLE_DEVICES]
        assert uuid.startswith("GPU-")
        async with asyncio.timeout(10):
            while not (log := await kubectl("logs", "deploy/talk")):
                pass
        assert log == f"I see {uuid}\n"


async def test_a_deployment_scaled_while_agents_are_killed_ends_right(tmp_path: Path) -> None:
    async with cluster_of(TWO_NODES, tmp_path) as (cluster, kubectl):
        await kubectl("apply", "-f", "-", stdin=deployment("web", 2, 3))
        for replicas in (10, 3, 12):
            for agent in cluster.agents.values():
                agent.kill()
            await kubectl("scale", "deploy/web", f"--replicas={replicas}")
        await kubectl("rollout", "status", "deploy/web", "--timeout=30s")
        async with asyncio.timeout(20):
            while (
                len((await kubectl.read("pods", "--field-selector", "status.phase=Running"))["items"]) != 12
            ):
                pass
        assert len(await assert_that_all_agree(cluster, kubectl)) == 12
