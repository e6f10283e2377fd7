"""PATCH: picks the kind of patch by content type and applies it as an update."""

from __future__ import annotations

import msgspec

from gpuslice.local.apiserver.api.http import Reply, Request, Target
from gpuslice.local.apiserver.api.rest import Change, Rest
from gpuslice.local.apiserver.schema import apply, patches, types
from gpuslice.local.apiserver.schema.patches import APPLY, JSON_PATCH, MERGE, STRATEGIC
from gpuslice.local.apiserver.schema.status import Failure, Json, bad_request
from gpuslice.local.apiserver.schema.strategic import strategic_merge


async def patch(rest: Rest, request: Request, target: Target) -> Reply:
    """Change an object by a merge, strategic merge, JSON or apply patch. Raises 415 for others."""
    kind, content = target.kind, request.content_type.partition(";")[0].strip()
    change: Change
    if content == APPLY:
        config, manager = _configuration(request, target), request.manager
        rest.settle(request, kind, config)
        return await rest.update(
            request,
            target,
            lambda live: apply.merge(
                live,
                _copy(config),
                manager,
                kind,
                rest.clock,
                subresource=target.subresource,
                force=request.flag("force"),
            ),
            created=None if target.subresource else apply.first(_copy(config), manager, kind, rest.clock),
            applied=True,
        )
    if content == MERGE:
        change = lambda old: _object(patches.merge(old, _body(request)))  # noqa: E731
    elif content == STRATEGIC and kind.custom is None:
        shape = types.of_kind(kind)
        change = lambda old: strategic_merge(old, _object(_body(request)), shape)  # noqa: E731
    elif content == JSON_PATCH:
        change = lambda old: _object(patches.json_patch(old, _body(request)))  # noqa: E731
    else:
        known = [JSON_PATCH, MERGE, *([STRATEGIC] if kind.custom is None else []), APPLY]
        raise Failure(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(known),
        )
    return await rest.update(request, target, change)


def _configuration(request: Request, target: Target) -> Json:
    """The configuration to apply. Raises 400 where Kubernetes does."""
    if not request.manager:
        raise Failure(
            400,
            "BadRequest",
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required '
            "for apply patch",
        )
    config = apply.yaml_or_json(request.body)
    if not isinstance(config, dict):
        raise bad_request("the applied configuration must be an object")
    kind = target.kind
    if config.get("apiVersion") != kind.api_version or config.get("kind") != kind.kind:
        raise bad_request(
            f"the applied configuration must be of apiVersion {kind.api_version} and kind {kind.kind}"
        )
    meta = config.setdefault("metadata", {})
    if meta.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    meta.setdefault("name", target.name)
    if target.namespace:
        meta.setdefault("namespace", target.namespace)
    return config


def _body(request: Request) -> object:
    try:
        return msgspec.json.decode(request.body)
    except msgspec.DecodeError as error:
        raise bad_request(f"error decoding patch: {error}") from None


def _copy(value: Json) -> Json:
    copied: Json = msgspec.json.decode(msgspec.json.encode(value))
    return copied


def _object(value: object) -> Json:
    if not isinstance(value, dict):
        raise bad_request("a patch must be, and leave, an object")
    return value
