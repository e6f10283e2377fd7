"""The `scale` subresource: replicas of whatever has replicas."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuslice.local.apiserver.api.http import Reply, Request, Target, reply
from gpuslice.local.apiserver.api.rest import Rest
from gpuslice.local.apiserver.schema import apply, patches
from gpuslice.local.apiserver.schema.objects import path
from gpuslice.local.apiserver.schema.selectors import selector_text
from gpuslice.local.apiserver.schema.status import Failure, Json, bad_request, invalid, invalid_value


def scale_of(target: Target, obj: Json) -> Json:
    """The autoscaling/v1 Scale that stands for an object."""
    paths = target.kind.scale
    assert paths is not None
    meta = obj["metadata"]
    selector = path(obj, paths.selector) if paths.selector else None
    status: Json = {"replicas": path(obj, paths.status) or 0}
    if isinstance(selector, dict):
        nested = "matchLabels" in selector or "matchExpressions" in selector
        status["selector"] = selector_text(selector if nested else {"matchLabels": selector})
    elif isinstance(selector, str):
        status["selector"] = selector
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in kept if name in meta},
        "spec": {"replicas": path(obj, paths.spec) or 0},
        "status": status,
    }


async def serve(rest: Rest, request: Request, target: Target) -> Reply:
    """GET, PUT and PATCH of NAME/scale. Raises 422 for a negative count."""
    if request.method == "GET":
        return reply(scale_of(target, rest.entry(target).decode()))

    def change(obj: Json) -> Json:
        was = scale_of(target, obj)
        content = request.content_type.partition(";")[0]
        if request.method == "PUT":
            new: Any = _body(request)
        elif content == "application/json-patch+json":
            new = patches.json_patch(was, _body(request))
        else:
            new = patches.merge(was, apply.yaml_or_json(request.body))
        count = path(new, "spec.replicas")
        count = 0 if count is None else count
        if not isinstance(count, int):
            raise bad_request("Scale.spec.replicas: must be an integer")
        if count < 0:
            cause = invalid_value("spec.replicas", count, "must be greater than or equal to 0")
            raise invalid("autoscaling", "Scale", target.name, [cause])
        version = (new.get("metadata") or {}).get("resourceVersion")
        if request.method == "PUT" and version:
            obj["metadata"]["resourceVersion"] = version
        else:
            obj["metadata"].pop("resourceVersion", None)
        assert target.kind.scale is not None
        *parents, last = target.kind.scale.spec.lstrip(".").split(".")
        node = obj
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = count
        return obj

    answer = await rest.update(request, target, change)
    return reply(scale_of(target, msgspec.json.decode(answer.body)))


def _body(request: Request) -> Any:
    try:
        return msgspec.json.decode(request.body)
    except msgspec.DecodeError as error:
        raise Failure(400, "BadRequest", f"error decoding the body: {error}") from None
