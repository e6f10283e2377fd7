"""Server-side apply: merge what a manager wants into the object, field by field, and settle who owns what.

A field that another manager owns and that would change is a conflict (409) unless forced. A field that
the manager applied last time and leaves out now is removed, unless somebody else owns it too.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from gpuslice.clock import Clock
from gpuslice.local.apiserver.schema import managed, types
from gpuslice.local.apiserver.schema.fieldsets import (
    FieldSet,
    Path,
    children,
    extract,
    granular,
    item_key,
    mergeable,
    shown,
)
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.managed import NEVER_OWNED, Owner
from gpuslice.local.apiserver.schema.objects import now
from gpuslice.local.apiserver.schema.status import Failure, Json, bad_request
from gpuslice.local.apiserver.schema.types import Field, Struct, Type


def yaml_or_json(body: bytes) -> Any:
    """Decode a body in either format. Raises 400."""
    try:
        return msgspec.json.decode(body) if body.lstrip().startswith(b"{") else yaml.safe_load(body)
    except (yaml.YAMLError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"error decoding YAML: {error}") from None


def first(config: Json, manager: str, kind: Kind, clock: Clock) -> Json:
    """A new object from an applied configuration."""
    shape = _shape(kind)
    fields = extract(config, shape) - NEVER_OWNED
    managed.write(config, [Owner(manager, "Apply", "", kind.api_version, now(clock), fields)])
    return config


def merge(
    live: Json, config: Json, manager: str, kind: Kind, clock: Clock, *, subresource: str, force: bool
) -> Json:
    """What the object becomes. Raises 409 naming every conflict, unless `force` takes the fields over."""
    shape = _shape(kind)
    wanted = extract(config, shape) - NEVER_OWNED
    owners = managed.read(live)
    if not owners:
        fields = extract({k: v for k, v in live.items() if k != "status"}, shape) - NEVER_OWNED
        owners = [Owner(managed.BEFORE_FIRST_APPLY, "Update", "", kind.api_version, now(clock), fields)]
    mine = next((one for one in owners if one.key == (manager, "Apply", subresource)), None)
    others = [one for one in owners if one is not mine]
    root = Type("struct", inline=shape)
    conflicts: list[tuple[Owner, Path]] = []
    changing: FieldSet = set()
    for path in sorted(wanted):
        if path[-1].startswith("k:") or _at(live, path, root) == _at(config, path, root):
            continue
        changing.add(path)
        conflicts += [(owner, path) for owner in others if path in owner.fields]
    if conflicts and not force:
        raise _conflict(conflicts)
    for owner in others:
        owner.fields -= changing
    merged: Json = _merge(live, {k: v for k, v in config.items() if k != "metadata"}, root, None)
    meta = {
        k: v for k, v in config["metadata"].items() if k not in ("name", "namespace", "creationTimestamp")
    }
    merged["metadata"] = _merge(live["metadata"], meta, Type("struct", None, types.META), None)
    last = mine.fields if mine is not None else set()
    for path in sorted(last - wanted, key=len, reverse=True):
        if not any(_holds(owner.fields, path) for owner in others) and not _holds(wanted, path):
            _remove(merged, path, root)
    if mine is None:
        mine = Owner(manager, "Apply", subresource, kind.api_version, now(clock), wanted)
        owners.insert(0, mine)
    elif mine.fields != wanted or changing:
        mine.time = now(clock)
    mine.fields, mine.api_version = wanted, kind.api_version
    managed.write(merged, owners)
    return merged


def _shape(kind: Kind) -> Struct:
    shape = types.of_kind(kind)
    if shape is None:
        raise Failure(
            415, "UnsupportedMediaType", f"apply is not supported for {kind.resource}: its type is unknown"
        )
    return shape


def _holds(fields: FieldSet, path: Path) -> bool:
    """Whether a set has the path or anything below it."""
    return path in fields or any(one[: len(path)] == path for one in fields)


def _conflict(conflicts: list[tuple[Owner, Path]]) -> Failure:
    by_owner: dict[str, list[str]] = {}
    for owner, path in conflicts:
        by_owner.setdefault(owner.shown(), []).append(shown(path))
    parts = []
    for owner_text, paths in by_owner.items():
        if len(paths) == 1:
            parts.append(f"conflict with {owner_text}: {paths[0]}")
        else:
            parts.append(f"conflicts with {owner_text}:" + "".join(f"\n- {path}" for path in paths))
    count = "1 conflict" if len(conflicts) == 1 else f"{len(conflicts)} conflicts"
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {owner.shown()}", "field": shown(path)}
        for owner, path in conflicts
    ]
    return Failure(
        409, "Conflict", f"Apply failed with {count}: " + "\n".join(parts), details={"causes": causes}
    )


def _field(kind: Type, name: str) -> tuple[Type, Field | None]:
    shape = kind.shape() if kind.name == "struct" else None
    if shape is not None:
        field = shape.fields.get(name)
        return (field.type, field) if field is not None else (types.ANY, None)
    return kind.of or types.ANY, None


_MISSING = object()


def _at(value: Any, path: Path, kind: Type) -> Any:
    """The value at a path, or a marker."""
    field: Field | None = None
    for step in path:
        if step.startswith("f:"):
            if not isinstance(value, dict) or step[2:] not in value:
                return _MISSING
            value = value[step[2:]]
            kind, field = _field(kind, step[2:])
        else:
            if not isinstance(value, list) or field is None or kind.of is None:
                return _MISSING
            value = next((item for item in value if item_key(item, field, kind.of) == step), _MISSING)
            kind, field = kind.of, None
    return value


def _remove(value: Any, path: Path, kind: Type) -> None:
    field: Field | None = None
    for step in path[:-1]:
        if step.startswith("f:"):
            value = value.get(step[2:]) if isinstance(value, dict) else None
            kind, field = _field(kind, step[2:])
        else:
            if not isinstance(value, list) or field is None or kind.of is None:
                return
            value = next((item for item in value if item_key(item, field, kind.of) == step), None)
            kind, field = kind.of, None
        if value is None:
            return
    step = path[-1]
    if step.startswith("f:"):
        if isinstance(value, dict):
            value.pop(step[2:], None)
    elif isinstance(value, list) and field is not None and kind.of is not None:
        value[:] = [item for item in value if item_key(item, field, kind.of) != step]


def _merge(live: Any, config: Any, kind: Type, field: Field | None) -> Any:
    if isinstance(live, dict) and isinstance(config, dict) and granular(field, kind):
        merged = dict(live)
        for key, one, inner, inner_field in children(kind, config):
            merged[key] = _merge(live[key], one, inner, inner_field) if key in live else one
        return merged
    if isinstance(live, list) and isinstance(config, list) and field is not None and mergeable(field):
        assert kind.of is not None
        of = kind.of
        wanted = {item_key(item, field, of): item for item in config}
        result = []
        for item in live:
            key = item_key(item, field, of)
            result.append(_merge(item, wanted.pop(key), of, None) if key in wanted else item)
        return [*result, *wanted.values()]
    return config
