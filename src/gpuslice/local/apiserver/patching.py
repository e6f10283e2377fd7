"""PATCH: picks the kind of patch by content type and applies it as an update."""

from __future__ import annotations

import msgspec

from gpuslice.local.apiserver import patches
from gpuslice.local.apiserver.http import Reply, Request, Target
from gpuslice.local.apiserver.rest import Rest
from gpuslice.local.apiserver.status import Failure, Json, bad_request


async def patch(rest: Rest, request: Request, target: Target) -> Reply:
    """Change an object by a merge, strategic merge, JSON or apply patch. Raises 415 for others."""
    kind = request.content_type.partition(";")[0].strip()
    if kind == "application/merge-patch+json":
        return await rest.update(request, target, lambda old: _object(patches.merge(old, _body(request))))
    if kind == "application/strategic-merge-patch+json":
        return await rest.update(request, target, lambda old: _object(patches.merge(old, _body(request))))
    if kind == "application/json-patch+json":
        return await rest.update(request, target, lambda old: _object(patches.json_patch(old, _body(request))))
    known = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    raise Failure(
        415, "UnsupportedMediaType",
        f"the body of the request was in an unknown format - accepted media types include: {known}",
    )  # fmt: skip


def _body(request: Request) -> object:
    try:
        return msgspec.json.decode(request.body)
    except msgspec.DecodeError as error:
        raise bad_request(f"error decoding patch: {error}") from None


def _object(value: object) -> Json:
    if not isinstance(value, dict):
        raise bad_request("the patch does not leave an object")
    return value
