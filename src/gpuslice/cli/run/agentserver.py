"""Runs a node's agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import SystemRandom
from uuid import uuid4

from gpuslice.cli.lazy import load
from gpuslice.cli.options import Probes
from gpuslice.clock import SystemClock
from gpuslice.kube.http import connected_later
from gpuslice.node.assembly import AgentSettings, assemble
from gpuslice.node.discovery.drivers import driver_of, keep_up
from gpuslice.observe.logging import setup

_random = SystemRandom()


async def run_agent(
    kubeconfig: Path | None, devices: Path | None, settings: AgentSettings, probes: Probes | None
) -> None:
    """Run it until cancelled. `devices`: the GPUs on paper, None for those of NVIDIA's driver."""
    setup()
    clock = SystemClock()
    driver = driver_of(devices, settings.node)
    async with connected_later(kubeconfig) as client, asyncio.TaskGroup() as group:
        made = await assemble(
            client, driver, settings, clock=clock, random=_random.random, new_token=lambda: str(uuid4())
        )
        group.create_task(keep_up(driver, devices, settings.node, clock=clock))
        group.create_task(made.run())
        if probes is not None:
            # Beside what the event loop does: kubelet waits for an agent that starts.
            answer_probes = await asyncio.to_thread(load, "gpuslice.cli.run.probing:answer_probes")
            agent = made.agent
            await answer_probes(probes, waits_for=agent.waits_for, metrics=agent.metrics, clock=clock)
