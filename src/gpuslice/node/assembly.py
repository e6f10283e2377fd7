"""Puts a node's agent together from its parts, for a real node and for a node of `gpuslice up` alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuslice.clock import Clock
from gpuslice.config.nvidiaflags import effective
from gpuslice.devices.xids import XidPolicy
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Node
from gpuslice.node.agent import Agent
from gpuslice.node.discovery.backend import DiscoveredGpus
from gpuslice.node.discovery.drivers import MachineDriver, without_blocking
from gpuslice.node.discovery.machine import read_machine
from gpuslice.node.discovery.simulated import SimulatedDriver
from gpuslice.node.inject.injector import Injector
from gpuslice.node.mig.manager import MigTools
from gpuslice.node.mig.reset import reset_of
from gpuslice.node.mig.strategy import StrategyLabel
from gpuslice.node.pluginconfig import Applying, ConfigFiles, ConfigFollower
from gpuslice.node.report.featurewriter import FeatureWriter
from gpuslice.units import GIB, MemoryUnit

KUBELET_DIR: Final = Path("/var/lib/kubelet")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of an agent.

    `unit`: what one gpu-mem is. `options` are the options of NVIDIA's device plugin that were given,
    `environment` the variables that it reads, `files` its configuration files; `xids` say which errors make a
    GPU unhealthy. `mig_configs` is mig-parted's file, None for the standard configurations. `labels` is True
    if the node's labels are ours to write. `namespace` is the agent's own. `host`: the folder below which the
    host's files are.
    """

    node: str
    kubelet_dir: Path = KUBELET_DIR
    unit: MemoryUnit = GIB
    options: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    xids: XidPolicy = field(default_factory=XidPolicy)
    files: ConfigFiles | None = None
    mig_configs: Path | None = None
    labels: bool = True
    namespace: str = "default"
    host: Path = Path("/")


@dataclass(frozen=True, slots=True)
class AssembledAgent:
    """An agent and the background work beside it, to be `run`."""

    agent: Agent
    backend: DiscoveredGpus
    features: FeatureWriter
    config: ConfigFollower | None

    async def run(self) -> None:
        """Until cancelled. Raises, in a group, what `Agent.run` does."""
        async with asyncio.TaskGroup() as group:
            for part in (self.config, self.backend, self.features, self.agent):
                if part is not None:
                    group.create_task(part.run())


async def assemble(
    client: Client,
    driver: MachineDriver,
    settings: AgentSettings,
    *,
    clock: Clock,
    random: Callable[[], float],
    new_token: Callable[[], str],
) -> AssembledAgent:
    """Look at the machine and make its agent. Raises InputError if the machine cannot be as the
    settings say.
    """
    on_paper = isinstance(driver, SimulatedDriver)
    node, flags = settings.node, effective({}, cli=settings.options, env=settings.environment)
    backend = DiscoveredGpus(
        without_blocking(driver, clock=clock),
        settings.xids,
        clock,
        flags.mig_strategy,
        # This machine's kernel knows nothing of simulated GPUs.
        machine=None if on_paper else read_machine,
    )
    await backend.start()
    strategy = StrategyLabel(backend)
    if any(gpu.mig_devices or (gpu.mig and gpu.mig.current) for gpu in backend.found().gpus):
        # Else the label changes nothing yet, and kubelet waits.
        await strategy.read(client, node)
    injector = Injector(flags, backend.found, host=settings.host, new_token=new_token)
    features = FeatureWriter(
        client, node, settings.namespace, backend.labels, flags, host=settings.host, clock=clock
    )
    config = None
    if settings.files is not None:
        apply = Applying(backend, injector, settings.options, settings.environment, features)
        config = ConfigFollower(client, node, settings.files, apply, clock=clock)
        config.start()

    def on_node(seen: Node) -> None:
        strategy.set_node(seen)
        if config is not None:
            config.set_node(seen)

    agent = Agent(
        client,
        node,
        backend,
        kubelet_dir=settings.kubelet_dir,
        unit=settings.unit,
        labels=backend.labels if settings.labels else None,
        injector=injector,
        simulated=backend.found if on_paper else None,
        mig=MigTools(driver, backend, reset_of(driver), settings.mig_configs),
        on_node=on_node,
        clock=clock,
        random=random,
    )
    return AssembledAgent(agent, backend, features, config)
