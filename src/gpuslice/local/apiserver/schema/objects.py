"""Small questions that every part asks of a JSON object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gpuslice.clock import Clock, rfc3339
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.status import Json, bad_request

_EVENT_RENAMES = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("source", "deprecatedSource"),
    ("reportingComponent", "reportingController"),
)
"""How core/v1 and events.k8s.io/v1 name the same fields of an Event."""


encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
"""JSON bytes."""
decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode
"""A private copy of the JSON value. Raises msgspec.DecodeError."""


def now(clock: Clock) -> str:
    """The present as a `metav1.Time`."""
    return rfc3339(clock.now_ns())


def canonical(kind: Kind, obj: Json) -> Json:
    """An object as it is stored: apiVersion, kind and metadata first, in the storage version.

    Raises 400 if apiVersion or kind contradict the URL or metadata is no object.
    """
    version, name = obj.get("apiVersion", kind.api_version), obj.get("kind", kind.kind)
    if version != kind.api_version or name != kind.kind:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({kind.api_version})"
            if version != kind.api_version
            else f'the object provided is unrecognized (must be of type {kind.kind}): kind "{name}"'
        )
    meta = obj.get("metadata")
    if meta is None:
        meta = {}
    if not isinstance(meta, dict):
        raise bad_request(f"{kind.kind}.metadata: must be an object")
    stored = kind.custom.storage_version if kind.custom else kind.version
    head: Json = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}
    if kind.stored_as == ("", "events"):
        head["apiVersion"] = "v1"
        for new, old in _EVENT_RENAMES:
            if old in obj:
                head[new] = obj[old]
        skipped = {old for _, old in _EVENT_RENAMES}
        return head | {key: value for key, value in obj.items() if key not in head and key not in skipped}
    if kind.custom and stored != kind.version:
        head["apiVersion"] = f"{kind.group}/{stored}"
    for key, value in obj.items():
        if key not in head:
            head[key] = value
    return head


def convert(kind: Kind, obj: Json) -> Json:
    """A stored object in the version of `kind`; the argument may be changed."""
    obj["apiVersion"] = kind.api_version
    if kind.stored_as == ("", "events"):
        for old, new in _EVENT_RENAMES:
            if old in obj:
                obj[new] = obj.pop(old)
    return obj


def path(obj: Any, dotted: str) -> Any:
    """The value at `spec.replicas`; None where any step is missing."""
    for part in dotted.lstrip(".").split("."):
        obj = obj.get(part) if isinstance(obj, dict) else None
    return obj
