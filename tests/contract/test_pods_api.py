"""Pods over the API: how they are bound, changed and refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.errors import Conflict
from gpuslice.kube.wire import Pod

from .kit import Kit, container, deployment, idle

GPU = "aliyun.com/gpu-mem"
NODE = "no-such-node"


def binding(name: str = "p", node: str = NODE, **metadata: Any) -> dict[str, Any]:
    target = {"kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}, "target": target}


async def test_a_binding_writes_node_and_annotations_at_once(k8s: Kit) -> None:
    """One version of the pod has both: there is no moment at which only one of them is true."""
    made = await k8s.create("pods", idle(annotations={"kept": "yes", "changed": "before"}))
    version = made["metadata"]["resourceVersion"]
    async with k8s.api.watch(k8s.pods, resourceVersion=version) as following:
        annotations = {"changed": "after", "added": "yes"}
        answer = await k8s.api("POST", f"{k8s.pods}/p/binding", binding(annotations=annotations))
        assert answer.status == 201
        assert (answer.body["kind"], answer.body["status"]) == ("Status", "Success")
        kind, bound = await following()
    assert kind == "MODIFIED"
    assert bound["spec"]["nodeName"] == NODE
    assert bound["metadata"]["annotations"] == {"kept": "yes", "changed": "after", "added": "yes"}
    (scheduled,) = [c for c in bound["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert scheduled["status"] == "True"


async def test_a_second_binding_is_a_conflict_that_names_the_node(k8s: Kit) -> None:
    await k8s.create("pods", idle())
    await k8s.api.make(f"{k8s.pods}/p/binding", binding())
    again = await k8s.api("POST", f"{k8s.pods}/p/binding", binding(node="other"))
    assert again.refusal == (409, "Conflict")
    assert again.message == (
        f'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "{NODE}"'
    )
    assert again.body["details"] == {"name": "p", "kind": "pods/binding"}


async def test_a_binding_for_another_uid_or_version_is_a_conflict(k8s: Kit) -> None:
    made = await k8s.create("pods", idle())
    uid = "00000000-0000-4000-8000-000000000000"
    wrong = await k8s.api("POST", f"{k8s.pods}/p/binding", binding(uid=uid))
    assert wrong.refusal == (409, "Conflict")
    assert f"UID in precondition: {uid}, UID in object meta: {made['metadata']['uid']}" in wrong.message
    wrong = await k8s.api("POST", f"{k8s.pods}/p/binding", binding(resourceVersion="1"))
    assert wrong.refusal == (409, "Conflict")
    assert "ResourceVersion in precondition: 1" in wrong.message
    version = made["metadata"]["resourceVersion"]
    right = binding(uid=made["metadata"]["uid"], resourceVersion=version)
    assert (await k8s.api("POST", f"{k8s.pods}/p/binding", right)).status == 201


async def test_a_pod_that_is_being_deleted_is_not_bound(k8s: Kit) -> None:
    body = idle()
    body["metadata"]["finalizers"] = ["contract.example/hold"]
    await k8s.create("pods", body)
    await k8s.api("DELETE", f"{k8s.pods}/p")
    answer = await k8s.api("POST", f"{k8s.pods}/p/binding", binding())
    assert answer.refusal == (409, "Conflict")
    assert answer.message == (
        'Operation cannot be fulfilled on pods/binding "p": pod p is being deleted, cannot be assigned to a host'
    )
    await k8s.api.patch(f"{k8s.pods}/p", {"metadata": {"finalizers": None}})
    answer = await k8s.api("POST", f"{k8s.pods}/p/binding", binding())
    assert answer.refusal == (404, "NotFound")


async def test_a_pod_with_scheduling_gates_is_not_bound(k8s: Kit) -> None:
    await k8s.create("pods", idle(schedulingGates=[{"name": "contract.example/gate"}]))
    answer = await k8s.api("POST", f"{k8s.pods}/p/binding", binding())
    assert answer.refusal == (409, "Conflict")
    assert "has non-empty .spec.schedulingGates" in answer.message
    await k8s.api.patch(f"{k8s.pods}/p", {"spec": {"schedulingGates": []}})
    await k8s.api.make(f"{k8s.pods}/p/binding", binding())


async def test_our_client_reads_what_it_wrote_and_raises_what_the_server_says(k8s: Kit) -> None:
    await k8s.client.create(Pod.resource, idle(), k8s.ns)
    read = await k8s.client.get(Pod, "p", k8s.ns)
    assert (read.name, read.status.phase) == ("p", "Pending")
    changed = await k8s.client.patch(Pod, "p", {"metadata": {"annotations": {"a": "b"}}}, k8s.ns)
    assert (changed.metadata.annotations or {})["a"] == "b"
    with pytest.raises(Conflict):
        await k8s.client.create(Pod.resource, binding(uid="x"), k8s.ns, name="p", subresource="binding")
    with pytest.raises(Conflict):
        await k8s.client.delete(Pod.resource, "p", k8s.ns, uid="x")
    await k8s.client.delete(Pod.resource, "p", k8s.ns, uid=read.uid, grace_seconds=0)


async def test_what_the_server_fills_in_is_what_our_requests_room_reads(k8s: Kit) -> None:
    made = await k8s.create("pods", idle("p", containers=[container("c", limits={GPU: 3, "cpu": "500m"})]))
    (c,) = made["spec"]["containers"]
    assert c["resources"] == {"limits": {GPU: "3", "cpu": "500m"}, "requests": {GPU: "3", "cpu": "500m"}}
    assert made["status"]["qosClass"] == "Burstable"
    assert made["spec"]["priority"] == 0
    assert made["spec"]["preemptionPolicy"] == "PreemptLowerPriority"
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["serviceAccountName"] == "default"
    assert c["imagePullPolicy"] == "IfNotPresent"
    assert c["terminationMessagePath"] == "/dev/termination-log"
    tolerated = {
        (t["key"], t["operator"], t["effect"], t["tolerationSeconds"]) for t in made["spec"]["tolerations"]
    }
    assert tolerated == {
        ("node.kubernetes.io/not-ready", "Exists", "NoExecute", 300),
        ("node.kubernetes.io/unreachable", "Exists", "NoExecute", 300),
    }


# --- patches --------------------------------------------------------------------------------------
async def test_a_strategic_patch_finds_containers_and_variables_by_name(k8s: Kit) -> None:
    one = container("one", env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    await k8s.create("pods", idle("p", containers=[one, container("two")]))
    change = {"spec": {"containers": [{"name": "two", "image": "busybox:other"}]}}
    changed = await k8s.api.patch(f"{k8s.pods}/p", change, "strategic")
    assert [c["image"] for c in changed["spec"]["containers"]] == ["busybox:e2e", "busybox:other"]
    # Variables cannot be changed in a pod; in a template they can.
    group = "apps/v1"
    await k8s.create("deployments", deployment("web", 0, containers=[one]), group)
    env = [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}, {"name": "A", "$patch": "delete"}]
    template = {"spec": {"containers": [{"name": "one", "env": env}]}}
    path = k8s.path("deployments", "web", group)
    changed = await k8s.api.patch(path, {"spec": {"template": template}}, "strategic")
    (c,) = changed["spec"]["template"]["spec"]["containers"]
    assert c["command"] == one["command"]
    assert sorted((e["name"], e["value"]) for e in c["env"]) == [("B", "3"), ("C", "4")]


async def test_tolerations_are_replaced_by_a_patch_and_may_only_grow(k8s: Kit) -> None:
    first = {"key": "a", "operator": "Exists"}
    made = await k8s.create("pods", idle(tolerations=[first]))
    fewer = {"spec": {"tolerations": [{"key": "b", "operator": "Exists"}]}}
    answer = await k8s.api("PATCH", f"{k8s.pods}/p", fewer, content="strategic")
    assert answer.refusal == (422, "Invalid")
    assert (
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
        in (answer.message)
    )
    more = {"spec": {"tolerations": [*made["spec"]["tolerations"], {"key": "b", "operator": "Exists"}]}}
    changed = await k8s.api.patch(f"{k8s.pods}/p", more, "strategic")
    assert {"key": "b", "operator": "Exists"} in changed["spec"]["tolerations"]


async def test_a_merge_patch_replaces_lists_and_null_deletes(k8s: Kit) -> None:
    await k8s.create("pods", idle(annotations={"a": "1", "b": "2"}))
    changed = await k8s.api.patch(f"{k8s.pods}/p", {"metadata": {"annotations": {"a": None, "c": "3"}}})
    assert changed["metadata"]["annotations"] == {"b": "2", "c": "3"}
    answer = await k8s.api(
        "PATCH", f"{k8s.pods}/p", {"spec": {"containers": [{"name": "x"}]}}, content="merge"
    )
    assert answer.refusal == (422, "Invalid")


async def test_a_json_patch_is_all_or_nothing(k8s: Kit) -> None:
    await k8s.create("pods", idle(annotations={"a": "1"}))
    path = f"{k8s.pods}/p"
    steps = [
        {"op": "test", "path": "/metadata/annotations/a", "value": "1"},
        {"op": "add", "path": "/metadata/annotations/x~1y", "value": "2"},
    ]
    changed = await k8s.api.patch(path, steps, "json")
    assert changed["metadata"]["annotations"] == {"a": "1", "x/y": "2"}
    steps = [
        {"op": "add", "path": "/metadata/annotations/z", "value": "3"},
        {"op": "test", "path": "/metadata/annotations/a", "value": "other"},
    ]
    answer = await k8s.api("PATCH", path, steps, content="json")
    assert answer.status == 422
    assert "z" not in (await k8s.api.get(path))["metadata"]["annotations"]


async def test_a_patch_of_an_unknown_type_is_refused(k8s: Kit) -> None:
    await k8s.create("pods", idle())
    answer = await k8s.api("PATCH", f"{k8s.pods}/p", {}, content="application/json")
    assert answer.refusal == (415, "UnsupportedMediaType")


async def test_status_is_written_only_through_status_and_spec_only_without(k8s: Kit) -> None:
    made = await k8s.create("pods", idle())
    path = f"{k8s.pods}/p"
    both = {"status": {"message": "hello"}, "spec": {"activeDeadlineSeconds": 1000}}
    changed = await k8s.api.patch(path, both)
    assert "message" not in changed["status"]
    assert changed["spec"]["activeDeadlineSeconds"] == 1000
    both = {"status": {"message": "hello"}, "spec": {"activeDeadlineSeconds": 5}}
    changed = await k8s.api.patch(f"{path}/status", both)
    assert changed["status"]["message"] == "hello"
    assert changed["spec"]["activeDeadlineSeconds"] == 1000
    assert made["status"]["phase"] == "Pending"


async def test_conditions_are_merged_by_type(k8s: Kit) -> None:
    """As our scheduler writes PodScheduled beside what others have written."""
    await k8s.create("pods", idle())
    for kind, status in (("A", "True"), ("B", "False"), ("A", "False")):
        change = {"status": {"conditions": [{"type": kind, "status": status}]}}
        changed = await k8s.api.patch(f"{k8s.pods}/p/status", change, "strategic")
    assert {c["type"]: c["status"] for c in changed["status"]["conditions"]} == {"A": "False", "B": "False"}


async def test_most_of_a_pods_spec_is_immutable(k8s: Kit) -> None:
    await k8s.create("pods", idle())
    answer = await k8s.api("PATCH", f"{k8s.pods}/p", {"spec": {"hostNetwork": True}}, content="merge")
    assert answer.refusal == (422, "Invalid")
    assert answer.message.startswith(
        'Pod "p" is invalid: spec: Forbidden: pod updates may not change fields other than'
    )


async def test_a_node_is_patched_as_our_agent_does_it(k8s: Kit) -> None:
    """Annotations by merge patch; capacity and conditions through status, beside those of others."""
    path = "/api/v1/nodes"
    name = f"{k8s.ns}-node"
    await k8s.global_(path, {"metadata": {"name": name, "annotations": {"a": "1"}}})
    changed = await k8s.api.patch(f"{path}/{name}", {"metadata": {"annotations": {"gpuslice.io/gpus": "[]"}}})
    assert changed["metadata"]["annotations"].items() >= {"a": "1", "gpuslice.io/gpus": "[]"}.items()
    first = {"capacity": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}
    await k8s.api.patch(f"{path}/{name}/status", {"status": first}, "strategic")
    second = {"capacity": {"aliyun.com/gpu-count": "2"}, "allocatable": {"aliyun.com/gpu-count": "2"}}
    changed = await k8s.api.patch(f"{path}/{name}/status", {"status": second}, "strategic")
    assert changed["status"]["capacity"] == {"cpu": "4", "aliyun.com/gpu-count": "2"}
    assert "Ready" in {c["type"] for c in changed["status"]["conditions"]}
    taint = {"key": "gpu", "effect": "NoSchedule"}
    changed = await k8s.api.patch(f"{path}/{name}", {"spec": {"taints": [taint]}}, "strategic")
    assert taint in changed["spec"]["taints"]


# --- what is refused ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("spec", "field", "reason", "sentence"),
    [
        (
            {"resources": {"limits": {GPU: "2"}, "requests": {GPU: "1"}}},
            "spec.containers[0].resources.requests",
            "FieldValueInvalid",
            f'Invalid value: "1": must be equal to {GPU} limit of 2',
        ),
        (
            {"resources": {"requests": {GPU: "1"}}},
            "spec.containers[0].resources.limits",
            "FieldValueRequired",
            "Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {"resources": {"limits": {GPU: "1500m"}}},
            f"spec.containers[0].resources.limits[{GPU}]",
            "FieldValueInvalid",
            'Invalid value: "1500m": must be an integer',
        ),
        (
            {"resources": {"limits": {"gpus": "1"}}},
            "spec.containers[0].resources.limits[gpus]",
            "FieldValueInvalid",
            'Invalid value: "gpus": must be a standard resource type or fully qualified',
        ),
        (
            {"resources": {"limits": {"cpu": "-1"}}},
            "spec.containers[0].resources.limits[cpu]",
            "FieldValueInvalid",
            'Invalid value: "-1": must be greater than or equal to 0',
        ),
        ({"image": ""}, "spec.containers[0].image", "FieldValueRequired", "Required value"),
        (
            {"name": "Not_Good"},
            "spec.containers[0].name",
            "FieldValueInvalid",
            'Invalid value: "Not_Good": a lowercase RFC 1123 label must consist of',
        ),
        (
            {"env": [{"name": "a=b", "value": "x"}]},
            "spec.containers[0].env[0].name",
            "FieldValueInvalid",
            'Invalid value: "a=b":',
        ),
        (
            {"imagePullPolicy": "Sometimes"},
            "spec.containers[0].imagePullPolicy",
            "FieldValueNotSupported",
            'Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never"',
        ),
    ],
)
async def test_an_invalid_container_is_refused_with_field_and_sentence(
    k8s: Kit, spec: dict[str, Any], field: str, reason: str, sentence: str
) -> None:
    answer = await k8s.api("POST", k8s.pods, idle("p", containers=[container("c") | spec]))
    assert answer.refusal == (422, "Invalid")
    assert (field, reason) in answer.causes
    assert answer.message.startswith('Pod "p" is invalid: ')
    assert f"{field}: {sentence}" in answer.message
    assert answer.body["details"]["kind"] == "Pod"


async def test_a_quantity_that_is_none_is_a_bad_request(k8s: Kit) -> None:
    answer = await k8s.api("POST", k8s.pods, idle("p", containers=[container("c", limits={GPU: "many"})]))
    assert answer.refusal == (400, "BadRequest")
    assert "quantities must match the regular expression" in answer.message


async def test_a_field_of_the_wrong_type_is_a_bad_request(k8s: Kit) -> None:
    body = idle()
    body["spec"]["containers"][0]["command"] = "sleep"
    answer = await k8s.api("POST", k8s.pods, body)
    assert answer.refusal == (400, "BadRequest")
    assert "json: cannot unmarshal string into Go struct field" in answer.message
    assert "spec.containers.command of type []string" in answer.message


async def test_a_body_that_is_no_json_is_a_bad_request(k8s: Kit) -> None:
    answer = await k8s.api("POST", k8s.pods, b"{")
    assert answer.refusal == (400, "BadRequest")


async def test_several_mistakes_are_told_at_once(k8s: Kit) -> None:
    body = idle("p", containers=[container("c"), container("c")], restartPolicy="Perhaps")
    answer = await k8s.api("POST", k8s.pods, body)
    assert answer.refusal == (422, "Invalid")
    assert ("spec.containers[1].name", "FieldValueDuplicate") in answer.causes
    assert ("spec.restartPolicy", "FieldValueNotSupported") in answer.causes
    assert 'Pod "p" is invalid: [' in answer.message


async def test_unknown_fields_are_warned_of_or_refused_as_asked(k8s: Kit) -> None:
    body = idle()
    body["spec"]["containers"][0]["limits"] = {}
    body["spec"]["replicas"] = 1
    warned = await k8s.api("POST", k8s.pods, body, fieldValidation="Warn", dryRun="All")
    assert warned.status == 201
    assert warned.warnings == ['unknown field "spec.containers[0].limits"', 'unknown field "spec.replicas"']
    strict = await k8s.api("POST", k8s.pods, body, fieldValidation="Strict")
    assert strict.refusal == (400, "BadRequest")
    assert strict.message == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: '
        'unknown field "spec.containers[0].limits", unknown field "spec.replicas"'
    )
    silent = await k8s.api("POST", k8s.pods, body, fieldValidation="Ignore")
    assert (silent.status, silent.warnings) == (201, [])


async def test_names_and_labels_are_checked(k8s: Kit) -> None:
    answer = await k8s.api("POST", k8s.pods, idle("Not_Good"))
    assert ("metadata.name", "FieldValueInvalid") in answer.causes
    answer = await k8s.api("POST", k8s.pods, idle(labels={"a": "b c"}))
    assert ("metadata.labels", "FieldValueInvalid") in answer.causes
    assert 'metadata.labels: Invalid value: "b c": a valid label must be an empty string or consist of' in (
        answer.message
    )
    answer = await k8s.api("POST", k8s.pods, idle(annotations={"a b": "c"}))
    assert ("metadata.annotations", "FieldValueInvalid") in answer.causes


async def test_a_priority_class_that_is_not_there_refuses_the_pod(k8s: Kit) -> None:
    answer = await k8s.api("POST", k8s.pods, idle(priorityClassName="contract-none"))
    assert answer.refusal == (403, "Forbidden")
    assert "no PriorityClass with name contract-none was found" in answer.message


async def test_a_path_and_a_body_must_agree(k8s: Kit) -> None:
    body = idle()
    body["metadata"]["namespace"] = "another"
    answer = await k8s.api("POST", k8s.pods, body)
    assert answer.refusal == (400, "BadRequest")
    assert (
        answer.message
        == "the namespace of the provided object does not match the namespace sent on the request"
    )
    await k8s.create("pods", idle())
    answer = await k8s.api("PUT", f"{k8s.pods}/p", idle("q"))
    assert answer.refusal == (400, "BadRequest")
    assert answer.message == "the name of the object (q) does not match the name on the URL (p)"
