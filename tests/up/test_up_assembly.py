"""What runs in a cluster in one process is put together as on a real one, with nothing left out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any

import httpx2
import pytest
from up_world import PATIENCE, device_pod, eventually, file

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.config.cluster import ClusterFile
from gpuslice.devices.xids import read_policy
from gpuslice.kube.wire import Node, Pod
from gpuslice.local.up import LocalCluster, Settings, local_cluster
from gpuslice.node.kubelet.inotify import FolderWatch
from gpuslice.node.report import featurewriter
from gpuslice.scheduler.extender import waking

ONE = "{name: gpu-1, gpus: [{model: T4, count: 2}]}"
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d/gfd"


async def node(cluster: LocalCluster) -> Node:
    return await cluster.client.get(Node, "gpu-1")


@pytest.mark.parametrize(
    ("environment", "sick", "well"),
    [({}, 79, 13), ({"DP_DISABLE_HEALTHCHECKS": "79"}, 48, 79), ({"DP_ENABLE_HEALTHCHECKS": "13"}, 13, 31)],
    ids=lambda value: str(value),
)
async def test_an_xid_makes_a_gpu_sick_as_on_a_real_node(
    environment: dict[str, str], sick: int, well: int
) -> None:
    plan = ClusterFile.parse(file(ONE)).plan()
    settings = Settings(xids=read_policy(environment))
    async with local_cluster(plan, settings, clock=SystemClock(), random=Random(7)) as cluster:
        async with asyncio.timeout(PATIENCE):
            await cluster.ready()
        driver = cluster.drivers["gpu-1"]
        first, second = (gpu.uuid for gpu in driver.query().gpus)
        driver.raise_xid(first, well)
        driver.raise_xid(second, sick)

        async def told() -> dict[str, str]:
            gpus = json.loads((await node(cluster)).annotations[names.NODE_GPUS])
            return {gpu["uuid"]: gpu["reason"] for gpu in gpus if gpu.get("reason")}

        reasons = await eventually(cluster, told)
        assert set(reasons) == {second}
        assert reasons[second].startswith(f"XID {sick}")


async def test_labels_reach_node_feature_discovery_below_the_nodes_own_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(featurewriter, "POLL_SECONDS", 0.05)
    config = f"{{a: {{version: v1, flags: {{gfd: {{outputFile: {FEATURES}}}}}}}}}"
    labelled = ONE.replace("name: gpu-1,", "name: gpu-1, labels: {nvidia.com/device-plugin.config: a},")
    plan = ClusterFile.parse(file(labelled, f"devicePluginConfigs: {config},")).plan()
    async with local_cluster(plan, Settings(), clock=SystemClock(), random=Random(7)) as cluster:
        path = cluster.folders["gpu-1"] / FEATURES.lstrip("/")
        path.parent.mkdir(parents=True)
        written = asyncio.Event()
        watch = FolderWatch(path.parent, {path.name}, written.set)
        async with asyncio.timeout(PATIENCE):
            await cluster.ready()
            while not path.exists() or "nvidia.com/gpu.count=2\n" not in path.read_text():
                await written.wait()
                written.clear()
        watch.close()


async def test_the_extender_wakes_a_pod_that_another_scheduler_was_refused_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waking, "WINDOW_SECONDS", PATIENCE)
    plan = ClusterFile.parse(file("{name: gpu-1, gpus: [{model: T4}]}")).plan()

    def pod(name: str, scheduler: str) -> dict[str, Any]:
        body = device_pod(name, names.GPU_MEM, 14)
        return body | {
            "spec": body["spec"] | {"schedulerName": scheduler, "terminationGracePeriodSeconds": 1}
        }

    async with local_cluster(plan, Settings(), clock=SystemClock(), random=Random(7)) as cluster:
        client = cluster.client

        async def there(name: str, holds: Callable[[Pod], bool]) -> bool:
            return holds(await client.get(Pod, name, "default"))

        async with asyncio.timeout(PATIENCE):
            await cluster.ready()
            await client.create(Pod.resource, pod("holder", "default-scheduler"), "default")
            await eventually(cluster, lambda: there("holder", lambda one: one.status.phase == "Running"))
            waiting = await client.create(Pod.resource, pod("waiting", "their-scheduler"), "default")
            url = f"{cluster.extender}/gpushare-scheduler/filter"
            token = {"Authorization": f"Bearer {cluster.endpoint.token}"}
            async with httpx2.AsyncClient(verify=False, headers=token) as http:
                answer = await http.post(url, json={"Pod": json.loads(waiting), "NodeNames": ["gpu-1"]})
            assert answer.json()["FailedNodes"] == {"gpu-1": "Insufficient GPU Memory in one device"}
            await client.delete(Pod.resource, "holder", "default")
            await eventually(cluster, lambda: there("waiting", lambda one: names.WOKEN in one.annotations))
