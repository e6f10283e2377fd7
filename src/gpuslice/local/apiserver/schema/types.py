"""The types of the API: fields, merge keys, protobuf numbers, of built-in kinds and of CRDs alike.

Built-in types come from `kubernetes.schema`, a table of facts made by tests/apiserver/make_schema.py;
they are parsed one by one when first needed. `settle` is what decoding into Go structs does to a
client's object: unknown fields vanish (and are reported), nulls vanish, quantities become canonical,
wrong types are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from gpuslice.errors import InputError
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.status import Json, bad_request
from gpuslice.units import canonical_quantity

META = "apimachinery.pkg.apis.meta.v1.ObjectMeta"


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value: `list`, `map` and `struct` have an `of`; the rest are scalars or `any`."""

    name: str
    of: Type | None = None
    struct: str = ""
    inline: Struct | None = field(default=None, compare=False)

    def shape(self) -> Struct | None:
        """The struct behind a `struct` type."""
        return self.inline if self.inline is not None else (struct(self.struct) if self.struct else None)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct."""

    name: str
    type: Type
    number: tuple[int, ...] = ()
    """Where it is on the protobuf wire; two steps if Go embeds it."""
    required: bool = False
    pointer: bool = False
    merge: str | None = None
    """Strategic merge: the key to merge a list by; "" merges a list of scalars."""
    retain: bool = False
    keys: tuple[str, ...] = ()
    """Apply: the keys of an associative list."""
    is_set: bool = False
    atomic: bool = False
    default: str = ""


@dataclass(frozen=True, slots=True)
class Struct:
    """A type with named fields."""

    name: str
    fields: dict[str, Field]
    atomic: bool = False
    open: bool = False
    """Keeps fields that it does not know (x-kubernetes-preserve-unknown-fields)."""
    go: bool = False
    """Is a Go struct: empty lists and maps vanish (omitempty), as they do not in custom resources."""


_SCALARS = {
    "string",
    "integer",
    "boolean",
    "number",
    "bytes",
    "time",
    "microtime",
    "quantity",
    "intorstring",
    "any",
}
ANY = Type("any")


def _type(text: str) -> Type:
    if text.startswith("["):
        return Type("list", _type(text[1:-1]))
    if text.startswith("{"):
        return Type("map", _type(text[1:-1]))
    return Type(text) if text in _SCALARS else Type("struct", None, text)


@cache
def _table() -> dict[str, tuple[bool, list[str]]]:
    text = resources.files(__package__).joinpath("kubernetes.schema").read_text()
    found: dict[str, tuple[bool, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("type "):
            words = line.split()
            lines = []
            found[words[1]] = ("atomic" in words[2:], lines)
        elif line.startswith("\t"):
            lines.append(line)
    return found


@cache
def struct(name: str) -> Struct | None:
    """A built-in type by its name without `io.k8s.`; None if there is none."""
    raw = _table().get(name)
    if raw is None:
        return None
    atomic, lines = raw
    fields = {}
    for line in lines:
        _, key, number, text, *flags = line.split("\t")
        options = dict(flag.partition("=")[::2] for flag in flags)
        fields[key] = Field(
            key,
            _type(text),
            tuple(int(part) for part in number.split(".")),
            "!" in options,
            "pointer" in options,
            options.get("merge"),
            "retain" in options,
            tuple(options["keys"].split(",")) if "keys" in options else (),
            "set" in options,
            "atomic" in options,
            options.get("default", ""),
        )
    return Struct(name, fields, atomic, go=True)


_PACKAGES = {
    "": "api.core",
    "apiextensions.k8s.io": "apiextensions-apiserver.pkg.apis.apiextensions",
    "rbac.authorization.k8s.io": "api.rbac",
}


def builtin_name(group: str, version: str, kind: str) -> str:
    """The name of a kind's type in the table."""
    return f"{_PACKAGES.get(group) or 'api.' + group.partition('.')[0]}.{version}.{kind}"


def of_kind(kind: Kind) -> Struct | None:
    """The type of a kind's objects; None if nothing is known about them."""
    if kind.custom is not None:
        return _custom(kind)
    return struct(builtin_name(kind.group, kind.version, kind.kind))


@lru_cache(256)
def _custom_of(key: int, kind: Kind) -> Struct:
    assert kind.custom is not None
    root = from_json_schema(kind.custom.schema).shape() or Struct(kind.kind, {}, open=True)
    string = Type("string")
    head = {
        "apiVersion": Field("apiVersion", string),
        "kind": Field("kind", string),
        "metadata": Field("metadata", Type("struct", None, META)),
    }
    return Struct(kind.kind, root.fields | head, open=root.open)


def _custom(kind: Kind) -> Struct:
    return _custom_of(id(kind.custom), kind)


def from_json_schema(schema: Json) -> Type:
    """The type that a structural OpenAPI schema describes."""
    if schema.get("x-kubernetes-int-or-string"):
        return Type("intorstring")
    if schema.get("x-kubernetes-embedded-resource"):
        return ANY
    match schema.get("type"):
        case "object":
            extra = schema.get("additionalProperties")
            open_ = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
            if "properties" not in schema:
                if isinstance(extra, dict):
                    return Type("map", from_json_schema(extra))
                return ANY if open_ or extra else Type("struct", inline=Struct("", {}))
            fields = {}
            needed = schema.get("required") or ()
            for name, one in schema["properties"].items():
                kind = one.get("x-kubernetes-list-type")
                fields[name] = Field(
                    name,
                    from_json_schema(one),
                    required=name in needed,
                    keys=tuple(one.get("x-kubernetes-list-map-keys") or ()) if kind == "map" else (),
                    is_set=kind == "set",
                    atomic=one.get("x-kubernetes-map-type") == "atomic",
                )
            atomic = schema.get("x-kubernetes-map-type") == "atomic"
            return Type("struct", inline=Struct("", fields, atomic, open_))
        case "array":
            return Type("list", from_json_schema(schema.get("items") or {}))
        case "integer" | "number" | "boolean" | "string" as name:
            return Type(name)
    return ANY


_GO = {
    "string": "string",
    "integer": "int32",
    "boolean": "bool",
    "number": "float64",
    "bytes": "[]uint8",
    "list": "[]",
    "map": "map[string]string",
}
_BYTES = re.compile(rb"(?:[A-Za-z0-9+/\s]*)={0,2}\s*")


def settle(value: Json, shape: Struct, what: str) -> list[str]:
    """Bring an object into the form of its type, in place; returns the paths of unknown fields.

    `what` begins the sentence of the 400 that a wrong type raises ('Pod in version "v1" ...').
    """
    unknown: list[str] = []
    _settle_struct(value, shape, "", unknown, what)
    return unknown


def _settle_struct(value: Json, shape: Struct, path: str, unknown: list[str], what: str) -> None:
    fields = shape.fields
    drop: list[str] | None = None
    for key, one in value.items():
        known = fields.get(key)
        if known is None:
            if not shape.open:
                unknown.append(f"{path}.{key}" if path else key)
                drop = [*drop, key] if drop else [key]
            continue
        kind = known.type
        name = kind.name
        if one is None or (not one and shape.go and name in ("map", "list") and not known.required):
            drop = [*drop, key] if drop else [key]
            continue
        if name == "string":
            if type(one) is not str and shape.go:
                raise _wrong(one, shape, f"{path}.{key}", kind, what)
        else:
            fresh = _settle(one, kind, f"{path}.{key}" if path else key, unknown, what, shape)
            if fresh is not one:
                value[key] = fresh
    if drop:
        for key in drop:
            del value[key]


def _settle(one: Any, kind: Type, path: str, unknown: list[str], what: str, owner: Struct) -> Any:
    if not owner.go and not _fits(one, kind):
        return one  # what a custom kind's schema finds wrong it tells with all the rest
    match kind.name:
        case "struct":
            if not isinstance(one, dict):
                raise _wrong(one, owner, path, kind, what)
            shape = kind.shape()
            if shape is not None:
                _settle_struct(one, shape, path, unknown, what)
        case "list":
            if not isinstance(one, list):
                raise _wrong(one, owner, path, kind, what)
            assert kind.of is not None
            for index, item in enumerate(one):
                fresh = _settle(item, kind.of, f"{path}[{index}]", unknown, what, owner)
                if fresh is not item:
                    one[index] = fresh
        case "map":
            if not isinstance(one, dict):
                raise _wrong(one, owner, path, kind, what)
            assert kind.of is not None
            of = kind.of
            if of.name == "string":
                for key, item in one.items():
                    if type(item) is not str:
                        if item is None:
                            one[key] = ""
                        elif owner.go:
                            raise _wrong(item, owner, path, of, what)
            else:
                for key, item in one.items():
                    fresh = _settle(item, of, f"{path}.{key}", unknown, what, owner)
                    if fresh is not item:
                        one[key] = fresh
        case "quantity":
            try:
                return canonical_quantity(one)
            except InputError:
                raise bad_request(
                    f"{what}: quantities must match the regular expression "
                    "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                ) from None
        case "string" | "time" | "microtime" | "bytes":
            if not isinstance(one, str):
                raise _wrong(one, owner, path, kind, what)
        case "integer":
            if type(one) is not int:
                if isinstance(one, float) and one.is_integer():
                    return int(one)
                raise _wrong(one, owner, path, kind, what)
        case "boolean":
            if type(one) is not bool:
                raise _wrong(one, owner, path, kind, what)
        case "number":
            if type(one) not in (int, float):
                raise _wrong(one, owner, path, kind, what)
        case "intorstring":
            if type(one) not in (int, str):
                raise _wrong(one, owner, path, kind, what)
    return one


_PYTHON: dict[str, tuple[type, ...]] = {
    "struct": (dict,),
    "list": (list,),
    "map": (dict,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "intorstring": (int, str),
}


def _fits(value: Any, kind: Type) -> bool:
    if kind.name == "integer" and isinstance(value, float):
        return value.is_integer()
    wanted = _PYTHON.get(kind.name)
    return wanted is None or type(value) in wanted


_JSON_NAMES = {str: "string", bool: "bool", int: "number", float: "number", dict: "object", list: "array"}


def _wrong(value: Any, owner: Struct, path: str, kind: Type, what: str) -> Exception:
    plain = re.sub(r"\[\d+\]", "", path).lstrip(".")
    go = _GO.get(kind.name) or kind.struct.removeprefix("api.").rpartition(".")[2] or kind.name
    if kind.name == "list" and kind.of is not None:
        go = f"[]{kind.of.struct.rpartition('.')[2] or _GO.get(kind.of.name, kind.of.name)}"
    name = owner.name.rpartition(".")[2] or "Object"
    have = _JSON_NAMES.get(type(value), "null")
    return bad_request(
        f"{what}: json: cannot unmarshal {have} into Go struct field {name}.{plain} of type {go}"
    )
