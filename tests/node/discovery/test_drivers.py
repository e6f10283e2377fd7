"""What one gpu-mem is: said on the command line, by the devices file, or GiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.errors import InputError
from gpuslice.node.discovery.drivers import unit_of
from gpuslice.units import GIB, MemoryUnit


def test_the_memory_unit_is_what_is_said_nearest(tmp_path: Path) -> None:
    devices = tmp_path / "devices.yaml"
    devices.write_text(
        "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: {memoryUnit: 256MiB, gpus: [{model: T4}]}\n"
    )
    assert unit_of(None, None) == GIB
    assert unit_of(devices, None) == MemoryUnit(256)
    assert unit_of(devices, "MiB") == MemoryUnit(1)
    assert unit_of(None, "2GiB") == MemoryUnit(2048)
    with pytest.raises(InputError, match="--memory-unit: memory unit 'x' is unknown"):
        unit_of(None, "x")
