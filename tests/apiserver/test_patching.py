"""The four kinds of PATCH."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from apikit import Api, deployment
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.local.apiserver.schema.fieldsets import extract, from_v1, to_v1
from gpuslice.local.apiserver.schema.patches import json_patch, merge
from gpuslice.local.apiserver.schema.status import Failure
from gpuslice.local.apiserver.schema.strategic import strategic_merge
from gpuslice.local.apiserver.schema.types import struct

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CONFIGS = "/api/v1/namespaces/default/configmaps"
POD_SPEC = struct("api.core.v1.PodSpec")

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab~/", max_size=3)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.text("abc", min_size=1, max_size=2), values, max_size=4)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return value


def copy(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def difference(old: Any, new: Any) -> Any:
    """The merge patch between two objects, written independently of the code under test."""
    patch = {key: None for key in old if key not in new}
    for key, one in new.items():
        if key not in old or not isinstance(one, dict) or not isinstance(old[key], dict):
            if key not in old or old[key] != one:
                patch[key] = one
        elif nested := difference(old[key], one):
            patch[key] = nested
    return patch


@given(objects, objects)
def test_merge_patch_leads_from_any_object_to_any_other(old: Any, new: Any) -> None:
    """RFC 7386: applying the difference gives the target (nulls excepted, which it cannot express)."""
    old, new = without_nulls(old), without_nulls(new)
    assert merge(copy(old), difference(old, new)) == new


def test_json_patch_operations() -> None:
    """RFC 6902: each operation, with escapes and list positions."""
    start = {"a": {"x/y": 1}, "l": [1, 2]}
    steps = [
        {"op": "test", "path": "/a/x~1y", "value": 1},
        {"op": "add", "path": "/l/1", "value": 9},
        {"op": "add", "path": "/l/-", "value": 3},
        {"op": "remove", "path": "/l/0"},
        {"op": "replace", "path": "/a/x~1y", "value": 5},
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "move", "from": "/l", "path": "/m"},
    ]
    assert json_patch(start, steps) == {"a": {"x/y": 5}, "b": {"x/y": 5}, "m": [9, 2, 3]}


@given(
    values,
    st.lists(
        st.dictionaries(st.sampled_from(["op", "path", "from", "value"]), values, max_size=4), max_size=3
    ),
)
def test_json_patch_never_breaks_on_nonsense(target: Any, steps: Any) -> None:
    """Whatever is sent, the answer is a result or a Failure."""
    try:
        json_patch(target, steps)
    except Failure as failure:
        assert failure.status in (400, 422)


@pytest.mark.parametrize(
    ("patch", "names"),
    [
        ({"containers": [{"name": "b", "image": "new"}]}, ["a", "b"]),
        ({"containers": [{"name": "c", "image": "z"}]}, ["c", "a", "b"]),
        ({"containers": [{"$patch": "delete", "name": "a"}]}, ["b"]),
        ({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}, ["b", "a"]),
        ({"containers": [{"$patch": "replace"}, {"name": "z", "image": "z"}]}, ["z"]),
    ],
)
def test_strategic_lists_merge_by_name(patch: Any, names: list[str]) -> None:
    """Containers are told apart by their names, with every directive."""
    spec = {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}
    assert [one["name"] for one in strategic_merge(spec, patch, POD_SPEC)["containers"]] == names


def test_strategic_directives_on_objects() -> None:
    """retainKeys, primitive lists and replace."""
    spec = {"volumes": [{"name": "v", "emptyDir": {}}], "nodeSelector": {"a": "b"}}
    patch = {
        "volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}],
        "nodeSelector": {"$patch": "replace", "c": "d"},
    }
    merged = strategic_merge(spec, patch, POD_SPEC)
    assert merged == {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}], "nodeSelector": {"c": "d"}}
    meta = strategic_merge(
        {"finalizers": ["a", "b"]},
        {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]},
        struct("apimachinery.pkg.apis.meta.v1.ObjectMeta"),
    )
    assert meta == {"finalizers": ["b", "c"]}


async def test_unknown_patch_type_is_refused(api: Api) -> None:
    """415 names what is accepted."""
    await api.make(CONFIGS, {"metadata": {"name": "a"}})
    answer = await api("PATCH", f"{CONFIGS}/a", {}, content="text/plain")
    assert answer.status == 415 and "application/apply-patch+yaml" in answer.message


async def apply(api: Api, body: Any, manager: str = "me", **query: str) -> Any:
    path = f"{DEPLOYMENTS}/{body['metadata']['name']}"
    return await api("PATCH", path, body, content="apply", fieldManager=manager, **query)


def owned_by(obj: Any, manager: str) -> str:
    """The fields of a manager, as text."""
    entries = obj["metadata"]["managedFields"]
    return str([one["fieldsV1"] for one in entries if one["manager"] == manager])


async def test_apply_creates_and_owns(api: Api) -> None:
    """The first apply creates the object (201), the same again changes nothing (200)."""
    first = await apply(api, deployment())
    again = await apply(api, deployment())
    assert (first.status, again.status) == (201, 200)
    assert first.body["metadata"]["resourceVersion"] == again.body["metadata"]["resourceVersion"]
    (owner,) = first.body["metadata"]["managedFields"]
    assert (owner["manager"], owner["operation"]) == ("me", "Apply")
    containers = owner["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]
    assert set(containers['k:{"name":"c"}']) == {".", "f:name", "f:image"}


async def test_apply_conflicts_with_another_manager_until_forced(api: Api) -> None:
    """Another manager's field is not taken by accident; by force it is, and then that manager conflicts."""
    await apply(api, deployment(image="nginx:1"))
    refused = await apply(api, deployment(image="nginx:2"), "you")
    assert refused.status == 409
    assert refused.message == (
        'Apply failed with 1 conflict: conflict with "me": .spec.template.spec.containers[name="c"].image'
    )
    forced = await apply(api, deployment(image="nginx:2"), "you", force="true")
    assert forced.body["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"
    assert "image" not in owned_by(forced.body, "me") and "image" in owned_by(forced.body, "you")
    assert (await apply(api, deployment(image="nginx:1"))).status == 409


async def test_apply_removes_what_it_leaves_out(api: Api) -> None:
    """A field applied last time and left out now goes, but not one that another manager set."""
    body = deployment()
    body["metadata"]["labels"] = {"mine": "1", "shared": "1"}
    await apply(api, body)
    other = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"shared": "1"}},
    }
    await apply(api, other, "you")
    await api(
        "PATCH",
        f"{DEPLOYMENTS}/web",
        {"metadata": {"labels": {"z": "1"}}},
        content="merge",
        fieldManager="ed",
    )
    done = await apply(api, deployment())
    assert done.body["metadata"]["labels"] == {"shared": "1", "z": "1"}


async def test_apply_leaves_to_others_what_it_does_not_name(api: Api) -> None:
    """An autoscaler's replicas survive an apply that does not mention them."""
    body = deployment()
    del body["spec"]["replicas"]
    await apply(api, body)
    await api("PATCH", f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 7}}, content="merge")
    body["spec"]["template"]["spec"]["containers"][0]["image"] = "nginx:9"
    assert (await apply(api, body)).body["spec"]["replicas"] == 7


async def test_an_edit_takes_the_field_from_its_applier(api: Api) -> None:
    """After kubectl edit, apply conflicts with the editor and says so."""
    await apply(api, deployment())
    patch = {"spec": {"replicas": 5}}
    edited = await api("PATCH", f"{DEPLOYMENTS}/web", patch, content="strategic", fieldManager="kubectl-edit")
    assert "f:replicas" not in owned_by(edited.body, "me")
    assert "f:replicas" in owned_by(edited.body, "kubectl-edit")
    answer = await apply(api, deployment())
    assert 'conflict with "kubectl-edit" using apps/v1: .spec.replicas' in answer.message


async def test_apply_to_an_object_that_nobody_owns(api: Api) -> None:
    """Fields from before belong to before-first-apply: equal values are shared, others conflict."""
    await api.make(DEPLOYMENTS, deployment())
    assert (await apply(api, deployment())).status == 200
    answer = await apply(api, deployment(image="other:1"))
    assert answer.status == 409 and '"before-first-apply"' in answer.message


async def test_apply_needs_a_manager(api: Api) -> None:
    """Without fieldManager there is nobody to own anything."""
    answer = await api("PATCH", f"{DEPLOYMENTS}/web", deployment(), content="apply")
    assert answer.status == 400 and "fieldManager: Required value" in answer.message


def test_field_sets_survive_their_json_form() -> None:
    """fieldsV1 and back is the same set, associative lists and sets included."""
    shape = struct("api.apps.v1.Deployment")
    assert shape is not None
    body = deployment()
    body["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 80}]
    body["metadata"]["finalizers"] = ["a/b"]
    found = extract(body, shape)
    assert from_v1(copy(to_v1(found))) == found
    assert any(step.startswith('k:{"containerPort":80,"protocol":"TCP"}') for path in found for step in path)
