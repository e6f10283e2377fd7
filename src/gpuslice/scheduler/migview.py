"""The planner's view of a node whose GPUs are partitioned on demand: what is, or will be, on each GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from gpuslice.cluster.migrecords import MigCapableGpu, MigPolicy, Target, decode_wanted, target_layout
from gpuslice.devices.miglayout import MigLayout
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.sharing import device_of
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.migdemand import DemandGpu
from gpuslice.placement.migrestore import plan_restore
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.pod import PodRequest

IdleLong = Callable[[MigCapableGpu, Collection[str]], Collection[int]]
"""Starts of the instances that have been idle for long, from the GPU and the devices in use."""


def profiles_of(request: PodRequest) -> dict[MigProfile, int]:
    """How many MIG devices of each profile a pod asks for."""
    return {
        profile: count
        for resource, count in request.devices.items()
        if (profile := MigProfile.of_resource(resource)) is not None
    }


def demand_gpus(
    node: Node,
    partitions: Iterable[MigCapableGpu],
    free_gpus: Iterable[FreeGpu],
    *,
    idle_long: IdleLong = lambda _cut, _used: (),
    alone: bool = False,
) -> list[DemandGpu]:
    """The node's GPUs, of which its agent published `partitions`, with what pods leave of them (`free_gpus`).

    A GPU counts as its desired layout, if it can still get that; with `alone`, as it is, and it stays so.
    Raises InputError for a policy or a desired layout that cannot be read.
    """
    policy = MigPolicy.of(node.labels)
    wanted = {} if alone else decode_wanted(node.annotations)
    by_uuid = {one.gpu.uuid: one for one in free_gpus}
    used = {device_of(uuid) for uuid, one in by_uuid.items() if not one.unused}
    shut = {device_of(uuid) for uuid, one in by_uuid.items() if not one.gpu.available}
    found = []
    for gpu in partitions:
        now = gpu.marked(used)
        long = frozenset(idle_long(gpu, used))
        aim, enabled = _aim(gpu, now, wanted)
        whole = by_uuid.get(gpu.uuid)
        layout = _without(aim, gpu, shut)
        found.append(
            DemandGpu(
                node.name,
                gpu.uuid,
                layout,
                enabled,
                gpu.healthy and not alone and (gpu.enabled or (whole is not None and whole.untouched)),
                policy is MigPolicy.ON_DEMAND_DRAIN,
                long if layout == now else frozenset(),
                gpu.index,
            )
        )
    return found


def _aim(gpu: MigCapableGpu, now: MigLayout, wanted: Mapping[str, Target]) -> tuple[MigLayout, bool]:
    """The layout that a GPU will have and whether MIG will be on: as desired, if that is still possible."""
    if gpu.uuid not in wanted:
        return now, gpu.enabled
    target = wanted[gpu.uuid]
    try:
        plan = plan_restore(now, target_layout(now.geometry, target))
    except InputError:
        return now, gpu.enabled
    return (now, gpu.enabled) if isinstance(plan, Verdict) else (plan.after, target is not None)


def _without(layout: MigLayout, gpu: MigCapableGpu, shut: Collection[str]) -> MigLayout:
    """The layout with the devices that are given to nobody marked as in use: they serve no pod, and stay."""
    instances = []
    for gi in layout.instances:
        there = gpu.layout.at(gi.start)
        if there is not None and there.profile == gi.profile:
            parts = (
                replace(ci, in_use=ci.in_use or gpu.devices.get((gi.start, ci.id), "") in shut)
                for ci in gi.compute
            )
            gi = replace(gi, compute=tuple(parts))
        instances.append(gi)
    return replace(layout, instances=tuple(instances))
