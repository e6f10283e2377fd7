"""The MIG devices of nodes as a table: gpushare's own, which counts memory of GPUs, has no place for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpuslice.cli.tabwriter import align
from gpuslice.cluster.records import GpuView, NodeView


def table(views: Sequence[NodeView], *, details: bool) -> str:
    """A line per node, resource and model, or per device; "" if there is no MIG device."""
    lines = [line for view in views for line in (_devices(view) if details else _counts(view))]
    if not lines:
        return ""
    header = "NODE\tRESOURCE\tMIG DEVICE\tHELD BY" if details else "NODE\tRESOURCE\tMODEL\tALLOCATED/TOTAL"
    return align("\n".join([f"\n{header}", *lines])) + "\n"


def _counts(view: NodeView) -> list[str]:
    kinds: dict[tuple[str, str], list[GpuView]] = {}
    for one in view.gpus:
        if one.gpu.parent:
            kinds.setdefault((one.gpu.resource, one.gpu.model), []).append(one)
    lines = []
    for (resource, model), gpus in sorted(kinds.items()):
        states = Counter(one.gpu.availability.state for one in gpus if not one.gpu.availability.ok)
        note = "".join(f", {count} {state}" for state, count in sorted(states.items()))
        lines.append(f"{view.name}\t{resource}\t{model}\t{sum(bool(g.pods) for g in gpus)}/{len(gpus)}{note}")
    return lines


def _devices(view: NodeView) -> list[str]:
    return [
        f"{view.name}\t{one.gpu.resource}\t{one.gpu.uuid} ({one.gpu.model})\t{_held_by(one)}"
        for one in view.gpus
        if one.gpu.parent
    ]


def _held_by(one: GpuView) -> str:
    holders = ", ".join(f"{share.namespace}/{share.name}" for share in one.pods)
    if one.gpu.availability.ok:
        return holders or "-"
    return f"{holders} ({one.gpu.availability})" if holders else str(one.gpu.availability)
