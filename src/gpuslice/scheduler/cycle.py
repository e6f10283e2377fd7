"""Makes one decision: which node, or why none. Filter, score, choose, in arrays over all nodes.

The order of the filters and the sentences are kube-scheduler's; the GPU sentences are the placement
engine's. Equal sentences are counted together: `0/3 nodes are available: 1 node(s) were unschedulable,
2 Insufficient cpu.`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gpuslice.cluster.nodetable import Mask
from gpuslice.cluster.podcode import PodCode
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.waiting import Demand, WaitingPod
from gpuslice.placement.verdict import FITS, Verdict
from gpuslice.scheduler.filters import Sieved, filters_of
from gpuslice.scheduler.queue import NODE_CAUSES, Cause

AFFINITY_WEIGHT: Final = 2
TAINT_WEIGHT: Final = 3
"""The weights of preferences against packing: kube-scheduler's defaults."""
NO_NODES: Final = Verdict(PodCode.NO_NODE_FITS, "no nodes available to schedule pods", {"nodes": 0})
KEPT: Final = "node(s) kept their room for a nominated pod"


@dataclass(frozen=True, slots=True)
class Decision:
    """The node; or "" with the verdict on all nodes together and the kinds of change that could help."""

    node: str
    verdict: Verdict = FITS
    causes: Cause = Cause.SELF


class Cycle:
    """Decides about one pod at a time on the current state. Changes nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._table = cluster.table
        self._nominations = cluster.nominations
        self._filters = filters_of(cluster)

    def decide(self, waiting: WaitingPod) -> Decision:
        """Choose a node for a pod."""
        if waiting.problem:
            return Decision("", Verdict(PodCode.UNSUPPORTED, waiting.problem))
        demand, table = waiting.demand, self._table
        if not len(table):
            return Decision("", NO_NODES, NODE_CAUSES)
        fits, sieved = table.alive, []
        for step in self._filters:
            sieved.append((step.cause, step.sieve(demand, fits)))
            fits = sieved[-1][1].passing
        kept = self._kept(waiting, fits)
        fits = fits & ~kept
        own = self._nominations.of(waiting.uid)
        if own is not None and (row := table.row(own.node)) is not None and fits[row]:
            return Decision(own.node)
        rows = np.flatnonzero(fits)
        if len(rows):
            best = rows[0] if len(rows) == 1 else rows[int(np.argmax(self._scores(demand, rows)))]
            return Decision(str(table.names[best]))
        return self._refuse(sieved, kept)

    def helps(self, demand: Demand, node: str) -> bool:
        """True if this one node would take such a pod now. (Nominations are left to `decide`.)"""
        row = self._table.row(node)
        return row is not None and not any(step.refusals(demand, node, row) for step in self._filters)

    # --- inside -----------------------------------------------------------------------------------
    def _kept(self, waiting: WaitingPod, fits: Mask) -> Mask:
        kept = np.zeros_like(fits)
        for node in self._nominations.nodes if len(self._nominations) else ():
            row = self._table.row(node)
            if row is not None and fits[row] and not self._nominations.allow(waiting, node):
                kept[row] = True
        return kept

    def _scores(self, demand: Demand, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        answers = self._table.answers(demand.rules)
        if demand.request:
            fleet, policy = self._cluster.fleet, self._cluster.policy
            scores = fleet.score_rows(demand.request, self._cluster.fleet_rows()[rows], policy) // 10
        else:
            scores = self._table.spare(demand.footprint, rows)
        weights, soft = answers.weights[rows].astype(np.int64), answers.soft[rows].astype(np.int64)
        if (most := int(weights.max())) > 0:
            scores = scores + AFFINITY_WEIGHT * (weights * 100 // most)
        if (most := int(soft.max())) > 0:
            scores = scores - TAINT_WEIGHT * (soft * 100 // most)
        return scores

    def _refuse(self, sieved: Iterable[tuple[Cause, Sieved]], kept: Mask) -> Decision:
        counts, causes = Counter[str](), Cause(0)
        for cause, step in sieved:
            if sentences := step.sentences():
                counts += sentences
                causes |= cause
        if kept.any():
            counts[KEPT] += int(kept.sum())
            causes |= Cause.RESOURCES | Cause.GPU
        reasons = ", ".join(sorted(f"{times} {text}" for text, times in counts.items()))
        nodes = len(self._table)
        sentence = f"0/{nodes} nodes are available: {reasons}."
        return Decision("", Verdict(PodCode.NO_NODE_FITS, sentence, {"nodes": nodes}), causes)
