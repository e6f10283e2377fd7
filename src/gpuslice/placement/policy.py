"""How to choose among what fits."""

from __future__ import annotations

from enum import StrEnum


class Policy(StrEnum):
    """`BINPACK`: the tightest fit, so that the largest rooms stay whole (gpushare's rule within a node).
    `SPREAD`: the emptiest, so that neighbours disturb each other least.
    Ties go to the lowest index.
    """

    BINPACK = "binpack"
    SPREAD = "spread"
