"""Words and times that several checks share."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from gpuslice.doctor.objects import Pod

LISTED: Final = 3
CHANGEABLE: Final = ("Deployment", "StatefulSet", "DaemonSet")
"""Whose pod template may be changed; a Job's may not."""


def listed(things: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b, c and 4 more`."""
    every = list(things)
    shown = every[:LISTED]
    rest = len(every) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def plural(count: int, noun: str, *, many: str = "") -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def brief(text: str, limit: int = 300) -> str:
    """On one line, cut if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]}..."


def template_of(pod: Pod) -> str:
    """`deployment NAME` if the pod comes from a template that kubectl can change, else ""."""
    kind, name = pod.controller or ("", "")
    return f"{kind.lower()} {name}" if kind in CHANGEABLE else ""


def moment(text: str | None) -> datetime | None:
    """A Kubernetes time; None if it is missing or unreadable."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
