"""The documentation of the Kubernetes API, from the client library's models: `kubectl explain` prints it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

_FIELD = re.compile(r"^\* \*\*(.+?)\*\* ``.*?`` - ", re.MULTILINE)
_MODULE = re.compile(r"(?:.*\.)?([a-z0-9]+)\.(v\d\w*)\.(\w+)")


@dataclass(frozen=True, slots=True)
class Documentation:
    """What a type is for, and each of its fields by JSON name."""

    text: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


@lru_cache(2048)
def documentation(type_name: str) -> Documentation:
    """The documentation of a type such as `api.core.v1.Pod`; empty if the library does not know it."""
    match = _MODULE.fullmatch(type_name)
    if match is None:
        return Documentation()
    group, version, name = match.groups()
    try:
        module = importlib.import_module(f"lightkube.models.{group}_{version}")
    except ImportError:
        return Documentation()
    raw = getattr(getattr(module, name, None), "__doc__", None)
    if not raw:
        return Documentation()
    lines = [line.strip() for line in raw.splitlines()]
    text, _, parameters = "\n".join(lines).partition("**parameters**")
    pieces = _FIELD.split(parameters)
    fields = {key.strip("`"): _flow(value) for key, value in zip(pieces[1::2], pieces[2::2], strict=False)}
    return Documentation(_flow(text), fields)


def _flow(text: str) -> str:
    """Paragraphs on one line each."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
