"""Whether a node takes a pod, apart from its devices: pure, with the kubelet's reasons and texts.

Source: pkg/kubelet/lifecycle/predicate.go. Extended resources are not counted here: those of plugins are
settled by the device manager, which is asked first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpuslice.kube.wire import NodeSelectorRequirement, NodeSelectorTerm
from gpuslice.local.kubelet.podspec import RunContainer, RunPod
from gpuslice.units import parse_quantity


@dataclass(frozen=True, slots=True)
class Rejection:
    """The pod ends as Failed with this reason and message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Need:
    """What a pod counts for: CPU in millicores, memory in bytes."""

    cpu_milli: int = 0
    memory: int = 0


def check_resources(
    pod: Need, others: Iterable[Need], *, cpu_milli: int, memory: int, pods: int
) -> Rejection | None:
    """The first resource that does not suffice, in the kubelet's order, or None."""
    running = list(others)
    if len(running) + 1 > pods:
        return _out_of("pods", 1, len(running), pods)
    used_cpu = sum(other.cpu_milli for other in running)
    if pod.cpu_milli and pod.cpu_milli > cpu_milli - used_cpu:
        return _out_of("cpu", pod.cpu_milli, used_cpu, cpu_milli)
    used_memory = sum(other.memory for other in running)
    if pod.memory and pod.memory > memory - used_memory:
        return _out_of("memory", pod.memory, used_memory, memory)
    return None


def _out_of(resource: str, requested: int, used: int, capacity: int) -> Rejection:
    return Rejection(
        f"OutOf{resource}",
        f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, "
        f"capacity: {capacity}",
    )


def need_of(pod: RunPod) -> Need:
    """The pod's effective request: apps plus sidecars, or a larger moment during its init containers."""
    return Need(_effective(pod, "cpu", 1000), _effective(pod, "memory", 1))


def _effective(pod: RunPod, resource: str, scale: int) -> int:
    def asks(container: RunContainer) -> Fraction:
        requests = container.resources.requests or {}
        limits = container.resources.limits or {}
        value = requests.get(resource, limits.get(resource, 0))
        return parse_quantity(value if not isinstance(value, float) else str(value), field=resource)

    sidecars, peak = Fraction(0), Fraction(0)
    for container in pod.init_containers:
        if container.sidecar:
            sidecars += asks(container)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + asks(container))
    total = max(peak, sidecars + sum((asks(container) for container in pod.spec.containers), Fraction(0)))
    overhead = (pod.spec.overhead or {}).get(resource)
    if overhead is not None:
        total += parse_quantity(str(overhead), field=resource)
    return -int(-total * scale // 1)  # rounded up, as Quantity.MilliValue does


def asks_for_a_node(pod: RunPod) -> bool:
    """True if `check_affinity` could refuse the pod, so that the node's labels are worth reading."""
    affinity = pod.spec.affinity
    node = affinity.node_affinity if affinity else None
    required = node.required_during_scheduling_ignored_during_execution if node else None
    return bool(pod.spec.node_selector or required)


def check_affinity(pod: RunPod, node: str, labels: Mapping[str, str]) -> Rejection | None:
    """Does the node still have the labels that the pod insists on?"""
    selector = pod.spec.node_selector or {}
    fits = all(labels.get(key) == value for key, value in selector.items())
    affinity = pod.spec.affinity
    required = (
        affinity.node_affinity.required_during_scheduling_ignored_during_execution
        if affinity and affinity.node_affinity
        else None
    )
    if fits and required is not None:
        fits = any(_term(term, node, labels) for term in required.node_selector_terms)
    if fits:
        return None
    return Rejection(
        "NodeAffinity",
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
    )


def _term(term: NodeSelectorTerm, node: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not expressions and not fields:
        return False  # an empty term selects nothing
    return all(_requirement(one, labels) for one in expressions) and all(
        _requirement(one, {"metadata.name": node}) for one in fields
    )


def _requirement(one: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(one.key), one.values or ()
    match one.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" if value is not None and len(values) == 1:
            try:
                have, limit = int(value), int(values[0])
            except ValueError:
                return False
            return have > limit if one.operator == "Gt" else have < limit
    return False
