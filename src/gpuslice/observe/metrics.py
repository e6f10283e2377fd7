"""Prometheus metrics of the scheduling side.

Per-GPU series belong to the node agents; a central process with 40,000 of them would spend half a second
on every scrape. Here the cluster is summed up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Metrics:
    """Counters and histograms with a registry of their own, so that two instances never collide."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "gpuslice_extender_request_seconds",
            "Time to answer a request of kube-scheduler.",
            ["verb"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.verdicts = Counter(
            "gpuslice_verdicts",
            "Decisions about pods and nodes by reason.",
            ["verb", "code"],
            registry=self.registry,
        )

    def watch_totals(self, read: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        """Export sums that are computed at scrape time: (name, help, value)."""
        self.registry.register(_Totals(read))

    def render(self) -> bytes:
        """The text that /metrics answers."""
        return generate_latest(self.registry)


class _Totals(Collector):
    def __init__(self, read: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        self._read = read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, explanation, value in self._read():
            yield GaugeMetricFamily(name, explanation, value=value)
