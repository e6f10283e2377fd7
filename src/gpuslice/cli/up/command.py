"""`gpuslice up`: a whole cluster with simulated GPUs, in this process."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from random import SystemRandom

import click

from gpuslice.cli import options
from gpuslice.cli.lazy import load
from gpuslice.cli.process import run, serve
from gpuslice.clock import SystemClock
from gpuslice.config.cluster import ClusterFile, ClusterPlan
from gpuslice.devices.xids import read_policy
from gpuslice.local.kubeconfig import reserved
from gpuslice.local.up import Settings, local_cluster
from gpuslice.observe.logging import setup

KUBECONFIG = Path("~/.gpuslice/kubeconfig")
DEFAULT = """
apiVersion: gpuslice.io/v1alpha1
kind: Cluster
spec:
  nodes:
    - {namePrefix: gpu, count: 3, gpus: [{model: Tesla T4, count: 2}]}
"""


@click.command(
    help="Start a Kubernetes cluster with simulated GPUs in this process; Ctrl-C ends it.\n\n"
    + options.examples(
        "gpuslice up",
        "gpuslice up --cluster examples/clusters/a100x8.yaml --port 6443",
        f"KUBECONFIG={KUBECONFIG} kubectl get nodes",
    ),
)
@click.option(
    "--cluster",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The nodes and their GPUs (kind: Cluster); default: three nodes with two T4 each.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="PATH",
    default=KUBECONFIG,
    show_default=True,
    help="Where to write how kubectl reaches it; removed at the end.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of the API server; default: a free one."
)
@click.option(
    "--database",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keep the cluster's objects in this file from run to run.",
)
@click.option(
    "--run-processes",
    is_flag=True,
    help="Run the containers' commands as processes of this machine (without isolation).",
)
def up(cluster: Path | None, kubeconfig: Path, port: int, database: Path | None, run_processes: bool) -> None:

    path = kubeconfig.expanduser().absolute()

    async def read() -> tuple[ClusterPlan, Settings]:
        plan = (ClusterFile.load(cluster) if cluster else ClusterFile.parse(DEFAULT)).plan()
        return plan, Settings(port, path, database, run_processes, xids=read_policy(os.environ))

    plan, settings = run(read())
    serve(_up(plan, settings))


async def _up(plan: ClusterPlan, settings: Settings) -> None:

    setup(level="warning")
    clock = SystemClock()
    start = clock.monotonic()
    assert settings.kubeconfig is not None
    with reserved(settings.kubeconfig):
        async with local_cluster(plan, settings, clock=clock, random=SystemRandom()) as cluster:
            await cluster.ready()
            gpus = sum(len(node.gpus.gpus) for node in plan.nodes)
            click.echo(
                f"cluster ready in {clock.monotonic() - start:.1f} s: {len(plan.nodes)} nodes, {gpus} GPUs"
            )
            click.echo(f"  export KUBECONFIG={settings.kubeconfig}")
            click.echo("  kubectl get nodes; kubectl inspect gpushare")
            click.echo(f"  API server {cluster.endpoint.url}, extender {cluster.extender}")
            click.echo(f"  kubelets under {cluster.folder}")
            click.echo("  Ctrl-C ends it")
            if sys.stdout.isatty():
                await load("gpuslice.cli.up.liveview:watch_cluster")(cluster, clock)
            await asyncio.Event().wait()
