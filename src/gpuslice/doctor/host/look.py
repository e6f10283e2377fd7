"""Reads a host once: everything that its checks judge by, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpuslice.doctor.host import cdi, containerd, crio, docker, driver, kubelet
from gpuslice.doctor.host.cdi import Spec
from gpuslice.doctor.host.driver import Driver, Toolkit
from gpuslice.doctor.host.engines import Engine
from gpuslice.doctor.host.kubelet import Kubelet
from gpuslice.doctor.host.root import Broken, Root
from gpuslice.doctor.host.runtime import CDI_FOLDERS, Runtime


@dataclass(frozen=True)
class Host:
    """One look at a host."""

    kubelet: Kubelet
    driver: Driver
    toolkit: Toolkit
    runtimes: Mapping[Engine, Runtime]
    """Those that have files."""
    specs: tuple[Spec, ...]
    """CDI specifications of NVIDIA's GPUs, wherever somebody may look for them."""
    programs: Mapping[str, str]
    """Program of a handler of NVIDIA's -> where it lies; "" if it does not."""
    broken: tuple[Broken, ...]
    denied: tuple[str, ...]

    @property
    def used(self) -> Runtime | None:
        """The runtime that kubelet speaks to, with its defaults if it has no files; None if unknown."""
        engine = self.kubelet.engine
        if engine is None:
            return None
        return self.runtimes.get(engine) or Runtime(engine, cdi=True if engine is Engine.CRIO else None)

    @cached_property
    def seen_specs(self) -> tuple[Spec, ...]:
        """The specifications that this runtime sees."""
        folders = self.used.cdi_folders if self.used else CDI_FOLDERS
        return tuple(one for one in self.specs if one.folder in folders)

    @property
    def by_cdi(self) -> bool:
        """True if the runtime gives containers GPUs by CDI, without NVIDIA's runtime."""
        return self.used is not None and self.used.cdi is True and bool(self.seen_specs)

    @property
    def concerned(self) -> bool:
        """False for a host without NVIDIA's card: simulated GPUs need nothing of it."""
        return self.driver.cards != 0 or bool(self.driver.version)


def look(path: Path) -> Host:
    """Look at the host whose files are under a folder. What is broken or may not be read is in the answer."""
    root = Root(path)
    found = [docker.read(root), containerd.read(root), crio.read(root)]
    found += [containerd.read(root, engine) for engine in (Engine.K3S, Engine.RKE2)]
    runtimes = {one.engine: one for one in found if one is not None}
    toolkit = driver.read_toolkit(root)
    folders = [*CDI_FOLDERS, *toolkit.spec_folders]
    folders += [folder for one in runtimes.values() for folder in one.cdi_folders]
    handlers = {one.handlers[name] for one in runtimes.values() for name in one.nvidia}
    return Host(
        kubelet.read(root),
        driver.read_driver(root),
        toolkit,
        runtimes,
        cdi.read(root, folders),
        {name: driver.program(root, name) for name in sorted(handlers)},
        tuple(root.broken[path] for path in sorted(root.broken)),
        tuple(sorted(root.denied)),
    )
