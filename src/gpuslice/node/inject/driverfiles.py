"""The files of NVIDIA's driver that a container needs, found below the host's root.

Which files: NVIDIA Container Toolkit `pkg/nvcdi` (driver-nvml, common-nvml). Paths are those below the root,
as the container is to see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuslice.errors import InputError

LIBRARY_FOLDERS: Final = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
)
"""Where distributions put the driver; the first that has libcuda.so of the running version counts."""
_BINARIES: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_BINARY_FOLDERS: Final = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin")
_SOCKETS: Final = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
_HOOKS: Final = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
)


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """`links` are (path, the library that it leads to): libcuda.so.1, by which programs find libcuda.

    `hook` is the program of NVIDIA's toolkit that tells a container's loader of libraries; None: not there.
    """

    libraries: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()
    binaries: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    hook: str | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the libraries are."""
        return tuple(dict.fromkeys(str(Path(library).parent) for library in self.libraries))

    @property
    def libcuda_folder(self) -> str:
        """Where libcuda is, "" if it is not among the libraries."""
        paths = map(Path, self.libraries)
        return next((str(path.parent) for path in paths if path.name.startswith("libcuda.so.")), "")


def find_driver(version: str, root: Path = Path("/"), *, host: Path = Path("/")) -> DriverFiles:
    """The files of the driver of that version below its root; toolkit and sockets are looked for on the host.

    Raises InputError if it has no libcuda.so of that version there.
    """
    for folder in LIBRARY_FOLDERS:
        if _below(root, f"{folder}/libcuda.so.{version}").is_file():
            break
    else:
        raise InputError(
            f"there is no libcuda.so.{version} in {', '.join(LIBRARY_FOLDERS[:3])} below {root}: set "
            "it to where the driver is installed (/run/nvidia/driver for a driver container)",
            field="--driver-root",
        )
    libraries = sorted(_libraries(root, folder, version))
    return DriverFiles(
        tuple(libraries),
        tuple(sorted(_links(root, folder, libraries))),
        tuple(_first(root, [f"{place}/{name}" for place in _BINARY_FOLDERS]) for name in _present(root)),
        tuple(_files(root, f"/lib/firmware/nvidia/{version}", "gsp*.bin")),
        tuple(path for path in _SOCKETS if _below(host, path).exists()),
        next((path for path in _HOOKS if _below(host, path).is_file()), None),
    )


def existing(paths: tuple[str, ...], root: Path) -> tuple[str, ...]:
    """Those of some paths that are there below a root."""
    return tuple(path for path in paths if _below(root, path).exists())


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _files(root: Path, folder: str, pattern: str) -> Iterator[str]:
    for path in sorted(_below(root, folder).glob(pattern)):
        if path.is_file() and not path.is_symlink():
            yield f"{folder}/{path.name}"


def _libraries(root: Path, folder: str, version: str) -> Iterator[str]:
    """Everything of that version; `vdpau` has libraries of its own."""
    for place in (folder, f"{folder}/vdpau"):
        yield from _files(root, place, f"*.so.{version}")


def _links(root: Path, folder: str, libraries: list[str]) -> Iterator[tuple[str, str]]:
    """Links in the folder that lead to one of the libraries, also over other links."""
    by_name = {Path(library).name: library for library in libraries if str(Path(library).parent) == folder}
    targets = {
        path.name: path.readlink().name for path in _below(root, folder).iterdir() if path.is_symlink()
    }
    for link in targets:
        name, steps = link, 0
        while name in targets and steps < len(targets):
            name, steps = targets[name], steps + 1
        if name in by_name:
            yield f"{folder}/{link}", by_name[name]


def _present(root: Path) -> list[str]:
    return [name for name in _BINARIES if any(_below(root, f"{p}/{name}").is_file() for p in _BINARY_FOLDERS)]


def _first(root: Path, paths: list[str]) -> str:
    return next(path for path in paths if _below(root, path).is_file())
