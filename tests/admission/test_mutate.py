"""What admission takes out of a pod, and what it leaves alone."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.admission.mutate import review
from gpuslice.errors import InputError


def ask(pod: object) -> dict[str, object]:
    body = {"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": pod}}
    answer = json.loads(review(json.dumps(body).encode()))
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    response: dict[str, object] = answer["response"]
    assert response["uid"] == "u"
    return response


def patch_of(response: dict[str, object]) -> list[str]:
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    return [step["path"] for step in json.loads(base64.b64decode(str(response["patch"])))]


def container(name: str, *variables: str, mem: int = 0) -> dict[str, object]:
    limits = {"aliyun.com/gpu-mem": str(mem)} if mem else {}
    return {
        "name": name,
        "env": [{"name": variable, "value": "all"} for variable in variables],
        "resources": {"limits": limits},
    }


def test_the_articles_pod_loses_its_override_and_is_told() -> None:
    response = ask({"spec": {"containers": [container("test", "A", "NVIDIA_VISIBLE_DEVICES", mem=5)]}})
    assert response["allowed"] is True
    assert patch_of(response) == ["/spec/containers/0/env/1"]
    assert response["warnings"] == [
        "container 'test': env NVIDIA_VISIBLE_DEVICES was removed; gpuslice sets it to the GPU that the "
        "container is given"
    ]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"])
def test_whoever_asks_for_a_gpu_in_any_way_loses_its_override(resource: str) -> None:
    one = container("a", "NVIDIA_VISIBLE_DEVICES")
    one["resources"] = {"limits": {resource: 1}}
    assert patch_of(ask({"spec": {"containers": [one]}})) == ["/spec/containers/0/env/0"]


def test_several_variables_in_several_containers_are_removed_from_the_back() -> None:
    pod = {
        "spec": {
            "containers": [
                container("a", "NVIDIA_VISIBLE_DEVICES", "X", "ALIYUN_COM_GPU_MEM_IDX", mem=1),
                container("b", "NVIDIA_VISIBLE_DEVICES", mem=1),
            ],
            "initContainers": [container("i", "ALIYUN_COM_GPU_MEM_DEV", mem=1)],
        }
    }
    assert patch_of(ask(pod)) == [
        "/spec/containers/0/env/2",
        "/spec/containers/0/env/0",
        "/spec/containers/1/env/0",
        "/spec/initContainers/0/env/0",
    ]


@pytest.mark.parametrize(
    "pod",
    [
        {"spec": {"containers": [container("a", "PATH", mem=2)]}},
        {"spec": {}},
    ],
)
def test_other_pods_are_left_alone(pod: object) -> None:
    response = ask(pod)
    assert response["allowed"] is True
    assert patch_of(response) == []
    assert "warnings" not in response


def test_a_malformed_request_still_loses_its_override() -> None:
    """Fail closed: whoever says no later, no container of it sees every GPU."""
    one = container("a", "NVIDIA_VISIBLE_DEVICES")
    one["resources"] = {"limits": {"aliyun.com/gpu-mem": "1.5"}}
    assert patch_of(ask({"spec": {"containers": [one]}})) == ["/spec/containers/0/env/0"]


def test_an_unreadable_pod_is_denied_with_a_sentence() -> None:
    response = ask({"spec": {"containers": 7}})
    assert response["allowed"] is False
    assert "gpuslice cannot read the pod" in str(response["status"])


@given(st.binary(max_size=50))
def test_what_is_no_review_is_refused(body: bytes) -> None:
    with pytest.raises(InputError, match="AdmissionReview"):
        review(body)


def historical(**more: object) -> dict[str, object]:
    """The pod of Kubernetes' documentation of 2017, with an environment that would show it every GPU."""
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {
                                "key": "alpha.kubernetes.io/nvidia-gpu-name",
                                "operator": "In",
                                "values": ["Tesla K80", "Tesla P100"],
                            }
                        ]
                    }
                ]
            }
        }
    }
    one = container("gpu", "NVIDIA_VISIBLE_DEVICES")
    one["resources"] = {"limits": {"alpha.kubernetes.io/nvidia-gpu": 2}}
    return {
        "metadata": {"annotations": {"scheduler.alpha.kubernetes.io/affinity": json.dumps(affinity)}},
        "spec": {"containers": [one], **more},
    }


def test_a_pod_in_the_words_of_2017_is_translated_and_told_what_to_write_today() -> None:
    response = ask(historical())
    steps = json.loads(base64.b64decode(str(response["patch"])))
    assert [(step["op"], step["path"]) for step in steps] == [
        ("add", "/spec/containers/0/resources"),
        ("remove", "/metadata/annotations/scheduler.alpha.kubernetes.io~1affinity"),
        ("add", "/spec/affinity"),
        ("remove", "/spec/containers/0/env/0"),
    ]
    assert steps[0]["value"] == {"limits": {"nvidia.com/gpu": 2}}
    assert "Tesla-K80" in json.dumps(steps[2]["value"])
    warnings = response["warnings"]
    assert isinstance(warnings, list)
    assert len(warnings) == 4
    assert "write nvidia.com/gpu: 2" in warnings[0]


def test_what_cannot_be_translated_is_let_through_with_a_warning() -> None:
    response = ask(historical(affinity={"nodeAffinity": {}}))
    assert response["allowed"] is True
    assert "/spec/affinity" not in patch_of(response)
    assert any("and the pod has spec.affinity; remove it" in str(one) for one in response["warnings"])  # type: ignore[attr-defined]


def test_a_debug_container_does_not_change_what_a_pod_is() -> None:
    body = {
        "request": {
            "uid": "u",
            "kind": {"kind": "Pod"},
            "subResource": "ephemeralcontainers",
            "object": historical(),
            "oldObject": historical(),
        }
    }
    response = json.loads(review(json.dumps(body).encode()))["response"]
    assert response == {"uid": "u", "allowed": True}


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        (
            {"spec": {"containers": [{"name": "c"}] * 1001}},
            "a pod may have 1000 containers, and this one has 1001",
        ),
        (
            {"spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}] * 1000}},
            "a pod may have 1000 containers, and this one has 1001",
        ),
        (
            {"metadata": {"annotations": {"alpha.kubernetes.io/x": "x" * 2**18}}, "spec": {}},
            "a pod with words of old Kubernetes (alpha.kubernetes.io/) may have 262144 bytes",
        ),
        (
            {"metadata": {"annotations": {f"a.cdi.k8s.io/{n}": "all" for n in range(101)}}, "spec": {}},
            "metadata.annotations: 101 name devices below cdi.k8s.io; leave them out",
        ),
    ],
)
def test_what_would_hold_up_others_is_refused(pod: object, sentence: str) -> None:
    """A review of 230,000 containers took seconds, while a webhook that fails open was not answered."""
    response = ask(pod)
    assert response["allowed"] is False
    assert sentence in str(response["status"])
