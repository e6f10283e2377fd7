"""One described machine for two sides: a library, a kernel's folders, and a namespace in which both start.

Every process gets a mount namespace of its own, in which /sys/bus/pci/devices, /proc/driver, /dev, /var/lib
and /run are those of the described machine; nothing on this machine changes. Needs root.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import nvml_world
from nvml_world import Hardware, machine

from gpuslice.node.discovery.machine import kernel_bus_id

HERE = Path(__file__).parent
PYTHON_PATH = HERE.parent.parent / "src"
CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
KUBELET = Path("/var/lib/kubelet")

NVIDIA_SMI = """#!/bin/sh
# Resets every GPU whose MIG mode waits for it.
[ -f "$FAKE_NVML_KEPT" ] || exit 0
awk '$1 == "mig" { if ($3 != $4) gone[$2] = 1; print $1, $2, $4, $4; next }
     $1 == "instance" && gone[$2] { next } { print }' "$FAKE_NVML_KEPT" >"$FAKE_NVML_KEPT.smi"
mv "$FAKE_NVML_KEPT.smi" "$FAKE_NVML_KEPT"
"""


def library(folder: Path, *defines: str) -> Path:
    """The stand-in with the calls that NVIDIA's tools make besides."""
    folder.mkdir(parents=True)
    nvml_world.SOURCE = HERE / "nvml_more.c"
    return nvml_world.build(folder, *defines)


class Place:
    """A machine, as one side sees it; the other side has a place of its own."""

    def __init__(self, folder: Path, description: str, built: Path | None) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.hardware = Hardware(folder, machine(description))
        self.nvml = built
        self.kubelet = folder / "kubelet"
        self.cdi = folder / "cdi"
        self.kept = folder / "kept"
        self.root = folder / "root"
        self._kernel()
        self._driver()
        for one in (self.kubelet / "device-plugins", self.cdi):
            one.mkdir(parents=True)

    def _kernel(self) -> None:
        """What the kernel says of the GPUs."""
        for one in self.hardware.paper.gpus:
            gpu = one.gpu
            device = self.folder / "sys/bus/pci/devices" / kernel_bus_id(gpu.pci_bus_id)
            device.mkdir(parents=True, exist_ok=True)
            ids = {"vendor": 0x10DE, "subsystem_vendor": 0x10DE, "device": (gpu.pci_device_id or 0) >> 16}
            ids |= {"subsystem_device": (gpu.pci_subsystem_id or 0) >> 16, "class": 0x030200}
            for name, number in ids.items():
                (device / name).write_text(f"{number:#06x}\n")
            (device / "numa_node").write_text(f"{-1 if gpu.numa_node is None else gpu.numa_node}\n")
            (device / "resource").write_text("0x0 0x0 0x0\n")
            (device / "config").write_bytes(bytes(256))
        caps = self.folder / "proc/nvidia-caps"
        caps.mkdir(parents=True)
        lines = ["config 1", "monitor 2"]
        for index in range(len(self.hardware.paper.gpus)):
            for gi in range(15):
                lines.append(f"gpu{index}/gi{gi}/access {3 + 200 * index + 9 * gi}")
                lines += [
                    f"gpu{index}/gi{gi}/ci{ci}/access {4 + 200 * index + 9 * gi + ci}" for ci in range(8)
                ]
        (caps / "mig-minors").write_text("\n".join(lines) + "\n")
        (self.folder / "proc/modules").write_text("nvidia 1 0 - Live 0x0000000000000000\n")

    def _driver(self) -> None:
        """The driver's files and device files below a root of its own."""
        version = self.hardware.paper.driver_version
        libraries, programs, devices = (self.root / name for name in ("usr/lib64", "usr/bin", "dev"))
        for one in (libraries, programs, devices):
            one.mkdir(parents=True)
        (libraries / f"libcuda.so.{version}").write_bytes(b"")
        (libraries / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
        (libraries / f"libnvidia-ml.so.{version}").write_bytes(b"")
        (programs / "nvidia-smi").write_text(NVIDIA_SMI)
        (programs / "nvidia-smi").chmod(0o755)
        minors = {f"nvidia{gpu.gpu.minor}": (195, gpu.gpu.minor or 0) for gpu in self.hardware.paper.gpus}
        minors |= {name: (195, 250 + number) for number, name in enumerate(CONTROL)}
        caps = re.findall(r"access (\d+)", (self.folder / "proc/nvidia-caps/mig-minors").read_text())
        minors |= {f"nvidia-caps/nvidia-cap{number}": (236, int(number)) for number in caps}
        minors |= {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
        (devices / "nvidia-caps").mkdir()
        for name, (major, minor) in minors.items():
            os.mknod(devices / name, 0o666 | 0o020000, os.makedev(major, minor))
            (devices / name).chmod(0o666)

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """What a process must be told to find all that."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("NVIDIA_", "MIG_PARTED_", "DP_"))}
        env |= {"FAKE_NVML": str(self.hardware.path), "FAKE_NVML_KEPT": str(self.kept)}
        env["PATH"] = f"{self.root / 'usr/bin'}:{env['PATH']}"
        env["PYTHONPATH"] = str(PYTHON_PATH)
        if self.nvml is not None:
            env["LD_LIBRARY_PATH"] = str(self.nvml.parent)
        return {**env, **more}

    def words(self, command: Sequence[str]) -> list[str]:
        """The command inside of the machine's namespace."""
        devices, plugins = self.folder / "sys/bus/pci/devices", self.kubelet
        steps = [
            f"mount --bind {devices} /sys/bus/pci/devices",
            f"mount --bind {self.folder / 'proc'} /proc/driver",
            "mount -t tmpfs tmpfs /var/lib",
            f"mkdir -p {KUBELET}",
            f"mount --bind {plugins} {KUBELET}",
            "mount -t tmpfs tmpfs /run",
            "mkdir -p /run/cdi",
            f"mount --bind {self.cdi} /run/cdi",
            f"mount --bind {self.root / 'dev'} /dev",
            f"exec {shlex.join(command)}",
        ]
        return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", " && ".join(steps)]

    def run(self, *command: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Ended:
        """Run to the end."""
        done = subprocess.run(
            self.words(command),
            env=self.environment(env or {}),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def start(
        self, *command: str, env: Mapping[str, str] | None = None, log: Path
    ) -> subprocess.Popen[bytes]:
        """Start it and let it run; stdout and stderr go to a file."""
        with log.open("wb") as file:
            return subprocess.Popen(
                self.words(command), env=self.environment(env or {}), stdout=file, stderr=subprocess.STDOUT
            )

    def layout(self) -> list[str]:
        """How the GPUs are cut now, in the stand-in's own lines."""
        return self.kept.read_text().splitlines() if self.kept.exists() else []

    def at_first(self) -> list[str]:
        """How they were cut when the machine was switched on, in the same lines."""
        lines = []
        for one in self.hardware.paper.gpus:
            if one.mig is not None:
                lines.append(f"mig {one.gpu.index} {one.mig.enabled:d} {one.mig.enabled:d}")
                lines += [
                    f"instance {one.gpu.index} {part.profile.id} {part.start} {part.profile.slices}"
                    for part in one.mig.layout.instances
                ]
        return lines

    def remove(self) -> None:
        shutil.rmtree(self.folder)


class Ended:
    """A process that has ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def words(self) -> str:
        """What it said last, where tools say why they ended; without what loggers put before it."""
        lines = [line for line in f"{self.out}\n{self.err}".splitlines() if line.strip()]
        lines = [line for line in lines if "WARNING" not in line]
        last = lines[-1].strip() if lines else ""
        if fatal := re.search(r'level=(?:fatal|error) msg="(.*)"$', last):
            return fatal[1].replace('\\"', '"')
        return re.sub(r"^[EFI]\d{4} \S+ +\d+ \S+\] ", "", last)
