"""GPU requests that the API server would refuse, in its own words (kube-apiserver 1.36's, seen)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.kube.wire import PodSpec
from gpuslice.local.apiserver.schema.podvalidation import pod_spec
from gpuslice.requests.check import check_pod

GPU = "nvidia.com/gpu"


def problems(limits: object = None, requests: object = None, path: str = "spec") -> list[str]:
    resources = {"limits": limits, "requests": requests}
    spec = msgspec.convert({"containers": [{"name": "a", "resources": resources}]}, PodSpec)
    return [str(problem) for problem in check_pod(spec, path)]


@pytest.mark.parametrize(
    ("limits", "requests"),
    [
        (None, None),
        ({GPU: 1}, None),
        ({GPU: "2"}, {GPU: 2}),
        ({GPU: "1000m"}, {GPU: 1}),
        ({"nvidia.com/mig-1g.5gb": 1, "aliyun.com/gpu-mem": "3"}, None),
        ({"cpu": "1500m"}, {"cpu": "0.5", "memory": "1Gi"}),
        ({"alpha.kubernetes.io/nvidia-gpu": "1.5"}, None),
    ],
)
def test_what_the_api_server_takes(limits: object, requests: object) -> None:
    assert problems(limits, requests) == []


@pytest.mark.parametrize(
    ("limits", "requests", "sentences"),
    [
        (
            {GPU: "1500m"},
            None,
            ['spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "1500m": must be an integer'],
        ),
        (
            {GPU: 0.5},
            None,
            ['spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer'],
        ),
        (
            {GPU: "-1"},
            None,
            [
                'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "-1": '
                "must be greater than or equal to 0"
            ],
        ),
        (
            {GPU: 1},
            {GPU: 2},
            ['spec.containers[0].resources.requests: Invalid value: "2": must be equal to nvidia.com/gpu limit of 1'],
        ),
        (
            {GPU: 2},
            {GPU: 1},
            ['spec.containers[0].resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2'],
        ),
        (
            None,
            {GPU: 1},
            [
                "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable "
                "resources"
            ],
        ),
        (
            {GPU: "one"},
            None,
            [
                'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "one": is not a quantity; '
                "write a whole number such as 1"
            ],
        ),
        (
            {"nvidia.com/mig-1g.5gb": "1k"},
            {"nvidia.com/mig-1g.5gb": "1"},
            [
                'spec.containers[0].resources.requests: Invalid value: "1": '
                "must be equal to nvidia.com/mig-1g.5gb limit of 1k"
            ],
        ),
    ],
)  # fmt: skip
def test_what_it_refuses_is_said_in_its_words(limits: object, requests: object, sentences: list[str]) -> None:
    assert problems(limits, requests) == sentences


def test_init_containers_come_first_and_a_templates_path_is_named() -> None:
    bad = {"name": "a", "resources": {"limits": {GPU: "0.1"}}}
    spec = msgspec.convert({"containers": [bad], "initContainers": [bad, bad]}, PodSpec)
    assert [problem.field for problem in check_pod(spec, "spec.template.spec")] == [
        "spec.template.spec.initContainers[0].resources.limits[nvidia.com/gpu]",
        "spec.template.spec.initContainers[1].resources.limits[nvidia.com/gpu]",
        "spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]",
    ]


AMOUNTS = st.dictionaries(
    st.sampled_from([GPU, "nvidia.com/mig-1g.5gb", "aliyun.com/gpu-mem"]),
    st.sampled_from(["0", "1", "2", "500m", "-1", "1k", "one"]),
    max_size=3,
)


@given(AMOUNTS, AMOUNTS)
def test_the_embedded_api_server_says_the_same(limits: dict[str, str], requests: dict[str, str]) -> None:
    resources = {"limits": limits, "requests": requests}
    container = {"name": "a", "image": "i", "imagePullPolicy": "Always", "resources": resources}
    causes = pod_spec({"containers": [container], "restartPolicy": "Always"}, "spec")
    ours = [text.removesuffix("; write a whole number such as 1") for text in problems(limits, requests)]
    assert sorted(ours) == sorted(map(str, causes))
