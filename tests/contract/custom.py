"""A kind of our own: a CustomResourceDefinition with a schema, defaults, columns and both subresources."""

from __future__ import annotations

from typing import Any

from gpuslice.kube.wire import KubeObject, Resource

from .kit import Kit, Object, until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(group: str, *, scope: str = "Namespaced") -> Object:
    count = {"type": "integer", "minimum": 0, "maximum": 10, "default": 1}
    spec = {
        "type": "object",
        "required": ["mode"],
        "properties": {
            "count": count,
            "mode": {"type": "string", "enum": ["fast", "slow"]},
            "replicas": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}},
        },
    }
    status = {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": scale},
        "additionalPrinterColumns": [{"name": "Mode", "type": "string", "jsonPath": ".spec.mode"}],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"gadgets.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "shortNames": ["gd"]},
            "versions": [version],
        },
    }


async def gadgets(k8s: Kit) -> str:
    """Define the kind in a group of this test's own, wait until it is served, and return "group/version"."""
    group = f"{k8s.ns}.example"
    await k8s.global_(CRDS, definition(group))

    async def served() -> bool:
        found = await k8s.api.get(f"{CRDS}/gadgets.{group}")
        conditions = {c["type"]: c["status"] for c in found["status"]["conditions"] or []}
        return conditions.get("Established") == "True" and (
            (await k8s.api("GET", k8s.path("gadgets", group=f"{group}/v1"))).status == 200
        )

    await until(served, "the gadgets to be served")
    return f"{group}/v1"


def gadget_type(group_version: str) -> type[KubeObject]:
    """The kind as our client reads it."""
    group, _, version = group_version.partition("/")

    class Gadget(KubeObject, frozen=True, gc=False):
        resource = Resource(group, version, "gadgets", "Gadget")

    return Gadget


def gadget(group_version: str, name: str = "g", **spec: Any) -> Object:
    return {"apiVersion": group_version, "kind": "Gadget", "metadata": {"name": name}, "spec": spec}
