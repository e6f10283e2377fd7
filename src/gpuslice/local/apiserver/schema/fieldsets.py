"""Sets of fields, as `managedFields` records them: paths of `f:name`, `k:{keys}` and `v:value` steps.

Source: structured-merge-diff. Atomic values are one field; associative lists are entered by their keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gpuslice.local.apiserver.schema.status import Json
from gpuslice.local.apiserver.schema.types import ANY, Field, Struct, Type

Path = tuple[str, ...]
FieldSet = set[Path]

_STRING = Type("string")


def item_key(item: Any, field: Field, of: Type) -> str:
    """The step into an associative list or a set for one of its items."""
    if field.is_set or not field.keys:
        return "v:" + msgspec.json.encode(item).decode()
    shape = of.shape()
    found = {}
    for key in sorted(field.keys):
        value = item.get(key) if isinstance(item, dict) else None
        if value is None and shape is not None and key in shape.fields:
            value = shape.fields[key].default or ("TCP" if key == "protocol" else None)
        if value is not None:
            found[key] = value
    return "k:" + msgspec.json.encode(found).decode()


def mergeable(field: Field) -> bool:
    """Whether a list is entered item by item."""
    return field.type.name == "list" and bool(field.keys or field.is_set)


def granular(field: Field | None, kind: Type) -> bool:
    """Whether a struct or map is entered field by field."""
    if field is not None and field.atomic:
        return False
    if kind.name == "map":
        return True
    if kind.name != "struct":
        return False
    shape = kind.shape()
    return shape is not None and not shape.atomic


def children(kind: Type, value: Json) -> Iterator[tuple[str, Any, Type, Field | None]]:
    """(key, value, type, field) of a granular struct or map."""
    shape = kind.shape() if kind.name == "struct" else None
    for key, one in value.items():
        if shape is not None:
            field = shape.fields.get(key)
            yield key, one, field.type if field is not None else ANY, field
        else:
            yield key, one, kind.of or ANY, None


def extract(value: Json, shape: Struct) -> FieldSet:
    """Every field that an object sets."""
    found: FieldSet = set()
    _extract(value, Type("struct", inline=shape), None, (), found)
    return found


def _extract(value: Any, kind: Type, field: Field | None, path: Path, found: FieldSet) -> None:
    if isinstance(value, dict) and value and granular(field, kind):
        for key, one, inner, inner_field in children(kind, value):
            _extract(one, inner, inner_field, (*path, f"f:{key}"), found)
    elif isinstance(value, list) and field is not None and mergeable(field):
        assert kind.of is not None
        for item in value:
            at = (*path, item_key(item, field, kind.of))
            found.add(at)
            if isinstance(item, dict):
                _extract(item, kind.of, None, at, found)
    elif path:
        found.add(path)


def changes(old: Json, new: Json, shape: Struct) -> tuple[FieldSet, FieldSet]:
    """(fields added or changed, fields removed); equal parts cost one comparison."""
    set_: FieldSet = set()
    gone: FieldSet = set()
    _changes(old, new, Type("struct", inline=shape), None, (), set_, gone)
    return set_, gone


def _changes(
    old: Any, new: Any, kind: Type, field: Field | None, path: Path, set_: FieldSet, gone: FieldSet
) -> None:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and granular(field, kind):
        for key, one, inner, inner_field in children(kind, new):
            at = (*path, f"f:{key}")
            if key in old:
                _changes(old[key], one, inner, inner_field, at, set_, gone)
            else:
                _extract(one, inner, inner_field, at, set_)
        for key, one, inner, inner_field in children(kind, old):
            if key not in new:
                _extract(one, inner, inner_field, (*path, f"f:{key}"), gone)
    elif isinstance(old, list) and isinstance(new, list) and field is not None and mergeable(field):
        assert kind.of is not None
        before = {item_key(item, field, kind.of): item for item in old}
        after = {item_key(item, field, kind.of): item for item in new}
        for key, item in after.items():
            at = (*path, key)
            if key in before:
                _changes(before[key], item, kind.of, None, at, set_, gone)
            else:
                set_.add(at)
                if isinstance(item, dict):
                    _extract(item, kind.of, None, at, set_)
        for key, item in before.items():
            if key not in after:
                at = (*path, key)
                gone.add(at)
                if isinstance(item, dict):
                    _extract(item, kind.of, None, at, gone)
    else:
        _extract(new, kind, field, path, set_)
        fresh: FieldSet = set()
        _extract(old, kind, field, path, fresh)
        gone |= fresh - set_


def to_v1(fields: FieldSet) -> Json:
    """The `fieldsV1` tree of a set."""
    root: Json = {}
    for path in sorted(fields):
        node = root
        for step in path:
            node = node.setdefault(step, {})
        node["."] = {}

    def tidy(node: Json) -> Json:
        if set(node) == {"."}:
            return {}
        return {key: tidy(one) if key != "." else {} for key, one in node.items()}

    return {key: tidy(one) for key, one in root.items()}


def from_v1(tree: Json) -> FieldSet:
    """The set of a `fieldsV1` tree."""
    found: FieldSet = set()

    def walk(node: Json, path: Path) -> None:
        if not node and path:
            found.add(path)
        for key, one in node.items():
            if key == ".":
                found.add(path)
            else:
                walk(one, (*path, key))

    walk(tree, ())
    return found


def shown(path: Path) -> str:
    """A path as conflicts print it: `.spec.containers[name="a"].image`."""
    text = ""
    for step in path:
        if step.startswith("f:"):
            text += "." + step[2:]
        elif step.startswith("k:"):
            keys = msgspec.json.decode(step[2:])
            text += (
                "["
                + ",".join(f"{key}={msgspec.json.encode(one).decode()}" for key, one in keys.items())
                + "]"
            )
        else:
            text += f"[={step[2:]}]"
    return text
