"""What the cells of many kinds have in common: ages, conditions, containers, simple JSONPaths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpuslice.local.apiserver.schema.selectors import selector_text
from gpuslice.local.apiserver.schema.status import Json

NONE, UNKNOWN = "<none>", "<unknown>"


def seconds_of(stamp: Any) -> int | None:
    """Unix seconds of a Time or MicroTime."""
    if not isinstance(stamp, str):
        return None
    try:
        return int(datetime.fromisoformat(stamp).timestamp())
    except ValueError:
        return None


def age(stamp: Any, moment: int) -> str:
    """How long ago, as people read it; `<unknown>` for nothing."""
    start = seconds_of(stamp)
    return UNKNOWN if start is None else duration(moment - start)


def duration(seconds: int) -> str:
    """Seconds as two digits of precision (apimachinery `duration.HumanDuration`)."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    years, rest = divmod(days, 365)
    return f"{years}y{rest}d" if days < 2920 and rest else f"{years}y"


def json_path(obj: Any, path: str) -> list[Any]:
    """The values at a simple JSONPath: `.a.b`, `.a[0]`, `.a[*].b`, `.a['x.y']`, `.a[?(@.t=="R")].s`."""
    steps = re.findall(
        r"\.((?:\\.|[\w-])+)|\[(\d+|\*|'[^']*'|\?\(@\.([\w.]+)\s*==\s*[\"']([^\"']*)[\"']\))\]", path
    )
    values = [obj]
    for name, index, key, wanted in steps:
        found: list[Any] = []
        for value in values:
            if name and isinstance(value, dict):
                found.append(value.get(name.replace("\\", "")))
            elif index.startswith("'") and isinstance(value, dict):
                found.append(value.get(index[1:-1]))
            elif isinstance(value, list):
                if index == "*":
                    found.extend(value)
                elif index.isdigit():
                    found.extend(value[int(index) : int(index) + 1])
                elif key:
                    found.extend(
                        one for one in value if [str(have) for have in json_path(one, "." + key)] == [wanted]
                    )
        values = [value for value in found if value is not None]
    return values


def containers_of(spec: Json) -> tuple[str, str]:
    """The names and the images of a pod's containers, each joined by commas."""
    containers = spec.get("containers") or ()
    return ",".join(one.get("name", "") for one in containers), ",".join(
        one.get("image", "") for one in containers
    )


def pairs(labels: Mapping[str, str] | None) -> str:
    """Labels as `a=b,c=d`."""
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def template_of(obj: Json) -> tuple[str, str, str]:
    """Container names, images and selector of whatever makes pods."""
    spec = obj.get("spec") or {}
    names, images = containers_of((spec.get("template") or {}).get("spec") or {})
    return names, images, selector_text(spec.get("selector")) or NONE


def born(obj: Json, moment: int) -> str:
    """The AGE column."""
    return age(obj["metadata"].get("creationTimestamp"), moment)


def count(obj: Json, name: str) -> int:
    """A number of the status; 0 if it is not there."""
    found: int = (obj.get("status") or {}).get(name) or 0
    return found


def condition(obj: Json, type_: str) -> Json | None:
    """The condition of a type in an object's status."""
    for one in (obj.get("status") or {}).get("conditions") or ():
        if one.get("type") == type_:
            found: Json = one
            return found
    return None


def is_true(obj: Json, type_: str) -> bool:
    """Whether a condition holds."""
    return (condition(obj, type_) or {}).get("status") == "True"
