"""Holds the nodes' ordinary resources as arrays, and every node's answer to every kind of pod.

One row per node. A pod's resources are compared with all rows in a few numpy operations. What does not depend
on the load (labels, taints, names) is computed once per distinct `NodeRules` and kept, so that for the
thousandth pod of a Deployment no node is looked at again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from gpuslice.cluster.predicates import (
    NO_MATCH,
    NodeCode,
    NodeRules,
    node_refusal,
    only_nodes,
    preferred_weight,
    soft_taints,
)
from gpuslice.cluster.resources import (
    CPU,
    EPHEMERAL,
    MEMORY,
    PODS,
    Footprint,
    conflict,
    footprint_of,
    read_amounts,
)
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.verdict import FITS, Verdict
from gpuslice.requests.kinds import kind_of

Mask = npt.NDArray[np.bool_]
Amounts = npt.NDArray[np.int64]
PORTS_TAKEN: Final = Verdict(
    NodeCode.PORTS_TAKEN, "node(s) didn't have free ports for the requested pod ports"
)
TOO_MANY_PODS: Final = Verdict(NodeCode.TOO_MANY_PODS, "Too many pods")
CLASSES: Final = 256
"""Number of distinct rules whose answers are kept; beyond it the least recently used is dropped."""


@dataclass(frozen=True, slots=True)
class AssignedPod:
    """A pod on a node (or about to be)."""

    uid: str
    namespace: str
    name: str
    node: str
    priority: int
    footprint: Footprint
    created: str = ""
    terminating: bool = False


@dataclass(slots=True)
class Answers:
    """The answer of every row to one set of rules: an index into `NodeTable.reasons`, and its preference
    score.
    """

    refusals: npt.NDArray[np.int16]
    weights: npt.NDArray[np.int32]
    soft: npt.NDArray[np.int32]


class NodeTable:
    """Mutable, synchronous, for one event loop."""

    def __init__(self) -> None:
        self.version = 0
        """Changes when rows come or go."""
        self.reasons: list[Verdict] = [FITS]
        """Refusals by index; 0 means that the node suits."""
        self._reason_index: dict[str, int] = {FITS.message: 0}
        self._row: dict[str, int] = {}
        self._nodes: list[Node | None] = []
        self._free_rows: list[int] = []
        self._column: dict[str, int] = {CPU: 0, MEMORY: 1, EPHEMERAL: 2, PODS: 3}
        self._names: npt.NDArray[np.object_] = np.full(16, "", object)
        self._alive: Mask = np.zeros(16, np.bool_)
        self._total: Amounts = np.zeros((4, 16), np.int64)
        self._used: Amounts = np.zeros((4, 16), np.int64)
        self._answers: OrderedDict[NodeRules, Answers] = OrderedDict()
        self._pods: dict[str, AssignedPod] = {}
        self._on: dict[str, dict[str, AssignedPod]] = {}
        self._ports: dict[str, int] = {}  # node -> how many of its pods hold host ports
        self._priorities: Counter[int] = Counter()

    @property
    def nbytes(self) -> int:
        """What the amounts of all nodes occupy."""
        return self._total.nbytes + self._used.nbytes

    # --- feeds ------------------------------------------------------------------------------------
    def set_node(self, node: Node) -> None:
        """A node was added or changed."""
        row = self._row.get(node.name)
        old = None if row is None else self._nodes[row]
        if row is None:
            row = self._new_row(node.name)
        self._nodes[row] = node
        if old is None:
            for assigned in self._on.get(node.name, {}).values():
                self._charge(row, assigned.footprint, 1)
        if old is None or old.status.allocatable != node.status.allocatable:
            self._set_total(row, node)
        if old is None or _statics(old) != _statics(node):
            for rules, answers in self._answers.items():
                self._answer(rules, answers, row)

    def drop_node(self, name: str) -> None:
        """A node is gone; its pods stay known until they are gone too."""
        row = self._row.pop(name, None)
        if row is None:
            return
        self._nodes[row] = None
        self._names[row] = ""
        self._alive[row] = False
        self._total[:, row] = self._used[:, row] = 0
        self._free_rows.append(row)
        self.version += 1

    def set_pod(self, pod: Pod, node: str = "") -> None:
        """A pod is on its node, or is about to be on `node`. Finished pods take nothing."""
        node = node or pod.spec.node_name
        if not node:
            return
        if pod.status.phase in ("Succeeded", "Failed"):
            self.drop_pod(pod.uid)
            return
        try:
            footprint = footprint_of(pod.spec)
        except InputError:
            footprint = Footprint()  # the API server admits no such pod; a kubelet would not run it
        assigned = AssignedPod(
            pod.uid,
            pod.namespace,
            pod.name,
            node,
            pod.spec.priority,
            footprint,
            pod.metadata.creation_timestamp or "",
            terminating=pod.metadata.deletion_timestamp is not None,
        )
        if assigned == self._pods.get(pod.uid):
            return
        self.drop_pod(pod.uid)
        self._pods[pod.uid] = assigned
        self._on.setdefault(node, {})[pod.uid] = assigned
        self._priorities[assigned.priority] += 1
        self._tally(assigned, 1)

    def drop_pod(self, uid: str) -> AssignedPod | None:
        """A pod is gone. Returns what it was, None if it was unknown."""
        assigned = self._pods.pop(uid, None)
        if assigned is None:
            return None
        siblings = self._on[assigned.node]
        del siblings[uid]
        if not siblings:
            del self._on[assigned.node]
        self._priorities[assigned.priority] -= 1
        if not self._priorities[assigned.priority]:
            del self._priorities[assigned.priority]
        self._tally(assigned, -1)
        return assigned

    # --- questions --------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, node: str) -> bool:
        return node in self._row

    @property
    def alive(self) -> Mask:
        """Which rows are nodes."""
        return self._alive

    @property
    def names(self) -> npt.NDArray[np.object_]:
        """The node name of every row, "" where there is none."""
        return self._names

    @property
    def lowest_priority(self) -> int | None:
        """The lowest priority of any pod on any node."""
        return min(self._priorities, default=None)

    def row(self, node: str) -> int | None:
        """The row of a node."""
        return self._row.get(node)

    def node(self, name: str) -> Node | None:
        """The node as last seen."""
        row = self._row.get(name)
        return None if row is None else self._nodes[row]

    def pod(self, uid: str) -> AssignedPod | None:
        """A pod that is on a node."""
        return self._pods.get(uid)

    def pods_on(self, node: str) -> list[AssignedPod]:
        """The pods on a node."""
        return list(self._on.get(node, {}).values())

    def answers(self, rules: NodeRules) -> Answers:
        """The answers of all rows to the rules; kept up to date until they are dropped."""
        known = self._answers.get(rules)
        if known is not None:
            self._answers.move_to_end(rules)
            return known
        size = len(self._alive)
        named = only_nodes(rules)
        refusal = 0 if named is None else self._reason(NO_MATCH)
        answers = Answers(
            np.full(size, refusal, np.int16), np.zeros(size, np.int32), np.zeros(size, np.int32)
        )
        for row in self._row.values() if named is None else (self._row[n] for n in named if n in self._row):
            self._answer(rules, answers, row)
        if named is None:  # a DaemonSet's pods have rules of their own each: not worth keeping
            self._answers[rules] = answers
            if len(self._answers) > CLASSES:
                self._answers.popitem(last=False)
        return answers

    def suits(self, answers: Answers) -> Mask:
        """The rows that pass the rules."""
        return cast("Mask", self._alive & (answers.refusals == 0))

    def fits(self, footprint: Footprint) -> Mask:
        """The rows where the pod's resources and ports are free."""
        fits = self._alive & (self._used[3] < self._total[3])
        for name, amount in footprint.amounts:
            column = self._column.get(name)
            if column is None:
                return np.zeros_like(self._alive)
            fits &= self._used[column] + amount <= self._total[column]
        if footprint.ports:
            for node in self._ports:
                row = self._row.get(node)
                if row is not None and fits[row] and conflict(footprint.ports, self._taken(node, ())):
                    fits[row] = False
        return cast("Mask", fits)

    def shortages(
        self,
        footprint: Footprint,
        row: int,
        gone: Iterable[AssignedPod] = (),
        extra: Iterable[Footprint] = (),
    ) -> list[Verdict]:
        """What a row lacks for a pod, in kube-scheduler's words.

        `gone`: pods counted as if they had left; `extra`: footprints counted as if they were there.
        """
        gone, extra = list(gone), list(extra)
        lacks: list[Verdict] = []
        node = str(self._names[row])
        if footprint.ports:
            taken = self._taken(node, {assigned.uid for assigned in gone}).union(*(e.ports for e in extra))
            if conflict(footprint.ports, taken):
                lacks.append(PORTS_TAKEN)
        free = self._total[:, row] - self._used[:, row]
        for change, sign in (*((t.footprint, 1) for t in gone), *((e, -1) for e in extra)):
            for name, amount in change.amounts:
                if name in self._column:
                    free[self._column[name]] += sign * amount
            free[3] += sign
        if free[3] < 1:
            lacks.append(TOO_MANY_PODS)
        for name, amount in footprint.amounts:
            column = self._column.get(name)
            if column is None or amount > free[column]:
                lacks.append(_insufficient(name, amount, 0 if column is None else int(free[column])))
        return lacks

    def shortage_counts(self, footprint: Footprint, rows: Mask) -> Counter[str]:
        """For how many of the rows each sentence of `shortages` holds."""
        counts: Counter[str] = Counter()
        if footprint.ports:
            for row in np.flatnonzero(rows):
                counts.update(verdict.message for verdict in self.shortages(footprint, int(row)))
            return counts
        counts[TOO_MANY_PODS.message] = int((self._used[3] >= self._total[3])[rows].sum())
        for name, amount in footprint.amounts:
            column = self._column.get(name)
            short = rows if column is None else rows & (self._used[column] + amount > self._total[column])
            counts[f"Insufficient {name}"] = int(short.sum())
        return +counts

    def spare(self, footprint: Footprint, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """0..100 per row: how much of CPU, memory and pods would stay free with the pod there."""
        shares = np.zeros(len(rows), np.int64)
        wanted = dict(footprint.amounts)
        for name in (CPU, MEMORY, PODS):
            column = self._column[name]
            total = np.maximum(self._total[column, rows], 1)
            free = total - self._used[column, rows] - (1 if name == PODS else wanted.get(name, 0))
            shares += np.clip(free * 100 // total, 0, 100)
        return shares // 3

    # --- inside -----------------------------------------------------------------------------------
    def _new_row(self, name: str) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self._nodes)
            self._nodes.append(None)
            if row >= len(self._alive):
                self._grow(2 * row)
        self._row[name] = row
        self._names[row] = name
        self._alive[row] = True
        self.version += 1
        return row

    def _grow(self, size: int) -> None:
        more = size - len(self._alive)
        self._names = np.append(self._names, np.full(more, "", object))
        self._alive = np.append(self._alive, np.zeros(more, np.bool_))
        self._total = np.pad(self._total, ((0, 0), (0, more)))
        self._used = np.pad(self._used, ((0, 0), (0, more)))
        self._answers.clear()

    def _set_total(self, row: int, node: Node) -> None:
        self._total[:, row] = 0
        try:
            amounts = read_amounts(
                node.status.allocatable or node.status.capacity or {}, "status.allocatable"
            )
        except InputError:
            amounts = {}  # a node that does not say what it has gets no pods
        for name, amount in amounts.items():
            if kind_of(name) is None:
                column = self._column_of(name)  # may replace the arrays: first the column, then the array
                self._total[column, row] = amount

    def _column_of(self, name: str) -> int:
        column = self._column.get(name)
        if column is None:
            column = self._column[name] = len(self._total)
            self._total = np.pad(self._total, ((0, 1), (0, 0)))
            self._used = np.pad(self._used, ((0, 1), (0, 0)))
            for node, pods in self._on.items():
                if (row := self._row.get(node)) is not None:
                    taken = (dict(assigned.footprint.amounts).get(name, 0) for assigned in pods.values())
                    self._used[column, row] = sum(taken)
        return column

    def _charge(self, row: int, footprint: Footprint, sign: int) -> None:
        for name, amount in footprint.amounts:
            # Pods can ask for anything; a resource that no node has gets no column here.
            if (column := self._column.get(name)) is not None:
                self._used[column, row] += sign * amount
        self._used[3, row] += sign

    def _tally(self, assigned: AssignedPod, sign: int) -> None:
        row = self._row.get(assigned.node)
        if row is not None:
            self._charge(row, assigned.footprint, sign)
        if assigned.footprint.ports:
            left = self._ports.get(assigned.node, 0) + sign
            if left:
                self._ports[assigned.node] = left
            else:
                del self._ports[assigned.node]

    def _taken(self, node: str, but: Iterable[str]) -> frozenset[tuple[str, str, int]]:
        skip = set(but)
        pods = self._on.get(node, {}).values()
        return frozenset(port for t in pods if t.uid not in skip for port in t.footprint.ports)

    def _answer(self, rules: NodeRules, answers: Answers, row: int) -> None:
        node = self._nodes[row]
        if node is not None:
            answers.refusals[row] = self._reason(node_refusal(rules, node) or FITS)
            answers.weights[row] = preferred_weight(rules, node)
            answers.soft[row] = soft_taints(rules, node)

    def _reason(self, verdict: Verdict) -> int:
        index = self._reason_index.get(verdict.message)
        if index is None:
            index = self._reason_index[verdict.message] = len(self.reasons)
            self.reasons.append(verdict)
        return index


def _insufficient(name: str, wanted: int, free: int) -> Verdict:
    return Verdict(NodeCode.INSUFFICIENT, f"Insufficient {name}", {"wanted": wanted, "free": free})


def _statics(node: Node) -> tuple[object, ...]:
    return node.metadata.labels, node.spec.taints, node.spec.unschedulable
