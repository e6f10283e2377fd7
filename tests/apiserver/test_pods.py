"""Binding, eviction and what a pod's spec may be."""

from __future__ import annotations

from typing import Any

import pytest
from apikit import PODS, Api, pod


def binding(node: str = "n1", **meta: Any) -> dict[str, Any]:
    return {"metadata": meta, "target": {"kind": "Node", "name": node}}


async def test_binding_sets_node_and_annotations_in_one_version(api: Api) -> None:
    """A watcher sees the node, the annotations and PodScheduled together, never one without the others."""
    made = await api.make(PODS, pod())
    async with api.watch(PODS, resourceVersion=made["metadata"]["resourceVersion"]) as following:
        await api.make(f"{PODS}/p/binding", binding(annotations={"gpu": "0"}))
        type_, seen = await following()
    assert (type_, seen["spec"]["nodeName"], seen["metadata"]["annotations"]) == (
        "MODIFIED",
        "n1",
        {"gpu": "0"},
    )
    assert [(one["type"], one["status"]) for one in seen["status"]["conditions"]] == [
        ("PodScheduled", "True")
    ]


async def test_a_pod_is_bound_once(api: Api) -> None:
    """The second binding is a conflict, to the same node as well."""
    await api.make(PODS, pod())
    await api.make(f"{PODS}/p/binding", binding())
    again = await api("POST", f"{PODS}/p/binding", binding())
    assert again.status == 409 and 'pod p is already assigned to node "n1"' in again.message


@pytest.mark.parametrize("meta", [{"uid": "another"}, {"resourceVersion": "1"}])
async def test_binding_preconditions(api: Api, meta: dict[str, str]) -> None:
    """A binding for another incarnation or an older version binds nothing and annotates nothing."""
    await api.make(PODS, pod())
    answer = await api("POST", f"{PODS}/p/binding", binding(annotations={"gpu": "0"}, **meta))
    assert answer.status == 409
    now = await api.get(f"{PODS}/p")
    assert "nodeName" not in now["spec"] and "annotations" not in now["metadata"]


async def test_a_dying_or_gated_pod_is_not_bound(api: Api) -> None:
    """Neither a pod being deleted nor one with scheduling gates can get a node."""
    body = pod()
    body["metadata"]["finalizers"] = ["x.io/f"]
    await api.make(PODS, body)
    await api("DELETE", f"{PODS}/p")
    dying = await api("POST", f"{PODS}/p/binding", binding())
    assert dying.status == 409 and "is being deleted" in dying.message
    await api.make(PODS, pod("gated", schedulingGates=[{"name": "x.io/wait"}]))
    assert (await api("POST", f"{PODS}/gated/binding", binding())).status == 409


async def test_eviction_respects_the_budget(api: Api) -> None:
    """One of two ready pods may go; with one left the eviction is refused with 429 until the budget is gone."""
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    for name in ("a", "b"):
        body = pod(name, nodeName="n1")
        body["metadata"]["labels"] = {"app": "x"}
        await api.make(PODS, body)
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await api("PATCH", f"{PODS}/{name}/status", status, content="merge")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    await api.make(budgets, {"metadata": {"name": "b"}, "spec": spec})
    assert (await api("POST", f"{PODS}/a/eviction", {"metadata": {"name": "a"}})).status == 201
    refused = await api("POST", f"{PODS}/b/eviction", {"metadata": {"name": "b"}})
    assert refused.status == 429
    assert refused.message == "Cannot evict pod as it would violate the pod's disruption budget."
    await api("DELETE", f"{budgets}/b")
    assert (await api("POST", f"{PODS}/b/eviction", {"metadata": {"name": "b"}})).status == 201


def asking(limits: Any = None, requests: Any = None) -> list[dict[str, Any]]:
    return [{"name": "c", "image": "x", "resources": {"limits": limits or {}, "requests": requests or {}}}]


@pytest.mark.parametrize(
    ("containers", "sentence"),
    [
        ([], "spec.containers: Required value"),
        (asking({"aliyun.com/gpu-mem": 5}, {"aliyun.com/gpu-mem": 2}),
         'spec.containers[0].resources.requests: Invalid value: "2": must be equal to aliyun.com/gpu-mem limit of 5'),
        (asking({"aliyun.com/gpu-mem": 1.5}),
         'spec.containers[0].resources.limits[aliyun.com/gpu-mem]: Invalid value: "1500m": must be an integer'),
        (asking(None, {"aliyun.com/gpu-mem": 5}),
         "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"),
        (asking({"cpu": 1}, {"cpu": 2}), "must be less than or equal to cpu limit of 1"),
        (asking({"gpu": 1}), "must be a standard resource type or fully qualified"),
        (asking({"aliyun.com/gpu-mem": -1}), "must be greater than or equal to 0"),
        ([{"name": "c"}], "spec.containers[0].image: Required value"),
        ([{"name": "C", "image": "x"}], "a lowercase RFC 1123 label must consist of"),
        ([{"name": "c", "image": "x"}, {"name": "c", "image": "x"}], 'spec.containers[1].name: Duplicate value: "c"'),
        ([{"name": "c", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
         'spec.containers[0].volumeMounts[0].name: Not found: "v"'),
    ],
)  # fmt: skip
async def test_invalid_containers(api: Api, containers: Any, sentence: str) -> None:
    """What users get wrong is refused in Kubernetes' own words."""
    answer = await api("POST", PODS, pod(containers=containers))
    assert answer.status == 422 and sentence in answer.message


async def test_nonsense_quantity_is_refused(api: Api) -> None:
    """A quantity that is none does not get past decoding."""
    answer = await api("POST", PODS, pod(containers=asking({"cpu": "many"})))
    assert answer.status == 400 and "quantities must match the regular expression" in answer.message


async def test_spec_is_frozen_except_the_image(api: Api) -> None:
    """A pod's image can be changed, its resources cannot."""
    await api.make(PODS, pod())
    image = {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}
    assert (await api("PATCH", f"{PODS}/p", image, content="strategic")).status == 200
    limits = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}}
    answer = await api("PATCH", f"{PODS}/p", limits, content="strategic")
    assert answer.status == 422 and "pod updates may not change fields other than" in answer.message


async def test_priority_comes_from_the_class(api: Api) -> None:
    """The class's value and policy are written into the spec; an unknown class is refused."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await api.make(classes, {"metadata": {"name": "hi"}, "value": 1000, "preemptionPolicy": "Never"})
    spec = (await api.make(PODS, pod("a", priorityClassName="hi")))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")
    system = await api.make(PODS, pod("b", priorityClassName="system-node-critical"))
    assert system["spec"]["priority"] == 2_000_001_000
    unknown = await api("POST", PODS, pod("c", priorityClassName="nope"))
    assert unknown.status == 403 and "no PriorityClass with name nope was found" in unknown.message


async def test_kubelet_may_annotate_through_status(api: Api) -> None:
    """Pods and nodes let labels and annotations through their status, other kinds do not."""
    await api.make(PODS, pod())
    both = {"metadata": {"annotations": {"a": "b"}}, "status": {"phase": "Running"}}
    done = await api("PATCH", f"{PODS}/p/status", both, content="merge")
    assert (done.body["metadata"]["annotations"], done.body["status"]["phase"]) == ({"a": "b"}, "Running")


@pytest.mark.parametrize(
    ("labels", "ok"), [({"a/b": "c"}, True), ({"a/b/c": "d"}, False), ({"a": "b c"}, False)]
)
async def test_label_syntax(api: Api, labels: dict[str, str], ok: bool) -> None:
    """Keys are qualified names, values are short words."""
    body = pod()
    body["metadata"]["labels"] = labels
    assert (await api("POST", PODS, body)).status == (201 if ok else 422)
