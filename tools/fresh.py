"""Run every install step on an empty machine: a new Debian by debootstrap, with a clone of the last commit.

    make fresh                                  # the steps of STEPS; root, debootstrap, Go; half an hour
    python tools/fresh.py --command .ci/run     # something else instead

The machine has what an image for CI has (BASE, and the Go of this machine) and nothing that earlier runs
left: no environment, no cache, no package. Registries are reached as from here, so the settings of apt,
pip, uv and Go are copied into it. It shares this machine's kernel: a cluster can run in it, too.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
HOME: Final = "/root"
CLONE: Final = f"{HOME}/gpuslice"
BASE: Final = "python3,python3-venv,make,git,ca-certificates"
SLOTS: Final = "/run/gpuslice-e2e"
"""Where tests/e2e writes down which clusters run: the ones on this machine, wherever they were started."""
SETTINGS: Final = (
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d",
    "/etc/apt/apt.conf.d",
    "/etc/apt/auth.conf.d",
    "/etc/apt/trusted.gpg.d",
    "/usr/share/keyrings",
    "/etc/pip.conf",
    "/etc/uv",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/hosts",
    "/etc/resolv.conf",
)
OWN_SETTINGS: Final = (".config/pip", ".config/uv", ".config/go/env", ".netrc")
"""In a home folder."""
VARIABLES: Final = (
    "PIP_",
    "UV_",
    "GO",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_",
    "HTTPS_",
    "NO_",
    "SSL_",
)
"""What the names of variables that are passed on begin with."""
LEFT_OVER: Final = ("PIP_FIND_LINKS", "UV_CACHE_DIR", "GOCACHE", "GOMODCACHE", "GOPATH", "GOROOT")
"""Not these: they are ways to what is on this machine already."""
STEPS: Final = (
    "make ready",
    ".venv-uv/bin/python tools/kubectl.py",
    ".venv-uv/bin/python tools/helm.py",
    "make audit",
    "make lint",
    "make demo",
    "make image sbom",
    ".venv/bin/python -m tests.e2e.components",
    "make e2e E2E_TESTS=tests/e2e/test_kwok.py",
    "make test",
)


def main() -> int:
    """0 if every step succeeds; the status of the first that does not, after which nothing more is tried."""
    parser = argparse.ArgumentParser(description="Run every install step on an empty Debian.")
    parser.add_argument("--command", action="append", help="run this in the clone, and not the usual steps")
    parser.add_argument(
        "--folder", type=Path, help="make the machine here, and keep it (default: made and removed)"
    )
    chosen = parser.parse_args()
    steps = chosen.command or STEPS
    go = shutil.which("go")
    if os.geteuid() != 0 or not shutil.which("debootstrap") or not go:
        print("an empty machine needs root, debootstrap and Go here", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="gpuslice-fresh-") as temporary:
        machine = Path(chosen.folder or temporary).resolve()
        goroot = said(go, "env", "GOROOT")
        took = [("an empty machine", create(machine, goroot))]
        status = 0
        for step in steps:
            print(f"== {step}", flush=True)
            began = time.monotonic()
            status = inside(machine, goroot, step)
            took.append((step, time.monotonic() - began))
            if status:
                print(f"failed with status {status}: {step}", file=sys.stderr)
                break
        print("\n".join(f"{seconds:6.0f} s  {name}" for name, seconds in took))
        return status


def create(machine: Path, goroot: str) -> float:
    """An empty Debian with a clone of this repository in a folder; how many seconds that took."""
    began = time.monotonic()
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line
    )
    codename = release["VERSION_CODENAME"].strip('"')
    mirrors = said(
        "apt-get", "indextargets", "--format=$(REPO_URI)", f"Codename: {codename}", "Component: main"
    )
    mirror = mirrors.splitlines()[0]
    print(f"== an empty Debian {codename} with {BASE}", flush=True)
    # In a view of the file system that nobody else has, so that nothing stays mounted if it is ended.
    private = ("unshare", "--mount", "--propagation=private")
    debootstrap = ("debootstrap", "--variant=minbase", f"--include={BASE}", codename, str(machine), mirror)
    run(*private, *debootstrap, quiet=True)
    (machine / "etc/apt/sources.list").unlink()
    copies = {Path(path): machine / path.lstrip("/") for path in SETTINGS}
    copies |= {Path.home() / path: machine / HOME.lstrip("/") / path for path in OWN_SETTINGS}
    for source, target in copies.items():
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            run("cp", "--recursive", "--dereference", "--no-target-directory", str(source), str(target))
    (machine / goroot.lstrip("/")).mkdir(parents=True)
    (machine / SLOTS.lstrip("/")).mkdir(parents=True)
    Path(SLOTS).mkdir(exist_ok=True)
    run("git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(machine / CLONE.lstrip("/")))
    return time.monotonic() - began


def inside(machine: Path, goroot: str, command: str) -> int:
    """Run a shell command in the clone on that machine; its status. What it leaves running is ended."""
    at = shlex.quote(str(machine))
    mounts = [
        f"mount --rbind {at} {at}",
        f"mount -t proc proc {at}/proc",
        f"mount --rbind /dev {at}/dev",
        f"mount --rbind /sys {at}/sys",
        f"mount --bind -o ro {shlex.quote(goroot)} {at}{shlex.quote(goroot)}",
        f"mount --bind {SLOTS} {at}{SLOTS}",
    ]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(VARIABLES) and name not in LEFT_OVER
    }
    environment |= {
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "CI": "true",
        "PATH": f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{goroot}/bin",
    }
    words = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
    # Not chroot: who enters another view of the file system, as clusters do, would be back on this machine.
    turn = [f"cd {at}", "mkdir -p .outside", "pivot_root . .outside", "umount --lazy /.outside"]
    enter = f"exec /usr/bin/env -i {words} sh -c {shlex.quote(f'cd {CLONE} && {command}')}"
    private = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    script = " && ".join([*mounts, *turn, enter])
    return subprocess.run([*private, "sh", "-c", script], check=False).returncode  # noqa: S603


def run(*command: str, quiet: bool = False) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL if quiet else None)  # noqa: S603


def said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
