r"""Kubernetes' protobuf bodies, read into JSON objects.

Go clients prefer protobuf for what they write (kubectl's `create deployment`, `drain`, `auth can-i`) and
do not fall back when it is refused. They accept JSON answers, so only reading is needed.
Format: the four bytes "k8s\0", then a `runtime.Unknown` whose `raw` is the object's own message.
"""

from __future__ import annotations

import base64
import struct as _struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from gpuslice.local.apiserver.schema.status import Json, bad_request
from gpuslice.local.apiserver.schema.types import Field, Struct, Type, builtin_name, struct

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read(body: bytes) -> Json:
    """The object in a protobuf body. Raises 400 if it is malformed or of an unknown type."""
    if not body.startswith(_MAGIC):
        raise bad_request(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        )
    try:
        api_version = kind = ""
        raw = b""
        for number, value in _wire(body[4:]):
            if number == 1:
                for part, text in _wire(value):
                    if part == 1:
                        api_version = text.decode()
                    elif part == 2:
                        kind = text.decode()
            elif number == 2:
                raw = value
        group, _, version = api_version.rpartition("/")
        shape = struct(builtin_name(group, version, kind))
        if shape is None and kind == "DeleteOptions":
            shape = struct("apimachinery.pkg.apis.meta.v1.DeleteOptions")
        if shape is None:
            raise bad_request(f'no kind "{kind}" is registered for version "{api_version}"')
        return {"apiVersion": api_version, "kind": kind, **_message(raw, shape)}
    except (IndexError, ValueError, UnicodeDecodeError, _struct.error) as error:
        raise bad_request(f"malformed protobuf body: {error}") from None


def _wire(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value): an int for varints and fixed widths, bytes for the rest."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield number, value
        elif kind == 2:
            size, position = _varint(data, position)
            if position + size > end:
                raise ValueError("truncated")
            yield number, data[position : position + size]
            position += size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            yield number, _struct.unpack("<d" if kind == 1 else "<f", data[position : position + size])[0]
            position += size
        else:
            raise ValueError(f"wire type {kind}")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, position
        shift += 7


def _message(data: bytes, shape: Struct) -> Json:
    direct = {one.number[0]: one for one in shape.fields.values() if len(one.number) == 1}
    embedded: dict[int, dict[int, Field]] = {}
    for one in shape.fields.values():
        if len(one.number) == 2:
            embedded.setdefault(one.number[0], {})[one.number[1]] = one
    found: Json = {}
    for number, value in _wire(data):
        if number in embedded:
            for inner, content in _wire(value):
                if inner in embedded[number]:
                    _set(found, embedded[number][inner], content)
        elif number in direct:
            _set(found, direct[number], value)
    return found


def _set(found: Json, one: Field, value: Any) -> None:
    kind = one.type
    if kind.name == "list":
        assert kind.of is not None
        found.setdefault(one.name, []).append(_value(value, kind.of))
    elif kind.name == "map":
        assert kind.of is not None
        entry = dict(_wire(value))
        found.setdefault(one.name, {})[entry.get(1, b"").decode()] = _value(entry.get(2, b""), kind.of)
    else:
        content = _value(value, kind)
        if content is not None and (one.pointer or content not in ("", 0, False)):
            found[one.name] = content


def _value(value: Any, kind: Type) -> Any:
    match kind.name:
        case "string":
            return value.decode()
        case "bytes":
            return base64.b64encode(value).decode()
        case "integer":
            return value - (1 << 64) if value >> 63 else value
        case "boolean":
            return bool(value)
        case "number":
            return value
        case "quantity":
            return dict(_wire(value)).get(1, b"0").decode()
        case "time" | "microtime":
            parts = dict(_wire(value))
            if not parts:
                return None
            seconds, nanos = _value(parts.get(1, 0), Type("integer")), parts.get(2, 0)
            moment = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
            return moment.strftime("%Y-%m-%dT%H:%M:%SZ" if kind.name == "time" else "%Y-%m-%dT%H:%M:%S.%fZ")
        case "intorstring":
            parts = dict(_wire(value))
            return parts.get(3, b"").decode() if parts.get(1) else _value(parts.get(2, 0), Type("integer"))
        case "struct":
            shape = kind.shape()
            return _message(value, shape) if shape is not None else {}
    parts = dict(_wire(value))
    try:
        return msgspec.json.decode(parts.get(1, b"null"))
    except msgspec.DecodeError:
        return None
