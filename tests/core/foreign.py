"""The programs of others that tests are held against."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str) -> str:
    """The path of one such as kubectl: `KUBECTL`, else the one on the PATH. Skips the test where there is none."""
    found = os.environ.get(name.upper()) or shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}; `make test` fetches one")
    return found
