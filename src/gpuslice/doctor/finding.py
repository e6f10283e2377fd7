"""What `gpuslice doctor` says: one thing that is wrong, where, why, and the command that mends it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Level(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Pods get no GPU, the wrong one, or one that is not theirs alone."""
    WARNING = "warning"
    """It works, but not for long, not everywhere, or somebody may be surprised."""


class Area(IntEnum):
    """In this order things must be mended: the later cannot be in order before the earlier is."""

    API = 0
    VERSIONS = 1
    HOST = 2
    DRIVER = 3
    TOOLKIT = 4
    RUNTIME = 5
    RIVALS = 6
    AGENT = 7
    SCHEDULER = 8
    WEBHOOK = 9
    UNITS = 10
    MEMORY = 11
    PODS = 12
    LEFTOVERS = 13


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    `object` is `Kind/name`, `Kind/namespace/name` or `File/path`; `sentence` names it and says what is
    wrong and why; `remedy` is the command that mends it (several lines: several steps).
    """

    area: Area
    code: str
    level: Level
    object: str
    sentence: str
    remedy: str
    numbers: Mapping[str, int] = field(default_factory=dict)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """What must be mended first comes first: errors before warnings, then by area; equal ones by object."""
    return sorted(findings, key=lambda f: (f.level is not Level.ERROR, f.area, f.code, f.object))
