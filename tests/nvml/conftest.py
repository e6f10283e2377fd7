from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pynvml
import pytest
from nvml_world import NAME, Hardware, Opened, build, machine

from gpuslice.node.discovery.nvml import NvmlDriver


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver from before MIG and nvmlDeviceGetMemoryInfo_v2."""
    return build(tmp_path_factory.mktemp("old_nvml"), "-DOLD_DRIVER")


@pytest.fixture
def switched_on(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Switch a described machine on: the real binding in this process, over a stand-in of its own."""

    def switch_on(text: str, using: Path = library) -> tuple[NvmlDriver, Hardware]:
        hardware = Hardware(tmp_path, machine(text))
        # A file of its own: the loader gives the same file's state to everybody in the process.
        own = Path(shutil.copy(using, tmp_path / NAME))
        monkeypatch.setenv("FAKE_NVML", str(hardware.path))
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(own)))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        driver = NvmlDriver(sysfs=hardware.sysfs)
        driver.open()
        return driver, hardware

    return switch_on
