"""The machines of `gpuslice up`: what happens to their GPUs reaches the cluster, and outlives the agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from up_world import PATIENCE, file

from gpuslice.clock import SystemClock
from gpuslice.config.cluster import ClusterFile
from gpuslice.local.up import LocalCluster, Settings, local_cluster

pytestmark = pytest.mark.timeout(90)

GIB_OF_AN_A100 = 39


async def offered(cluster: LocalCluster, gpus: int) -> None:
    """Wait until the kubelet of "dgx" has the units of so many A100 to give."""

    def has() -> bool:
        view = cluster.cluster.snapshot("dgx")
        return view is not None and view.allocatable_units == gpus * GIB_OF_AN_A100

    async with asyncio.timeout(PATIENCE):
        await cluster.changed(has)


async def test_what_happens_to_a_machine_reaches_the_cluster(tmp_path: Path) -> None:
    plan = ClusterFile.parse(file("{name: dgx, machine: 8xA100-40}")).plan()
    settings = Settings(kubeconfig=tmp_path / "kubeconfig")
    async with local_cluster(plan, settings, clock=SystemClock(), random=Random(1)) as cluster:
        await offered(cluster, 8)
        driver = cluster.drivers["dgx"]
        gpus = driver.query().gpus
        driver.raise_xid(gpus[3].uuid, 48)
        await offered(cluster, 7)
        driver.lose(gpus[5].uuid)
        await offered(cluster, 6)
        # A new agent has not heard of the XID, but the lost GPU does not answer it either.
        cluster.agents["dgx"].kill()
        await offered(cluster, 7)


async def test_a_cluster_is_ready_though_some_of_its_gpus_never_are(tmp_path: Path) -> None:
    text = "{name: dgx, gpus: [{model: A100-40}, {model: A100-40, lost: true}, {model: A100-40, xids: [48]}]}"
    settings = Settings(kubeconfig=tmp_path / "kubeconfig")
    plan = ClusterFile.parse(file(text)).plan()
    async with local_cluster(plan, settings, clock=SystemClock(), random=Random(1)) as cluster:
        async with asyncio.timeout(PATIENCE):
            await cluster.ready()
        await offered(cluster, 1)
