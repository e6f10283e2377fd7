"""Finds nodes that cannot reach their desired state: MIG partitioning, device plugin configuration."""

from __future__ import annotations

from collections.abc import Iterator

from gpuslice import names
from gpuslice.devices.migstate import MigState
from gpuslice.doctor.checks.say import brief
from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.objects import Node


def check(facts: Facts) -> Iterator[Finding]:
    """In the words of the node's agent."""
    for node in facts.nodes:
        yield from _partitioned(node)
        yield from _configured(node)


def _partitioned(node: Node) -> Iterator[Finding]:
    labels = node.metadata.labels or {}
    if labels.get(names.MIG_CONFIG_STATE) == MigState.FAILED:
        reason = node.annotations.get(names.MIG_CONFIG_REASON, "its agent did not say why")
        asked = labels.get(names.MIG_CONFIG) or f"by the policy {labels.get(names.MIG_POLICY, 'static')}"
        yield Finding(
            Area.AGENT,
            "mig-not-partitioned",
            Level.WARNING,
            f"Node/{node.name}",
            f"node {node.name} is not partitioned as it should be ({asked}): {brief(reason)}",
            f"kubectl label node {node.name} {names.MIG_CONFIG}=NAME --overwrite   # one that exists",
        )


def _configured(node: Node) -> Iterator[Finding]:
    reason = node.annotations.get(names.DEVICE_CONFIG_REASON)
    if reason:
        yield Finding(
            Area.AGENT,
            "device-config-unusable",
            Level.WARNING,
            f"Node/{node.name}",
            f"the configuration that should count on node {node.name} does not: {brief(reason)}",
            f"kubectl label node {node.name} nvidia.com/device-plugin.config=NAME --overwrite   "
            "# or mend the file: gpuslice validate FILE",
        )
