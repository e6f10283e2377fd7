"""The image that needs no engine: its files run gpuslice, and building it twice gives the same bytes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import cannot
from .packages import MissingError, need_root

TOOL = Path(__file__).resolve().parents[2] / "tools" / "image.py"
NOBODY = ("chroot", "--userspec=65532:65532")
IMPORT_ALL = """
import importlib, pkgutil, gpuslice
for module in pkgutil.walk_packages(gpuslice.__path__, "gpuslice."):
    if module.name != "gpuslice.capacity.azurepools":
        importlib.import_module(module.name)
"""
"""Azure's SDK is an extra for people's own machines; nothing that runs in a pod asks for it."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        need_root()
    except MissingError as missing:
        cannot(str(missing))
    return build(tmp_path_factory.mktemp("image"))


def build(folder: Path) -> Path:
    """Leaves image.tar and root/ in a folder; returns the latter."""
    command = [sys.executable, str(TOOL), f"--output={folder / 'image.tar'}", f"--root={folder / 'root'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "root"


def run(root: Path, *command: str) -> str:
    done = subprocess.run([*NOBODY, str(root), *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_runs_as_nobody(root: Path) -> None:
    assert "Share GPUs in Kubernetes" in run(root, "gpuslice", "--help")


def test_nothing_that_was_left_out_is_missed(root: Path) -> None:
    """Every module of ours can be imported, and so can what they import."""
    run(root, "python3", "-c", IMPORT_ALL)


def test_nothing_is_compiled_at_run_time(root: Path) -> None:
    """The file system is read-only in the pod; compiling at every start would take seconds."""
    sources = {path for path in root.rglob("*.py") if "gpuslice" in path.parts}
    compiled = {path.parent.parent / f"{path.name.split('.')[0]}.py" for path in root.rglob("*.pyc")}
    assert sources
    assert sources <= compiled


def test_the_same_inputs_give_the_same_bytes(root: Path, tmp_path: Path) -> None:
    again = build(tmp_path)
    archives = [folder.parent / "image.tar" for folder in (root, again)]
    digests = {hashlib.sha256(archive.read_bytes()).hexdigest() for archive in archives}
    assert len(digests) == 1
