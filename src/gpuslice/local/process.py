"""What a process that plays a whole cluster needs of its system: a folder, rare collections."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

GARBAGE: Final = 50_000
"""Containers made and not freed until the next look for cycles among them (Python's default: 700)."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """A private folder with a short path: unix sockets must fit in 107 bytes, also on macOS."""
    short = Path("/tmp")  # noqa: S108 - mkdtemp makes a private folder in it
    path = Path(tempfile.mkdtemp(prefix="gpuslice-", dir=short if short.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for garbage in cycles less often: we make little of it, and a look at 10,000 pods takes long."""
    before = gc.get_threshold()
    gc.set_threshold(GARBAGE, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
