"""NVIDIA's driver and container toolkit on a host: what of them is there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

import msgspec

from gpuslice.doctor.host.root import Root
from gpuslice.doctor.host.runtime import CDI_FOLDERS, NVIDIA_BINARY

LIBRARY: Final = "libnvidia-ml.so.1"
LIBRARY_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib64/nvidia",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/local/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
)
"""Debian's, Red Hat's, the container-optimised systems' and the driver container's."""
PROGRAM_FOLDERS: Final = (
    "/usr/bin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/local/sbin",
    "/bin",
    "/opt/bin",
    "/usr/local/nvidia/toolkit",
)
"""A runtime's PATH, and where NVIDIA's operator puts the toolkit."""
TOOLKIT_FILE: Final = "/etc/nvidia-container-runtime/config.toml"
NVIDIA_VENDOR: Final = "0x10de"
DISPLAY_CLASS: Final = "0x03"
"""PCI: VGA and 3D controllers. NVIDIA's switches and sound functions are others."""
MODES: Final = ("auto", "legacy", "csv", "cdi", "jit-cdi")
_VERSION: Final = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")
_GPU: Final = re.compile(r"nvidia\d+")


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver of a host."""

    cards: int | None
    """NVIDIA GPUs on the PCI bus; None if the bus cannot be seen."""
    version: str
    """Of the kernel module, such as 570.86.15; "" if it is not loaded."""
    devices: tuple[str, ...]
    """The names below /dev that begin with nvidia."""
    nvml: str
    """The path of libnvidia-ml.so.1; "" if it is in none of the usual folders."""
    nvml_version: str

    @property
    def missing_devices(self) -> tuple[str, ...]:
        """What containers need of /dev and is not there."""
        wanted = [name for name in ("nvidiactl", "nvidia-uvm") if name not in self.devices]
        return (*wanted, *([] if any(map(_GPU.fullmatch, self.devices)) else ["nvidia0"]))


class CdiMode(msgspec.Struct, frozen=True, rename="kebab"):
    spec_dirs: tuple[str, ...] = CDI_FOLDERS


class Modes(msgspec.Struct, frozen=True):
    cdi: CdiMode = CdiMode()


class RuntimeSection(msgspec.Struct, frozen=True):
    mode: str = "auto"
    modes: Modes = Modes()


class ToolkitFile(msgspec.Struct, frozen=True, rename="kebab"):
    """The toolkit's own file, with its defaults."""

    accept_nvidia_visible_devices_envvar_when_unprivileged: bool = True
    accept_nvidia_visible_devices_as_volume_mounts: bool = False
    nvidia_container_runtime: RuntimeSection = RuntimeSection()


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The NVIDIA Container Toolkit of a host."""

    runtime: str
    """The path of nvidia-container-runtime; "" if it is in none of the usual folders."""
    ctk: str
    settings: ToolkitFile

    @property
    def installed(self) -> bool:
        return bool(self.runtime or self.ctk)

    @property
    def mode(self) -> str:
        return self.settings.nvidia_container_runtime.mode

    @property
    def spec_folders(self) -> tuple[str, ...]:
        """Where the runtime itself looks for CDI specifications in mode cdi."""
        return self.settings.nvidia_container_runtime.modes.cdi.spec_dirs


def read_driver(root: Root) -> Driver:
    """Look for the driver."""
    said = _VERSION.search(root.text("/proc/driver/nvidia/version") or "")
    nvml = root.first(*(f"{folder}/{LIBRARY}" for folder in LIBRARY_FOLDERS))
    of_nvml = _VERSION.search(PurePosixPath(root.real(nvml)).name) if nvml else None
    return Driver(
        _cards(root),
        said[1] if said else "",
        tuple(name for name in root.names("/dev") if name.startswith("nvidia")),
        nvml,
        of_nvml[1] if of_nvml else "",
    )


def read_toolkit(root: Root) -> Toolkit:
    """Look for the toolkit."""
    return Toolkit(
        program(root, NVIDIA_BINARY),
        program(root, "nvidia-ctk"),
        root.toml(TOOLKIT_FILE, ToolkitFile) or ToolkitFile(),
    )


def program(root: Root, name: str) -> str:
    """Where a program lies; "" if nowhere. A path is looked for as it is."""
    if name.startswith("/"):
        return root.first(name)
    return root.first(*(f"{folder}/{name}" for folder in PROGRAM_FOLDERS))


def _cards(root: Root) -> int | None:
    bus = "/sys/bus/pci/devices"
    if not root.exists(bus):
        return None
    return sum(
        (root.text(f"{bus}/{slot}/vendor") or "").strip() == NVIDIA_VENDOR
        and (root.text(f"{bus}/{slot}/class") or "").startswith(DISPLAY_CLASS)
        for slot in root.names(bus)
    )
