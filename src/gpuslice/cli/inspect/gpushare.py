"""gpushare's tables of nodes and pods, character by character, from the state of the cluster.

Two improvements: nodes are in order of their names, and the unit is the one that the nodes publish instead
of a guess from the size of a GPU. Nodes that disagree about the unit are shown in MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuslice.cli.tabwriter import align
from gpuslice.cluster.records import GpuView, NodeView, PodShare
from gpuslice.units import MemoryUnit

MIB = MemoryUnit(1)


@dataclass(frozen=True, slots=True)
class _Row:
    """One node in the unit of the table. `gpus` leaves out MIG devices: see `migtable`."""

    view: NodeView
    gpus: tuple[GpuView, ...]
    used: tuple[int, ...]
    totals: tuple[int, ...]
    pending: int
    rest: int

    @property
    def all_used(self) -> int:
        return sum(self.used) + self.pending

    @property
    def total(self) -> int:
        """What the node has: of gpushare's own nodes also what their GPUs do not divide."""
        return sum(self.totals) + self.rest


def common_unit(views: Sequence[NodeView]) -> MemoryUnit:
    """The unit of the table."""
    units = {view.unit for view in views}
    return units.pop() if len(units) == 1 else MIB


def summary(views: Sequence[NodeView]) -> str:
    """One line per node: each GPU, pods whose GPU is unknown (PENDING), the node's sum."""
    unit = common_unit(views)
    rows = [_row(view, unit) for view in views]
    gpus = max((len(row.totals) for row in rows), default=0)
    some_pending = any(row.view.pending for row in rows)
    header = "NAME\tIPADDRESS\t" + "".join(f"GPU{index}(Allocated/Total)\t" for index in range(gpus))
    header += "PENDING(Allocated)\t" if some_pending else ""
    lines = [f"{header}GPU Memory({unit if rows else ''})"]
    for row in rows:
        line = f"{row.view.name}\t{row.view.address}\t"
        for index in range(gpus):
            line += f"{row.used[index]}/{row.totals[index]}\t" if index < len(row.totals) else "0/0\t"
        if some_pending:
            line += f"{row.pending}\t" if row.view.pending else "\t"
        lines.append(f"{line}{row.all_used}/{row.total}")
    # gpushare's ruler: as long as the first row's raw text with its newline, and 20 more.
    lines.append("-" * (len(lines[1]) + 1 + 20) if rows else "")
    lines.append("Allocated/Total GPU Memory In Cluster:")
    lines.append(f"{_of_cluster(rows)}\t\n")
    return align("\n".join(lines))


def details(views: Sequence[NodeView]) -> str:
    """Every node with its pods."""
    unit = common_unit(views)
    rows = [_row(view, unit) for view in views]
    text = ""
    ruler = 0
    for row in rows:
        if not row.total:
            continue
        text += f"\nNAME:\t{row.view.name}\nIPADDRESS:\t{row.view.address}\n\n"
        text += "NAME\tNAMESPACE\t" + "".join(f"GPU{one.gpu.index}(Allocated)\t" for one in row.gpus)
        text += ("Pending(Allocated)\t" if row.view.pending else "") + "\n"
        pods = _pod_lines(row, unit)
        ruler = ruler or len(pods) + 10
        text += pods
        text += f"Allocated :\t{row.all_used} ({_percent(row.all_used, row.total)}%)\t\n"
        text += f"Total :\t{row.total} \t\n"
        text += "-" * ruler + "\n"
    return align(f"{text}\n\nAllocated/Total GPU Memory In Cluster:\t{_of_cluster(rows)}\t\n")


def _row(view: NodeView, unit: MemoryUnit) -> _Row:
    # A GPU's total is in whole units of its own node first: what is left over cannot be given away.
    gpus = tuple(one for one in view.gpus if not one.gpu.parent)
    totals = (view.unit.to_mib(view.unit.units_in(one.gpu.memory_mib)) for one in gpus)
    used = (view.unit.to_mib(view.unit.units_in(one.used_mib)) for one in gpus)
    return _Row(
        view,
        gpus,
        tuple(map(unit.units_in, used)),
        tuple(map(unit.units_in, totals)),
        unit.units_in(sum(share.mib for share in view.pending)),
        unit.units_in(view.unit.to_mib(view.rest_units)),
    )


def _pod_lines(row: _Row, unit: MemoryUnit) -> str:
    """One line per pod, those without a known GPU first; a pod on several GPUs shows each share."""
    pods: dict[str, PodShare] = {}
    held: dict[tuple[str, int], int] = {}
    shown = [(len(row.gpus), row.view.pending), *((i, gpu.pods) for i, gpu in enumerate(row.gpus))]
    for column, shares in shown:
        for share in shares:
            pods.setdefault(share.uid, share)
            held[share.uid, column] = held.get((share.uid, column), 0) + share.mib
    columns = len(row.gpus) + bool(row.view.pending)
    return "".join(
        f"{pod.name}\t{pod.namespace}\t"
        + "".join(f"{unit.units_in(held.get((uid, column), 0))}\t" for column in range(columns))
        + "\n"
        for uid, pod in pods.items()
    )


def _of_cluster(rows: Sequence[_Row]) -> str:
    used, total = sum(row.all_used for row in rows), sum(row.total for row in rows)
    return f"{used}/{total} ({_percent(used, total)}%)"


def _percent(used: int, total: int) -> int:
    return used * 100 // total if total else 0
