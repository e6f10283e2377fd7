"""OpenAPI v3, one document per group and version, made from the type table when somebody asks.

kubectl reads it to learn that the server validates fields (`fieldValidation`), to merge strategically
with the right keys, and for `explain`. Paths are therefore few: one collection and one object per kind.
"""

from __future__ import annotations

import hashlib
from typing import Any

from gpuslice.kube.models import documentation
from gpuslice.local.apiserver.schema import types
from gpuslice.local.apiserver.schema.kinds import Kind, Registry
from gpuslice.local.apiserver.schema.objects import encode
from gpuslice.local.apiserver.schema.patches import APPLY, JSON_PATCH, MERGE, STRATEGIC
from gpuslice.local.apiserver.schema.status import Json, no_such_route
from gpuslice.local.apiserver.schema.types import Field, Type

_FORMATS: dict[str, Json] = {
    "string": {"type": "string"},
    "integer": {"type": "integer", "format": "int32"},
    "boolean": {"type": "boolean"},
    "number": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "intorstring": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    "any": {"type": "object"},
}
_REF = "#/components/schemas/io.k8s."


class OpenApi:
    """Answers /openapi/v3 and /openapi/v3/GROUP/VERSION."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._made: dict[str, bytes] = {}
        self._changes = -1

    def index(self) -> Json:
        """Every document with a hash of what it is made from, so that clients may cache it."""
        self._forget_old()
        paths: dict[str, list[Kind]] = {}
        for kind in self._registry:
            paths.setdefault(_document(kind), []).append(kind)
        listed = {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={_hash(kinds)}"}
            for path, kinds in paths.items()
        }
        return {"paths": dict(sorted(listed.items()))}

    def document(self, path: str) -> bytes:
        """One group and version, as JSON. Raises 404 for another."""
        self._forget_old()
        found = self._made.get(path)
        if found is None:
            kinds = [kind for kind in self._registry if _document(kind) == path]
            if not kinds:
                raise no_such_route()
            found = self._made[path] = encode(_make(path, kinds))
        return found

    def _forget_old(self) -> None:
        if self._changes != self._registry.changes:
            self._made.clear()
            self._changes = self._registry.changes


def _document(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _hash(kinds: list[Kind]) -> str:
    text = repr([(kind, kind.custom and kind.custom.schema) for kind in kinds])
    return hashlib.sha256(text.encode()).hexdigest()[:32].upper()


def _make(path: str, kinds: list[Kind]) -> Json:
    components: Json = {}
    paths: Json = {}
    for kind in kinds:
        gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        if kind.custom is not None:
            name = ".".join(reversed(kind.group.split("."))) + f".{kind.version}.{kind.kind}"
            meta = {"allOf": [{"$ref": _REF + types.META}]}
            string = {"type": "string"}
            body = dict(kind.custom.schema)
            body["properties"] = {
                "apiVersion": string,
                "kind": string,
                **(body.get("properties") or {}),
                "metadata": meta,
            }
            components[name] = {**body, "x-kubernetes-group-version-kind": [gvk]}
            _add(types.META, components)
            ref = f"#/components/schemas/{name}"
        else:
            name = types.builtin_name(kind.group, kind.version, kind.kind)
            if not _add(name, components):
                continue
            components[f"io.k8s.{name}"]["x-kubernetes-group-version-kind"] = [gvk]
            ref = _REF + name
        scope = "namespaces/{namespace}/" if kind.namespaced else ""
        collection = f"/{path}/{scope}{kind.plural}"
        answer = {"200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": ref}}}}}

        def operation(
            action: str, *, answer: Json = answer, gvk: Json = gvk, body: Json | None = None
        ) -> Json:
            made: Json = {
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": gvk,
                "responses": answer,
            }
            if body is not None:
                made["parameters"] = [
                    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
                    for name in ("dryRun", "fieldManager", "fieldValidation")
                ]
                made["requestBody"] = {"content": body}
            return made

        whole = {"*/*": {"schema": {"$ref": ref}}}
        kinds_of_patch = [APPLY, JSON_PATCH, MERGE] + ([] if kind.custom else [STRATEGIC])
        partial = {one: {"schema": {"type": "object"}} for one in kinds_of_patch}
        if kind.namespaced:
            paths[f"/{path}/{kind.plural}"] = {"get": operation("list")}
        paths[collection] = {"get": operation("list"), "post": operation("post", body=whole)}
        paths[collection + "/{name}"] = {
            "get": operation("get"),
            "put": operation("put", body=whole),
            "patch": operation("patch", body=partial),
            "delete": operation("delete"),
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "paths": paths,
        "components": {"schemas": components},
    }


def _add(name: str, components: Json) -> bool:
    """Put a type and all it refers to into the components; False if it is unknown."""
    key = f"io.k8s.{name}"
    if key in components:
        return True
    shape = types.struct(name)
    if shape is None:
        return False
    made: Json = {"type": "object"}
    components[key] = made
    about = documentation(name)
    if about.text:
        made["description"] = about.text
    properties = {}
    for one in shape.fields.values():
        made_field = _field(one, components)
        if text := about.fields.get(one.name):
            made_field["description"] = text
        properties[one.name] = made_field
    made["properties"] = properties
    needed = [one.name for one in shape.fields.values() if one.required]
    if needed:
        made["required"] = needed
    if shape.atomic:
        made["x-kubernetes-map-type"] = "atomic"
    return True


def _field(field: Field, components: Json) -> Json:
    made = _type(field.type, components)
    if "$ref" in made:
        made = {"allOf": [made]}
    if field.merge is not None:
        made["x-kubernetes-patch-strategy"] = "merge,retainKeys" if field.retain else "merge"
        if field.merge:
            made["x-kubernetes-patch-merge-key"] = field.merge
    elif field.retain:
        made["x-kubernetes-patch-strategy"] = "retainKeys"
    if field.type.name == "list":
        made["x-kubernetes-list-type"] = "map" if field.keys else "set" if field.is_set else "atomic"
        if field.keys:
            made["x-kubernetes-list-map-keys"] = list(field.keys)
    if field.atomic:
        made["x-kubernetes-map-type"] = "atomic"
    return made


def _type(kind: Type, components: Json) -> dict[str, Any]:
    match kind.name:
        case "list":
            return {"type": "array", "items": _type(kind.of or types.ANY, components)}
        case "map":
            return {"type": "object", "additionalProperties": _type(kind.of or types.ANY, components)}
        case "struct":
            return {"$ref": _REF + kind.struct} if _add(kind.struct, components) else {"type": "object"}
    return dict(_FORMATS[kind.name])
