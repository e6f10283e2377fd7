"""`kind: Devices`: the GPUs of one simulated machine, for `gpuslice agent --devices FILE`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Final

import msgspec

from gpuslice.config.gpus import CUDA_VERSION, DRIVER_VERSION, GpuEntry, inventory, paper_gpus, read_unit
from gpuslice.config.reader import Section, parse, read_document
from gpuslice.devices.found import FoundGpu, Link, Nearness
from gpuslice.devices.inventory import NodeGpus
from gpuslice.devices.machine import PaperMachine
from gpuslice.errors import InputError

KIND: Final = "Devices"
CLIQUE: Final = r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]{1,10})?$"
READY_MADE: Final = Path(__file__).parent / "machines"
"""Descriptions that come with gpuslice, by the name of the file."""


class DevicesSpec(Section, frozen=True):
    """`memory_unit`: what one aliyun.com/gpu-mem means on this node; `nvlinks`: how many two GPUs share.

    `clique`: of the NVLink fabric that all GPUs are in, "CLUSTER-UUID.NUMBER"; "" if in none.
    """

    gpus: tuple[GpuEntry, ...]
    memory_unit: str = "GiB"
    driver_version: str = DRIVER_VERSION
    cuda_version: str = CUDA_VERSION
    nvlinks: Annotated[int, msgspec.Meta(ge=0, le=18)] = 0
    clique: Annotated[str, msgspec.Meta(pattern=CLIQUE)] = ""


class DevicesFile(Section, frozen=True):
    """A whole document."""

    spec: DevicesSpec

    @classmethod
    def load(cls, path: Path) -> DevicesFile:
        """Read a file, or the ready-made machine of that name ("8xA100-40"). Raises InputError naming it."""
        return read_document(find_machine(path), KIND, cls)

    @classmethod
    def parse(cls, text: str) -> DevicesFile:
        """Read a document's text. Raises InputError."""
        return parse(text, KIND, cls)

    def inventory(self, node: str) -> NodeGpus:
        """The GPUs as the machine of that node has them. Raises InputError naming the place in the file."""
        unit = read_unit(self.spec.memory_unit, "spec.memoryUnit")
        if not self.spec.gpus:
            raise InputError("no GPUs; write at least one {model: Tesla T4}", field="spec.gpus")
        return inventory(self.spec.gpus, unit, node=node, field="spec.gpus")

    def machine(self, node: str) -> PaperMachine:
        """The whole machine, for a simulated driver. Raises InputError as `inventory` does."""
        inventory = self.inventory(node)
        papers = paper_gpus(self.spec.gpus, inventory.unit, node=node, field="spec.gpus")
        gpus = [paper.gpu for paper in papers]
        return PaperMachine(
            self.spec.driver_version,
            self.spec.cuda_version,
            tuple(
                replace(p, gpu=replace(p.gpu, links=self._links(p.gpu, gpus), clique=self.spec.clique))
                for p in papers
            ),
        )

    def _links(self, gpu: FoundGpu, gpus: list[FoundGpu]) -> tuple[Link, ...]:
        return tuple(
            Link(
                other.uuid,
                Nearness.NUMA_NODE if other.numa_node == gpu.numa_node else Nearness.SYSTEM,
                self.spec.nvlinks,
            )
            for other in gpus
            if other is not gpu
        )


def machines() -> tuple[str, ...]:
    """The names of the ready-made machines."""
    return tuple(sorted(path.stem for path in READY_MADE.glob("*.yaml")))


def find_machine(path: Path) -> Path:
    """The file itself, or that of the ready-made machine which is called so, in any case of letters.

    Raises InputError that lists the names if a bare name is neither.
    """
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    found = _ready_made(path.name)
    if found is None:
        raise InputError(
            f"there is no such file, and no machine of that name; use one of {', '.join(machines())}",
            field=str(path),
        )
    return found


@cache
def ready_made(name: str) -> DevicesFile:
    """A machine that comes with gpuslice. Raises InputError that lists the names."""
    path = _ready_made(name)
    if path is None:
        raise InputError(f"there is no machine {name!r}; use one of {', '.join(machines())}")
    return DevicesFile.load(path)


def _ready_made(name: str) -> Path | None:
    wanted = name.replace(" ", "-").casefold()
    return next((READY_MADE / f"{known}.yaml" for known in machines() if known.casefold() == wanted), None)
