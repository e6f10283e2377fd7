"""Each rule between a pod and a node, by name."""

from typing import Any

import msgspec
import pytest

from gpuslice.cluster.predicates import (
    NO_MATCH,
    UNSCHEDULABLE,
    WRONG_NAME,
    node_refusal,
    only_nodes,
    preferred_weight,
    rules_of,
    soft_taints,
)
from gpuslice.cluster.unsupported import MOST_RULES, MOST_VALUES, unsupported
from gpuslice.kube.wire import Node, Pod


def node(name: str = "n1", **more: Any) -> Node:
    labels = more.pop("labels", {})
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": more}, Node)


def pod(**spec: Any) -> Pod:
    return msgspec.convert({"spec": spec}, Pod)


def refusal(on: Node, **spec: Any) -> str:
    verdict = node_refusal(rules_of(pod(**spec).spec), on)
    return "" if verdict is None else verdict.message


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_plain_pod_suits_a_plain_node() -> None:
    assert refusal(node()) == ""


def test_cordoned_node() -> None:
    assert refusal(node(unschedulable=True)) == UNSCHEDULABLE.message


def test_cordoned_node_tolerated_as_daemonsets_do() -> None:
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    assert refusal(node(unschedulable=True), tolerations=[toleration]) == ""


def test_node_name() -> None:
    assert refusal(node("n1"), nodeName="n2") == WRONG_NAME.message
    assert refusal(node("n2"), nodeName="n2") == ""


def test_node_selector_needs_every_label() -> None:
    wanted = {"disk": "ssd", "zone": "a"}
    assert refusal(node(labels=wanted | {"more": "x"}), nodeSelector=wanted) == ""
    assert refusal(node(labels={"disk": "ssd"}), nodeSelector=wanted) == NO_MATCH.message
    assert refusal(node(labels={"disk": "ssd", "zone": "b"}), nodeSelector=wanted) == NO_MATCH.message


@pytest.mark.parametrize(
    ("operator", "values", "labels", "holds"),
    [
        ("In", ["a", "b"], {"k": "b"}, True),
        ("In", ["a", "b"], {"k": "c"}, False),
        ("In", ["a"], {}, False),
        ("NotIn", ["a"], {"k": "b"}, True),
        ("NotIn", ["a"], {"k": "a"}, False),
        ("NotIn", ["a"], {}, True),
        ("Exists", [], {"k": ""}, True),
        ("Exists", [], {}, False),
        ("DoesNotExist", [], {}, True),
        ("DoesNotExist", [], {"k": "x"}, False),
        ("Gt", ["5"], {"k": "6"}, True),
        ("Gt", ["5"], {"k": "5"}, False),
        ("Gt", ["5"], {"k": "many"}, False),
        ("Gt", ["5"], {}, False),
        ("Lt", ["5"], {"k": "4"}, True),
        ("Lt", ["5"], {"k": "5"}, False),
        ("Lt", ["few"], {"k": "4"}, False),
        ("SomethingNew", ["5"], {"k": "5"}, False),
    ],
)
def test_affinity_operator(operator: str, values: list[str], labels: dict[str, str], holds: bool) -> None:
    said = refusal(node(labels=labels), affinity=affinity(expression("k", operator, *values)))
    assert said == ("" if holds else NO_MATCH.message)


def test_affinity_terms_are_alternatives_and_their_expressions_are_not() -> None:
    both = {
        "matchExpressions": [
            {"key": "a", "operator": "Exists"},
            {"key": "b", "operator": "Exists"},
        ]
    }
    other = expression("c", "Exists")
    assert refusal(node(labels={"a": "", "b": ""}), affinity=affinity(both, other)) == ""
    assert refusal(node(labels={"c": ""}), affinity=affinity(both, other)) == ""
    assert refusal(node(labels={"a": ""}), affinity=affinity(both, other)) == NO_MATCH.message


def test_empty_affinity_term_matches_no_node() -> None:
    assert refusal(node(), affinity=affinity({})) == NO_MATCH.message


def test_match_fields_names_nodes() -> None:
    """How the DaemonSet controller pins its pods."""
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    assert refusal(node("n1"), affinity=affinity(field)) == ""
    assert refusal(node("n2"), affinity=affinity(field)) == NO_MATCH.message
    assert only_nodes(rules_of(pod(affinity=affinity(field)).spec)) == {"n1"}
    assert only_nodes(rules_of(pod(affinity=affinity(field, expression("k", "Exists"))).spec)) is None


TAINT = {"key": "team", "value": "ml", "effect": "NoSchedule"}


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_untolerated_taint_is_named(effect: str) -> None:
    said = refusal(node(taints=[TAINT | {"effect": effect}]))
    assert said == "node(s) had untolerated taint {team: ml}"


def test_prefer_no_schedule_refuses_nobody() -> None:
    soft = node(taints=[TAINT | {"effect": "PreferNoSchedule"}])
    assert refusal(soft) == ""
    assert soft_taints(rules_of(pod().spec), soft) == 1
    tolerating = pod(tolerations=[{"key": "team", "operator": "Exists"}])
    assert soft_taints(rules_of(tolerating.spec), soft) == 0


@pytest.mark.parametrize(
    ("toleration", "holds"),
    [
        ({"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "ml"}, True),
        ({"key": "team", "value": "web"}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "team", "operator": "Equal", "value": "ml", "effect": "NoExecute"}, False),
        ({"operator": "Equal", "value": "ml"}, False),
    ],
)
def test_toleration(toleration: dict[str, str], holds: bool) -> None:
    assert (refusal(node(taints=[TAINT]), tolerations=[toleration]) == "") is holds


def test_not_ready_counts_only_as_a_taint() -> None:
    """The node controller writes the taint; conditions are not looked at."""
    body = {
        "metadata": {"name": "n"},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    }
    assert node_refusal(rules_of(pod().spec), msgspec.convert(body, Node)) is None


def test_preferred_terms_add_up() -> None:
    terms = [
        {"weight": 7, "preference": expression("a", "Exists")},
        {"weight": 5, "preference": expression("b", "Exists")},
    ]
    spec = pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}).spec
    assert preferred_weight(rules_of(spec), node(labels={"a": "", "b": ""})) == 12
    assert preferred_weight(rules_of(spec), node(labels={"b": ""})) == 5
    assert preferred_weight(rules_of(spec), node()) == 0


def many(*, terms: int = 1, requirements: int = 1, values: int = 1) -> dict[str, Any]:
    """Affinity to nodes, in so many words."""
    one = {"key": "zone", "operator": "In", "values": [f"z{n}" for n in range(values)]}
    rules = {"nodeSelectorTerms": [{"matchExpressions": [one] * requirements}] * terms}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rules}}}


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (many(terms=MOST_RULES + 1), "more than 100 requirements"),
        (many(terms=MOST_RULES + 1, requirements=0), "more than 100 requirements"),
        (many(requirements=MOST_RULES + 1), "more than 100 requirements"),
        (many(values=MOST_VALUES + 1), "10000 values"),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 1, "preference": expression("a", "Exists")}
                        ]
                        * (MOST_RULES + 1)
                    }
                }
            },
            "spec.affinity.nodeAffinity",
        ),
        ({"tolerations": [{"operator": "Exists"}] * (MOST_RULES + 1)}, "spec.tolerations"),
        (
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            "podAffinity",
        ),
        (
            {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            "podAntiAffinity",
        ),
        ({"topologySpreadConstraints": [{"topologyKey": "zone"}]}, "topology spread"),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, "spec.volumes[v]"),
        ({"volumes": [{"name": "v", "ephemeral": {}}]}, "spec.volumes[v]"),
        ({"resourceClaims": [{"name": "gpu"}]}, "dynamic resource allocation"),
        ({"containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}]}, "dynamic resource"),
    ],
)
def test_unsupported_is_named_with_a_remedy(spec: dict[str, Any], part: str) -> None:
    sentence = unsupported(pod(**spec).spec)
    assert part in sentence
    assert "does not implement" in sentence


@pytest.mark.parametrize(
    "spec",
    [
        many(requirements=MOST_RULES, values=MOST_VALUES // MOST_RULES),
        {"tolerations": [{"operator": "Exists"}] * MOST_RULES},
        {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}},
        {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]},
        {"volumes": [{"name": "v"}]},
        {},
    ],
)
def test_mere_preferences_are_passed_over(spec: dict[str, Any]) -> None:
    assert unsupported(pod(**spec).spec) == ""
