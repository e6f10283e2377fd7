"""What differs on purpose, and why: docs/peers.md in the form that the comparison reads."""

from __future__ import annotations

from typing import Any


def why(scenario: str, what: str, theirs: Any, ours: Any) -> str:
    """The reason why it differs, "" if there is none."""
    return ""
