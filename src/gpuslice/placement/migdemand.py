"""Plans the layouts of GPUs that are partitioned on demand: room for waiting pods, and removal of what nobody
needs.

For each GPU the first of three rules that applies: what `migcluster` plans for the pods; MIG off again, if
pods wait for unpartitioned GPUs and this one has no instances, or only instances that give way; removal of
instances that have been idle for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpuslice.devices.miglayout import MigLayout
from gpuslice.placement.migcluster import MigDemand, MigGpu, MigPlacement, plan_cluster
from gpuslice.placement.verdict import Verdict


@dataclass(frozen=True, slots=True)
class DemandGpu:
    """One GPU that is partitioned on demand.

    `layout`: as it is, or as desired, with the instances in use marked. `enabled`: MIG is or will be on.
    `may_change`: it is healthy, and nobody uses it unpartitioned. `drains`: idle instances give way to pods
    at once. `idle_long`: starts of the instances that have been idle for long.
    """

    node: str
    uuid: str
    layout: MigLayout
    enabled: bool = True
    may_change: bool = True
    drains: bool = False
    idle_long: frozenset[int] = frozenset()
    index: int = 0


@dataclass(frozen=True, slots=True)
class WholeDemand:
    """A pod that waits for a number of GPUs that are not partitioned (whole, or to share their memory)."""

    pod: str
    gpus: int
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class DemandPlan:
    """The desired layouts, by UUID, of the GPUs that are to change; None: MIG off.

    `placed` are the pods that get devices by this (or from idle instances), `refused` says why other pods get
    nothing.
    """

    targets: Mapping[str, MigLayout | None] = field(default_factory=dict)
    placed: tuple[MigPlacement, ...] = ()
    refused: Mapping[str, Verdict] = field(default_factory=dict)


def plan_demand(
    gpus: Iterable[DemandGpu], pods: Iterable[MigDemand], whole_gpus: Iterable[WholeDemand] = ()
) -> DemandPlan:
    """Plan the GPUs. The same input gives the same plan, in whatever order it comes."""
    gpus = sorted(gpus, key=lambda gpu: (gpu.node, gpu.index, gpu.uuid))
    served = plan_cluster(map(_as_asked, gpus), pods)
    targets: dict[str, MigLayout | None] = {uuid: plan.after for uuid, plan in served.plans.items()}
    serving = {uuid for placement in served.placed for _, uuid in placement.devices}
    spare = [gpu for gpu in gpus if _may_be_uncut(gpu) and gpu.uuid not in serving]
    whole = Counter(
        gpu.node for gpu in gpus if not gpu.enabled and gpu.may_change and gpu.uuid not in serving
    )
    for uuid in _to_switch_off(spare, whole, sorted(whole_gpus, key=lambda demand: demand.pod)):
        targets[uuid] = None
    for gpu in gpus:
        if gpu.uuid not in serving and gpu.uuid not in targets and gpu.may_change:
            kept = tuple(gi for gi in gpu.layout.instances if gi.in_use or gi.start not in gpu.idle_long)
            if len(kept) < len(gpu.layout.instances):
                targets[gpu.uuid] = replace(gpu.layout, instances=kept)
    return DemandPlan(targets, served.placed, served.refused)


def _as_asked(gpu: DemandGpu) -> MigGpu:
    return MigGpu(
        gpu.node,
        gpu.uuid,
        gpu.layout,
        may_partition=gpu.may_change,
        may_destroy=gpu.drains,
        off=not gpu.enabled,
        index=gpu.index,
    )


def _may_be_uncut(gpu: DemandGpu) -> bool:
    """True if it has no instances, or only idle ones that give way at once."""
    instances = gpu.layout.instances
    gives_way = gpu.drains and not any(gi.in_use for gi in instances)
    return gpu.enabled and gpu.may_change and (gives_way or not instances)


def _to_switch_off(
    spare: Iterable[DemandGpu], whole: Counter[str], demands: Iterable[WholeDemand]
) -> Iterator[str]:
    """GPUs to give back unpartitioned, as many as complete what a node has already, those with the fewest
    idle instances first. `whole`: free ones, by node.
    """
    left = sorted(spare, key=lambda gpu: len(gpu.layout.instances))
    have = whole.copy()
    for demand in demands:
        ways = []
        for node in demand.nodes:
            there = [gpu for gpu in left if gpu.node == node]
            missing = demand.gpus - have[node]
            if missing <= 0:
                break  # the GPUs that are free there are enough
            if missing <= len(there):
                going = sum(len(gpu.layout.instances) for gpu in there[:missing])
                ways.append((going, missing, node))
        else:
            if ways:
                _, missing, node = min(ways)
                chosen = [gpu for gpu in left if gpu.node == node][:missing]
                left = [gpu for gpu in left if gpu not in chosen]
                have[node] = 0
                yield from (gpu.uuid for gpu in chosen)
