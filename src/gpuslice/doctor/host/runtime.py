"""What a container runtime is told by its files: which handlers it has, which is the default, what of CDI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from gpuslice.doctor.host.engines import CARE, Care, Engine

NVIDIA_BINARY: Final = "nvidia-container-runtime"
"""NVIDIA's runtime; its variants have a suffix, such as nvidia-container-runtime.cdi."""
CDI_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
"""Where every runtime looks for CDI specifications unless it is told otherwise."""


@dataclass(frozen=True)
class Runtime:
    """One container runtime of a host."""

    engine: Engine
    files: tuple[str, ...] = ()
    """The files that were read, the main one first; none if it runs on its defaults."""
    default: str = "runc"
    """The handler of pods without a RuntimeClass."""
    handlers: Mapping[str, str] = field(default_factory=dict)
    """Handler -> its program, a path or a name; "" for the runtime's own."""
    cdi: bool | None = None
    """True if CDI is on; None if that depends on a version that the files do not tell."""
    cdi_folders: tuple[str, ...] = CDI_FOLDERS
    unread: str = ""
    """A file about NVIDIA's runtime where this one does not look."""
    misplaced: str = ""
    """A file that configures NVIDIA's runtime in a section that its version does not have."""
    misplaced_until: str = ""
    """The first version of the runtime that reads it all the same; "" if none does."""
    overridden: str = ""
    """A drop-in after which NVIDIA's runtime is gone, where drop-ins replace and do not merge."""

    @property
    def care(self) -> Care:
        return CARE[self.engine]

    @property
    def nvidia(self) -> tuple[str, ...]:
        """The handlers that are NVIDIA's runtime, by their programs: a name may lie."""
        return tuple(sorted(name for name, program in self.handlers.items() if is_nvidia(program)))

    @property
    def by_default(self) -> bool:
        """True if every container goes through NVIDIA's runtime."""
        return self.default in self.nvidia

    @property
    def file(self) -> str:
        """Where to look first."""
        return self.files[0] if self.files else self.care.file


def is_nvidia(program: str) -> bool:
    """True for NVIDIA's runtime, wherever it lies."""
    return PurePosixPath(program).name.startswith(NVIDIA_BINARY)
