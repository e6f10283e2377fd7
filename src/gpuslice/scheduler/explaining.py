"""Explains why a pod is where it is, or nowhere: every node's and GPU's verdict, by the engine that
decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuslice import names
from gpuslice.cluster.migrecords import decode_partitions
from gpuslice.cluster.podstatus import has_ended
from gpuslice.cluster.records import PodRecord
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.waiting import WaitingPod, read_waiting
from gpuslice.devices.inventory import Gpu
from gpuslice.devices.sharing import device_of
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.migcluster import MigDemand
from gpuslice.placement.migdemand import plan_demand
from gpuslice.placement.node import place
from gpuslice.placement.verdict import FITS, Code, Verdict, unavailable
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.pod import ContainerRequest, PodRequest
from gpuslice.scheduler.filters import Refused, filters_of
from gpuslice.scheduler.migview import demand_gpus, profiles_of
from gpuslice.units import GIB, MemoryUnit


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """Whether this GPU alone could take the pod, or why not."""

    gpu: Gpu
    free_mib: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """Whether this node could take the pod now. `against`: every refusal of the filters."""

    node: str
    against: tuple[Refused, ...]
    gpus: tuple[GpuVerdict, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.against

    @property
    def code(self) -> Code | None:
        """The GPUs' verdict code; None if the refusal is not about GPUs."""
        codes = [one.verdict.code for one in self.against] or [Code.FITS]
        return next((code for code in codes if isinstance(code, Code)), None)

    @property
    def sentence(self) -> str:
        return "; ".join(one.verdict.message for one in self.against) or FITS.message


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole explanation of one pod. `nodes` is empty for a pod that has its node."""

    pod: Pod
    request: PodRequest
    headline: str
    where: tuple[str, ...] = ()
    why: str = ""
    allocation: Allocation | None = None
    nodes: tuple[NodeVerdict, ...] = ()


def explain(pod: Pod, cluster: Cluster) -> Explanation:
    """Explain a pod. Changes nothing."""
    waiting = read_waiting(pod)
    request = waiting.demand.request
    if pod.status.phase in ("Succeeded", "Failed") and has_ended(pod):
        return Explanation(pod, request, f"has ended ({pod.status.phase}) and holds nothing")
    record = cluster.pod(pod.uid)
    if pod.spec.node_name:
        if record is None:
            return Explanation(pod, request, f"is on node {pod.spec.node_name} and holds no GPU")
        return _placed(pod, record, cluster)
    if waiting.problem:
        return Explanation(pod, request, f"can be placed on no node: {waiting.problem}")
    verdicts = _verdicts(waiting, cluster)
    fitting = sum(verdict.ok for verdict in verdicts)
    wish = say_request(request, cluster)
    if not verdicts:
        headline = f"waits; {wish}, and there are no nodes"
    elif fitting:
        headline = f"waits for its scheduler; {wish}, and {fitting} of {len(verdicts)} nodes could take it"
    else:
        headline = f"must wait; {wish}, and none of {len(verdicts)} nodes can take it"
    return Explanation(pod, request, headline, nodes=tuple(verdicts))


def say_request(request: PodRequest, cluster: Cluster) -> str:
    """What a pod asks for, in the unit of the cluster's nodes."""
    if not request:
        return "it asks for no GPU"
    units = {gpus.unit for name in cluster.node_names() if (gpus := cluster.gpus(name)) and gpus.gpus}
    unit = units.pop() if len(units) == 1 else None
    parts = [_say_container(container, unit) for container in request.containers]
    return "it asks for " + " and ".join(parts)


def say_devices(resource: str, count: int) -> str:
    """The name of whole devices in messages: "whole GPUs", "nvidia.com/mig-1g.5gb"."""
    if resource != names.WHOLE_GPU:
        return resource
    return "whole GPU" if count == 1 else "whole GPUs"


def _say_container(container: ContainerRequest, unit: MemoryUnit | None) -> str:
    if container.whole:
        amount = f"{container.whole} {say_devices(container.kind.resource, container.whole)}"
    elif unit is None:
        amount = f"{container.units} units of GPU memory"
    else:
        amount = f"{unit.say(container.units)} of GPU memory"
    across = f", spread over {container.across} GPUs" if container.across > 1 else ""
    return f"{amount}{across} (container {container.name})"


# --- a pod that has its place -----------------------------------------------------------------------
def _placed(pod: Pod, record: PodRecord, cluster: Cluster) -> Explanation:
    gpus = cluster.gpus(record.node)
    if record.allocation is None or gpus is None:
        what = "nobody recorded which GPU it got" if gpus is not None else "that node is unknown"
        return Explanation(
            pod,
            record.request,
            f"is on node {record.node}, but {what}",
            why="it was bound by something that does not choose GPUs (is the extender configured for its "
            "scheduler?), or the GPU it was given is gone; its memory is counted on the node all the same"
            if gpus is not None
            else "",
        )
    where = tuple(_say_grant(grant, record.node, cluster) for grant in record.allocation.grants)
    return Explanation(
        pod,
        record.request,
        f"is on node {record.node}",
        where,
        _why_there(record, record.allocation, cluster),
        record.allocation,
    )


def _say_grant(grant: Grant, node: str, cluster: Cluster) -> str:
    view = cluster.snapshot(node)
    held = next((one for one in view.gpus if one.gpu.uuid == grant.gpu), None) if view else None
    if held is None or view is None:
        return f"container {grant.container}: GPU {grant.gpu}, which the node no longer has"
    gpu = held.gpu
    if (device := device_of(gpu.uuid)) != gpu.uuid:
        replicas = [one for one in view.gpus if device_of(one.gpu.uuid) == device]
        return (
            f"container {grant.container}: a replica of {gpu.model} ({device}); "
            f"{sum(bool(one.pods) for one in replicas)} of its {len(replicas)} are given out"
        )
    amount = "all" if grant.whole else _size(grant.mib, view.unit)
    others = len({share.uid for share in held.pods}) - 1
    beside = f", shared with {others} other pod{'s' if others > 1 else ''}" if others > 0 else ""
    return (
        f"container {grant.container}: {amount} of GPU{gpu.index} {gpu.model} ({gpu.uuid}); "
        f"{_size(held.used_mib, view.unit)} of {_size(gpu.memory_mib, view.unit)} are taken{beside}"
    )


def _why_there(record: PodRecord, allocation: Allocation, cluster: Cluster) -> str:
    """Ask the engine again, as if the pod were not there yet."""
    gpus = cluster.gpus(record.node)
    assert gpus is not None
    mine = {charge.gpu: charge.mib for charge in record.charges}
    free_gpus = [
        replace(
            one,
            free_mib=one.free_mib + mine.get(one.gpu.uuid, 0),
            holders=one.holders - (one.gpu.uuid in mine),
        )
        for one in cluster.fleet.free_gpus(record.node)
    ]
    choice = place(record.request, gpus.unit, free_gpus, cluster.policy, node=record.node)
    if isinstance(choice, Verdict):
        return f"the node as it is now would not take it again: {choice.message}"
    if choice.gpus != allocation.gpus:
        indexes = ", ".join(f"GPU{one.gpu.index}" for one in free_gpus if one.gpu.uuid in choice.gpus)
        return f"the choice fell when the node looked different; today it would be {indexes}"
    if any(device_of(uuid) != uuid for uuid in choice.gpus):
        packed = any(one.gpu.packed for one in free_gpus if one.gpu.uuid in choice.gpus)
        return f"of the GPU of which the {'most' if packed else 'fewest'} replicas were given out"
    if record.request.whole:
        return "the smallest that nobody used"
    chosen = [one for one in free_gpus if one.gpu.uuid in choice.gpus]
    fitting = [one for one in free_gpus if one.gpu.available and one.free_mib >= min(mine.values())]
    if len(fitting) == len(chosen):
        return "no other GPU of the node has the room"
    free = ", ".join(f"{_size(one.free_mib, gpus.unit)} free on GPU{one.gpu.index}" for one in chosen)
    return f"{cluster.policy.name}: {cluster.policy.reason(free)}"


# --- a pod that waits ---------------------------------------------------------------------------------
def _verdicts(waiting: WaitingPod, cluster: Cluster) -> list[NodeVerdict]:
    table, filters = cluster.table, filters_of(cluster)
    verdicts = []
    for node in cluster.nodes():
        row = table.row(node.name)
        assert row is not None
        against = [one for step in filters for one in step.refusals(waiting.demand, node.name, row)]
        verdicts.append(_node_verdict(waiting.demand.request, node, against, cluster))
    return verdicts


def _if_cut(request: PodRequest, node: Node, cluster: Cluster) -> str:
    """What the planner will do for the pod where GPUs are partitioned on demand; "" elsewhere."""
    try:
        partitions = decode_partitions(node.annotations)
        gpus = demand_gpus(node, partitions, cluster.fleet.free_gpus(node.name)) if partitions else []
    except InputError as error:
        return f"; {error}"
    if not gpus:
        return ""
    plan = plan_demand(gpus, [MigDemand("", profiles_of(request))])
    if plan.refused:
        return f"; its GPUs are partitioned on demand, but {plan.refused[''].message}"
    indexes = {gpu.uuid: gpu.index for gpu in gpus}
    where = sorted({indexes[uuid] for placed in plan.placed for _, uuid in placed.devices})
    return f"; its GPUs are partitioned on demand: GPU {', '.join(map(str, where))} can be"


def _node_verdict(
    request: PodRequest, node: Node, against: Sequence[Refused], cluster: Cluster
) -> NodeVerdict:
    if not request:
        return NodeVerdict(node.name, tuple(against))
    gpus, view = cluster.gpus(node.name), cluster.snapshot(node.name)
    of_gpus = next((one.verdict for one in against if isinstance(one.verdict.code, Code)), None)
    more = ""
    if len(against) == 1 and of_gpus is not None and of_gpus.code is Code.NO_MIG_DEVICE:
        more = _if_cut(request, node, cluster)
    told = [_told(one, gpus.unit if gpus else GIB, more) for one in against]
    if view is not None and view.problem:
        # The problem comes before its consequence: because of it the node counts as having no GPUs.
        told.insert(-1 if of_gpus else len(told), Refused("GPU", Verdict(Code.NOT_GPU_NODE, view.problem)))
    if gpus is None:
        return NodeVerdict(node.name, tuple(told))
    free_gpus = cluster.fleet.free_gpus(node.name)
    chosen = of_gpus or place(request, gpus.unit, free_gpus, cluster.policy, node=node.name)
    favourites = chosen.gpus if isinstance(chosen, Allocation) else ()
    return NodeVerdict(
        node.name,
        tuple(told),
        tuple(
            GpuVerdict(one.gpu, one.free_mib, _of_gpu(request, one, gpus.unit, favourites))
            for one in free_gpus
        ),
    )


def _told(refused: Refused, unit: MemoryUnit, more: str) -> Refused:
    """The engine's sentence with its numbers, and `more`."""
    if not isinstance(refused.verdict.code, Code):
        return refused
    message = _with_numbers(refused.verdict, unit) + more
    return replace(refused, verdict=replace(refused.verdict, message=message))


def _with_numbers(verdict: Verdict, unit: MemoryUnit) -> str:
    numbers = verdict.numbers
    if "wanted_mib" in numbers:
        free = _size(max(0, numbers["largest_free_mib"]), unit)
        return (
            f"{verdict.message} (wanted {_size(numbers['wanted_mib'], unit)}, at most {free} free on one GPU)"
        )
    if "wanted" in numbers:
        return f"{verdict.message} (wanted {numbers['wanted']}, free {numbers.get('free', 0)})"
    return verdict.message


def _of_gpu(request: PodRequest, one: FreeGpu, unit: MemoryUnit, favourites: Sequence[str]) -> Verdict:
    gpu = one.gpu
    free = f"{_size(one.free_mib, unit)} of {_size(gpu.memory_mib, unit)} free"
    if gpu.resource not in request.devices and not (request.units and gpu.shareable):
        return Verdict(Code.NOT_GPU_NODE, f"is one {gpu.resource}, which the pod does not ask for")
    alone = place(request, unit, [one])
    if isinstance(alone, Allocation):
        return Verdict(Code.FITS, f"fits, {free}" + (": the choice" if gpu.uuid in favourites else ""))
    if gpu.uuid in favourites:
        return Verdict(Code.FITS, f"takes a part, {free}: chosen with others")
    if not gpu.available:
        return Verdict(unavailable(gpu.availability.closed), str(gpu.availability))
    if one.untouched and (wanted := request.devices.get(gpu.resource, 0)) > 1:
        return Verdict(alone.code, f"free, one of {wanted} that are needed")
    if request.whole and one.holders:
        pods = f"{one.holders} pod{'s' if one.holders > 1 else ''}"
        return Verdict(alone.code, f"in use by {pods}, {free}")
    return Verdict(alone.code, f"too little room, {free}")


def _size(mib: int, unit: MemoryUnit) -> str:
    """The size in whole units, as pods can ask for it: the rest of a GPU cannot be given away."""
    return unit.say(unit.units_in(mib))
