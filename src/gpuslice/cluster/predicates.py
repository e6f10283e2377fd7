"""Checks a pod's rules about nodes: name, selector, affinity, taints. Pure.

The filters are kube-scheduler's plugins of the same names, in its order and with its sentences. None of these
refusals can be cured by evicting pods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gpuslice.kube.wire import (
    Node,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodSpec,
    PreferredSchedulingTerm,
    Taint,
    Toleration,
)
from gpuslice.placement.verdict import Reason, Verdict


class NodeCode(Reason):
    """Why a node does not take a pod, whatever GPUs it has."""

    UNSCHEDULABLE = "node_unschedulable"
    WRONG_NAME = "node_name_differs"
    TAINTED = "taint_not_tolerated"
    NO_MATCH = "node_affinity_differs"
    PORTS_TAKEN = "host_ports_taken"
    TOO_MANY_PODS = "too_many_pods"
    INSUFFICIENT = "insufficient_resource"


UNSCHEDULABLE: Final = Verdict(NodeCode.UNSCHEDULABLE, "node(s) were unschedulable")
WRONG_NAME: Final = Verdict(NodeCode.WRONG_NAME, "node(s) didn't match the requested node name")
NO_MATCH: Final = Verdict(NodeCode.NO_MATCH, "node(s) didn't match Pod's node affinity/selector")
CORDON: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint that a cordoned node counts as having, even before the node controller has written it."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
NAME_FIELD: Final = "metadata.name"


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Everything in a pod spec that concerns a node's name, labels and taints.

    Hashable: the pods of one controller have equal rules, so the answers of all nodes are kept per value.
    """

    node_name: str = ""
    selector: tuple[tuple[str, str], ...] = ()
    affinity: NodeSelector | None = None
    preferred: tuple[PreferredSchedulingTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


def rules_of(spec: PodSpec) -> NodeRules:
    """The rules of a pod."""
    node_affinity = spec.affinity.node_affinity if spec.affinity else None
    return NodeRules(
        spec.node_name,
        tuple(sorted((spec.node_selector or {}).items())),
        node_affinity.required_during_scheduling_ignored_during_execution if node_affinity else None,
        (node_affinity.preferred_during_scheduling_ignored_during_execution or ()) if node_affinity else (),
        spec.tolerations or (),
    )


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """One rule about nodes. `name`: kube-scheduler's; `refusal`: the verdict, None if the pod passes."""

    name: str
    refusal: Callable[[NodeRules, Node], Verdict | None]


def _unschedulable(rules: NodeRules, node: Node) -> Verdict | None:
    return UNSCHEDULABLE if node.spec.unschedulable and not tolerated(CORDON, rules.tolerations) else None


def _other_name(rules: NodeRules, node: Node) -> Verdict | None:
    return WRONG_NAME if rules.node_name and rules.node_name != node.name else None


def _tainted(rules: NodeRules, node: Node) -> Verdict | None:
    taint = untolerated(rules, node)
    if taint is None:
        return None
    return Verdict(NodeCode.TAINTED, f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}")


def _mismatch(rules: NodeRules, node: Node) -> Verdict | None:
    labels, affinity = node.labels, rules.affinity
    if any(labels.get(key) != value for key, value in rules.selector):
        return NO_MATCH
    if affinity is not None and not any(term_matches(term, node) for term in affinity.node_selector_terms):
        return NO_MATCH
    return None


NODE_FILTERS: Final = (
    NodeFilter("NodeUnschedulable", _unschedulable),
    NodeFilter("NodeName", _other_name),
    NodeFilter("TaintToleration", _tainted),
    NodeFilter("NodeAffinity", _mismatch),
)


def node_refusal(rules: NodeRules, node: Node) -> Verdict | None:
    """Why the node does not suit the pod, by the first filter that refuses it; None if the node suits."""
    for filter_ in NODE_FILTERS:
        if (refusal := filter_.refusal(rules, node)) is not None:
            return refusal
    return None


def only_nodes(rules: NodeRules) -> frozenset[str] | None:
    """The only nodes, by name, on which the pod can ever be, or None. DaemonSet pods name their node this
    way.
    """
    if rules.node_name:
        return frozenset((rules.node_name,))
    if rules.affinity is None:
        return None
    named: set[str] = set()
    for term in rules.affinity.node_selector_terms:
        values = [
            requirement.values or ()
            for requirement in term.match_fields or ()
            if requirement.key == NAME_FIELD and requirement.operator == "In"
        ]
        if not values:
            return None
        named.update(values[0])
    return frozenset(named)


def preferred_weight(rules: NodeRules, node: Node) -> int:
    """Sum of the weights of the preferred terms that the node matches."""
    return sum(
        preference.weight for preference in rules.preferred if term_matches(preference.preference, node)
    )


def soft_taints(rules: NodeRules, node: Node) -> int:
    """How many PreferNoSchedule taints of the node the pod does not tolerate."""
    return sum(
        taint.effect == "PreferNoSchedule" and not tolerated(taint, rules.tolerations)
        for taint in node.spec.taints or ()
    )


def untolerated(rules: NodeRules, node: Node) -> Taint | None:
    """The first taint of the node that keeps the pod away."""
    for taint in node.spec.taints or ():
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerated(taint, rules.tolerations):
            return taint
    return None


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """True if one of the tolerations covers the taint."""
    return any(_covers(toleration, taint) for toleration in tolerations)


def _covers(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and bool(toleration.key) and toleration.value == taint.value


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """True if a node has everything that one term asks for. An empty term matches no node."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not expressions and not fields:
        return False
    own_fields = {NAME_FIELD: node.name}
    return all(_holds(requirement, node.labels) for requirement in expressions) and all(
        _holds(requirement, own_fields) for requirement in fields
    )


def _holds(requirement: NodeSelectorRequirement, labels: dict[str, str]) -> bool:
    value, wanted = labels.get(requirement.key), requirement.values or ()
    match requirement.operator:
        case "In":
            return value is not None and value in wanted
        case "NotIn":
            return value is None or value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return (
                value is not None and len(wanted) == 1 and _compares(requirement.operator, value, wanted[0])
            )
        case _:
            return False  # an unknown operator: the pod is never placed as if the operator were not there


def _compares(operator: str, value: str, wanted: str) -> bool:
    if not _NUMBER.fullmatch(value) or not _NUMBER.fullmatch(wanted):
        return False
    left, right = int(value), int(wanted)
    return left > right if operator == "Gt" else left < right
