"""Importing a module of ours does nothing but define things: tools look at all of them, and so does the image's test."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import gpuslice


def test_importing_says_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for module in pkgutil.walk_packages(gpuslice.__path__, "gpuslice."):
        importlib.import_module(module.name)
    assert capsys.readouterr() == ("", "")
