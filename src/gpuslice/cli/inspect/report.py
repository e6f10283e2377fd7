"""What `gpuslice inspect -o json` prints. Memory in MiB."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuslice.cli.output import Report
from gpuslice.cluster.records import NodeView, PodShare
from gpuslice.devices.availability import State


class PodReport(Report, frozen=True):
    namespace: str
    name: str
    uid: str
    mib: int = msgspec.field(name="MiB")
    whole: bool


class GpuReport(Report, frozen=True):
    """`availability`: ok, closed or unhealthy, and the `reason`; one that is closed is healthy."""

    index: int
    uuid: str
    model: str
    mode: str
    availability: State
    healthy: bool
    reason: str
    used_mib: int = msgspec.field(name="usedMiB")
    total_mib: int = msgspec.field(name="totalMiB")
    pods: list[PodReport]
    resource: str
    parent: str


class NodeReport(Report, frozen=True):
    """`pending`: pods on the node whose GPU nobody recorded. `problem`: why its GPUs cannot be read."""

    name: str
    address: str
    memory_unit: str
    used_mib: int = msgspec.field(name="usedMiB")
    total_mib: int = msgspec.field(name="totalMiB")
    gpus: list[GpuReport]
    pending: list[PodReport]
    problem: str


class InspectReport(Report, frozen=True):
    used_mib: int = msgspec.field(name="usedMiB")
    total_mib: int = msgspec.field(name="totalMiB")
    nodes: list[NodeReport]


def report(views: Sequence[NodeView]) -> InspectReport:
    """The nodes as they are to be printed."""
    nodes = [_node(view) for view in views]
    return InspectReport(sum(node.used_mib for node in nodes), sum(node.total_mib for node in nodes), nodes)


def _node(view: NodeView) -> NodeReport:
    gpus = [
        GpuReport(
            one.gpu.index,
            one.gpu.uuid,
            one.gpu.model,
            str(one.mode),
            one.gpu.availability.state,
            not one.gpu.availability.sick,
            one.gpu.availability.reason,
            one.used_mib,
            one.gpu.memory_mib,
            [_pod(share) for share in one.pods],
            one.gpu.resource,
            one.gpu.parent,
        )
        for one in view.gpus
    ]
    pending = [_pod(share) for share in view.pending]
    used = sum(one.used_mib for one in gpus) + sum(pod.mib for pod in pending)
    total = sum(one.total_mib for one in gpus)
    return NodeReport(view.name, view.address, str(view.unit), used, total, gpus, pending, view.problem)


def _pod(share: PodShare) -> PodReport:
    return PodReport(share.namespace, share.name, share.uid, share.mib, share.whole)
