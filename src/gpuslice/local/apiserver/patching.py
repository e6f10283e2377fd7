"""PATCH: picks the kind of patch by content type and applies it as an update."""

from __future__ import annotations

import msgspec

from gpuslice.local.apiserver import apply, patches, schema
from gpuslice.local.apiserver.http import Reply, Request, Target
from gpuslice.local.apiserver.rest import Change, Rest
from gpuslice.local.apiserver.status import Failure, Json, bad_request
from gpuslice.local.apiserver.strategic import strategic_merge

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


async def patch(rest: Rest, request: Request, target: Target) -> Reply:
    """Change an object by a merge, strategic merge, JSON or apply patch. Raises 415 for others."""
    kind, content = target.kind, request.content_type.partition(";")[0].strip()
    change: Change
    if content == APPLY:
        config = apply.read_config(request, target)
        rest.settle(request, kind, config)
        return await rest.update(
            request,
            target,
            lambda live: apply.merge(live, _copy(config), request, kind, rest.clock, target.subresource),
            created=None if target.subresource else apply.first(_copy(config), request, kind, rest.clock),
            applied=True,
        )
    if content == MERGE:
        change = lambda old: _object(patches.merge(old, _body(request)))  # noqa: E731
    elif content == STRATEGIC and kind.custom is None:
        shape = schema.of_kind(kind)
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
