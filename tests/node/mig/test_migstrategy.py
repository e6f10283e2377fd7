"""The node's label that says how MIG devices are counted: from the first offer on, and while the agent runs."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.config.devices import DevicesFile
from gpuslice.devices.sharing import MigStrategy
from gpuslice.devices.xids import XidPolicy
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Node, ObjectMeta
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.node.discovery.backend import DiscoveredGpus
from gpuslice.node.discovery.simulated import DirectDriver, SimulatedDriver
from gpuslice.node.mig.strategy import StrategyLabel

SMALL = f"{names.MIG_PREFIX}1g.5gb"


def machine(gpus: str) -> SimulatedDriver:
    text = f"apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: {{gpus: [{gpus}]}}\n"
    return SimulatedDriver(DevicesFile.parse(text).machine("n"))


async def backend_of(gpus: str, option: MigStrategy = MigStrategy.NONE) -> DiscoveredGpus:
    backend = DiscoveredGpus(DirectDriver(machine(gpus)), XidPolicy(), SystemClock(), option)
    await backend.start()
    return backend


def offers(backend: DiscoveredGpus) -> Counter[str]:
    return Counter(gpu.resource for gpu in backend.gpus())


def node(strategy: str | None) -> Node:
    labels = {} if strategy is None else {names.MIG_STRATEGY: strategy}
    return Node(metadata=ObjectMeta(name="n", labels=labels))


CUT = "{model: A100-40, mig: [1g.5gb, 1g.5gb]}"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    server = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid.uuid4()))
    await server.start()
    yield Client(server.transport())
    await server.stop()


async def test_a_gpu_that_is_cut_is_not_offered_whole_even_at_first(client: Client) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": {names.MIG_STRATEGY: "mixed"}},
    }
    await client.create(Node.resource, body)
    backend = await backend_of(CUT)
    assert offers(backend) == {names.WHOLE_GPU: 1}, "what the option alone says"
    await StrategyLabel(backend).read(client, "n")
    assert offers(backend) == {SMALL: 2}


async def test_the_label_is_followed_and_without_it_the_option_counts() -> None:
    backend = await backend_of(CUT, MigStrategy.SINGLE)
    label = StrategyLabel(backend)
    for strategy, offered in (
        ("mixed", {SMALL: 2}),
        (None, {names.WHOLE_GPU: 2}),
        ("mixed", {SMALL: 2}),
        ("both", {SMALL: 2}),  # a mistake changes nothing
        ("single", {names.WHOLE_GPU: 2}),
    ):
        label.set_node(node(strategy))
        assert offers(backend) == offered, strategy
    assert backend.labels()["nvidia.com/mig.strategy"] == "single"


async def test_what_cannot_be_counted_so_is_not_offered_at_all() -> None:
    """Two sizes cannot both be nvidia.com/gpu; the GPUs of before would be whole ones."""
    backend = await backend_of("{model: A100-40, mig: [1g.5gb]}, {model: A100-40, mig: [2g.10gb]}")
    StrategyLabel(backend).set_node(node("single"))
    assert offers(backend) == {}
