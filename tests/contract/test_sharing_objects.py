"""How several clients share objects: server-side apply, eviction and budgets, events, namespaces, settings."""

from __future__ import annotations

import base64
from typing import Any

from gpuslice.errors import ApiError
from gpuslice.kube.wire import Pod

from .kit import Kit, Object, config, deployment, idle, pod, until

APPS = "apps/v1"


def owners(thing: Object) -> dict[str, str]:
    return {entry["manager"]: entry["operation"] for entry in thing["metadata"].get("managedFields", [])}


async def applied(k8s: Kit, body: Object, manager: str, status: int = 200, **query: str) -> Any:
    path = k8s.path("configmaps", body["metadata"]["name"])
    answer = await k8s.api("PATCH", path, body, content="apply", fieldManager=manager, **query)
    assert answer.status == status, answer.message
    return answer


async def test_apply_creates_and_each_manager_owns_what_it_said(k8s: Kit) -> None:
    first = (await applied(k8s, config("c", a="1", b="1"), "one", 201)).body
    assert first["data"] == {"a": "1", "b": "1"}
    both = (await applied(k8s, config("c", c="2"), "two")).body
    assert both["data"] == {"a": "1", "b": "1", "c": "2"}
    assert owners(both) == {"one": "Apply", "two": "Apply"}
    less = (await applied(k8s, config("c", a="1"), "one")).body
    assert less["data"] == {"a": "1", "c": "2"}, "what its only owner no longer says goes"


async def test_apply_names_the_conflict_and_can_be_forced(k8s: Kit) -> None:
    await applied(k8s, config("c", a="1"), "one", 201)
    answer = await applied(k8s, config("c", a="2"), "two", 409)
    assert answer.reason == "Conflict"
    assert answer.message == 'Apply failed with 1 conflict: conflict with "one": .data.a'
    assert answer.body["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.a"}
    ]
    forced = (await applied(k8s, config("c", a="2"), "two", force="true")).body
    assert forced["data"] == {"a": "2"}
    same = (await applied(k8s, config("c", a="2"), "one")).body
    assert owners(same) == {"one": "Apply", "two": "Apply"}


async def test_apply_conflicts_with_what_others_have_updated(k8s: Kit) -> None:
    await applied(k8s, config("c", a="1"), "one", 201)
    await k8s.api.patch(k8s.path("configmaps", "c"), {"data": {"a": "9"}}, fieldManager="hand")
    answer = await applied(k8s, config("c", a="1"), "one", 409)
    assert 'conflict with "hand" using v1' in answer.message


async def test_apply_needs_a_manager(k8s: Kit) -> None:
    answer = await k8s.api("PATCH", k8s.path("configmaps", "c"), config("c"), content="apply")
    assert answer.status in (400, 422)
    assert "fieldManager" in answer.message
    assert "is required for apply patch" in answer.message


async def test_apply_finds_containers_by_name(k8s: Kit) -> None:
    path = k8s.path("deployments", "web", APPS)
    body = deployment("web", 0)
    answer = await k8s.api("PATCH", path, body, content="apply", fieldManager="one")
    assert answer.status == 201
    extra = {"name": "side", "image": "busybox:e2e"}
    more = {"apiVersion": APPS, "kind": "Deployment", "metadata": {"name": "web"}}
    more["spec"] = {"template": {"spec": {"containers": [extra]}}}
    answer = await k8s.api("PATCH", path, more, content="apply", fieldManager="two")
    assert answer.status == 200, answer.message
    assert sorted(c["name"] for c in answer.body["spec"]["template"]["spec"]["containers"]) == ["c", "side"]


async def test_managed_fields_say_who_wrote_what(k8s: Kit) -> None:
    body = config("c", a="1")
    made = (await k8s.api("POST", k8s.path("configmaps"), body, fieldManager="maker")).body
    (entry,) = made["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == ("maker", "Update", "v1")
    assert entry["fieldsV1"]["f:data"]["f:a"] == {}
    assert ("." in entry["fieldsV1"]["f:data"]) == k8s.real


async def test_a_generation_counts_changes_of_the_spec(k8s: Kit) -> None:
    made = await k8s.create("deployments", deployment("web", 0), APPS)
    path = k8s.path("deployments", "web", APPS)
    assert made["metadata"]["generation"] == 1
    same = await k8s.api.patch(path, {"metadata": {"labels": {"a": "b"}}})
    assert same["metadata"]["generation"] == 1
    changed = await k8s.api.patch(path, {"spec": {"paused": True}})
    assert changed["metadata"]["generation"] == 2


# --- eviction -------------------------------------------------------------------------------------
async def test_an_eviction_is_refused_while_a_budget_forbids_it(k8s: Kit) -> None:
    """429 with the cause that kubectl drain and our preemption wait on."""
    await k8s.create("pods", pod("p", labels={"app": "p"}))
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}}
    await k8s.create("poddisruptionbudgets", {"metadata": {"name": "budget"}, "spec": spec}, "policy/v1")
    await k8s.phase("p", "Running")
    path = k8s.path("poddisruptionbudgets", "budget", "policy/v1")

    async def counted() -> bool:
        status = (await k8s.api.get(path)).get("status", {})
        return bool(status.get("currentHealthy") == status.get("observedGeneration") == 1)

    await until(counted, "the budget to be counted")
    uid = (await k8s.api.get(f"{k8s.pods}/p"))["metadata"]["uid"]
    try:
        await k8s.client.evict(k8s.ns, "p", uid)
        raise AssertionError("it was evicted")
    except ApiError as error:
        assert error.status == 429
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    answer = await k8s.api("POST", f"{k8s.pods}/p/eviction", eviction)
    assert answer.refusal == (429, "TooManyRequests")
    assert answer.message == "Cannot evict pod as it would violate the pod's disruption budget."
    assert answer.body["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget budget needs 1 healthy pods and has 1 currently",
        }
    ]
    status = (await k8s.api.get(path))["status"]
    assert (status["disruptionsAllowed"], status["desiredHealthy"], status["expectedPods"]) == (0, 1, 1)
    await k8s.api("DELETE", path)
    answer = await k8s.api("POST", f"{k8s.pods}/p/eviction", eviction)
    assert (answer.status, answer.body["status"]) == (201, "Success")
    await k8s.gone(f"{k8s.pods}/p")


async def test_an_eviction_of_another_uid_is_a_conflict_and_of_nobody_not_found(k8s: Kit) -> None:
    await k8s.create("pods", idle())
    eviction: Object = {"metadata": {"name": "p"}}
    eviction["deleteOptions"] = {"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}}
    answer = await k8s.api("POST", f"{k8s.pods}/p/eviction", eviction)
    assert answer.refusal == (409, "Conflict")
    answer = await k8s.api("POST", f"{k8s.pods}/none/eviction", {"metadata": {"name": "none"}})
    assert answer.refusal == (404, "NotFound")


async def test_a_dry_eviction_evicts_nobody(k8s: Kit) -> None:
    await k8s.create("pods", idle())
    eviction = {"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}}
    answer = await k8s.api("POST", f"{k8s.pods}/p/eviction", eviction)
    assert answer.status == 201
    assert (await k8s.client.get(Pod, "p", k8s.ns)).metadata.deletion_timestamp is None


# --- events ---------------------------------------------------------------------------------------
async def test_events_are_found_by_what_they_are_about(k8s: Kit) -> None:
    made = await k8s.create("pods", idle())
    about = {"kind": "Pod", "name": "p", "namespace": k8s.ns, "uid": made["metadata"]["uid"]}
    for name, reason in (("e1", "Scheduled"), ("e2", "Failed")):
        body = {"metadata": {"name": name}, "involvedObject": about, "reason": reason, "message": "m"}
        await k8s.create("events", {**body, "type": "Normal", "count": 1})
    for selector, expected in (
        (f"involvedObject.uid={about['uid']}", ["e1", "e2"]),
        ("involvedObject.name=p,involvedObject.kind=Pod,reason=Failed", ["e2"]),
        ("type=Warning", []),
    ):
        items = (await k8s.api.get(k8s.path("events"), fieldSelector=selector))["items"]
        assert [item["metadata"]["name"] for item in items] == expected
    twin = await k8s.api.get(k8s.path("events", "e1", "events.k8s.io/v1"))
    assert (twin["reason"], twin["note"], twin["regarding"]["name"]) == ("Scheduled", "m", "p")
    counted = await k8s.api.patch(k8s.path("events", "e1"), {"count": 2})
    assert counted["count"] == 2


async def test_an_event_belongs_into_the_namespace_of_its_object(k8s: Kit) -> None:
    about = {"kind": "Pod", "name": "p", "namespace": "elsewhere"}
    answer = await k8s.api("POST", k8s.path("events"), {"metadata": {"name": "e"}, "involvedObject": about})
    assert answer.refusal == (422, "Invalid")
    assert (
        'involvedObject.namespace: Invalid value: "elsewhere": does not match event.namespace'
        in answer.message
    )


# --- namespaces -----------------------------------------------------------------------------------
async def test_a_namespace_goes_with_all_that_is_in_it(k8s: Kit) -> None:
    name = f"{k8s.ns}-more"
    space = f"/api/v1/namespaces/{name}"
    made = await k8s.global_("/api/v1/namespaces", {"metadata": {"name": name}})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": name}
    assert made["spec"]["finalizers"] == ["kubernetes"]
    held = {"metadata": {"name": "held", "finalizers": ["contract.example/hold"]}}
    await k8s.api.make(f"{space}/configmaps", held)
    await k8s.api.make(f"{space}/configmaps", config("free"))
    going = await k8s.api("DELETE", space)
    assert (going.status, going.body["status"]["phase"]) == (200, "Terminating")
    await k8s.gone(f"{space}/configmaps/free")
    answer = await k8s.api("POST", f"{space}/configmaps", config("late"))
    assert answer.refusal == (403, "Forbidden")
    assert answer.message == (
        f'configmaps "late" is forbidden: unable to create new content in namespace {name} '
        "because it is being terminated"
    )
    await k8s.api.patch(f"{space}/configmaps/held", {"metadata": {"finalizers": None}})
    await k8s.gone(space)


async def test_what_is_made_in_no_namespace_is_not_found(k8s: Kit) -> None:
    answer = await k8s.api("POST", "/api/v1/namespaces/contract-none/configmaps", config("c"))
    assert answer.refusal == (404, "NotFound")
    assert answer.message == 'namespaces "contract-none" not found'


async def test_a_new_namespace_gets_an_account_and_the_clusters_ca(k8s: Kit) -> None:
    async def there() -> Any:
        answer = await k8s.api("GET", k8s.path("configmaps", "kube-root-ca.crt"))
        return answer.body if answer.status == 200 else None

    found = await until(there, "the CA to be published")
    assert found["data"]["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")


# --- settings -------------------------------------------------------------------------------------
async def test_config_maps_and_secrets_are_checked(k8s: Kit) -> None:
    answer = await k8s.api("POST", k8s.path("configmaps"), config("c", **{"a b": "1"}))
    assert answer.refusal == (422, "Invalid")
    assert (
        'data[a b]: Invalid value: "a b": a valid config key must consist of alphanumeric' in answer.message
    )
    secret = {"metadata": {"name": "s"}, "data": {"k": "not base64!"}}
    answer = await k8s.api("POST", k8s.path("secrets"), secret)
    assert answer.refusal == (400, "BadRequest")
    assert "illegal base64 data at input byte" in answer.message
    secret = {"metadata": {"name": "s"}, "stringData": {"k": "plain"}}
    made = await k8s.create("secrets", secret)
    assert made["type"] == "Opaque"
    assert made["data"] == {"k": base64.b64encode(b"plain").decode()}
    assert "stringData" not in made


async def test_what_is_immutable_stays(k8s: Kit) -> None:
    await k8s.create("configmaps", config("c", a="1") | {"immutable": True})
    answer = await k8s.api("PATCH", k8s.path("configmaps", "c"), {"data": {"a": "2"}}, content="merge")
    assert answer.refusal == (422, "Invalid")
    assert "data: Forbidden: field is immutable when `immutable` is set" in answer.message


async def test_what_an_owner_leaves_behind_is_collected(k8s: Kit) -> None:
    owner = await k8s.create("configmaps", config("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await k8s.create("configmaps", {"metadata": {"name": "owned", "ownerReferences": [reference]}})
    await k8s.create("configmaps", {"metadata": {"name": "orphan", "ownerReferences": [reference]}})
    await k8s.api.patch(k8s.path("configmaps", "orphan"), {"metadata": {"ownerReferences": []}})
    await k8s.api("DELETE", k8s.path("configmaps", "owner"), {"propagationPolicy": "Background"})
    await k8s.gone(k8s.path("configmaps", "owned"))
    assert (await k8s.api("GET", k8s.path("configmaps", "orphan"))).status == 200


async def test_a_service_account_gives_tokens(k8s: Kit) -> None:
    body = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    answer = await k8s.api("POST", k8s.path("serviceaccounts", "default/token"), body)
    assert answer.status == 201
    token = answer.body["status"]["token"]
    assert token.count(".") == 2 if k8s.real else token
    assert answer.body["status"]["expirationTimestamp"]
