"""Build the container image without a container engine and without a registry.

    python tools/image.py --tag gpuslice:dev --output dist/gpuslice.tar

The file is an OCI layout and a docker archive at once: `ctr -n k8s.io images import` and `docker load` both
take it. Debian's Python and the libraries it needs come from apt (on a Debian or Ubuntu machine; root has
`apt-get update` run where it never was), the Python packages from uv.lock with their hashes, gpuslice from
this folder. Root is not needed. The same inputs give the same bytes: files sorted, owned by root, dated
SOURCE_DATE_EPOCH (default 0); which Debian packages went in is in the image, under /var/lib/dpkg/status.d,
where scanners look for it.

For machines with an engine and a registry there is the Containerfile.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
USER: Final = "65532:65532"
"""Nobody in particular, as in distroless images; the agent's manifest asks for root instead."""
UNUSED: Final = frozenset(
    # For parts of Python that nobody imports here: line editing, dbm, NIS with its Kerberos; and dpkg itself.
    {
        *("dpkg", "gcc-12-base", "libacl1", "libcom-err2", "libdb5.3", "libgssapi-krb5-2", "libk5crypto3"),
        *("libkeyutils1", "libkrb5-3", "libkrb5support0", "libmd0", "libncursesw6", "libnsl2"),
        *("libpcre2-8-0", "libreadline8", "libselinux1", "libtinfo6", "libtirpc-common", "libtirpc3"),
        *("libzstd1", "media-types", "readline-common", "tar"),
    }
)
UNUSED_FILES: Final = re.compile(
    r"usr/(sbin|games|include|share/(?!doc/[^/]+/copyright$)|lib/(udev|locale|.*/gconv/))"
    r"|etc/|var/|run/"
    r"|usr/bin/(?!python3\.\d+$)"
    r"|.*/(tests?|__pycache__|lib2to3|idlelib|tkinter|turtledemo|ensurepip|distutils|pydoc_data|config-3\.\d+[^/]*)/"
    r"|.*/lib-dynload/(_curses|_curses_panel|_dbm|nis|readline|_test\w*|xxlimited\w*|_ctypes_test|_xxtestfuzz)\."
    r"|.*/numpy/(f2py|_core/include|_core/lib|random/lib|random/_examples)/"
    r"|.*/dist-packages/(bin|share)/"
    r"|.*/pygments/(lexers|styles)/(?!__init__|_mapping|default)"
    r"|.*\.(pyi|pyx|pxd|a|c|h|hpp|proto|typed)$"
    r"|.*\.dist-info/(RECORD|REQUESTED|INSTALLER|direct_url\.json|uv_cache\.json)$"
)
"""What nobody needs at run time, or what would say on which machine the image was made."""
ACCOUNTS: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
    # Otherwise glibc asks NIS, which is not here.
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
COMMAND: Final = """\
#!/usr/bin/python3 -I
import sys

from gpuslice.cli.main import main

sys.exit(main())
"""


class Problem(Exception):
    """What is missing on this machine, as one sentence."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes with their digest, as OCI names them."""

    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def path(self) -> str:
        return f"blobs/sha256/{self.digest}"

    def descriptor(self, **more: object) -> dict[str, object]:
        """How other blobs refer to this one."""
        return {
            "mediaType": self.media_type,
            "digest": f"sha256:{self.digest}",
            "size": len(self.data),
        } | more


def main() -> int:
    """Build; 1 with a sentence if something is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", default="gpuslice:dev", metavar="NAME:TAG", help="default: gpuslice:dev")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist" / "gpuslice.tar", metavar="FILE",
        help="default: dist/gpuslice.tar",
    )  # fmt: skip
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="leave the image's files here, too, for chroot"
    )
    given = parser.parse_args()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    try:
        with tempfile.TemporaryDirectory() as folder:
            base, app = given.root or Path(folder) / "root", Path(folder) / "app"
            python = lay_base(base)
            lay_packages(base, app, python)
            layers = [layer(base, epoch), layer(app, epoch)]
            if given.root:
                shutil.copytree(app, base, dirs_exist_ok=True, symlinks=True)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    given.output.parent.mkdir(parents=True, exist_ok=True)
    write(given.output, given.tag, layers, epoch)
    size = sum(len(one.data) for one in layers) / 1e6
    print(f"{given.tag}: {size:.0f} MB in {given.output}, Debian's Python {python}")
    return 0


# --- Debian -----------------------------------------------------------------------------------------
def lay_base(root: Path) -> str:
    """Debian's Python and what it needs, below `root`. Returns its version, such as 3.11."""
    python = _python_of_debian()
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / link).mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(f"usr/{link}")
    for package in _downloaded(f"python{python}-minimal", f"libpython{python}-stdlib", "libstdc++6"):
        _unpack(package, root)
    (root / "usr/bin/python3").symlink_to(f"python{python}")
    for name, text in ACCOUNTS.items():
        _write(root / name, text.encode())
    for name in ("tmp", "root", "proc", "sys", "dev"):
        (root / name).mkdir()
    (root / "tmp").chmod(0o1777)
    _compile(root, root, f"usr/lib/python{python}")
    return python


def _python_of_debian() -> str:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Problem("this machine has no apt: build with the Containerfile instead")
    text = _output("apt-cache", "depends", "python3-minimal")
    found = re.search(r"Depends: python(3\.\d+)-minimal", text)
    if found is None:
        raise Problem("apt does not know python3-minimal; run apt-get update")
    return found[1]


def _downloaded(*wanted: str) -> Iterator[Path]:
    """The .deb files of these packages and all that they need, from the cache or freshly from apt."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(base) / "gpuslice" / "debs"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # As if nothing were installed: what this machine has must not be left out.
        status = Path(folder) / "status"
        status.touch()
        list_uris = (
            "apt-get", "-o", f"Dir::State::status={status}", "-o", "Debug::NoLocking=1", "--yes",
            "--no-install-recommends", "--print-uris", "install", *wanted,
        )  # fmt: skip
        announced = re.compile(r"^'[^']+' (\S+\.deb) (\d+) ", re.M)
        files = announced.findall(_output(*list_uris))
        if not files and os.geteuid() == 0:
            # A new machine has never asked what there is.
            _output("apt-get", "--quiet=2", "update")
            files = announced.findall(_output(*list_uris))
        if not files:
            raise Problem("apt offers none of the packages; run apt-get update")
        missing: list[str] = []
        for file, _ in files:
            name, version, _ = file.removesuffix(".deb").split("_")
            if name not in UNUSED and not (cache / file).exists():
                missing.append(f"{name}={version.replace('%3a', ':')}")
        if missing:
            print(f"fetching {len(missing)} Debian packages", file=sys.stderr)
            subprocess.run(  # noqa: S603
                ["apt-get", "--quiet=2", "download", *missing],  # noqa: S607
                cwd=folder,
                check=True,
                # apt wants to drop its rights to a user who cannot write here.
                env={**os.environ, "APT_CONFIG": str(_no_sandbox(Path(folder)))},
            )
            for file in Path(folder).glob("*.deb"):
                shutil.move(file, cache / file.name)
    for file, size in files:
        if file.split("_")[0] not in UNUSED:
            path = cache / file
            if not path.exists() or path.stat().st_size != int(size):
                raise Problem(f"{path} is not what apt announced; delete it and try again")
            yield path


def _no_sandbox(folder: Path) -> Path:
    config = folder / "apt.conf"
    config.write_text('APT::Sandbox::User "root";\n')
    return config


def _unpack(package: Path, root: Path) -> None:
    """One .deb below `root`, where /lib is /usr/lib as on every Debian of today."""
    stream = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True)  # noqa: S603, S607
    with tarfile.open(fileobj=io.BytesIO(stream.stdout)) as tar:
        for member in tar:
            name = re.sub(r"^(bin|sbin|lib|lib64)(/|$)", r"usr/\1\2", member.name.removeprefix("./"))
            if member.isdir() or UNUSED_FILES.match(name):
                continue
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                # Absolute links of /lib lead into it, wherever it is.
                path.symlink_to(member.linkname)
            elif member.islnk():
                raise Problem(f"{package.name} holds the hard link {name}, which is not understood here")
            else:
                content = tar.extractfile(member)
                assert content is not None
                _write(path, content.read(), executable=bool(member.mode & 0o100))
    control = _output("dpkg-deb", "--field", str(package))
    name = package.name.split("_")[0]
    _write(root / "var/lib/dpkg/status.d" / name, control.encode())


# --- Python packages ----------------------------------------------------------------------------------
def lay_packages(base: Path, app: Path, python: str) -> None:
    """The locked packages into `base`, gpuslice itself into `app`: only the latter changes every day."""
    ours = ROOT / ".venv-uv" / "bin" / "uv"
    uv = str(ours) if ours.exists() else shutil.which("uv")
    if uv is None:
        raise Problem("there is no uv; `make lint` installs it")
    site = f"usr/local/lib/python{python}/dist-packages"
    with tempfile.TemporaryDirectory() as folder:
        locked = Path(folder) / "requirements.txt"
        export = ("export", "--quiet", "--frozen", "--no-dev", "--no-emit-project")
        locked.write_text(_output(uv, *export, "--directory", str(ROOT)))
        options = ("--quiet", "--no-compile-bytecode", "--link-mode=copy", f"--python-version={python}")
        options += (f"--python={sys.executable}", "--only-binary=:all:")
        install = (uv, "pip", "install", *options)
        _output(*install, f"--target={base / site}", "--require-hashes", f"--requirement={locked}")
        _output(uv, "build", "--quiet", "--wheel", f"--out-dir={folder}", str(ROOT))
        wheel = next(Path(folder).glob("*.whl"))
        _output(*install, "--no-deps", f"--target={app / site}", str(wheel))
    for root in (base, app):
        _strip(root, root / site)
    _write(app / "usr/local/bin/gpuslice", COMMAND.encode(), executable=True)
    _compile(base, base, site)
    _compile(base, app, site)


def _strip(root: Path, site: Path) -> None:
    for path in sorted(site.rglob("*"), reverse=True):
        name = path.relative_to(root).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif UNUSED_FILES.match(name):
            path.unlink()
        else:
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _compile(base: Path, root: Path, folder: str) -> None:
    """Byte code for everything: the image's file system is read-only, compiling at every start takes seconds.

    By the image's own interpreter; checked by nobody at run time, so that no file's date is in it.
    """
    loader = next((base / "usr").glob("lib*/ld-linux*.so.*"), None)
    if loader is None:
        raise Problem("libc6 brought no dynamic loader")
    libraries = ":".join(str(path) for path in sorted((base / "usr/lib").glob("*-linux-gnu")))
    interpreter = (str(loader), "--library-path", libraries, str(base / "usr/bin/python3"))
    compiling = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
    environment = {"PYTHONHOME": str(base / "usr"), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    _output(*interpreter, *compiling, "-s", str(root), "-p", "/", str(root / folder), env=environment)


# --- the archive ----------------------------------------------------------------------------------------
def layer(root: Path, epoch: int) -> Blob:
    """A folder as a layer: sorted, owned by root, dated `epoch`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).parts):
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.mtime = epoch
            if path.is_symlink():
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                tar.addfile(entry)
            elif path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if path.name == "tmp" else 0o755
                tar.addfile(entry)
            else:
                data = path.read_bytes()
                entry.size, entry.mode = len(data), 0o755 if path.stat().st_mode & 0o100 else 0o644
                tar.addfile(entry, io.BytesIO(data))
    return Blob("application/vnd.oci.image.layer.v1.tar", stream.getvalue())


def write(output: Path, tag: str, layers: list[Blob], epoch: int) -> None:
    """One tar that both containerd (OCI layout) and docker (manifest.json) understand."""
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    config = _json(
        "application/vnd.oci.image.config.v1+json",
        {
            "created": created,
            "architecture": _output("dpkg", "--print-architecture").strip(),
            "os": "linux",
            "config": {
                "User": USER,
                "Env": [
                    "PATH=/usr/local/bin:/usr/bin:/bin",
                    "PYTHONUTF8=1",
                    "PYTHONUNBUFFERED=1",
                    "PYTHONDONTWRITEBYTECODE=1",
                ],
                "Entrypoint": ["gpuslice"],
                "WorkingDir": "/",
                "Labels": {
                    "org.opencontainers.image.title": "gpuslice",
                    "org.opencontainers.image.version": version[1],
                    "org.opencontainers.image.licenses": "Apache-2.0",
                },
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one.digest}" for one in layers]},
            "history": [
                {"created": created, "created_by": "Debian's Python, and the packages of uv.lock"},
                {"created": created, "created_by": "gpuslice"},
            ],
        },
    )
    manifest_type = "application/vnd.oci.image.manifest.v1+json"
    manifest = _json(
        manifest_type,
        {
            "schemaVersion": 2,
            "mediaType": manifest_type,
            "config": config.descriptor(),
            "layers": [one.descriptor() for one in layers],
        },
    )
    names = {"io.containerd.image.name": full_name(tag), "org.opencontainers.image.ref.name": tag}
    index = {"schemaVersion": 2, "manifests": [manifest.descriptor(annotations=names)]}
    docker = [{"Config": config.path, "RepoTags": [tag], "Layers": [one.path for one in layers]}]
    files = {
        "oci-layout": _compact({"imageLayoutVersion": "1.0.0"}),
        "index.json": _compact(index),
        "manifest.json": _compact(docker),
    } | {blob.path: blob.data for blob in (config, manifest, *layers)}
    part = output.with_suffix(".part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), epoch
            tar.addfile(entry, io.BytesIO(data))
    part.replace(output)


def full_name(tag: str) -> str:
    """`gpuslice:dev` as containerd and kubelet know it: docker.io/library/gpuslice:dev."""
    first, slash, _ = tag.partition("/")
    if slash and (set(first) & {".", ":"} or first == "localhost"):
        return tag
    return f"docker.io/{tag}" if slash else f"docker.io/library/{tag}"


def _json(media_type: str, value: object) -> Blob:
    return Blob(media_type, _compact(value))


def _compact(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _write(path: Path, data: bytes, *, executable: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o755 if executable else 0o644)


def _output(*command: str, **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)  # noqa: S603
    if done.returncode:
        last = _last_lines(done.stderr or done.stdout)
        raise Problem(f"{shlex.join(command[:3])}... failed: {last}")
    return done.stdout


def _last_lines(text: str, count: int = 5) -> str:
    lines: Iterable[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(list(lines)[-count:])


if __name__ == "__main__":
    sys.exit(main())
