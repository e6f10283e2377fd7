"""Metadata without the rest, for clients that ask for `as=PartialObjectMetadata`."""

from __future__ import annotations

from collections.abc import Iterable

from gpuslice.local.apiserver.api.entries import frame
from gpuslice.local.apiserver.api.http import Request
from gpuslice.local.apiserver.schema.objects import decode, encode
from gpuslice.local.apiserver.schema.status import Json

_VERSION = "meta.k8s.io/v1"


def wanted(request: Request) -> bool:
    """Whether the client asks for it before anything else that this server speaks."""
    for option in request.accept.split(","):
        parts = [part.strip() for part in option.split(";")]
        if parts[0] == "application/json":
            kinds = ("as=PartialObjectMetadata", "as=PartialObjectMetadataList")
            return any(kind in parts for kind in kinds) and "g=meta.k8s.io" in parts
    return False


def of(raw: bytes) -> Json:
    """One object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": _VERSION, "metadata": decode(raw)["metadata"]}


def of_all(raws: Iterable[bytes], meta: Json) -> Json:
    """A collection."""
    items = [of(raw) for raw in raws]
    return {"kind": "PartialObjectMetadataList", "apiVersion": _VERSION, "metadata": meta, "items": items}


def line(type_: str, raw: bytes) -> bytes:
    """One event of a watch."""
    return frame(type_, encode(of(raw)))
