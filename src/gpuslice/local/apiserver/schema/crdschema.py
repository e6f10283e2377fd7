"""The part of OpenAPI that a CRD's schema may use: defaults and the checks that users meet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from gpuslice.local.apiserver.schema.status import Cause, Json, invalid_value, required, unsupported

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def fill(schema: Json, value: Any) -> None:
    """Fill in the defaults of a schema, in place."""
    if isinstance(value, dict):
        for name, one in (schema.get("properties") or {}).items():
            if name not in value and "default" in one:
                value[name] = msgspec.json.decode(msgspec.json.encode(one["default"]))
            if name in value:
                fill(one, value[name])
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            for one in value.values():
                fill(extra, one)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for one in value:
            fill(schema["items"], one)


def check(schema: Json, value: Any, path: str) -> Iterator[Cause]:
    """Every violation. CEL rules (x-kubernetes-validations) are not evaluated."""
    if value is None and schema.get("nullable"):
        return
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, (int, str)) or isinstance(value, bool):
            yield invalid_value(
                path, value, f'{path} in body must be of type int or string: "{_name(value)}"'
            )
            return
    elif kind in _TYPES:
        fits = isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
        if not fits:
            yield invalid_value(
                path, _name(value), f'{path} in body must be of type {kind}: "{_name(value)}"'
            )
            return
    if "enum" in schema and value not in schema["enum"]:
        yield unsupported(path, value, [str(one) for one in schema["enum"]])
    if isinstance(value, dict):
        for name in schema.get("required") or ():
            if name not in value:
                yield required(f"{path}.{name}" if path else name)
        properties = schema.get("properties") or {}
        extra = schema.get("additionalProperties")
        for name, one in value.items():
            inner = properties.get(name) or (extra if isinstance(extra, dict) else None)
            if inner is not None and not (not path and name == "metadata"):
                yield from check(inner, one, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        yield from _size(schema, path, value, len(value), "minItems", "maxItems", "items")
        if isinstance(schema.get("items"), dict):
            for index, one in enumerate(value):
                yield from check(schema["items"], one, f"{path}[{index}]")
    elif isinstance(value, str):
        yield from _size(schema, path, value, len(value), "minLength", "maxLength", "chars long")
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield invalid_value(path, value, f"{path} in body should match '{schema['pattern']}'")
    elif isinstance(value, (int, float)):
        if "minimum" in schema and value < schema["minimum"]:
            yield invalid_value(
                path, value, f"{path} in body should be greater than or equal to {schema['minimum']}"
            )
        if "maximum" in schema and value > schema["maximum"]:
            yield invalid_value(
                path, value, f"{path} in body should be less than or equal to {schema['maximum']}"
            )


def _size(
    schema: Json, path: str, value: Any, size: int, least: str, most: str, what: str
) -> Iterator[Cause]:
    if least in schema and size < schema[least]:
        yield invalid_value(path, value, f"{path} in body should be at least {schema[least]} {what}")
    if most in schema and size > schema[most]:
        yield invalid_value(path, value, f"{path} in body should be at most {schema[most]} {what}")


def _name(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")
