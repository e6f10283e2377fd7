"""Create, read, update, delete: what every kind does."""

from __future__ import annotations

import asyncio

import msgspec
from apikit import PODS, Api, StillClock, deployment, pod

CONFIGS = "/api/v1/namespaces/default/configmaps"


async def test_create_fills_identity_and_defaults(api: Api) -> None:
    """A new pod is Pending and carries what kubelets and schedulers rely on."""
    made = await api.make(
        PODS, pod(containers=[{"name": "c", "image": "x", "resources": {"limits": {"cpu": 0.5}}}])
    )
    meta, spec = made["metadata"], made["spec"]
    assert meta["uid"] and meta["resourceVersion"] and meta["creationTimestamp"].endswith("Z")
    assert meta["namespace"] == "default"
    assert (spec["schedulerName"], spec["restartPolicy"], spec["priority"]) == (
        "default-scheduler",
        "Always",
        0,
    )
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    assert spec["containers"][0]["resources"] == {"limits": {"cpu": "500m"}, "requests": {"cpu": "500m"}}
    assert {one["key"] for one in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    assert made["status"] == {"phase": "Pending", "qosClass": "Burstable"}


async def test_same_name_twice_is_a_conflict(api: Api) -> None:
    """The second create answers 409 AlreadyExists in Kubernetes' words."""
    await api.make(PODS, pod())
    again = await api("POST", PODS, pod())
    assert (again.status, again.body["reason"], again.message) == (
        409,
        "AlreadyExists",
        'pods "p" already exists',
    )


async def test_generate_name_makes_distinct_names(api: Api) -> None:
    """generateName appends five characters that no vowel is among."""
    body = pod()
    body["metadata"] = {"generateName": "web-"}
    names = {(await api.make(PODS, body))["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("web-") and len(name) == 9 for name in names)


async def test_unknown_namespace_is_refused(api: Api) -> None:
    """Creating into a namespace that does not exist is a 404 that names it."""
    answer = await api("POST", "/api/v1/namespaces/nope/pods", pod())
    assert (answer.status, answer.message) == (404, 'namespaces "nope" not found')


async def test_field_validation_modes(api: Api) -> None:
    """An unknown field is refused, warned about or dropped, as the client asks."""
    body = pod()
    body["spec"]["containers"][0]["imagee"] = "x"
    strict = await api("POST", PODS, body, fieldValidation="Strict")
    assert strict.status == 400
    assert 'strict decoding error: unknown field "spec.containers[0].imagee"' in strict.message
    warned = await api("POST", PODS, body, fieldValidation="Warn", dryRun="All")
    assert (warned.status, warned.warnings) == (201, ['unknown field "spec.containers[0].imagee"'])
    silent = await api("POST", PODS, body, fieldValidation="Ignore")
    assert silent.warnings == []
    assert "imagee" not in silent.body["spec"]["containers"][0]


async def test_wrong_type_is_a_bad_request(api: Api) -> None:
    """A string where a list belongs is named by its Go field, as kubectl users know it."""
    body = pod()
    body["spec"]["containers"] = "x"
    answer = await api("POST", PODS, body)
    assert answer.status == 400
    assert (
        "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []Container"
        in answer.message
    )


async def test_update_needs_the_newest_version(api: Api) -> None:
    """PUT and PATCH with an old resourceVersion are refused; without one they go through."""
    made = await api.make(CONFIGS, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    changed = await api("PUT", f"{CONFIGS}/a", {**made, "data": {"x": "2"}})
    assert changed.status == 200
    stale = await api("PUT", f"{CONFIGS}/a", {**made, "data": {"x": "3"}})
    assert (stale.status, stale.body["reason"]) == (409, "Conflict")
    assert "the object has been modified" in stale.message
    version = made["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "data": {"x": "4"}}
    assert (await api("PATCH", f"{CONFIGS}/a", patch, content="merge")).status == 409
    assert (await api("PATCH", f"{CONFIGS}/a", {"data": {"x": "5"}}, content="merge")).status == 200


async def test_uid_precondition(api: Api) -> None:
    """A patch or delete meant for another incarnation of the same name is refused."""
    await api.make(CONFIGS, {"metadata": {"name": "a"}})
    patch = {"metadata": {"uid": "another"}, "data": {"x": "1"}}
    assert (await api("PATCH", f"{CONFIGS}/a", patch, content="merge")).status == 422
    gone = await api("DELETE", f"{CONFIGS}/a", {"preconditions": {"uid": "another"}})
    assert gone.status == 409 and "the UID in the precondition (another) does not match" in gone.message
    assert (await api.get(f"{CONFIGS}/a"))["metadata"]["name"] == "a"


async def test_a_write_that_changes_nothing_is_no_write(api: Api) -> None:
    """The version stays, so that watchers are not woken for nothing."""
    made = await api.make(CONFIGS, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    same = await api("PATCH", f"{CONFIGS}/a", {"data": {"x": "1"}}, content="merge")
    assert same.body["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_status_and_spec_are_apart(api: Api) -> None:
    """The main route ignores status, the subresource ignores the spec; only the spec counts generations."""
    path = "/apis/apps/v1/namespaces/default/deployments"
    await api.make(path, deployment())
    main = await api(
        "PATCH", f"{path}/web", {"spec": {"replicas": 3}, "status": {"replicas": 9}}, content="merge"
    )
    assert (main.body["spec"]["replicas"], main.body["status"].get("replicas")) == (3, None)
    assert main.body["metadata"]["generation"] == 2
    sub = await api(
        "PATCH", f"{path}/web/status", {"spec": {"replicas": 8}, "status": {"replicas": 3}}, content="merge"
    )
    assert (sub.body["spec"]["replicas"], sub.body["status"]["replicas"]) == (3, 3)
    assert sub.body["metadata"]["generation"] == 2


async def test_dry_run_changes_nothing(api: Api) -> None:
    """dryRun=All answers as if, and stores nothing."""
    answer = await api("POST", PODS, pod(), dryRun="All")
    assert answer.status == 201 and answer.body["spec"]["schedulerName"] == "default-scheduler"
    assert (await api("GET", f"{PODS}/p")).status == 404


async def test_unscheduled_pod_goes_at_once_and_a_bound_one_waits(api: Api) -> None:
    """Only a pod that has a node has a kubelet to wait for; the kubelet ends it with grace 0."""
    await api.make(PODS, pod("free"))
    await api("DELETE", f"{PODS}/free")
    assert (await api("GET", f"{PODS}/free")).status == 404
    await api.make(PODS, pod("bound", nodeName="n1", terminationGracePeriodSeconds=7))
    marked = (await api("DELETE", f"{PODS}/bound")).body["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 7 and marked["deletionTimestamp"]
    shorter = (await api("DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 2})).body["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 2
    await api("DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 0})
    assert (await api("GET", f"{PODS}/bound")).status == 404


async def test_finalizers_keep_an_object_until_they_are_gone(api: Api) -> None:
    """Deleting marks it; taking out the last finalizer removes it; new finalizers are refused meanwhile."""
    await api.make(CONFIGS, {"metadata": {"name": "a", "finalizers": ["x.io/f"]}})
    await api("DELETE", f"{CONFIGS}/a")
    marked = await api.get(f"{CONFIGS}/a")
    assert marked["metadata"]["deletionTimestamp"]
    more = {"metadata": {"finalizers": ["x.io/f", "x.io/g"]}}
    assert (await api("PATCH", f"{CONFIGS}/a", more, content="merge")).status == 422
    assert (
        await api("PATCH", f"{CONFIGS}/a", {"metadata": {"finalizers": None}}, content="merge")
    ).status == 200
    assert (await api("GET", f"{CONFIGS}/a")).status == 404


async def test_propagation_policies_are_finalizers(api: Api) -> None:
    """Foreground and Orphan leave the object to the garbage collector, Background removes it at once."""
    for policy, finalizer in (("Foreground", "foregroundDeletion"), ("Orphan", "orphan")):
        await api.make(CONFIGS, {"metadata": {"name": policy.lower()}})
        answer = await api("DELETE", f"{CONFIGS}/{policy.lower()}", {"propagationPolicy": policy})
        assert answer.body["metadata"]["finalizers"] == [finalizer]
    await api.make(CONFIGS, {"metadata": {"name": "b"}})
    await api("DELETE", f"{CONFIGS}/b", {"propagationPolicy": "Background"})
    assert (await api("GET", f"{CONFIGS}/b")).status == 404


async def test_delete_collection_by_label(api: Api) -> None:
    """Only what the selector chooses goes."""
    for name in ("a", "b"):
        await api.make(PODS, pod(name))
    await api("DELETE", PODS, labelSelector="app=a")
    assert [one["metadata"]["name"] for one in (await api.get(PODS))["items"]] == ["b"]


async def test_a_deleted_namespace_empties_itself(api: Api, clock: StillClock) -> None:
    """Its contents go, nothing new gets in, then it goes itself."""
    await api.make("/api/v1/namespaces", {"metadata": {"name": "team"}})
    await api.make("/api/v1/namespaces/team/configmaps", {"metadata": {"name": "a"}})
    await api("DELETE", "/api/v1/namespaces/team")
    late = await api("POST", "/api/v1/namespaces/team/configmaps", {"metadata": {"name": "b"}})
    assert late.status == 403 and "because it is being terminated" in late.message
    await clock.pass_(2)
    assert (await api("GET", "/api/v1/namespaces/team")).status == 404
    assert (await api.get("/api/v1/configmaps"))["items"] == []


async def test_a_namespace_waits_for_what_cannot_go_yet(api: Api, clock: StillClock) -> None:
    """An object with a finalizer keeps its namespace; once it is released both go."""
    await api.make("/api/v1/namespaces", {"metadata": {"name": "team"}})
    path = "/api/v1/namespaces/team/configmaps"
    await api.make(path, {"metadata": {"name": "a", "finalizers": ["x.io/f"]}})
    await api("DELETE", "/api/v1/namespaces/team")
    await clock.pass_(2)
    assert (await api.get("/api/v1/namespaces/team"))["status"]["phase"] == "Terminating"
    assert (await api.get(f"{path}/a"))["metadata"]["deletionTimestamp"]
    await api("PATCH", f"{path}/a", {"metadata": {"finalizers": None}}, content="merge")
    await clock.pass_(2)
    assert (await api("GET", "/api/v1/namespaces/team")).status == 404


async def test_events_live_for_an_hour(api: Api, clock: StillClock) -> None:
    """An event that is counted up again begins its hour anew."""
    path = "/api/v1/namespaces/default/events"
    for name in ("once", "again"):
        await api.make(path, {"metadata": {"name": name}, "involvedObject": {"name": "p"}})
    await clock.pass_(3000)
    await api("PATCH", f"{path}/again", {"count": 2}, content="merge")
    await clock.pass_(1000)
    assert [one["metadata"]["name"] for one in (await api.get(path))["items"]] == ["again"]


async def test_pages_are_one_consistent_snapshot(api: Api) -> None:
    """What is written between two pages of a LIST does not show in it."""
    for name in "abcde":
        await api.make(CONFIGS, {"metadata": {"name": name}})
    first = await api.get(CONFIGS, limit="2")
    await api("DELETE", f"{CONFIGS}/d")
    await api.make(CONFIGS, {"metadata": {"name": "cc"}})
    assert first["metadata"]["remainingItemCount"] == 3
    rest = await api.get(CONFIGS, limit="9", **{"continue": first["metadata"]["continue"]})
    assert [one["metadata"]["name"] for one in first["items"] + rest["items"]] == list("abcde")
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_exact_version_reads_the_past(api: Api) -> None:
    """resourceVersionMatch=Exact shows the collection as it was."""
    for name in "ab":
        await api.make(CONFIGS, {"metadata": {"name": name}})
    then = (await api.get(CONFIGS))["metadata"]["resourceVersion"]
    await api("DELETE", f"{CONFIGS}/a")
    past = await api.get(CONFIGS, resourceVersion=then, resourceVersionMatch="Exact")
    assert [one["metadata"]["name"] for one in past["items"]] == ["a", "b"]


async def test_concurrent_patches_are_all_kept(api: Api) -> None:
    """Nobody's change is lost when many write the same object."""
    await api.make(CONFIGS, {"metadata": {"name": "a"}})
    await asyncio.gather(
        *(api("PATCH", f"{CONFIGS}/a", {"data": {f"k{i}": "v"}}, content="merge") for i in range(30))
    )
    assert len((await api.get(f"{CONFIGS}/a"))["data"]) == 30


async def test_events_are_one_store_under_two_groups(api: Api) -> None:
    """What is written as core/v1 is read as events.k8s.io/v1 with that group's field names."""
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p"},
        "message": "hello",
        "reason": "Why",
        "type": "Normal",
        "count": 3,
    }
    await api.make("/api/v1/namespaces/default/events", event)
    other = await api.get("/apis/events.k8s.io/v1/namespaces/default/events/e")
    assert (other["note"], other["regarding"]["name"], other["deprecatedCount"]) == ("hello", "p", 3)
    chosen = await api.get("/api/v1/events", fieldSelector="involvedObject.name=p")
    assert len(chosen["items"]) == 1


async def test_malformed_bodies_are_bad_requests(api: Api) -> None:
    """Neither broken JSON nor a list nor protobuf noise reaches the store."""
    for body, content in (
        (b"{", ""),
        (b"[]", ""),
        (b"k8s\x00\xff\xff", "application/vnd.kubernetes.protobuf"),
    ):
        assert (await api("POST", PODS, body, content=content)).status == 400
    assert (await api("POST", PODS, b"<a/>", content="text/xml")).status == 415
    assert msgspec.json.encode((await api.get(PODS))["items"]) == b"[]"
