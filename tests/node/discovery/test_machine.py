"""What /sys says about a machine: its name, the kind of its GPUs, the host of a vGPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.devices.found import FoundGpu
from gpuslice.devices.labels import COMPUTE, GRAPHICS, Machine, Vgpu
from gpuslice.devices.vgpu import read_vgpu
from gpuslice.node.discovery.machine import kernel_bus_id, read_machine


def space(*capabilities: bytes, listed: bool = True) -> bytes:
    """A configuration space with these capabilities, of which the bytes after the pointer are given."""
    made = bytearray(256)
    made[0x06] = 0x10 if listed else 0
    at, previous = 0x40, 0x34
    for capability in capabilities:
        made[previous] = at
        made[at] = capability[0]
        made[at + 2 : at + 1 + len(capability)] = capability[1:]
        previous, at = at + 1, at + len(capability) + 4
    return bytes(made)


def vendor(*records: bytes) -> bytes:
    data = b"VF" + b"".join(records)
    return bytes([0x09, len(data) + 3]) + data


HOST = bytes([0, 22]) + b"535.129.03" + b"r535_00\0\0\0"
POWER = bytes([0x01, 8]) + b"\0" * 5


def test_a_vgpu_tells_its_host() -> None:
    assert read_vgpu(space(vendor(HOST))) == Vgpu("535.129.03", "r535_00")
    assert read_vgpu(space(POWER, vendor(bytes([7, 4, 1, 2]), HOST))) == Vgpu("535.129.03", "r535_00")
    assert read_vgpu(space(vendor())) == Vgpu("", ""), "a vGPU whose host says nothing"


@pytest.mark.parametrize(
    "config",
    [
        b"",
        space(),
        space(POWER),
        space(vendor(HOST), listed=False),
        space(vendor(HOST))[:64],
        space(bytes([0x09, 8]) + b"\0" * 5),
    ],
)
def test_other_devices_are_no_vgpu(config: bytes) -> None:
    assert read_vgpu(config) is None


@given(st.binary(min_size=256, max_size=256), st.binary(max_size=60))
def test_whatever_is_in_the_space_it_is_read_to_an_end(noise: bytes, records: bytes) -> None:
    read_vgpu(noise)
    read_vgpu(bytes([*noise[:6], 0x10, *noise[7:]]))
    assert read_vgpu(space(vendor(records))) is not None


def test_a_machine_is_read_from_the_hosts_files(tmp_path: Path) -> None:
    gpus = tuple(FoundGpu(i, f"GPU-{i}", "T4", 15360, 0, pci_bus_id=f"00000000:0{i}:00.0") for i in range(3))
    dmi = tmp_path / "sys/class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "product_name").write_text("DGX A100\n")
    for index, kind in enumerate(("0x030200", "0x030000")):
        device = tmp_path / f"sys/bus/pci/devices/0000:0{index}:00.0"
        device.mkdir(parents=True)
        (device / "class").write_text(f"{kind}\n")
        (device / "config").write_bytes(space(vendor(HOST)) if index else space())
    assert read_machine(gpus, root=tmp_path, timestamp=7) == Machine(
        "DGX A100", {"GPU-0": COMPUTE, "GPU-1": GRAPHICS}, Vgpu("535.129.03", "r535_00"), 7
    )


def test_a_machine_that_tells_nothing_is_one_without_facts(tmp_path: Path) -> None:
    gpu = FoundGpu(0, "GPU-0", "T4", 15360, 0)
    assert read_machine((gpu,), root=tmp_path) == Machine()


def test_bus_addresses_are_written_as_the_kernel_does() -> None:
    assert kernel_bus_id("00000000:0A:00.0") == "0000:0a:00.0"
