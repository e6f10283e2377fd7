"""Pods of Kubernetes 1.4 to 1.9 in today's words."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.requests.historical import Translation, translate

GPU, OLD, NAME = "nvidia.com/gpu", "alpha.kubernetes.io/nvidia-gpu", "alpha.kubernetes.io/nvidia-gpu-name"
ANNOTATION = "scheduler.alpha.kubernetes.io/affinity"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity(*values: str, operator: str = "In", key: str = NAME) -> dict[str, Any]:
    expression = {"key": key, "operator": operator, "values": list(values)}
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}


def pod(limits: dict[str, Any], annotation: object = None, **spec: Any) -> dict[str, Any]:
    text = annotation if isinstance(annotation, str) else json.dumps(annotation)
    return {
        "metadata": {"annotations": {} if annotation is None else {ANNOTATION: text}},
        "spec": {"containers": [{"name": "a", "resources": {"limits": limits}}], **spec},
    }


def patched(old: dict[str, Any], answer: Translation) -> dict[str, Any]:
    """What a JSON patch of the changes makes of the old pod."""
    new = copy.deepcopy(old)
    for change in answer.changes:
        at: Any = new
        for part in change.path[:-1]:
            at = at[part]
        if change.value is None:
            del at[change.path[-1]]
        else:
            at[change.path[-1]] = change.value
    return new


def test_the_documentations_pod_of_2017_is_one_of_today() -> None:
    old = pod({OLD: 2}, affinity("Tesla K80", "Tesla P100"))
    answer = translate(old)
    assert answer.pod["spec"]["containers"][0]["resources"] == {"limits": {GPU: 2}}
    assert answer.pod["metadata"]["annotations"] == {}
    assert answer.pod["spec"]["affinity"] == affinity(
        "Tesla-K80", "Tesla-P100", "Tesla-P100-PCIE-12GB", "Tesla-P100-PCIE-16GB"
    )
    assert patched(old, answer) == answer.pod
    assert [change.pointer for change in answer.changes] == [
        "/spec/containers/0/resources",
        "/metadata/annotations/scheduler.alpha.kubernetes.io~1affinity",
        "/spec/affinity",
    ]
    assert [str(warning) for warning in answer.warnings] == [
        "spec.containers[0].resources.limits[alpha.kubernetes.io/nvidia-gpu]: no node has had this resource since "
        "Kubernetes 1.11; write nvidia.com/gpu: 2",
        "metadata.annotations[scheduler.alpha.kubernetes.io/affinity]: has had no effect since Kubernetes 1.6; "
        "write the same under spec.affinity",
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]."
        "matchExpressions[0].values: a label's value has no spaces, and nodes carry the GPU's whole name; instead of "
        "Tesla K80, Tesla P100 write Tesla-K80, Tesla-P100, Tesla-P100-PCIE-12GB, Tesla-P100-PCIE-16GB",
    ]
    assert translate(answer.pod).changes == ()


@pytest.mark.parametrize(
    "one",
    [
        pod({GPU: 1}),
        pod({"cpu": 1}, affinity("Tesla K80")),
        pod({GPU: 1}, affinity=affinity("Tesla-P100")),
        pod({GPU: 1}, affinity=affinity("some thing", key="disk")),
        pod({GPU: 1}, nodeSelector={NAME: "Tesla-K80"}),
    ],
)
def test_other_pods_are_left_alone(one: dict[str, Any]) -> None:
    answer = translate(one)
    assert (answer.pod, answer.changes, answer.warnings, answer.problems) == (one, (), (), ())


def test_names_with_spaces_are_mended_wherever_nodes_are_selected() -> None:
    old = pod({GPU: 1}, nodeSelector={NAME: "Tesla K80"}, affinity=affinity("Tesla T4", operator="NotIn"))
    preferred = {
        "weight": 1,
        "preference": {"matchExpressions": [{"key": NAME, "operator": "In", "values": ["A B"]}]},
    }
    old["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [preferred]
    answer = translate(old)
    assert answer.pod["spec"]["nodeSelector"] == {NAME: "Tesla-K80"}
    assert "A B" not in json.dumps(answer.pod)
    assert "Tesla T4" not in json.dumps(answer.pod)
    assert patched(old, answer) == answer.pod
    assert len(answer.warnings) == 3


def test_requests_and_init_containers_are_translated_too() -> None:
    one = {"name": "a", "resources": {"limits": {OLD: 1, "cpu": 1}, "requests": {OLD: 1}}}
    old = {"spec": {"containers": [], "initContainers": [one]}}
    resources = {"limits": {GPU: 1, "cpu": 1}, "requests": {GPU: 1}}
    assert translate(old).pod["spec"]["initContainers"][0]["resources"] == resources
    assert old["spec"]["initContainers"][0]["resources"]["requests"] == {OLD: 1}, "the old pod is not touched"


def test_both_spellings_are_one_if_they_agree_and_a_problem_if_not() -> None:
    assert translate(pod({OLD: "1", GPU: 1})).pod == pod({GPU: 1})
    answer = translate(pod({OLD: 2, GPU: 1}))
    assert answer.pod == pod({OLD: 2, GPU: 1})
    assert [str(problem) for problem in answer.problems] == [
        "spec.containers[0].resources.limits[alpha.kubernetes.io/nvidia-gpu]: is 2, but nvidia.com/gpu beside it is "
        "1; remove the former"
    ]


@pytest.mark.parametrize(
    ("annotation", "spec", "why"),
    [
        ("{", {}, "cannot be made spec.affinity: it is not JSON"),
        ([], {}, "it is not a mapping with nodeAffinity"),
        ({"nodeaffinity": {}}, {}, "'nodeaffinity' is not one of nodeAffinity, podAffinity, podAntiAffinity"),
        ({"nodeAffinity": []}, {}, "nodeAffinity is not a mapping"),
        ({"nodeAffinity": {REQUIRED: []}}, {}, "is not a mapping with a list of nodeSelectorTerms"),
        ({"podAffinity": {REQUIRED: {}}}, {}, f"podAffinity.{REQUIRED} is not a list"),
        (
            {"podAntiAffinity": {"requiredDuringSchedulingRequiredDuringExecution": []}},
            {},
            "which no version of Kubernetes acted on",
        ),
        (affinity("a"), {"affinity": affinity("b")}, "and the pod has spec.affinity; remove it"),
    ],
)
def test_an_annotation_that_cannot_be_translated_is_told(
    annotation: object, spec: dict[str, Any], why: str
) -> None:
    old = pod({GPU: 1}, annotation, **spec)
    answer = translate(old)
    assert answer.pod == old
    (problem,) = answer.problems
    assert str(problem).startswith(
        f"metadata.annotations[{ANNOTATION}]: has had no effect since Kubernetes 1.6"
    )
    assert why in problem.sentence


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([OLD, GPU, NAME, "Tesla K80", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "spec",
                    "metadata",
                    "annotations",
                    "containers",
                    "initContainers",
                    "resources",
                    "limits",
                    "affinity",
                    "nodeAffinity",
                    REQUIRED,
                    "nodeSelectorTerms",
                    "matchExpressions",
                    "values",
                    "key",
                    OLD,
                    GPU,
                    ANNOTATION,
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=30,
)


@given(spec=JSON, metadata=JSON, limits=st.dictionaries(st.sampled_from([OLD, GPU]), JSON))
def test_whatever_a_pod_looks_like_the_patch_makes_what_was_promised(
    spec: Any, metadata: Any, limits: Any
) -> None:
    old: dict[str, Any] = {"spec": spec, "metadata": metadata}
    if isinstance(spec, dict):
        spec["containers"] = [{"name": "a", "resources": {"limits": limits}}]
    before = copy.deepcopy(old)
    answer = translate(old)
    assert old == before
    assert patched(old, answer) == answer.pod
