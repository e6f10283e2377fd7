"""Devices in nvidia-smi's layout, and the part of a machine that a container sees."""

from __future__ import annotations

from gpuslice.devices.found import Found, FoundGpu, MigDevice, MigMode
from gpuslice.devices.listing import inside, listing
from gpuslice.devices.mig import Engines
from gpuslice.devices.migprofile import MigProfile


def gpu(index: int, *profiles: str) -> FoundGpu:
    devices = tuple(
        MigDevice(f"MIG-{index}{n}", n, 0, MigProfile.parse(profile), 4864, Engines(), index=n)
        for n, profile in enumerate(profiles)
    )
    mode = MigMode(bool(profiles), bool(profiles))
    return FoundGpu(index, f"GPU-{index}", "NVIDIA A100-SXM4-40GB", 40960, 424, mig=mode, mig_devices=devices)


MACHINE = Found("550.163.01", "12.4", (gpu(0), gpu(1, "3g.20gb", "1c.2g.10gb"), gpu(2, "1g.5gb+me")))


def test_a_machine_is_listed_as_nvidia_smi_does() -> None:
    assert listing(MACHINE) == (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)\n"
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-10)\n"
        "  MIG 1c.2g.10gb  Device  1: (UUID: MIG-11)\n"
        "GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-2)\n"
        "  MIG 1g.5gb+me   Device  0: (UUID: MIG-20)\n"
    )
    assert listing(Found("", "", ())) == "No devices found.\n"


def test_a_container_sees_its_own_devices_numbered_from_0() -> None:
    assert listing(inside(MACHINE, ["MIG-20", "MIG-11"])) == (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n"
        "  MIG 1c.2g.10gb  Device  0: (UUID: MIG-11)\n"
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)\n"
        "  MIG 1g.5gb+me   Device  0: (UUID: MIG-20)\n"
    )
    assert listing(inside(MACHINE, ["GPU-0"])) == "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)\n"
    assert listing(inside(MACHINE, ["GPU-9"])) == "No devices found.\n"
