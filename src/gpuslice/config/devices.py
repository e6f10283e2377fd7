"""`kind: Devices`: the GPUs of one simulated machine, for `gpuslice agent --devices FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuslice.config.gpus import GpuEntry, inventory, read_unit
from gpuslice.config.reader import Section, parse, read_document
from gpuslice.devices.inventory import NodeGpus
from gpuslice.errors import InputError

KIND: Final = "Devices"


class DevicesSpec(Section, frozen=True):
    """`memory_unit` is what one aliyun.com/gpu-mem means on this node."""

    gpus: tuple[GpuEntry, ...]
    memory_unit: str = "GiB"


class DevicesFile(Section, frozen=True):
    """A whole document."""

    spec: DevicesSpec

    @classmethod
    def load(cls, path: Path) -> DevicesFile:
        """Read a file. Raises InputError naming it."""
        return read_document(path, KIND, cls)

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
