"""Assembles the commands that run for ever from their parts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import SystemRandom

from gpuslice.cli.reading import connected
from gpuslice.clock import SystemClock
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.state import Cluster
from gpuslice.errors import InputError
from gpuslice.observe.logging import setup
from gpuslice.observe.serving import Tls, parse_listen
from gpuslice.placement.policy import Policy

_random = SystemRandom()


def _new_id() -> str:
    return f"{_random.getrandbits(64):016x}"


async def extender(
    kubeconfig: Path | None, listen: str, *, policy: str, tls: Tls | None, token_file: Path | None
) -> None:
    """Run the extender until cancelled."""
    from gpuslice.admission.mutate import review
    from gpuslice.scheduler.extender.service import extender as serving

    setup()
    host, port = parse_listen(listen)
    clock = SystemClock()
    token = _read_token(token_file) if token_file else None
    async with (
        connected(kubeconfig) as client,
        serving(
            client,
            host=host,
            port=port,
            clock=clock,
            random=_random.random,
            new_id=_new_id,
            cluster=Cluster(clock=clock, policy=Policy(policy)),
            tls=tls,
            token=token,
            admission=review,
        ),
    ):
        await asyncio.Event().wait()


async def scheduler(kubeconfig: Path | None, *, policy: str) -> None:
    """Run our own scheduler until cancelled."""
    from gpuslice.scheduler.service import run_scheduler

    setup()
    clock = SystemClock()
    cluster = Cluster(clock=clock, policy=Policy(policy))
    async with connected(kubeconfig) as client:
        feed = ClusterFeed(client, cluster, clock=clock, random=_random.random)
        work = run_scheduler(client, cluster, feed, clock=clock, new_id=_new_id, random=_random.random)
        async with asyncio.TaskGroup() as group:
            group.create_task(work)
            group.create_task(feed.run())


async def agent(kubeconfig: Path | None, node: str, devices: Path, kubelet_dir: Path) -> None:
    """Run a node's agent until cancelled."""
    from gpuslice.config.devices import DevicesFile
    from gpuslice.node.agent import Agent
    from gpuslice.node.simulated import SimulatedBackend

    setup()
    clock = SystemClock()
    gpus = DevicesFile.load(devices).inventory(node)
    backend = SimulatedBackend(gpus.gpus)
    async with connected(kubeconfig) as client, asyncio.TaskGroup() as group:
        group.create_task(
            backend.follow(devices, lambda path: DevicesFile.load(path).inventory(node).gpus, clock=clock)
        )
        running = Agent(
            client,
            node,
            backend,
            kubelet_dir=kubelet_dir,
            unit=gpus.unit,
            clock=clock,
            random=_random.random,
        )
        group.create_task(running.run())


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", field="--token-file") from error
    if not token:
        raise InputError(f"{path} is empty", field="--token-file")
    return token
