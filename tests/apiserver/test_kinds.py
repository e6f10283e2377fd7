"""Discovery, tables, scale, OpenAPI, custom resources, workloads: what kubectl asks beside objects."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from apikit import PODS, Api, StillClock, deployment, pod

from gpuslice.local.apiserver.print import cells, printers, workloadcells
from gpuslice.local.apiserver.schema.kinds import BUILT_IN
from gpuslice.local.apiserver.schema.types import of_kind
from gpuslice.units import canonical_quantity

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RAYS = "/apis/ray.io/v1/namespaces/default/rayclusters"


def definition(**version: Any) -> dict[str, Any]:
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 0},
            "mode": {"type": "string", "default": "auto"},
        },
    }
    return {
        "metadata": {"name": "rayclusters.ray.io"},
        "spec": {
            "group": "ray.io",
            "scope": "Namespaced",
            "names": {"plural": "rayclusters", "kind": "RayCluster", "shortNames": ["ray"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {
                                "spec": spec,
                                "status": {"type": "object", "properties": {"size": {"type": "integer"}}},
                            },
                        }
                    },
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"},
                    },
                    "additionalPrinterColumns": [
                        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"}
                    ],
                    **version,
                }
            ],
        },
    }


async def test_discovery_old_and_new_agree(api: Api) -> None:
    """Both forms list the same resources and verbs."""
    old = {one["name"]: one for one in (await api.get("/apis/apps/v1"))["resources"]}
    new = await api(
        "GET", "/apis", accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    )
    apps = next(one for one in new.body["items"] if one["metadata"]["name"] == "apps")
    listed = {one["resource"]: one for one in apps["versions"][0]["resources"]}
    assert {name for name in old if "/" not in name} == set(listed)
    assert old["deployments"]["shortNames"] == listed["deployments"]["shortNames"] == ["deploy"]
    assert {one["subresource"] for one in listed["deployments"]["subresources"]} == {"scale", "status"}
    assert "deployments/scale" in old
    groups = [one["name"] for one in (await api.get("/apis"))["groups"]]
    assert groups == [one["metadata"]["name"] for one in new.body["items"]]


async def test_unknown_routes_are_404(api: Api) -> None:
    """In Kubernetes' own words, so that kubectl says what it always says."""
    for path in ("/apis/nope/v1/x", "/api/v1/nopes", "/api/v2", "/foo", f"{PODS}/p/nope"):
        answer = await api("GET", path)
        assert (answer.status, answer.message) == (404, "the server could not find the requested resource")
    assert (await api("POST", f"{PODS}/p")).status == 405


def test_every_kind_has_a_type_and_rows_as_wide_as_its_columns() -> None:
    """No kind of the registry is missing from the type table, no table has a crooked row."""
    for kind in BUILT_IN:
        assert of_kind(kind) is not None, kind.resource
        columns = printers.COLUMNS.get(kind.storage, "Name:s* Age:s").split()
        cells = printers.CELLS.get(kind.storage)
        if cells is not None:
            row = cells({"kind": kind.kind, "metadata": {"name": "x"}, "spec": {}, "status": {}}, 0)
            assert len(row) == len(columns) - (0 if printers.is_bare(kind.storage) else 1), kind.resource


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (600, "10m"), (3600 * 3, "3h"), (3600 * 7 + 60, "7h1m"),
     (3600 * 47, "47h"), (86400 * 3 + 3600, "3d1h"), (86400 * 300, "300d"), (86400 * 800, "2y70d")],
)  # fmt: skip
def test_ages_read_as_kubectl_writes_them(seconds: int, text: str) -> None:
    """Two digits of precision, the larger unit first."""
    assert cells.duration(seconds) == text


def status(**container: Any) -> dict[str, Any]:
    return {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 0, **container}]}


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"phase": "Pending"}, ("Pending", 0)),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, ("UnexpectedAdmissionError", 0)),
        (status(state={"waiting": {"reason": "CrashLoopBackOff"}}), ("CrashLoopBackOff", 0)),
        (status(state={"terminated": {"exitCode": 3}}), ("ExitCode:3", 0)),
        (status(state={"running": {}}, ready=True), ("Running", 1)),
        ({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}, ("Init:0/1", 0)),
        ({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]},
         ("SchedulingGated", 0)),
    ],
)  # fmt: skip
def test_pod_status_column(state: dict[str, Any], shown: tuple[str, int]) -> None:
    """STATUS and READY say what kubectl users expect."""
    spec = {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]}
    text, ready, *_ = workloadcells.pod_status({"metadata": {}, "spec": spec, "status": state})
    assert (text, ready) == shown


async def test_table_of_pods(api: Api, clock: StillClock) -> None:
    """Rows carry the cells and enough of each object for kubectl."""
    await api.make(PODS, pod("a", nodeName="n1"))
    await clock.pass_(5)
    answer = await api("GET", PODS, accept=TABLE)
    assert [one["name"] for one in answer.body["columnDefinitions"]][:5] == [
        "Name",
        "Ready",
        "Status",
        "Restarts",
        "Age",
    ]
    row = answer.body["rows"][0]
    assert row["cells"] == ["a", "0/1", "Pending", "0", "5s", "<none>", "n1", "<none>", "<none>"]
    assert (row["object"]["kind"], row["object"]["metadata"]["name"]) == ("PartialObjectMetadata", "a")


async def test_scale_reads_and_writes_replicas(api: Api) -> None:
    """The scale of a deployment carries its selector as text; a negative count is refused."""
    await api.make(DEPLOYMENTS, deployment())
    scale = await api.get(f"{DEPLOYMENTS}/web/scale")
    assert (scale["spec"]["replicas"], scale["status"]["selector"]) == (2, "app=web")
    await api("PUT", f"{DEPLOYMENTS}/web/scale", {**scale, "spec": {"replicas": 0}})
    assert (await api.get(f"{DEPLOYMENTS}/web"))["spec"]["replicas"] == 0
    assert (
        await api("PATCH", f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": -1}}, content="merge")
    ).status == 422


async def test_workloads_are_completed_and_guarded(api: Api) -> None:
    """Defaults are filled in; the selector must match and cannot change."""
    spec = (await api.make(DEPLOYMENTS, deployment()))["spec"]
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert (spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (10, 600)
    other = {"spec": {"selector": {"matchLabels": {"app": "x"}}}}
    changed = await api("PATCH", f"{DEPLOYMENTS}/web", other, content="merge")
    assert changed.status == 422 and "field is immutable" in changed.message
    wrong = deployment("b")
    wrong["spec"]["selector"] = {"matchLabels": {"app": "x"}}
    refused = await api("POST", DEPLOYMENTS, wrong)
    assert "`selector` does not match template `labels`" in refused.message


async def test_jobs_get_their_labels_and_policy(api: Api) -> None:
    """A job selects its pods by its own uid; restartPolicy Always is refused."""
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    body = {
        "metadata": {"name": "j"},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}},
    }
    refused = await api("POST", jobs, body)
    assert (
        'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
        in refused.message
    )
    body["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    made = await api.make(jobs, body)
    uid = made["metadata"]["uid"]
    assert made["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert made["spec"]["template"]["metadata"]["labels"]["job-name"] == "j"
    assert (made["spec"]["backoffLimit"], made["spec"]["completions"]) == (6, 1)


async def test_services_get_addresses_of_their_own(api: Api) -> None:
    """No two services share a cluster IP or a node port."""
    path = "/api/v1/namespaces/default/services"
    made = [
        (
            await api.make(
                path, {"metadata": {"name": f"s{i}"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}
            )
        )["spec"]
        for i in range(3)
    ]
    assert len({one["clusterIP"] for one in made}) == len({one["ports"][0]["nodePort"] for one in made}) == 3
    assert made[0]["ports"][0]["targetPort"] == 80


async def test_secrets_take_plain_text(api: Api) -> None:
    """stringData becomes base64 data and is not stored."""
    made = await api.make(
        "/api/v1/namespaces/default/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}}
    )
    assert (made["data"], made["type"]) == ({"a": base64.b64encode(b"b").decode()}, "Opaque")
    assert "stringData" not in made


async def test_a_definition_makes_a_kind(api: Api) -> None:
    """Routes, discovery, columns, defaults, checks, status and scale follow from the CRD, and go with it."""
    assert (await api("GET", RAYS)).status == 404
    made = await api.make(DEFINITIONS, definition())
    assert {one["type"]: one["status"] for one in made["status"]["conditions"]}["Established"] == "True"
    assert "rayclusters" in [one["name"] for one in (await api.get("/apis/ray.io/v1"))["resources"]]
    ray = await api.make(RAYS, {"metadata": {"name": "a"}, "spec": {"size": 3}})
    assert (ray["spec"], ray["metadata"]["generation"]) == ({"size": 3, "mode": "auto"}, 1)
    wrong = await api("POST", RAYS, {"metadata": {"name": "b"}, "spec": {"size": -1}})
    assert wrong.status == 422 and "should be greater than or equal to 0" in wrong.message
    assert (
        "spec.size: Required value"
        in (await api("POST", RAYS, {"metadata": {"name": "b"}, "spec": {}})).message
    )
    unknown = await api(
        "POST", RAYS, {"metadata": {"name": "b"}, "spec": {"size": 1, "x": 1}}, fieldValidation="Strict"
    )
    assert 'unknown field "spec.x"' in unknown.message
    await api("PATCH", f"{RAYS}/a/scale", {"spec": {"replicas": 5}}, content="merge")
    table = await api("GET", RAYS, accept=TABLE)
    assert table.body["rows"][0]["cells"] == ["a", 5]
    await api("DELETE", f"{DEFINITIONS}/rayclusters.ray.io")
    assert (await api("GET", RAYS)).status == 404


async def test_openapi_tells_kubectl_what_it_needs(api: Api) -> None:
    """Field validation is announced, merge keys are in the schema, documentation is there for explain."""
    index = await api.get("/openapi/v3")
    assert {"api/v1", "apis/apps/v1"} <= set(index["paths"])
    document = await api.get("/openapi/v3/api/v1")
    patch = document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
    assert "fieldValidation" in {one["name"] for one in patch["parameters"]}
    spec = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]
    assert spec["properties"]["containers"]["x-kubernetes-patch-merge-key"] == "name"
    assert "List of containers" in spec["properties"]["containers"]["description"]


async def test_protobuf_bodies_are_read(api: Api) -> None:
    """The bytes that `kubectl create configmap` really sends."""
    meta = b'\n\x01a\x12\x00\x1a\x00"\x07default*\x002\x008\x00B\x00'
    config = b"\n" + bytes([len(meta)]) + meta + b"\x12\x06\n\x01k\x12\x01v"
    unknown = b"\n\x0f\n\x02v1\x12\tConfigMap\x12" + bytes([len(config)]) + config + b'\x1a\x00"\x00'
    answer = await api(
        "POST",
        "/api/v1/namespaces/default/configmaps",
        b"k8s\x00" + unknown,
        content="application/vnd.kubernetes.protobuf",
    )
    assert (answer.status, answer.name, answer.body["data"]) == (201, "a", {"k": "v"})


@pytest.mark.parametrize(
    ("given", "canonical"),
    [("1000m", "1"), (0.5, "500m"), ("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), (5, "5"), ("1e3", "1e3"), ("0", "0"),
     ("100k", "100k"), ("1500", "1500"), ("0.1", "100m"), ("128974848", "128974848")],
)  # fmt: skip
def test_quantities_are_stored_canonically(given: Any, canonical: str) -> None:
    """As kube-apiserver stores them, whatever the client wrote."""
    assert canonical_quantity(given) == canonical


async def test_who_and_may_i(api: Api) -> None:
    """Everybody may do everything, and is told so."""
    may = await api.make("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {}})
    assert may["status"]["allowed"] is True
    who = await api.make("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert who["status"]["userInfo"]["username"] == "gpuslice-admin"
