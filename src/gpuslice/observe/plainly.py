"""Imports structlog without rich, which structlog loads for coloured tracebacks wherever rich is installed.

That takes longer than all else that an agent needs for its start; no server prints in colour.
"""

from __future__ import annotations

import sys
from typing import cast


def import_structlog() -> None:
    """Import it, unless that has happened. rich can still be imported afterwards."""
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    modules = cast("dict[str, object]", sys.modules)
    modules["rich"] = None  # Python treats it as a module that is not installed
    try:
        import structlog  # noqa: F401 (for its being imported)
    finally:
        del modules["rich"]
