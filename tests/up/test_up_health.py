"""A GPU falls off the bus under a pod, in a whole cluster: what kubectl shows of it, and its recovery."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from up_world import PATIENCE, Kubectl, cluster_of, deployment, file

from gpuslice.kube.wire import Event
from gpuslice.local.up import LocalCluster
from gpuslice.node.discovery import health

ONE = file("{name: gpu-1, gpus: [{model: T4, count: 2}]}")


async def told(cluster: LocalCluster, reason: str, kind: str) -> str:
    """The message of the first such event, once it is there."""
    async with asyncio.timeout(PATIENCE):
        while True:
            listing = await cluster.client.list(Event)
            for event in listing.items:
                if event.reason == reason and event.involved_object.kind == kind:
                    return event.message
            async for change in cluster.client.watch(Event, resource_version=listing.resource_version):
                if change.object.reason == reason:
                    break


async def condition(kubectl: Kubectl, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The node's condition, once it is so."""
    async with asyncio.timeout(PATIENCE):
        while True:
            node = await kubectl.read("node", "gpu-1")
            for one in node["status"]["conditions"]:
                if one["type"] == "GPUUnhealthy" and holds(one):
                    return dict(one)


async def test_kubectl_shows_a_lost_gpu_on_the_node_and_on_its_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "QUIET_SECONDS", 0.0)
    async with cluster_of(ONE, tmp_path) as (cluster, kubectl):
        await kubectl("apply", "-f", "-", stdin=deployment("train", 1, 5))
        await kubectl("wait", "--for=condition=Available", "deployment/train", f"--timeout={int(PATIENCE)}s")
        (pod,) = (await kubectl.read("pods"))["items"]
        held = json.loads(pod["metadata"]["annotations"]["gpuslice.io/allocation"])
        (uuid,) = held["main"]
        driver = cluster.drivers["gpu-1"]
        index = next(gpu.index for gpu in driver.query().gpus if gpu.uuid == uuid)
        driver.lose(uuid)
        sick = await condition(kubectl, lambda one: one["status"] == "True")
        device, name = f"GPU {index} ({uuid})", pod["metadata"]["name"]
        assert sick["message"].startswith(f"{device}: XID 79: the GPU has fallen off the bus")
        assert sick["message"].endswith(f", held by default/{name}")
        await told(cluster, "GPUUnhealthy", "Pod")
        await told(cluster, "GPUUnhealthy", "Node")
        about_node = await kubectl("describe", "node", "gpu-1")
        conditions, _, news = about_node.partition("Events:")
        assert f"{device}: XID 79: the GPU has fallen off the bus" in conditions
        assert f"{device}: XID 79: the GPU has fallen off the bus" in news
        shown = await kubectl("get", "events", "--field-selector", f"involvedObject.name={name}")
        assert f"{device}, which this pod holds or shares, is unhealthy: XID 79" in shown
        driver.recover(uuid)
        well = await condition(kubectl, lambda one: one["status"] == "False")
        assert (well["reason"], well["message"]) == ("GPUsAreHealthy", "2 GPUs, none is sick")
        assert (await told(cluster, "GPUHealthy", "Node")).startswith(f"{device} is well again")
