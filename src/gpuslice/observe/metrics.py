"""Prometheus metrics of the scheduling side.

Per-GPU series belong to the node agents; a central process with 40,000 of them would spend half a second
on every scrape. Here the cluster is summed up.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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

        self.gpus = self._gauge("gpuslice_cluster_gpus", "GPUs in the cluster.")
        self.unhealthy_gpus = self._gauge("gpuslice_cluster_gpus_unhealthy", "GPUs that are unhealthy.")
        self.closed_gpus = self._gauge(
            "gpuslice_cluster_gpus_closed",
            "Healthy GPUs that nobody gets: being partitioned, or changing their use.",
        )
        self.memory_mib = self._gauge("gpuslice_cluster_gpu_memory_mib", "GPU memory in the cluster, MiB.")
        self.allocated_mib = self._gauge(
            "gpuslice_cluster_gpu_memory_allocated_mib", "GPU memory that pods hold, MiB."
        )
        self.unknown_pods = self._gauge(
            "gpuslice_cluster_pods_without_known_gpu", "Pods on a node whose GPU nobody recorded."
        )
        self.sums = (
            self.gpus,
            self.unhealthy_gpus,
            self.closed_gpus,
            self.memory_mib,
            self.allocated_mib,
            self.unknown_pods,
        )

        self.unreadable = Gauge(
            "gpuslice_unreadable_objects",
            "API objects that could not be read, by kind: see the log, and the events of each.",
            ["kind"],
            registry=self.registry,
        )

        self.failed_actions = Counter(
            "gpuslice_failed_actions",
            "Failures of writes and evictions for node pools, preemption and MIG on demand.",
            ["action"],
            registry=self.registry,
        )
        self._failed: Tally[str] = Tally()

    def count_unreadable(self, counts: Mapping[str, int]) -> None:
        """Objects that could not be read, by kind."""
        self.unreadable.clear()
        for kind, number in counts.items():
            self.unreadable.labels(kind).set(number)

    def count_failed_actions(self, counts: Mapping[str, int]) -> None:
        """The failed actions of controllers since the start, by the kind of action."""
        for action, number in counts.items():
            self.failed_actions.labels(action).inc(number - self._failed[action])
            self._failed[action] = number

    def render(self) -> bytes:
        """The text that /metrics answers."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, explanation: str) -> Gauge:
        return Gauge(name, explanation, registry=self.registry)
