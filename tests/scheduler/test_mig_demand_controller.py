"""MIG on demand beside other schedulers: who acts, for whom, and what it writes on which node."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from lab import Lab, laboratory

from gpuslice import names
from gpuslice.cluster.actions import Patch, Record
from gpuslice.cluster.migrecords import MigCapableGpu, decode_wanted, encode_partitions
from gpuslice.devices.miglayout import layout
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migtables import geometry_of
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.migcluster import MigDemand
from gpuslice.placement.migdemand import DemandGpu
from gpuslice.scheduler.migdemand import MigNode, MigPicture, plan

KUBE = "default-scheduler"
MEDIUM = f"{names.MIG_PREFIX}2g.10gb"
A100 = geometry_of("A100-40")


class Waiting:
    """A replica that does not lead yet."""

    why = "another one does"

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.its_turn = False

    @property
    def leads(self) -> bool:
        self.asked.set()
        return self.its_turn

    async def run(self) -> None:
        return


async def on_demand(lab: Lab, name: str, gpus: int = 1, **labels: str) -> None:
    """A node whose agent has said that nothing is partitioned on its GPUs, MIG being on."""
    await lab.node(name, [], labels={names.MIG_POLICY: "on-demand", **labels})
    partitions = [MigCapableGpu(f"GPU-{name}-{number}", number, True, layout(A100)) for number in range(gpus)]
    body = {"metadata": {"annotations": {names.MIG_PARTITIONS: encode_partitions(partitions)}}}
    await lab.client.patch(Node, name, body)


async def fresh(lab: Lab, pod: str, **spec: Any) -> None:
    """A pod that asks for a MIG device."""
    container = {"name": "main", "image": "cuda", "resources": {"limits": {MEDIUM: "1"}}}
    await lab.pod(pod, scheduler=KUBE, containers=[container], **spec)


async def wait_for(lab: Lab, pod: str, **spec: Any) -> None:
    """One that its scheduler has given up."""
    await fresh(lab, pod, **spec)
    await lab.give_up(pod)


def wanted(lab: Lab, node: str) -> dict[str, tuple[str, ...] | None]:
    found = lab.cluster.node(node)
    return decode_wanted(found.annotations) if found is not None else {}


async def test_only_the_replica_that_leads_says_anything() -> None:
    async with laboratory(scheduler=False) as lab:
        waiting = lab.cluster.gate.leadership = Waiting()
        await on_demand(lab, "n1")
        await wait_for(lab, "one")
        for label in ("once", "twice"):  # when it looks for the second time, the first is over
            async with asyncio.timeout(10):
                await waiting.asked.wait()
            waiting.asked.clear()
            await lab.client.patch(Pod, "one", {"metadata": {"labels": {label: ""}}}, "default")
        told = await lab.client.get(Node, "n1")
        assert names.MIG_WANTED not in told.annotations
        waiting.its_turn = True
        await lab.client.patch(Pod, "one", {"metadata": {"labels": {"thrice": ""}}}, "default")
        await lab.until(lambda: wanted(lab, "n1") == {"GPU-n1-0": ("2g.10gb@4",)}, "n1 to be told")


async def test_a_pod_that_its_scheduler_has_not_given_up_has_nothing_cut() -> None:
    async with laboratory(scheduler=False) as lab:
        await on_demand(lab, "n1", 2)
        await fresh(lab, "fresh")
        await wait_for(lab, "one")
        await lab.until(lambda: bool(wanted(lab, "n1")), "n1 to be told")
        assert [len(target or ()) for target in wanted(lab, "n1").values()] == [1]


async def test_a_damaged_annotation_leaves_that_node_and_no_other_alone() -> None:
    async with laboratory(scheduler=False) as lab:
        await on_demand(lab, "n1")
        await lab.client.patch(Node, "n1", {"metadata": {"annotations": {names.MIG_PARTITIONS: "{"}}})
        await on_demand(lab, "n2")
        await wait_for(lab, "one")
        await lab.until(lambda: bool(wanted(lab, "n2")), "n2 to be told")
        assert wanted(lab, "n1") == {}


async def test_nodes_that_do_not_suit_the_pod_are_not_cut() -> None:
    async with laboratory(scheduler=False) as lab:
        await on_demand(lab, "n1", kind="first")
        await on_demand(lab, "n2", kind="second")
        await wait_for(lab, "one", nodeSelector={"kind": "second"})
        await lab.until(lambda: bool(wanted(lab, "n2")), "n2 to be told")
        assert wanted(lab, "n1") == {}
        said = await lab.events("one", "PartitioningGPU")
        assert said == ["node n2 is told to create 1 x 2g.10gb on GPU 0"]


def test_a_pod_hears_of_it_when_the_node_has_been_told() -> None:
    """They are one sequence: if the node cannot be written, no event says that it was."""
    node = msgspec.convert({"metadata": {"name": "n1"}}, Node)
    pod = msgspec.convert({"metadata": {"name": "one", "uid": "u1"}}, Pod)
    profile = MigProfile.of_resource(MEDIUM)
    assert profile is not None
    demand = MigDemand("u1", {profile: 1}, frozenset({"n1"}))
    gpus = (DemandGpu("n1", "GPU-0", layout(A100)),)
    (told, heard), *more = plan(MigPicture((MigNode(node, gpus),), [demand], pods={"u1": pod}))
    assert isinstance(told, Patch)
    assert told.name == "n1"
    assert isinstance(heard, Record)
    assert heard.about is pod
    assert heard.message == "node n1 is told to create 1 x 2g.10gb on GPU 0"
    assert more == []
