"""The doctor at a whole cluster in one process: content, and not to be deceived."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import click.testing
from up_world import PATIENCE, TWO_NODES, deployment

from gpuslice import names
from gpuslice.cli.main import main
from gpuslice.clock import SystemClock
from gpuslice.cluster.swaps import is_assigned
from gpuslice.config.cluster import ClusterFile
from gpuslice.kube.wire import Node, Resource
from gpuslice.local.up import WEBHOOK, WEBHOOKS, Settings, local_cluster

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")


async def doctor(kubeconfig: Path, *words: str) -> click.testing.Result:
    runner = click.testing.CliRunner()
    return await asyncio.to_thread(runner.invoke, main, ["doctor", "--kubeconfig", str(kubeconfig), *words])


async def test_up_is_healthy_and_three_faults_are_found_in_order(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    plan = ClusterFile.parse(TWO_NODES).plan()
    settings = Settings(kubeconfig=kubeconfig)
    async with (
        asyncio.timeout(PATIENCE),
        local_cluster(plan, settings, clock=SystemClock(), random=Random(7)) as cluster,
    ):
        await cluster.ready()
        await cluster.client.create(DEPLOYMENTS, json.loads(deployment("train", 3, 5)), "default")
        state = cluster.cluster

        def started() -> bool:
            """Equal pods may change places until then, one record after the other."""
            records = [record for name in state.node_names() for record in state.pods_on(name)]
            return len(records) == 3 and all(map(is_assigned, records))

        await cluster.changed(started)
        result = await doctor(kubeconfig, "--strict")
        assert (result.exit_code, result.output) == (0, "nothing is wrong\n")

        spec = {
            "containers": [
                {"name": "main", "image": "cuda", "env": [{"name": names.VISIBLE_DEVICES, "value": "all"}]}
            ]
        }
        seen = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "miner"},
            "spec": {**spec, "nodeName": state.node_names()[0]},
        }
        await cluster.client.delete(WEBHOOKS, WEBHOOK)
        await cluster.client.create(Resource("", "v1", "pods", "Pod"), seen, "default")
        ghost = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "old", "annotations": {names.NODE_GPUS: "[{"}},
        }
        await cluster.client.create(Node.resource, ghost)
        result = await doctor(kubeconfig, "-o", "json")
        assert result.exit_code == 1
        codes = [one["code"] for one in json.loads(result.output)["findings"]]
        assert codes == ["node-record-damaged", "visibility-unasked", "webhook-absent"]
