"""The folders that containers see at /run/gpuslice, with `slice.json`, which says what a container holds.

Allocate must say what is mounted before anybody knows which container it is for; so the folder's name is made
from the ids, and PreStartContainer, when the container is known, fills the folder. What the ids alone
determine is written at once: the fake nvidia-smi where GPUs are simulated. Files are replaced in one step: a
reader sees all or nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = "slice.json"


class GpuPart(msgspec.Struct, frozen=True, gc=False):
    """A GPU and how much of it a container holds, in MiB."""

    index: int
    uuid: str
    model: str
    mib: int
    whole: bool


class SliceFile(msgspec.Struct, frozen=True, gc=False):
    """The content of slice.json."""

    namespace: str
    pod: str
    uid: str
    container: str
    gpus: tuple[GpuPart, ...]


@dataclass(frozen=True, slots=True)
class SliceFolders:
    """All such folders of one node, below `<kubelet_dir>/gpuslice/slices`."""

    root: Path

    def of(self, ids: Iterable[str]) -> Path:
        """The folder of the container that holds exactly these ids."""
        return self.root / sha256(" ".join(sorted(ids)).encode()).hexdigest()[:32]

    def make(self, ids: Iterable[str]) -> Path:
        """Make it, empty. Raises OSError."""
        folder = self.of(ids)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write(self, ids: Iterable[str], content: SliceFile) -> None:
        """Write what the container holds. Raises OSError."""
        _replace(self.make(ids) / FILE, msgspec.json.encode(content) + b"\n", 0o644)

    def add_program(self, ids: Iterable[str], name: str, text: str) -> Path:
        """Put a program for the container there; returns its path. Raises OSError."""
        path = self.make(ids) / name
        _replace(path, text.encode(), 0o755)
        return path

    def remove(self, ids: Iterable[str]) -> None:
        """The slice was given back."""
        shutil.rmtree(self.of(ids), ignore_errors=True)

    def written(self) -> dict[str, SliceFile]:
        """The contents of all files that are there, by the name of their folder."""
        found: dict[str, SliceFile] = {}
        for folder in self._folders():
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found[folder.name] = msgspec.json.decode((folder / FILE).read_bytes(), type=SliceFile)
        return found

    def sweep(self, held: Iterable[Iterable[str]], uids: Collection[str]) -> None:
        """Remove the folders whose ids nobody holds and that belong to none of these pods."""
        keep = {self.of(ids).name for ids in held}
        keep |= {name for name, content in self.written().items() if content.uid in uids}
        for folder in self._folders():
            if folder.name not in keep:
                shutil.rmtree(folder, ignore_errors=True)

    def _folders(self) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            return list(self.root.iterdir())
        return []


def _replace(path: Path, content: bytes, mode: int) -> None:
    new = path.with_name(f".{path.name}")
    new.write_bytes(content)
    new.chmod(mode)
    os.replace(new, path)  # noqa: PTH105 (Path.replace returns a path nobody needs)
