"""The simulated machines of a cluster in one process: what plays the host's folder, NVIDIA's driver, kubelet
and agent of each. They can come and go while the cluster runs.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from random import Random
from typing import Final

from gpuslice.background import Start
from gpuslice.clock import Clock
from gpuslice.config.cluster import FALLBACKS, NodePlan
from gpuslice.devices.inventory import NodeGpus
from gpuslice.devices.xids import XidPolicy
from gpuslice.errors import InputError
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Taint
from gpuslice.local.component import Component
from gpuslice.local.kubelet.kubelet import Kubelet
from gpuslice.local.kubelet.node import NodeDescription
from gpuslice.local.streams import KubeletBackend
from gpuslice.node.assembly import AgentSettings, assemble
from gpuslice.node.discovery.simulated import SimulatedDriver
from gpuslice.node.pluginconfig import ConfigFiles
from gpuslice.observe.guarded import allow_files

FILES: Final = 500
FILES_PER_NODE: Final = 20
"""Open files: of everything else; about ten per node for its sockets, and as many again while they are
opened anew."""
SOCKET_ROOM: Final = 60
"""Bytes that sockets below a node's folder need of the 107 that a socket's path may have."""


class Nodes:
    """By the node's name.

    `routes` is where the API server finds kubelets, for logs and exec; `plugin_configs` are the device
    plugin's, as texts by name; `xids` say what makes a GPU sick.
    """

    def __init__(
        self,
        client: Client,
        folder: Path,
        plugin_configs: Mapping[str, str],
        *,
        routes: MutableMapping[str, KubeletBackend],
        start: Start,
        run_processes: bool,
        xids: XidPolicy,
        clock: Clock,
        random: Random,
    ) -> None:
        self.folders: dict[str, Path] = {}
        """What plays /var/lib/kubelet."""
        self.drivers: dict[str, SimulatedDriver] = {}
        """What plays NVIDIA's driver; it outlives the agent, as the GPUs do."""
        self.offered: dict[str, NodeGpus] = {}
        """What a node offers at first."""
        self.kubelets: dict[str, Kubelet] = {}
        self.agents: dict[str, Component] = {}
        """Of nodes with GPUs."""
        self._client = client
        self._folder = folder
        self._plugin_configs = plugin_configs
        self._routes = routes
        self._start = start
        self._run_processes = run_processes
        self._xids = xids
        self._clock = clock
        self._random = random
        self._made = 0
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    def add(self, node: NodePlan) -> None:
        """A machine that is not switched on yet.

        Raises InputError naming the node if its GPUs cannot be as its MIG strategy and sharing say.
        """
        allow_files(FILES + FILES_PER_NODE * (len(self.folders) + 1))
        driver = SimulatedDriver(node.machine)
        try:
            self.offered[node.name] = node.offered(driver.query())
        except InputError as error:
            field = "devicePluginConfigs" if node.plugin.sharing.resources else "migStrategy"
            raise InputError(f"node {node.name}: {error}", field=field) from error
        self.drivers[node.name] = driver
        self.folders[node.name] = self._new_folder(node.name)
        self.kubelets[node.name] = self._routes[node.name] = self._kubelet(node)

    def switch_on(self, node: NodePlan) -> None:
        """Start the kubelet and the agent of a machine that was added."""
        name, clock, random = node.name, self._clock, self._random
        parts = [Component(f"kubelet {name}", self.kubelets[name].run, clock=clock, random=random)]
        if node.gpus.gpus:
            self.agents[name] = self._agent(node)
            parts.append(self.agents[name])
        self._tasks[name] = [self._start(part.name, part.run()) for part in parts]

    async def remove(self, name: str) -> None:
        """Switch a machine off and take it away. Its Node object stays."""
        tasks = self._tasks.pop(name)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for known in (self.drivers, self.offered, self.kubelets, self.agents):
            known.pop(name, None)
        self._routes.pop(name, None)
        shutil.rmtree(self.folders.pop(name), ignore_errors=True)

    def _new_folder(self, name: str) -> Path:
        """Called like the node if the sockets' paths stay short enough, else a number."""
        room = 107 - SOCKET_ROOM - len(str(self._folder).encode())
        path = self._folder / (name if len(name) <= room else str(self._made))
        self._made += 1
        path.mkdir(mode=0o700)
        return path

    def _kubelet(self, node: NodePlan) -> Kubelet:
        description = NodeDescription(
            node.name,
            cpu_milli=node.cpu_milli,
            memory_mib=node.memory_mib,
            pods=node.pods,
            labels=node.labels,
            taints=tuple(Taint(taint.key, taint.value, taint.effect) for taint in node.taints),
            address=node.address,
        )
        return Kubelet(
            self._client,
            description,
            root=self.folders[node.name],
            clock=self._clock,
            random=Random(self._random.getrandbits(64)),  # noqa: S311 - a simulation's dice
            run_processes=self._run_processes,
        )

    def _agent(self, node: NodePlan) -> Component:
        clock, random, folder = self._clock, self._random, self.folders[node.name]
        configs = self._plugin_configs

        async def start() -> None:
            await self.kubelets[node.name].ready.wait()
            settings = AgentSettings(
                node.name,
                folder,
                unit=node.gpus.unit,
                options=node.plugin_options,
                xids=self._xids,
                files=ConfigFiles(lambda: configs, fallbacks=FALLBACKS) if configs else None,
                # Below its own folder there is no driver: nothing of this machine is named to containers.
                host=folder,
            )
            agent = await assemble(
                self._client,
                self.drivers[node.name],
                settings,
                clock=clock,
                random=random.random,
                new_token=lambda: new_id(random),
            )
            await agent.run()

        return Component(f"agent {node.name}", start, clock=clock, random=random)


def new_id(random: Random) -> str:
    return f"{random.getrandbits(64):016x}"
