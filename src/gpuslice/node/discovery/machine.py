"""What a node's labels say about the machine and only the kernel knows. Reads /sys."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpuslice.devices.found import FoundGpu
from gpuslice.devices.labels import Machine
from gpuslice.devices.vgpu import read_vgpu


def read_machine(
    gpus: tuple[FoundGpu, ...],
    *,
    root: Path = Path("/"),
    product_file: str = "/sys/class/dmi/id/product_name",
    timestamp: int | None = None,
) -> Machine:
    """All that can be read; what cannot be read is missing. `root`: where the host's files are."""
    classes: dict[str, int] = {}
    vgpu = None
    for gpu in gpus:
        folder = root / "sys/bus/pci/devices" / kernel_bus_id(gpu.pci_bus_id)
        with contextlib.suppress(ValueError):
            classes[gpu.uuid] = int(_read(folder / "class").decode(), 16) >> 8
        vgpu = vgpu or read_vgpu(_read(folder / "config"))
    product = _read(root / product_file.lstrip("/")).decode("utf-8", "replace").strip()
    return Machine(product, classes, vgpu=vgpu, timestamp=timestamp)


def kernel_bus_id(nvml: str) -> str:
    """A PCI address as the kernel writes it (0000:07:00.0); NVML's domain has eight digits."""
    domain, _, rest = nvml.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
