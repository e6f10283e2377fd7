"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386), and what the kinds of patch are called."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuslice.local.apiserver.schema.status import Failure, bad_request

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, objects merge, everything else replaces. May change `target`."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            target[key] = merge(target.get(key), value)
        else:
            target[key] = value
    return target


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902. May change `target`. Raises 400 for a malformed patch, 422 for one that does not apply."""
    if not isinstance(operations, list) or not all(isinstance(step, dict) for step in operations):
        raise bad_request("json patch must be a list of operations")
    for step in operations:
        try:
            target = _step(target, step)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            where = step.get("path", "")
            what = step.get("op", "")
            raise Failure(
                422,
                "Invalid",
                f"the server rejected our request due to an error in our request: "
                f"{what} operation does not apply: doc is missing path: {where}: {error}",
            ) from None
    return target


def _parts(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise bad_request(f"json patch path {pointer!r} must start with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _step(root: Any, step: dict[str, Any]) -> Any:
    parts = _parts(step.get("path"))
    match step.get("op"):
        case "add":
            return _add(root, parts, step["value"])
        case "remove":
            return _remove(root, parts)[0]
        case "replace":
            if not parts:
                return step["value"]
            parent = _find(root, parts[:-1])
            if isinstance(parent, list):
                parent[_index(parts[-1], len(parent) - 1)] = step["value"]
            else:
                # As the library of kube-apiserver: a missing key is set, not refused.
                parent[parts[-1]] = step["value"]
            return root
        case "move":
            root, value = _remove(root, _parts(step["from"]))
            return _add(root, parts, value)
        case "copy":
            copied = msgspec.json.decode(msgspec.json.encode(_find(root, _parts(step["from"]))))
            return _add(root, parts, copied)
        case "test":
            if _find(root, parts) != step.get("value"):
                raise ValueError("testing value failed")
            return root
    raise bad_request(f"unknown json patch operation {step.get('op')!r}")


def _find(node: Any, parts: list[str]) -> Any:
    for part in parts:
        node = node[_index(part, len(node) - 1)] if isinstance(node, list) else node[part]
    return node


def _index(part: str, last: int) -> int:
    index = int(part)
    if not 0 <= index <= last:
        raise IndexError(f"index {part} out of bounds")
    return index


def _add(root: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return value
    parent = _find(root, parts[:-1])
    if isinstance(parent, list):
        if parts[-1] == "-":
            parent.append(value)
        else:
            parent.insert(_index(parts[-1], len(parent)), value)
    else:
        parent[parts[-1]] = value
    return root


def _remove(root: Any, parts: list[str]) -> tuple[Any, Any]:
    if not parts:
        return None, root
    parent = _find(root, parts[:-1])
    if isinstance(parent, list):
        return root, parent.pop(_index(parts[-1], len(parent) - 1))
    return root, parent.pop(parts[-1])
