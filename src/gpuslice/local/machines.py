"""Node pools' machines in a cluster in one process: simulated nodes that come and go at run time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from gpuslice.capacity.nodepatch import labels_of, new_node
from gpuslice.capacity.nodepool import DesiredPool
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.config.cluster import ClusterPlan, NodePlan, address, plugin_of
from gpuslice.config.devices import DevicesFile, DevicesSpec
from gpuslice.config.gpus import GpuEntry, inventory_of
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node, Pod
from gpuslice.local.kubelet.node import NodeDescription
from gpuslice.local.nodes import Nodes
from gpuslice.node.discovery.simulated import SimulatedDriver
from gpuslice.requests.kinds import SHARES
from gpuslice.scheduler.estimator import NodeEstimator
from gpuslice.units import MemoryUnit

PODS = 110
"""Pods per node, as kubelet's default."""


class SimulatedMachines:
    """A `capacity.machines.Machines` over the nodes of a cluster, which has those of `plan` already."""

    def __init__(self, plan: ClusterPlan, nodes: Nodes, estimator: NodeEstimator) -> None:
        self._plan = plan
        self._nodes = nodes
        self._estimator = estimator
        self._numbers: dict[str, int] = {}  # node -> which address it has

    def running(self) -> Collection[str]:
        return self._numbers.keys()

    async def start(self, name: str, desired: DesiredPool) -> None:
        if name in self._numbers:
            return
        first, taken = len(self._plan.nodes), set(self._numbers.values())
        number = next(n for n in range(first, first + len(taken) + 1) if n not in taken)
        node = self._node(name, desired, number)
        self._nodes.add(node)
        self._nodes.switch_on(node)
        self._numbers[name] = number

    async def stop(self, name: str) -> None:
        if name in self._numbers:
            await self._nodes.remove(name)
            del self._numbers[name]

    def needed(self, pods: Sequence[Pod], desired: DesiredPool, limit: int) -> Sequence[Sequence[Pod]]:
        if not pods or limit < 1:
            return ()
        return self._estimator.needed(pods, self._template(desired), limit)

    def _node(self, name: str, desired: DesiredPool, number: int) -> NodePlan:
        """The node with the device plugin's configuration that counts there, if there is one."""
        plan = plan_of(name, desired, self._plan.unit, number)
        with suppress(InputError):  # then it gives out nothing, and says why
            return replace(plan, plugin=plugin_of(plan.labels, self._plan.plugin_configs))
        return plan

    def _template(self, desired: DesiredPool) -> Node:
        """How a node of the pool will look once its agent has offered its GPUs."""
        plan = self._node(desired.spec.name, desired, 0)
        gpus = plan.offered(SimulatedDriver(plan.machine).query())
        body = new_node(plan.name, desired)
        body["metadata"]["annotations"] |= encode_gpus(gpus)
        node = NodeDescription(
            plan.name,
            cpu_milli=plan.cpu_milli,
            memory_mib=plan.memory_mib,
            pods=plan.pods,
            labels=plan.labels,
        )
        body["metadata"]["labels"] |= node.all_labels()
        devices = {r: str(sum(gpu.resource == r for gpu in gpus.gpus)) for r in gpus.resources}
        units = {SHARES.resource: str(sum(map(gpus.units_of, gpus.gpus)))}
        body["status"] = {"allocatable": node.resources() | devices | units}
        return msgspec.convert(body, Node)


def plan_of(name: str, desired: DesiredPool, unit: MemoryUnit, number: int) -> NodePlan:
    """The simulated node: its GPUs are partitioned already, as those of a new machine of AKS are."""
    size = desired.size
    assert size is not None, "a pool whose machines are made has a VM size"
    instances = desired.partitioning.instances if desired.partitioning is not None else None
    gpus = (GpuEntry(size.gpu, size.gpus, mig=instances),)
    spec = DevicesSpec(gpus, memory_unit=str(unit), nvlinks=size.nvlinks)
    machine = DevicesFile(spec).machine(name)
    return NodePlan(
        name,
        size.vcpus * 1000,
        size.memory_gib * 1024,
        PODS,
        labels_of(desired, made=True),
        (),  # its Node has them already
        inventory_of(machine.gpus, unit, field=name),
        machine,
        address(number),
        desired.spec.mig_strategy,
    )
