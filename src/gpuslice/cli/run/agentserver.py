"""Assembles a node's agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from random import SystemRandom
from uuid import uuid4

from gpuslice.cli.lazy import load
from gpuslice.cli.options import Probes
from gpuslice.clock import SystemClock
from gpuslice.config.nvidiaflags import effective
from gpuslice.devices.xids import read_policy
from gpuslice.kube.http import connected_later, own_namespace
from gpuslice.kube.wire import Node
from gpuslice.node.agent import Agent
from gpuslice.node.discovery.backend import DiscoveredGpus
from gpuslice.node.discovery.drivers import driver_of, keep_up, unit_of, without_blocking
from gpuslice.node.discovery.machine import read_machine
from gpuslice.node.discovery.simulated import SimulatedDriver
from gpuslice.node.inject.injector import Injector
from gpuslice.node.mig.manager import MigTools
from gpuslice.node.mig.reset import reset_of
from gpuslice.node.mig.strategy import StrategyLabel
from gpuslice.node.pluginconfig import Applying, ConfigFiles, ConfigFollower
from gpuslice.node.report.featurewriter import FeatureWriter
from gpuslice.observe.logging import setup

_random = SystemRandom()


async def agent(
    kubeconfig: Path | None,
    node: str,
    devices: Path | None,
    kubelet_dir: Path,
    *,
    options: Mapping[str, object],
    files: ConfigFiles | None,
    mig_configs: Path | None,
    labels: bool,
    memory_unit: str | None,
    probes: Probes | None,
) -> None:
    """Run a node's agent until cancelled. `options` are those of NVIDIA's device plugin that are given."""
    setup()
    clock = SystemClock()
    unit = unit_of(devices, memory_unit)
    driver = driver_of(devices, node)
    policy, line = read_policy(os.environ), without_blocking(driver, clock=clock)
    on_paper = isinstance(driver, SimulatedDriver)
    # This machine's kernel says nothing of GPUs on paper.
    machine = None if on_paper else read_machine
    flags = effective({}, cli=options, env=os.environ)
    backend = DiscoveredGpus(line, policy, clock, flags.mig_strategy, machine=machine)
    await backend.start()
    strategy = StrategyLabel(backend)
    injector = Injector(flags, backend.found, new_token=lambda: str(uuid4()))
    async with connected_later(kubeconfig) as client, asyncio.TaskGroup() as group:
        if any(gpu.mig_devices or (gpu.mig and gpu.mig.current) for gpu in backend.found().gpus):
            # Else the label changes nothing yet, and kubelet waits.
            await strategy.read(client, node)
        features = FeatureWriter(client, node, own_namespace(), backend.labels, flags, clock=clock)
        apply = Applying(backend, injector, options, os.environ, features)
        group.create_task(keep_up(driver, devices, node, clock=clock))
        config = ConfigFollower(client, node, files, apply, clock=clock) if files else None
        if config is not None:
            config.start()
            group.create_task(config.run())

        def on_node(seen: Node) -> None:
            strategy.set_node(seen)
            if config is not None:
                config.set_node(seen)

        group.create_task(backend.run())
        group.create_task(features.run())
        running = Agent(
            client,
            node,
            backend,
            kubelet_dir=kubelet_dir,
            unit=unit,
            labels=backend.labels if labels else None,
            injector=injector,
            simulated=backend.found if on_paper else None,
            mig=MigTools(driver, backend, reset_of(driver), mig_configs),
            on_node=on_node,
            clock=clock,
            random=_random.random,
        )
        group.create_task(running.run())
        if probes is not None:
            # Beside what the event loop does: kubelet waits for an agent that starts.
            answer_probes = await asyncio.to_thread(load, "gpuslice.cli.run.probing:answer_probes")
            await answer_probes(probes, waits_for=running.waits_for, metrics=running.metrics, clock=clock)
