"""Objects over the API: what clients are told when they make, read, change and delete them."""

from __future__ import annotations

import pytest

from gpuslice.errors import Conflict
from gpuslice.kube.wire import Pod

from .kit import Kit, config, idle


async def test_making_an_object_twice_is_a_conflict_that_names_it(k8s: Kit) -> None:
    first = await k8s.api("POST", k8s.path("configmaps"), config("c", a="1"))
    assert first.status == 201
    assert first.body["metadata"]["uid"]
    again = await k8s.api("POST", k8s.path("configmaps"), config("c", a="2"))
    assert again.refusal == (409, "AlreadyExists")
    assert again.message == 'configmaps "c" already exists'
    assert again.body["details"] == {"name": "c", "kind": "configmaps"}
    assert (again.body["kind"], again.body["status"], again.body["code"]) == ("Status", "Failure", 409)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH", "PUT"])
async def test_what_is_not_there_is_not_found_by_name_and_kind(k8s: Kit, method: str) -> None:
    body = {"PATCH": {}, "PUT": config("none")}.get(method)
    content = "merge" if method == "PATCH" else ""
    answer = await k8s.api(method, k8s.path("configmaps", "none"), body, content=content)
    assert answer.refusal == (404, "NotFound")
    assert answer.message == 'configmaps "none" not found'
    assert answer.body["details"] == {"name": "none", "kind": "configmaps"}


async def test_an_unknown_resource_is_not_found_as_kubectl_expects_it(k8s: Kit) -> None:
    answer = await k8s.api("GET", k8s.path("gizmos"))
    assert answer.refusal == (404, "NotFound")
    assert answer.message == "the server could not find the requested resource"
    answer = await k8s.api("GET", k8s.path("gizmos", group="no.such.group/v1"))
    assert answer.status == 404


async def test_an_update_with_an_old_version_is_refused(k8s: Kit) -> None:
    made = await k8s.create("configmaps", config("c", a="1"))
    await k8s.api.patch(k8s.path("configmaps", "c"), {"data": {"a": "2"}})
    answer = await k8s.api("PUT", k8s.path("configmaps", "c"), {**made, "data": {"a": "3"}})
    assert answer.refusal == (409, "Conflict")
    assert answer.message == (
        'Operation cannot be fulfilled on configmaps "c": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


UID = "00000000-0000-4000-8000-000000000000"


async def test_a_patch_can_name_the_version_and_the_uid_it_is_meant_for(k8s: Kit) -> None:
    """Another version is a conflict. Another uid is an invalid field, unlike in a PUT, a DELETE or a Binding."""
    made = await k8s.create("pods", idle())
    path, uid = f"{k8s.pods}/p", made["metadata"]["uid"]
    wrong = await k8s.api("PATCH", path, {"metadata": {"resourceVersion": "1"}}, content="merge")
    assert wrong.refusal == (409, "Conflict")
    assert "the object has been modified" in wrong.message
    for where, content in ((path, "merge"), (path, "strategic"), (f"{path}/status", "strategic")):
        wrong = await k8s.api("PATCH", where, {"metadata": {"uid": UID}}, content=content)
        assert wrong.refusal == (422, "Invalid")
        assert wrong.message.startswith(
            f'Pod "p" is invalid: metadata.uid: Invalid value: "{UID}": field is immutable'
        )
    metadata = {"uid": uid, "resourceVersion": made["metadata"]["resourceVersion"]}
    right = await k8s.api.patch(path, {"metadata": {**metadata, "annotations": {"a": "b"}}})
    assert right["metadata"]["annotations"] == {"a": "b"}


async def test_our_client_calls_both_a_conflict(k8s: Kit) -> None:
    """What our agent and scheduler write to a pod must not reach another one of the same name."""
    await k8s.create("pods", idle())
    with pytest.raises(Conflict):
        await k8s.client.patch(Pod, "p", {"metadata": {"uid": UID}}, k8s.ns)
    with pytest.raises(Conflict):
        await k8s.client.patch(Pod, "p", {"metadata": {"resourceVersion": "1"}}, k8s.ns)


async def test_an_update_for_another_uid_is_a_conflict(k8s: Kit) -> None:
    made = await k8s.create("pods", idle())
    uid = made["metadata"]["uid"]
    made["metadata"]["uid"] = UID
    wrong = await k8s.api("PUT", f"{k8s.pods}/p", made)
    assert wrong.refusal == (409, "Conflict")
    assert wrong.message.startswith('Operation cannot be fulfilled on pods "p": StorageError: invalid object')
    assert wrong.message.endswith(
        f"Precondition failed: UID in precondition: {UID}, UID in object meta: {uid}"
    )


@pytest.mark.parametrize("plural", ["configmaps", "pods"])
async def test_a_delete_can_name_the_uid_and_the_version_it_is_meant_for(k8s: Kit, plural: str) -> None:
    body, kind = {"configmaps": (config("c"), "ConfigMap"), "pods": (idle("c"), "Pod")}[plural]
    metadata = (await k8s.create(plural, body))["metadata"]
    path = k8s.path(plural, "c")
    wrong = await k8s.api("DELETE", path, {"preconditions": {"uid": UID}})
    assert wrong.refusal == (409, "Conflict")
    assert wrong.message == (
        f'Operation cannot be fulfilled on {kind} "c": the UID in the precondition ({UID}) does not match the '
        f"UID in record ({metadata['uid']}). The object might have been deleted and then recreated"
    )
    wrong = await k8s.api("DELETE", path, {"preconditions": {"resourceVersion": "1"}})
    assert wrong.refusal == (409, "Conflict")
    assert wrong.message == (
        f'Operation cannot be fulfilled on {kind} "c": the ResourceVersion in the precondition (1) does not match '
        f"the ResourceVersion in record ({metadata['resourceVersion']}). The object might have been modified"
    )
    right = await k8s.api("DELETE", path, {"preconditions": {"uid": metadata["uid"]}})
    assert right.status == 200
    if plural == "configmaps":
        assert (right.body["status"], right.body["details"]["uid"]) == ("Success", metadata["uid"])


async def test_a_change_that_changes_nothing_keeps_the_version(k8s: Kit) -> None:
    made = await k8s.create("configmaps", config("c", a="1"))
    same = await k8s.api.patch(k8s.path("configmaps", "c"), {"data": {"a": "1"}})
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_generated_name_begins_as_asked_and_is_new_each_time(k8s: Kit) -> None:
    body = {"metadata": {"generateName": "made-"}}
    names = {(await k8s.create("configmaps", body))["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("made-") and len(name) == len("made-") + 5 for name in names)


async def test_a_dry_run_answers_like_the_real_thing_and_keeps_nothing(k8s: Kit) -> None:
    answer = await k8s.api("POST", k8s.pods, idle(), dryRun="All")
    assert answer.status == 201
    assert answer.body["spec"]["dnsPolicy"] == "ClusterFirst"
    assert (await k8s.api("GET", f"{k8s.pods}/p")).status == 404
    await k8s.create("pods", idle())
    await k8s.api.patch(f"{k8s.pods}/p", {"metadata": {"labels": {"x": "y"}}}, dryRun="All")
    assert "x" not in (await k8s.api.get(f"{k8s.pods}/p"))["metadata"]["labels"]
    assert (await k8s.api("DELETE", f"{k8s.pods}/p", dryRun="All")).status == 200
    assert (await k8s.api.get(f"{k8s.pods}/p"))["metadata"].get("deletionTimestamp") is None


async def test_an_object_with_a_finalizer_waits_for_it(k8s: Kit) -> None:
    body = {"metadata": {"name": "c", "finalizers": ["contract.example/hold"]}}
    await k8s.create("configmaps", body)
    path = k8s.path("configmaps", "c")
    answer = await k8s.api("DELETE", path)
    assert answer.status == 200
    assert answer.body["metadata"]["deletionTimestamp"]
    more = {"metadata": {"finalizers": ["contract.example/hold", "contract.example/more"]}}
    late = await k8s.api("PATCH", path, more, content="merge")
    assert late.refusal == (422, "Invalid")
    assert "no new finalizers can be added if the object is being deleted" in late.message
    await k8s.api.patch(path, {"metadata": {"finalizers": None}})
    assert (await k8s.api("GET", path)).status == 404


async def test_a_pod_without_a_node_is_deleted_at_once_and_one_with_a_node_has_grace(k8s: Kit) -> None:
    for name in ("free", "bound"):
        await k8s.create("pods", idle(name, terminationGracePeriodSeconds=30))
    binding = {"metadata": {"name": "bound"}, "target": {"kind": "Node", "name": "no-such-node"}}
    await k8s.api.make(f"{k8s.pods}/bound/binding", binding)
    assert (await k8s.api("DELETE", f"{k8s.pods}/free")).status == 200
    assert (await k8s.api("GET", f"{k8s.pods}/free")).status == 404
    going = (await k8s.api("DELETE", f"{k8s.pods}/bound")).body
    assert going["metadata"]["deletionGracePeriodSeconds"] == 30
    sooner = (await k8s.api("DELETE", f"{k8s.pods}/bound", {"gracePeriodSeconds": 5})).body
    assert sooner["metadata"]["deletionGracePeriodSeconds"] == 5
    assert (await k8s.api("DELETE", f"{k8s.pods}/bound", {"gracePeriodSeconds": 0})).status == 200
    assert (await k8s.api("GET", f"{k8s.pods}/bound")).status == 404


async def test_a_collection_is_deleted_by_selector(k8s: Kit) -> None:
    for name, team in (("a", "x"), ("b", "x"), ("c", "y")):
        await k8s.create("configmaps", {"metadata": {"name": name, "labels": {"team": team}}})
    answer = await k8s.api("DELETE", k8s.path("configmaps"), labelSelector="team=x")
    assert answer.status == 200
    left = await k8s.api.get(k8s.path("configmaps"), labelSelector="team")
    assert [item["metadata"]["name"] for item in left["items"]] == ["c"]


async def test_leases_are_taken_by_whoever_has_seen_the_last_version(k8s: Kit) -> None:
    group = "coordination.k8s.io/v1"
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.123456Z"}
    made = await k8s.create("leases", {"metadata": {"name": "leader"}, "spec": spec}, group)
    assert made["spec"]["renewTime"] == "2026-01-01T00:00:00.123456Z"
    path = k8s.path("leases", "leader", group)
    mine = {**made, "spec": {**spec, "holderIdentity": "two", "leaseTransitions": 1}}
    assert (await k8s.api("PUT", path, mine)).status == 200
    late = {**made, "spec": {**spec, "holderIdentity": "three"}}
    assert (await k8s.api("PUT", path, late)).refusal == (409, "Conflict")
    assert (await k8s.api.get(path))["spec"]["holderIdentity"] == "two"


async def test_a_put_may_create_a_lease(k8s: Kit) -> None:
    path = k8s.path("leases", "new", "coordination.k8s.io/v1")
    assert (await k8s.api("PUT", path, {"metadata": {"name": "new"}, "spec": {}})).status == 201
