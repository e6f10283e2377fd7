"""What `gpuslice explain -o json` prints. Memory in MiB."""

from __future__ import annotations

import msgspec

from gpuslice.cli.output import Report
from gpuslice.scheduler.explaining import Explanation, NodeVerdict


class RequestReport(Report, frozen=True):
    container: str
    units: int
    across: int
    whole: int


class GrantReport(Report, frozen=True):
    container: str
    gpu: str
    mib: int = msgspec.field(name="MiB")
    whole: bool


class GpuVerdictReport(Report, frozen=True):
    index: int
    uuid: str
    model: str
    ok: bool
    code: str
    message: str
    free_mib: int = msgspec.field(name="freeMiB")
    total_mib: int = msgspec.field(name="totalMiB")


class RefusalReport(Report, frozen=True):
    """What one filter says against a node. `numbers`: MiB where the key says so, else counts."""

    filter: str
    code: str
    message: str
    numbers: dict[str, int]


class NodeVerdictReport(Report, frozen=True):
    """`code` is null where it is not the GPUs that speak against the node."""

    node: str
    ok: bool
    code: str | None
    message: str
    against: list[RefusalReport]
    gpus: list[GpuVerdictReport]


class ExplainReport(Report, frozen=True):
    """`node` is empty while the pod waits; `nodes` is empty once it has its place."""

    namespace: str
    pod: str
    phase: str
    message: str
    requests: list[RequestReport]
    node: str
    allocation: list[GrantReport]
    why: str
    nodes: list[NodeVerdictReport]


def report(explanation: Explanation) -> ExplainReport:
    """The explanation as it is to be printed."""
    pod, allocation = explanation.pod, explanation.allocation
    return ExplainReport(
        pod.namespace,
        pod.name,
        pod.status.phase,
        f"pod {pod.key} {explanation.headline}",
        [RequestReport(c.name, c.units, c.across, c.whole) for c in explanation.request.containers],
        pod.spec.node_name,
        [GrantReport(g.container, g.gpu, g.mib, g.whole) for g in allocation.grants] if allocation else [],
        explanation.why,
        [_node(verdict) for verdict in explanation.nodes],
    )


def _node(verdict: NodeVerdict) -> NodeVerdictReport:
    gpus = [
        GpuVerdictReport(
            one.gpu.index,
            one.gpu.uuid,
            one.gpu.model,
            one.verdict.ok,
            str(one.verdict.code),
            one.verdict.message,
            one.free_mib,
            one.gpu.memory_mib,
        )
        for one in verdict.gpus
    ]
    against = [
        RefusalReport(one.filter, one.verdict.code, one.verdict.message, dict(one.verdict.numbers))
        for one in verdict.against
    ]
    return NodeVerdictReport(verdict.node, verdict.ok, verdict.code, verdict.sentence, against, gpus)
