"""Container images made by hand: nothing can be pulled where these tests run, and nothing needs to be.

An image is a docker-archive tarball of one layer. Its bytes depend on nothing but its content, so that a test can ask
whether two builds are the same.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PAUSE = "registry.k8s.io/pause:3.10.1"
BUSYBOX = "busybox:e2e"
# A node's containers get PATH from the image; busybox finds its applets there.
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Link:
    """A symbolic link in an image."""

    target: str


Content = bytes | Path | Link


def image(
    archive: Path,
    name: str,
    content: Mapping[str, Content],
    *,
    entrypoint: Sequence[str] = (),
    command: Sequence[str] = (),
    environment: Sequence[str] = (PATH,),
    user: str = "",
) -> Path:
    """Write the docker archive of image `name` to `archive` and return that.

    `content` maps paths inside the image to bytes, to a `Link`, to a file, or to a folder whose whole tree is taken.
    Files keep their executable bit; bytes are executable when they begin with "#!".
    """
    layer = _layer(content)
    config = json.dumps(
        {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {
                "Entrypoint": list(entrypoint),
                "Cmd": list(command),
                "Env": list(environment),
                "User": user,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            "history": [],
        },
        sort_keys=True,
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for path, data in ((config_name, config), ("layer.tar", layer), ("manifest.json", manifest)):
            _add(tar, path, data, 0o644)
    return archive


def busybox_image(archive: Path, busybox: Path) -> Path:
    """`busybox:e2e`: a shell and its tools from one static program."""
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    content: dict[str, Content] = {f"bin/{applet}": Link("busybox") for applet in listed}
    content |= {"bin/busybox": busybox, "etc/passwd": b"root:x:0:0:root:/:/bin/sh\n", "tmp/.keep": b""}
    return image(archive, BUSYBOX, content, command=["sh"])


def pause_image(archive: Path, busybox: Path) -> Path:
    """The container that holds a pod's namespaces, under the name that kubelet's release pins."""
    return image(archive, PAUSE, {"bin/busybox": busybox}, entrypoint=["/bin/busybox", "sleep", "2147483647"])


def _layer(content: Mapping[str, Content]) -> bytes:
    entries: dict[str, Content] = {}
    for path, what in content.items():
        path = path.strip("/")
        if isinstance(what, Path) and what.is_dir():
            for folder, _, names in os.walk(what):
                inside = Path(folder).relative_to(what)
                entries |= {str(Path(path) / inside / name): Path(folder) / name for name in names}
        else:
            entries[path] = what
    folders = {str(above) for path in entries for above in Path(path).parents if str(above) != "."}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folders | set(entries)):
            if path in folders:
                info = tarfile.TarInfo(path)
                info.type, info.mode = tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755
                tar.addfile(info)
                continue
            what = entries[path]
            if isinstance(what, Path) and what.is_symlink():
                what = Link(str(what.readlink()))
            if isinstance(what, Link):
                info = tarfile.TarInfo(path)
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, what.target, 0o777
                tar.addfile(info)
            elif isinstance(what, Path):
                _add(tar, path, what.read_bytes(), 0o755 if os.access(what, os.X_OK) else 0o644)
            else:
                _add(tar, path, what, 0o755 if what.startswith(b"#!") else 0o644)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: str, data: bytes, mode: int) -> None:
    """Add a file of root's, of no particular time."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))
