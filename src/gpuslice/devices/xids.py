"""Which XIDs, the driver's error numbers, make a GPU unfit for pods. Pure.

The rules and their spelling are those of NVIDIA's device plugin; the meanings are from NVIDIA's "XID errors".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuslice.errors import InputError

DISABLE: Final = "DP_DISABLE_HEALTHCHECKS"
ENABLE: Final = "DP_ENABLE_HEALTHCHECKS"

APPLICATION_ERRORS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of programs: the GPU itself is healthy."""

_ALL: Final = frozenset({"all", "xids"})

_MEANINGS: Final = {
    13: "graphics engine exception",
    31: "page fault of a program",
    43: "a program's channel was reset",
    45: "a program's channel was taken away",
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    63: "a page or row of memory was retired",
    64: "a page or row of memory could not be retired",
    68: "video processor exception",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "a program's context switch timed out",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "uncorrectable memory error",
}


@dataclass(frozen=True, slots=True)
class XidPolicy:
    """`others`: whether XIDs count that are not in `named`."""

    others: bool = True
    named: Mapping[int, bool] = field(default_factory=lambda: dict.fromkeys(APPLICATION_ERRORS, False))

    def counts(self, xid: int) -> bool:
        """True if this XID makes the GPU unhealthy."""
        return self.named.get(xid, self.others)


def read_policy(environment: Mapping[str, str]) -> XidPolicy:
    """The policy of DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS: XIDs with commas between, or `all`.

    What is enabled wins; `all` enabled counts the application errors, too. Raises InputError naming the
    variable (NVIDIA's plugin leaves out what it cannot read).
    """
    disabled, enabled = _read(environment, DISABLE), _read(environment, ENABLE)
    if enabled is None:
        return XidPolicy(named={})
    named = dict.fromkeys(APPLICATION_ERRORS | (disabled or frozenset()), False) | dict.fromkeys(
        enabled, True
    )
    return XidPolicy(others=disabled is not None, named=named)


def describe(xid: int) -> str:
    """The XID for people: "XID 48: double-bit ECC error"."""
    meaning = _MEANINGS.get(xid)
    return f"XID {xid}: {meaning}" if meaning else f"XID {xid}"


def _read(environment: Mapping[str, str], variable: str) -> frozenset[int] | None:
    """The numbers of a variable; None stands for all."""
    parts = [part.strip() for part in environment.get(variable, "").lower().split(",")]
    if _ALL.intersection(parts):
        return None
    numbers = [part for part in parts if part]
    for part in numbers:
        if not part.isdecimal() or not part.isascii():
            raise InputError(
                f"{part!r} is no XID; write numbers with commas between, such as 48,79, or all",
                field=variable,
            )
    return frozenset(map(int, numbers))
