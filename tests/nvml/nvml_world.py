"""A machine whose NVML is the stand-in of fake_nvml.c, described by the same YAML as simulated machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from gpuslice.config.devices import DevicesFile
from gpuslice.devices.machine import PaperGpu, PaperMachine
from gpuslice.devices.mig import GiProfile
from gpuslice.node.discovery.driver import Changed, Driver, Xid
from gpuslice.node.discovery.nvml import NvmlDriver

SOURCE = Path(__file__).with_name("fake_nvml.c")
NAME = "libnvidia-ml.so.1"
BRANDS = {"Tesla": 2, "Nvidia": 14}


def machine(text: str) -> PaperMachine:
    """What a description says: the name of a ready-made machine, or the `spec` of a file."""
    if ":" not in text:
        return DevicesFile.load(Path(text)).machine("n1")
    head = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: "
    return DevicesFile.parse(head + text).machine("n1")


def build(folder: Path, *defines: str) -> Path:
    """Compile the stand-in; a machine without a compiler cannot run these tests."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("there is no C compiler (cc): the tests of NVML's binding cannot run")
    library = folder / NAME
    subprocess.run(
        [compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread",
         "-D_GNU_SOURCE", f"-DRECOVERY_ACTION={pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION}", *defines,
         f"-Wl,-soname,{NAME}", "-o", str(library), str(SOURCE)],
        check=True,
    )  # fmt: skip
    return library


class Hardware:
    """The file that the stand-in reads: the machine as it was switched on, and what has happened since."""

    def __init__(self, folder: Path, paper: PaperMachine) -> None:
        self.paper = paper
        self.path = folder / "hardware"
        self.sysfs = folder / "sys"
        self._happened: list[str] = []
        self._now: list[str] = []
        for one in paper.gpus:
            if one.gpu.numa_node is not None:
                device = self.sysfs / "bus/pci/devices" / one.gpu.pci_bus_id.lower()[4:]
                device.mkdir(parents=True)
                (device / "numa_node").write_text(f"{one.gpu.numa_node}\n")
        self._write()

    def uuid(self, index: int) -> str:
        return self.paper.gpus[index].gpu.uuid

    def happens(self, what: str, *words: object) -> None:
        """Once: xid GPU NUMBER [GI CI], or reset GPU."""
        line = " ".join(map(str, (what, len(self._happened) + 1, *words)))
        self._happened.append(line)
        self._write()

    def now(self, *lines: str) -> None:
        """From now on, instead of what was so before: `lost 3`, `gone 3`, `busy 0 13`, `action 0 1`, `init 18`."""
        self._now = list(lines)
        self._write()

    def _write(self) -> None:
        lines = [f"driver {self.paper.driver_version}", f"cuda {_cuda(self.paper.cuda_version)}"]
        for one in self.paper.gpus:
            lines += _gpu_lines(one)
        peers = {one.gpu.uuid: one.gpu.index for one in self.paper.gpus}
        for one in self.paper.gpus:
            for link in one.gpu.links:
                lines.append(f"relation {one.gpu.index} {peers[link.uuid]} {int(link.nearness)}")
            most = max((link.nvlinks for link in one.gpu.links), default=0)
            lines += [f"nvlink {one.gpu.index} {number} -1" for number in range(most)]
        aside = self.path.with_suffix(".new")
        aside.write_text("\n".join([*lines, *self._now, *self._happened]) + "\n")
        aside.replace(self.path)


Opened = Callable[..., tuple[NvmlDriver, Hardware]]
"""What the fixture `switched_on` gives: from a description to a driver and the hardware behind it."""


def environment(library: Path, hardware: Hardware) -> dict[str, str]:
    """What a process must be told to find the stand-in."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML": str(hardware.path)}


def command(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one of gpuslice's commands to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gpuslice.cli.main", *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def events(driver: Driver) -> Iterator[Xid]:
    """The XIDs that a driver has to report now."""
    while (event := driver.wait(100)) is not None:
        if not isinstance(event, Changed):
            yield event


def _cuda(version: str) -> int:
    major, minor = version.split(".")
    return int(major) * 1000 + int(minor) * 10


def _gpu_lines(one: PaperGpu) -> Iterator[str]:
    gpu = one.gpu
    resets = "none" if one.mig is None else "reset" if one.mig.needs_reset else "atonce"
    yield (
        f"gpu {gpu.index} {gpu.uuid} {gpu.minor} {gpu.pci_bus_id} {gpu.compute_capability} "
        f"{BRANDS[gpu.brand]} {gpu.memory_mib} {gpu.reserved_mib} {resets} {gpu.name}"
    )
    yield f"pci {gpu.index} {gpu.pci_device_id or 0} {gpu.pci_subsystem_id or 0}"
    if gpu.clique:
        cluster, _, number = gpu.clique.partition(".")
        yield f"fabric {gpu.index} 3 0 {cluster.replace('-', '')} {number}"
    if one.mig is None:
        return
    for profile in one.mig.layout.geometry.profiles:
        yield f"profile {gpu.index} {_profile(profile)}"
    yield f"mig {gpu.index} {int(one.mig.enabled)}"
    for instance in one.mig.layout.instances:
        yield f"instance {gpu.index} {instance.profile.id} {instance.start}"


def _profile(profile: GiProfile) -> str:
    e = profile.engines
    numbers = (
        profile.enum, profile.id, profile.slices, profile.size, profile.max_count,
        e.sm, e.copy, e.decoder, e.encoder, e.jpeg, e.ofa, profile.memory_mib,
    )  # fmt: skip
    starts = ",".join(map(str, profile.starts))
    has_media = profile.name.attribute in ("+me", "+me.all")
    return f"{' '.join(str(number or 0) for number in numbers)} {starts} {int(has_media)}"
