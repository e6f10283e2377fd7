"""The images that an installation needs, and that nobody can pull here: gpuslice's own, from tools/image.py as for a
release, and kube-scheduler's, from the program that was built for the suite."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import WeakKeyDictionary

from .cluster import RealCluster
from .images import image
from .packages import MissingError

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY, TAG = "gpuslice", "e2e"
# All that the image is made of; the version of Debian's packages is in none of them, and changes seldom.
INPUTS = ("src", "uv.lock", "pyproject.toml", "tools/image.py")

_loaded: WeakKeyDictionary[RealCluster, set[str]] = WeakKeyDictionary()


def gpuslice_image() -> Path:
    """The archive of `gpuslice:e2e`, built from this tree unless that was done before. About 30 s.

    MissingError, with one sentence, where it cannot be built.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuslice-e2e" / "images"
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / f"gpuslice-{_digest()}.tar"
    with (cache / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            command = [sys.executable, str(ROOT / "tools" / "image.py"), f"--tag={REPOSITORY}:{TAG}"]
            done = subprocess.run(
                [*command, f"--output={archive}"], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise MissingError(f"the image cannot be built: {(done.stderr or done.stdout).strip()}")
            # Another tree's may be among them, and is built anew when it is asked for again.
            for old in sorted(cache.glob("gpuslice-*.tar"), key=lambda path: path.stat().st_mtime)[:-3]:
                old.unlink()
        os.utime(archive)
    return archive


def load_gpuslice(cluster: RealCluster) -> None:
    """See that every node has our image."""
    _load(cluster, f"{REPOSITORY}:{TAG}", gpuslice_image)


def load_kube_scheduler(cluster: RealCluster) -> None:
    """See that every node has `registry.k8s.io/kube-scheduler` of the cluster's own version."""
    version: str = cluster.request("GET", "/version")["gitVersion"]
    name = f"registry.k8s.io/kube-scheduler:{version}"

    def build() -> Path:
        program = {"usr/local/bin/kube-scheduler": (cluster.programs / "kube-scheduler").resolve()}
        return image(cluster.work / "images" / "kube-scheduler.tar", name, program, user="65532:65532")

    _load(cluster, name, build)


def load_busybox_as(cluster: RealCluster, *names: str) -> None:
    """See that every node has an image of each of these names: a busybox, whatever the name says."""
    for node in cluster.nodes:
        for name in names:
            if name not in _known(cluster):
                full = name if name.count("/") > 1 else f"docker.io/{name}"
                node.ctr("images", "tag", "--force", "docker.io/library/busybox:e2e", full)
    _known(cluster).update(names)


def _load(cluster: RealCluster, name: str, build: Callable[[], Path]) -> None:
    if name in _known(cluster):
        return
    archive = build()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: node.load_image(archive), cluster.nodes))
    _known(cluster).add(name)


def _known(cluster: RealCluster) -> set[str]:
    return _loaded.setdefault(cluster, set())


def _digest() -> str:
    digest = hashlib.sha256()
    for name in INPUTS:
        top = ROOT / name
        files = (
            sorted(path for path in top.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
            if top.is_dir()
            else [top]
        )
        for path in files:
            digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_mode & 0o111}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
