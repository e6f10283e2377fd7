"""Strategic merge patch: what `kubectl apply`, `edit` and `label` send for built-in kinds.

Lists merge by the merge keys of their type; `$patch`, `$retainKeys`, `$deleteFromPrimitiveList/` and
`$setElementOrder/` are the directives of apimachinery `util/strategicpatch`.
"""

from __future__ import annotations

from typing import Any

from gpuslice.local.apiserver.schema.status import Json, bad_request
from gpuslice.local.apiserver.schema.types import Field, Struct

_PATCH, _RETAIN = "$patch", "$retainKeys"
_DELETE_FROM, _ORDER = "$deleteFromPrimitiveList/", "$setElementOrder/"


def strategic_merge(target: Json, patch: Json, shape: Struct | None) -> Json:
    """Merge a patch into an object of a type. May change both. Raises 400 for unknown directives."""
    directive = patch.pop(_PATCH, "merge")
    if directive == "replace":
        replaced: Json = _plain(patch)
        return replaced
    if directive == "delete":
        return {}
    if directive != "merge":
        raise bad_request(f"unknown patch type: {directive}")
    retain = patch.pop(_RETAIN, None)
    if retain is not None:
        for key in [key for key in target if key not in retain]:
            del target[key]
    fields = shape.fields if shape is not None else {}
    orders: dict[str, list[Any]] = {}
    originals = {key: value for key, value in target.items() if isinstance(value, list)}
    for key, value in patch.items():
        if key.startswith(_ORDER):
            orders[key.removeprefix(_ORDER)] = value
        elif key.startswith(_DELETE_FROM):
            name = key.removeprefix(_DELETE_FROM)
            if isinstance(target.get(name), list):
                target[name] = [one for one in target[name] if one not in value]
        elif value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            inner = _inner(fields.get(key))
            was = target.get(key)
            target[key] = strategic_merge(was if isinstance(was, dict) else {}, value, inner)
        elif isinstance(value, list) and key in fields and fields[key].merge is not None:
            target[key] = _merge_list(target.get(key) or [], value, fields[key])
            orders.setdefault(key, value)
        else:
            target[key] = _plain(value)
    for name, order in orders.items():
        known = fields.get(name)
        if known is not None and known.merge and isinstance(target.get(name), list):
            target[name] = _ordered(target[name], order, originals.get(name) or [], known.merge)
    return target


def _inner(field: Field | None) -> Struct | None:
    """The struct behind a field: its own, or that of a map's or a list's members."""
    if field is None:
        return None
    kind = field.type
    while kind.of is not None:
        kind = kind.of
    return kind.shape() if kind.name == "struct" else None


def _plain(value: Any) -> Any:
    """A value of the patch without nulls and directives."""
    if isinstance(value, dict):
        return {
            key: _plain(one)
            for key, one in value.items()
            if one is not None and key not in (_PATCH, _RETAIN) and not key.startswith((_ORDER, _DELETE_FROM))
        }
    if isinstance(value, list):
        return [_plain(one) for one in value if not (isinstance(one, dict) and one.get(_PATCH) == "delete")]
    return value


def _merge_list(target: list[Any], patch: list[Any], field: Field) -> list[Any]:
    key = field.merge
    if not key:
        return target + [one for one in patch if one not in target]
    if any(isinstance(one, dict) and one.get(_PATCH) == "replace" and key not in one for one in patch):
        return _plain([one for one in patch if not (one.get(_PATCH) == "replace" and key not in one)])  # type: ignore[no-any-return]
    result = list(target)
    shape = _inner(field)
    for one in patch:
        if not isinstance(one, dict) or key not in one:
            raise bad_request(f"map: {one} does not contain declared merge key: {key}")
        matches = [
            index for index, item in enumerate(result) if isinstance(item, dict) and item.get(key) == one[key]
        ]
        if one.get(_PATCH) == "delete":
            result = [item for index, item in enumerate(result) if index not in matches]
        elif matches:
            result[matches[0]] = strategic_merge(result[matches[0]], one, shape)
        else:
            result.append(_plain(one))
    return result


def _ordered(items: list[Any], order: list[Any], original: list[Any], key: str) -> list[Any]:
    """Items that the patch names in its order, merged with the others by where both stood before.

    An item that is new goes before those that the patch does not name (`normalizeElementOrder`).
    """

    def identity(item: Any) -> Any:
        return item.get(key) if isinstance(item, dict) else item

    rank = {identity(one): index for index, one in reversed(list(enumerate(order)))}
    place = {identity(one): index for index, one in enumerate(original)}
    named = sorted((one for one in items if identity(one) in rank), key=lambda one: rank[identity(one)])
    others = [one for one in items if identity(one) not in rank]
    result = []
    while named and others:
        left, right = identity(named[0]), identity(others[0])
        behind = left in place and right in place and place[right] < place[left]
        result.append((others if behind else named).pop(0))
    return result + named + others
