"""One decision: which node, or why none. Filter, score, choose, in arrays over all nodes.

The order of the filters and the sentences are kube-scheduler's; the GPU sentences are the placement
engine's. Equal sentences are counted together: `0/3 nodes are available: 1 node(s) were unschedulable,
2 Insufficient cpu.`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gpuslice.cluster.nodetable import Answers, Mask
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.waiting import Demand, WaitingPod
from gpuslice.placement.fleet import CODES
from gpuslice.placement.verdict import Code, refusal
from gpuslice.scheduler.queue import NODE_CAUSES, Cause

AFFINITY_WEIGHT: Final = 2
TAINT_WEIGHT: Final = 3
"""How much preferences count beside packing: kube-scheduler's default weights."""
NO_NODES: Final = "no nodes available to schedule pods"
KEPT: Final = "node(s) kept their room for a nominated pod"
_WITHOUT_NAME: Final[Mapping[Code, str]] = {
    Code.NODE_NOT_FOUND: "node(s) without GPUs",
    Code.NOT_GPU_NODE: "node(s) without GPUs of the kind asked for",
}
"""Sentences that name the node would not be counted together."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The node; or "" with the sentence for people and what kind of change could help."""

    node: str
    message: str = ""
    causes: Cause = Cause.SELF


class Cycle:
    """Decides about one pod at a time on the current state. Changes nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._table = cluster.table
        self._nominations = cluster.nominations

    def decide(self, waiting: WaitingPod) -> Decision:
        """Choose a node for a pod."""
        if waiting.problem:
            return Decision("", waiting.problem)
        demand, table = waiting.demand, self._table
        if not len(table):
            return Decision("", NO_NODES, NODE_CAUSES)
        answers = table.answers(demand.rules)
        suits = table.suits(answers)
        room = suits & table.fits(demand.footprint)
        codes = self._cluster.gpu_codes(demand.request) if demand.request else None
        fits = room if codes is None else room & (codes == 0)
        kept = self._kept(waiting, fits)
        if kept.any():
            fits = fits & ~kept
        own = self._nominations.of(waiting.uid)
        if own is not None and (row := table.row(own.node)) is not None and fits[row]:
            return Decision(own.node)
        rows = np.flatnonzero(fits)
        if len(rows):
            best = rows[0] if len(rows) == 1 else rows[int(np.argmax(self._scores(demand, answers, rows)))]
            return Decision(str(table.names[best]))
        return self._refuse(demand, answers, room=room, suits=suits, codes=codes, kept=kept)

    def helps(self, demand: Demand, node: str) -> bool:
        """Would this one node take such a pod now? (Nominations are left to `decide`.)"""
        row = self._table.row(node)
        return (
            row is not None
            and not self._table.answers(demand.rules).refusals[row]
            and not self._table.shortages(demand.footprint, row)
            and (not demand.request or self._cluster.check(demand.request, node).ok)
        )

    # --- inside -----------------------------------------------------------------------------------
    def _kept(self, waiting: WaitingPod, fits: Mask) -> Mask:
        kept = np.zeros_like(fits)
        for node in self._nominations.nodes if len(self._nominations) else ():
            row = self._table.row(node)
            if row is not None and fits[row] and not self._nominations.allow(waiting, node):
                kept[row] = True
        return kept

    def _scores(self, demand: Demand, answers: Answers, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
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

    def _refuse(
        self,
        demand: Demand,
        answers: Answers,
        *,
        room: Mask,
        suits: Mask,
        codes: npt.NDArray[np.uint8] | None,
        kept: Mask,
    ) -> Decision:
        table, causes = self._table, Cause(0)
        counts: Counter[str] = Counter()
        for reason, times in enumerate(np.bincount(answers.refusals[table.alive]).tolist()):
            if reason and times:
                counts[table.reasons[reason]] += times
                causes |= Cause.RULES
        full = suits & ~room
        if full.any():
            counts += table.shortage_counts(demand.footprint, full)
            causes |= Cause.RESOURCES
        if codes is not None:
            for number, times in enumerate(np.bincount(codes[room]).tolist()):
                if number and times:
                    code = CODES[number]
                    counts[_WITHOUT_NAME.get(code) or refusal(code, "").message] += times
                    causes |= Cause.GPU
        if kept.any():
            counts[KEPT] += int(kept.sum())
            causes |= Cause.RESOURCES | Cause.GPU
        reasons = ", ".join(sorted(f"{times} {text}" for text, times in counts.items()))
        return Decision("", f"0/{len(table)} nodes are available: {reasons}.", causes)
