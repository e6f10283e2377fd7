"""CDI specifications of NVIDIA's GPUs, as nvidia-ctk and device plugins write them.

The format is the Container Device Interface's (cncf-tags/container-device-interface, SPEC.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from gpuslice.doctor.host.root import Root

KIND: Final = "nvidia.com/gpu"


class DeviceNode(msgspec.Struct, frozen=True, rename="camel"):
    path: str = ""
    host_path: str = ""


class Mount(msgspec.Struct, frozen=True, rename="camel"):
    host_path: str = ""


class Hook(msgspec.Struct, frozen=True):
    path: str = ""


class Edits(msgspec.Struct, frozen=True, rename="camel"):
    device_nodes: tuple[DeviceNode, ...] | None = None
    mounts: tuple[Mount, ...] | None = None
    hooks: tuple[Hook, ...] | None = None

    @property
    def paths(self) -> Iterator[str]:
        """The files of the host that a container gets or that are run for it."""
        yield from (one.host_path or one.path for one in self.device_nodes or ())
        yield from (one.host_path for one in self.mounts or ())
        yield from (one.path for one in self.hooks or ())


class Device(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    container_edits: Edits = Edits()


class SpecFile(msgspec.Struct, frozen=True, rename="camel"):
    kind: str = ""
    devices: tuple[Device, ...] | None = None
    container_edits: Edits = Edits()


@dataclass(frozen=True, slots=True)
class Spec:
    """One specification of NVIDIA's GPUs."""

    path: str
    devices: tuple[str, ...]
    missing: tuple[str, ...]
    """What it names and the host does not have."""

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


def read(root: Root, folders: Iterable[str]) -> tuple[Spec, ...]:
    """The specifications in these folders. Only *.json and *.yaml count, as in every runtime."""
    found = []
    for folder in dict.fromkeys(folders):
        for name in root.names(folder):
            path = f"{folder}/{name}"
            if name.endswith(".json"):
                one = root.json(path, SpecFile)
            elif name.endswith(".yaml"):
                one = root.yaml(path, SpecFile)
            else:
                continue
            # NVIDIA's device plugin puts k8s.device-plugin. before the name.
            if one is not None and (one.kind == KIND or one.kind.endswith(f".{KIND}")):
                devices = one.devices or ()
                edits = (one.container_edits, *(device.container_edits for device in devices))
                wanted = {path for edit in edits for path in edit.paths if path.startswith("/")}
                missing = tuple(sorted(path for path in wanted if not root.exists(path)))
                found.append(Spec(path, tuple(device.name for device in devices), missing))
    return tuple(found)
