"""MIG on demand: plans how GPUs are partitioned for waiting pods, and removes instances that were idle for
long. Pure.

A scheduler finds no node for a pod that asks for a MIG device which does not exist. For such pods the desired
layouts are written on nodes of the policy (the label gpuslice.io/mig-policy); their agents partition the
GPUs, and the new devices wake the scheduler. A pod is never placed before its device is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuslice import names
from gpuslice.cluster.actions import Patch, Record
from gpuslice.cluster.migrecords import Target, decode_wanted, encode_wanted, placements
from gpuslice.cluster.state import Cluster
from gpuslice.devices.miglayout import MigLayout, say_counts
from gpuslice.devices.migprofile import MigProfile
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.migcluster import MigDemand, MigPlacement
from gpuslice.placement.migdemand import DemandGpu, WholeDemand, plan_demand
from gpuslice.scheduler.migview import profiles_of


@dataclass(frozen=True, slots=True)
class MigNode:
    """A node of the policy and its GPUs, as they are or are desired. `alone`: it is left alone, nothing is
    written on it.
    """

    node: Node
    gpus: tuple[DemandGpu, ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class MigPicture:
    """What a plan is made from. `pods`: the waiting pods, by uid."""

    nodes: tuple[MigNode, ...]
    devices: Sequence[MigDemand] = ()
    whole_gpus: Sequence[WholeDemand] = ()
    pods: Mapping[str, Pod] | None = None


def demands(
    cluster: Cluster, nodes: Collection[str]
) -> tuple[list[MigDemand], list[WholeDemand], dict[str, Pod]]:
    """What the pods need that could run on these nodes if the GPUs were different: MIG devices, or GPUs that
    are not partitioned.
    """
    devices: list[MigDemand] = []
    whole_gpus: list[WholeDemand] = []
    pods: dict[str, Pod] = {}
    for waiting in cluster.unschedulable():
        request = waiting.demand.request
        if not request or waiting.problem:
            continue
        suitable = frozenset(nodes) & frozenset(cluster.suitable(waiting.demand, but_for_gpus=True))
        if not suitable:
            continue
        pods[waiting.uid] = waiting.pod
        if wanted := profiles_of(request):
            devices.append(MigDemand(waiting.uid, wanted, suitable))
        if gpus := request.devices.get(names.WHOLE_GPU, 0) or min(request.units, 1):
            whole_gpus.append(WholeDemand(waiting.uid, gpus, suitable))
    return devices, whole_gpus, pods


def plan(picture: MigPicture) -> list[list[Patch | Record]]:
    """What is to be written on nodes, and the events of pods: independent sequences of actions."""
    pods = picture.pods or {}
    indexes = {gpu.uuid: gpu.index for one in picture.nodes for gpu in one.gpus}
    found = plan_demand(
        tuple(gpu for one in picture.nodes for gpu in one.gpus), picture.devices, picture.whole_gpus
    )
    actions: list[list[Patch | Record]] = []
    for one in picture.nodes:
        if one.gpus and not one.alone:
            # A pod hears of it once the node has been told: if that write fails, the next plan has both.
            sequence: list[Patch | Record] = list(_writes(one, found.targets))
            sequence += [
                Record(pods[placement.pod], "Normal", "PartitioningGPU", _partitioning(placement, indexes))
                for placement in found.placed
                if placement.node == one.node.name
                and any(uuid in found.targets for _, uuid in placement.devices)
            ]
            actions.append(sequence)
    for uid, verdict in found.refused.items():
        actions.append([Record(pods[uid], "Warning", "NoRoomToPartition", verdict.message)])
    return actions


def _writes(one: MigNode, targets: Mapping[str, MigLayout | None]) -> Iterator[Patch]:
    """Write the desired layouts of its GPUs on a node, if they differ from what is written."""
    node = one.node
    try:
        said = decode_wanted(node.annotations)
    except InputError:
        said = {}
    wanted: dict[str, Target] = {}
    for gpu in one.gpus:
        if gpu.uuid in targets:
            layout = targets[gpu.uuid]
            wanted[gpu.uuid] = None if layout is None else placements(layout)
        elif gpu.uuid in said:
            wanted[gpu.uuid] = placements(gpu.layout) if gpu.enabled else None
    if not wanted and not said:
        return
    text = encode_wanted(wanted)
    if node.annotations.get(names.MIG_WANTED) != text:
        yield Patch(Node, node.name, {"metadata": {"annotations": {names.MIG_WANTED: text}}})


def _partitioning(placement: MigPlacement, indexes: Mapping[str, int]) -> str:
    counts: dict[str, list[MigProfile]] = {}
    for profile, uuid in placement.devices:
        counts.setdefault(uuid, []).append(profile)
    where = " and ".join(
        f"{say_counts([(p, ps.count(p)) for p in dict.fromkeys(ps)])} on GPU {indexes[uuid]}"
        for uuid, ps in sorted(counts.items(), key=lambda item: indexes[item[0]])
    )
    return f"node {placement.node} is told to create {where}"
