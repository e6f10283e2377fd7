"""What the bodies of requests say: objects in any format that clients send, and options of DELETE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from gpuslice.local.apiserver.api.http import Request
from gpuslice.local.apiserver.schema import protobuf
from gpuslice.local.apiserver.schema.status import Failure, Json, bad_request


@dataclass(slots=True)
class DeleteOptions:
    """`metav1.DeleteOptions`, from the body or the query."""

    grace: int | None = None
    propagation: str = ""
    uid: str | None = None
    version: str | None = None
    dry_run: bool = False


def read_object(request: Request) -> Json:
    """Decode a JSON or YAML object. Raises 415 for other formats, 400 for malformed bodies."""
    kind, body = request.content_type.partition(";")[0].strip(), request.body
    try:
        if kind == protobuf.MEDIA_TYPE:
            return protobuf.read(body)
        if "yaml" in kind:
            obj = yaml.safe_load(body)
        elif kind in ("application/json", "", "*/*") or kind.endswith("+json"):
            obj = msgspec.json.decode(body)
        else:
            raise Failure(
                415,
                "UnsupportedMediaType",
                f"the body of the request was in an unknown format - accepted media types include: "
                f"application/json, application/yaml, {protobuf.MEDIA_TYPE}",
            )
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None
    if not isinstance(obj, dict):
        raise bad_request("the body of the request must be an object")
    return obj


def read_delete_options(request: Request) -> DeleteOptions:
    """DeleteOptions from body and query. Raises 400."""
    body: Any = {}
    if request.content_type.startswith(protobuf.MEDIA_TYPE):
        body = protobuf.read(request.body) if request.body else {}
    elif request.body.strip():
        try:
            body = msgspec.json.decode(request.body)
        except msgspec.DecodeError as error:
            raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None
    if not isinstance(body, dict):
        raise bad_request("DeleteOptions must be an object")
    conditions = body.get("preconditions") or {}
    grace = request.number("gracePeriodSeconds")
    if body.get("gracePeriodSeconds") is not None:
        grace = body["gracePeriodSeconds"]
    propagation = body.get("propagationPolicy") or request.query.get("propagationPolicy", "")
    orphan = body.get("orphanDependents")
    if orphan is not None and not propagation:
        propagation = "Orphan" if orphan else "Background"
    if propagation not in ("", "Orphan", "Background", "Foreground"):
        raise bad_request(
            f'invalid propagationPolicy "{propagation}": supported values: "Background", "Foreground", '
            '"Orphan"'
        )
    dry = request.dry_run or bool(body.get("dryRun"))
    return DeleteOptions(grace, propagation, conditions.get("uid"), conditions.get("resourceVersion"), dry)
