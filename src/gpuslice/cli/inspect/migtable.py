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
    for gpu in view.gpus:
        if gpu.parent:
            kinds.setdefault((gpu.resource, gpu.model), []).append(gpu)
    lines = []
    for (resource, model), gpus in sorted(kinds.items()):
        states = Counter(gpu.availability.state for gpu in gpus if not gpu.availability.ok)
        note = "".join(f", {count} {state}" for state, count in sorted(states.items()))
        lines.append(f"{view.name}\t{resource}\t{model}\t{sum(bool(g.pods) for g in gpus)}/{len(gpus)}{note}")
    return lines


def _devices(view: NodeView) -> list[str]:
    return [
        f"{view.name}\t{gpu.resource}\t{gpu.uuid} ({gpu.model})\t{_held_by(gpu)}"
        for gpu in view.gpus
        if gpu.parent
    ]


def _held_by(gpu: GpuView) -> str:
    holders = ", ".join(f"{share.namespace}/{share.name}" for share in gpu.pods)
    if gpu.availability.ok:
        return holders or "-"
    return f"{holders} ({gpu.availability})" if holders else str(gpu.availability)
