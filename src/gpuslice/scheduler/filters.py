"""The filters that a node must pass, in kube-scheduler's order: the nodes' rules, their resources, their
GPUs.

A filter answers for all nodes at once when a pod is scheduled, and for one node with verdicts when the
decision is explained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from gpuslice.cluster.nodetable import Mask, NodeTable
from gpuslice.cluster.predicates import NODE_FILTERS
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.waiting import Demand
from gpuslice.placement.fleet import CODES
from gpuslice.placement.verdict import Code, Verdict, refusal
from gpuslice.scheduler.queue import Cause

_WITHOUT_NAME: Final[Mapping[Code, str]] = {
    Code.NODE_NOT_FOUND: "node(s) without GPUs",
    Code.NOT_GPU_NODE: "node(s) without GPUs of the kind asked for",
}
"""Sentences without the node's name: sentences that name different nodes would not be counted together."""


@dataclass(frozen=True, slots=True)
class Sieved:
    """Which rows pass; and, computed only if no node is left, how many of the other rows each sentence is
    about.
    """

    passing: Mask
    sentences: Callable[[], Counter[str]]


@dataclass(frozen=True, slots=True)
class Refused:
    """A filter's refusal of one node."""

    filter: str
    verdict: Verdict


class Filter(ABC):
    """One filter. `cause`: the kind of change that may lift its refusal."""

    cause: ClassVar[Cause]

    @abstractmethod
    def sieve(self, demand: Demand, left: Mask) -> Sieved:
        """Filter the rows that are left, all at once."""

    @abstractmethod
    def refusals(self, demand: Demand, node: str, row: int) -> list[Refused]:
        """Every refusal of one node."""


class NodeRulesFilter(Filter):
    """Name, taints, labels: `cluster.predicates`, whose answers the table keeps."""

    cause = Cause.RULES

    def __init__(self, table: NodeTable) -> None:
        self._table = table

    def sieve(self, demand: Demand, left: Mask) -> Sieved:
        refusals = self._table.answers(demand.rules).refusals

        def sentences() -> Counter[str]:
            times = np.bincount(refusals[left]).tolist()
            said = {self._table.reasons[reason].message: n for reason, n in enumerate(times) if reason and n}
            return Counter(said)

        return Sieved(left & (refusals == 0), sentences)

    def refusals(self, demand: Demand, node: str, row: int) -> list[Refused]:
        seen = self._table.node(node)
        assert seen is not None  # it has a row
        said = ((rule.name, rule.refusal(demand.rules, seen)) for rule in NODE_FILTERS)
        return [Refused(name, verdict) for name, verdict in said if verdict is not None][:1]


class ResourcesFilter(Filter):
    """CPU, memory, pods, extended resources and host ports: kube-scheduler's NodeResourcesFit, NodePorts."""

    cause = Cause.RESOURCES

    def __init__(self, table: NodeTable) -> None:
        self._table = table

    def sieve(self, demand: Demand, left: Mask) -> Sieved:
        passing = left & self._table.fits(demand.footprint)
        return Sieved(passing, lambda: self._table.shortage_counts(demand.footprint, left & ~passing))

    def refusals(self, demand: Demand, node: str, row: int) -> list[Refused]:
        return [Refused("NodeResourcesFit", v) for v in self._table.shortages(demand.footprint, row)]


class GpuFilter(Filter):
    """The placement engine's answers for the nodes' GPUs."""

    cause = Cause.GPU

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def sieve(self, demand: Demand, left: Mask) -> Sieved:
        if not demand.request:
            return Sieved(left, Counter)
        codes = self._cluster.gpu_codes(demand.request)

        def sentences() -> Counter[str]:
            counts: Counter[str] = Counter()
            for number, times in enumerate(np.bincount(codes[left]).tolist()):
                if number and times:
                    code = CODES[number]
                    counts[_WITHOUT_NAME.get(code) or refusal(code, "").message] += times
            return counts

        return Sieved(left & (codes == 0), sentences)

    def refusals(self, demand: Demand, node: str, row: int) -> list[Refused]:
        verdict = self._cluster.check(demand.request, node) if demand.request else None
        return [] if verdict is None or verdict.ok else [Refused("GPU", verdict)]


def filters_of(cluster: Cluster) -> tuple[Filter, ...]:
    """All filters, in their order."""
    return NodeRulesFilter(cluster.table), ResourcesFilter(cluster.table), GpuFilter(cluster)
