"""Checks that a unit means the same everywhere, and that no GPU is promised more memory than it has."""

from __future__ import annotations

from collections.abc import Iterator

from gpuslice import names
from gpuslice.cluster.records import NodeView
from gpuslice.doctor.checks.say import listed
from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.objects import Node


def check(facts: Facts) -> Iterator[Finding]:
    """Units, then GPUs."""
    yield from _units(facts)
    yield from _unpublished(facts)
    for view in facts.views.values():
        yield from _overcommitted(facts, view)


def _publishes(node: Node) -> bool:
    return names.NODE_GPUS in node.annotations


def _units(facts: Facts) -> Iterator[Finding]:
    """A pod asks for a number; on nodes that disagree it gets more or less."""
    found: dict[str, list[str]] = {}
    for node in facts.nodes:
        if _publishes(node) and not facts.views[node.name].problem:
            found.setdefault(str(facts.views[node.name].unit), []).append(node.name)
    if len(found) < 2:
        return
    ranked = sorted(found.items(), key=lambda one: -len(one[1]))
    usual, (odd_unit, odd) = ranked[0][0], ranked[-1]
    said = listed(f"{unit} on {listed(nodes)}" for unit, nodes in ranked)
    yield Finding(
        Area.UNITS,
        "unit-mismatch",
        Level.ERROR,
        f"Node/{odd[0]}",
        f"one {names.GPU_MEM} is not the same on all nodes ({said}): node {odd[0]} with {odd_unit} gives a "
        "pod another amount than it would get elsewhere",
        "restart gpuslice up with one memoryUnit in its cluster file"
        if facts.in_one_process
        else f"helm upgrade gpuslice deploy/helm/gpuslice -n {_namespace(facts)} --reuse-values "
        f"--set memoryUnit={usual}",
        {"units": len(found), "nodes": len(odd)},
    )


def _namespace(facts: Facts) -> str:
    return facts.agents.workloads[0].namespace if facts.agents.workloads else "gpuslice-system"


def _unpublished(facts: Facts) -> Iterator[Finding]:
    """gpushare's nodes say nowhere what a unit is; beside ours that is a guess."""
    if not any(map(_publishes, facts.nodes)):
        return
    old = [
        node.name
        for node in facts.nodes
        if names.MEMORY_UNIT not in node.annotations and facts.units(node) and facts.views[node.name].gpus
    ]
    if old:
        yield Finding(
            Area.UNITS,
            "unit-unpublished",
            Level.WARNING,
            f"Node/{old[0]}",
            f"node {listed(old)} offers {names.GPU_MEM} without saying what one unit is (gpushare's "
            "plugin), beside nodes that do; it is taken for what the size of the GPUs suggests",
            "kubectl -n kube-system delete daemonset gpushare-device-plugin-ds   # our agent takes over "
            "where gpushare=true, and running pods stay",
            {"nodes": len(old)},
        )


def _overcommitted(facts: Facts, view: NodeView) -> Iterator[Finding]:
    records = facts.cluster.pods_on(view.name)
    for one in facts.cluster.fleet.free_gpus(view.name):
        if one.free_mib >= 0:
            continue
        holders = [record for record in records if any(c.gpu == one.gpu.uuid for c in record.charges)]
        newest = max(holders, key=lambda record: (-record.priority, record.key))
        yield Finding(
            Area.MEMORY,
            "gpu-overcommitted",
            Level.ERROR,
            f"Node/{view.name}",
            f"GPU{one.gpu.index} ({one.gpu.uuid}) of node {view.name} has {one.gpu.memory_mib} MiB, but "
            f"{one.gpu.memory_mib - one.free_mib} MiB of it are promised, to pod "
            f"{listed(record.key for record in holders)}: whoever comes last runs out of memory",
            f"kubectl -n {newest.namespace} delete pod {newest.name}   # it is placed anew",
            {"total_mib": one.gpu.memory_mib, "free_mib": one.free_mib, "pods": len(holders)},
        )
