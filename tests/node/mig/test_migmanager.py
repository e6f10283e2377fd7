"""MIG by a node's label: nothing goes before everybody who could still give it out has heard."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.config.devices import DevicesFile
from gpuslice.devices.availability import closed
from gpuslice.devices.migstate import MigState
from gpuslice.devices.sharing import MigStrategy
from gpuslice.devices.xids import XidPolicy
from gpuslice.kube.client import Client
from gpuslice.kube.reflector import Reflector
from gpuslice.kube.wire import Node
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.node.discovery.backend import DiscoveredGpus
from gpuslice.node.discovery.simulated import DirectDriver, SimulatedDriver
from gpuslice.node.mig.manager import MigManager, MigTools

SEVEN = "[1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]"
MACHINE = f"""\
apiVersion: gpuslice.io/v1alpha1
kind: Devices
spec: {{gpus: [{{model: A100-40, mig: {SEVEN}}}]}}
"""
SMALL, MEDIUM = (f"{names.MIG_PREFIX}{profile}" for profile in ("1g.5gb", "2g.10gb"))


class World:
    """A node whose kubelet is played by the test."""

    def __init__(self, client: Client, driver: SimulatedDriver, backend: DiscoveredGpus) -> None:
        self.client = client
        self.driver = driver
        self.backend = backend
        self.node = Node()
        self.users: dict[str, str] = {}
        self.unknown = ""
        self.changed = asyncio.Event()

    @property
    def devices(self) -> dict[str, str]:
        """UUID -> profile of what is partitioned."""
        return {mig.uuid: str(mig.profile) for gpu in self.driver.query().gpus for mig in gpu.mig_devices}

    async def told(self, state: str, words: str = "") -> None:
        async with asyncio.timeout(20):
            while not (
                self.node.labels.get(names.MIG_CONFIG_STATE) == state
                and words in self.node.annotations.get(names.MIG_CONFIG_REASON, "")
            ):
                self.changed.clear()
                await self.changed.wait()

    async def kubelet_says(self, **amounts: int) -> None:
        body = {"status": {"allocatable": {key: str(count) for key, count in amounts.items()}}}
        await self.client.patch(Node, "n", body, subresource="status")


@asynccontextmanager
async def managed(config: str) -> AsyncIterator[World]:
    clock, numbers = SystemClock(), itertools.count(1)
    server = ApiServer(clock=clock, new_uid=lambda: f"uid-{next(numbers)}", random=lambda: 0.5)
    await server.start()
    client = Client(server.transport())
    driver = SimulatedDriver(DevicesFile.parse(MACHINE).machine("n"))
    backend = DiscoveredGpus(DirectDriver(driver), XidPolicy(), clock, MigStrategy.MIXED)
    await backend.start()
    world = World(client, driver, backend)
    labels = {names.MIG_CONFIG: config}
    node = {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": {SMALL: "7"}}}
    await client.create(Node.resource, node)

    def users() -> Mapping[str, str]:
        return world.users

    def close(uuids: Collection[str]) -> bool:
        backend.close(uuids)
        return True

    manager = MigManager(
        client,
        "n",
        MigTools(driver, backend),
        users=users,
        close=close,
        unknown=lambda: world.unknown,
        clock=clock,
    )

    def seen(node: Node) -> None:
        world.node = node
        world.changed.set()
        manager.set_node(node)

    nodes = Reflector(client, Node, on_set=seen, on_drop=lambda _: None, clock=clock, random=lambda: 0.5)
    tasks = [asyncio.create_task(work) for work in (nodes.run(), backend.run(), manager.run())]
    try:
        yield world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()


async def test_nothing_goes_before_kubelet_has_said_that_it_gives_it_out_no_more() -> None:
    """A scheduler that reads the old number would place a pod on what is not there when it arrives."""
    async with managed("all-2g.10gb") as world:
        await world.told(MigState.PENDING, "kubelet has not yet confirmed")
        assert set(world.devices.values()) == {"1g.5gb"}
        assert {gpu.availability for gpu in world.backend.gpus()} == {closed("its GPU is repartitioned")}
        await world.kubelet_says(**{SMALL: 0})
        await world.told(MigState.SUCCESS)
        assert sorted(world.devices.values()) == ["2g.10gb"] * 3
        # At once: the driver reports no event, and the next look is far.
        assert {gpu.uuid for gpu in world.backend.gpus()} == world.devices.keys()
        assert all(gpu.available for gpu in world.backend.gpus())


async def test_a_pod_that_arrives_while_kubelet_is_waited_for_is_let_in() -> None:
    async with managed("all-2g.10gb") as world:
        await world.told(MigState.PENDING, "kubelet has not yet confirmed")
        world.users = {next(iter(world.devices)): "default/late"}
        await world.kubelet_says(**{SMALL: 0})
        await world.told(MigState.PENDING, "these have to end first: GPU 0: default/late")
        assert set(world.devices.values()) == {"1g.5gb"}


async def test_nothing_goes_while_the_pods_of_the_node_are_not_known() -> None:
    """One that is bound and not started is in nobody's list but the API server's."""
    async with managed("all-2g.10gb") as world:
        world.unknown = "the picture of the cluster is not complete: pods are being read"
        await world.kubelet_says(**{SMALL: 0})
        await world.told(MigState.PENDING, "pods are being read")
        assert set(world.devices.values()) == {"1g.5gb"}
        world.unknown = ""
        await world.told(MigState.SUCCESS)
