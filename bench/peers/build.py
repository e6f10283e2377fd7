"""NVIDIA's own tools at fixed versions, built from their sources outside of this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCES = {
    "k8s-device-plugin": ("v0.20.0", ("nvidia-device-plugin", "gpu-feature-discovery")),
    "mig-parted": ("v0.15.0", ("nvidia-mig-parted",)),
}
MODULES = "/proc/driver/modules"
"""Where mig-parted is made to look for the kernel's modules: /proc/modules is not there for every kernel."""


def versions() -> dict[str, str]:
    """What is compared with, by repository."""
    return {name: version for name, (version, _) in SOURCES.items()}


def binaries(folder: Path) -> Path:
    """The folder with the three programs; the first call builds them, which takes some minutes."""
    built = folder / "bin"
    for name, (version, programs) in SOURCES.items():
        if all((built / program).exists() for program in programs):
            continue
        source = folder / "src" / name
        if not (source / "go.mod").exists():
            address = f"https://github.com/NVIDIA/{name}"
            _run("git", "clone", "-q", "--depth", "1", "--branch", version, address, str(source))
        for path in (source / "cmd").rglob("*.go"):
            text = path.read_text()
            if '"/proc/modules"' in text:
                path.write_text(text.replace('"/proc/modules"', f'"{MODULES}"'))
        go = shutil.which("go") or "/usr/local/go/bin/go"
        packages = [f"./cmd/{program}" for program in programs]
        _run("nice", go, "build", "-mod=vendor", "-o", f"{built}/", *packages, cwd=source)
    return built


def _run(*words: str, cwd: Path | None = None) -> None:
    done = subprocess.run(words, cwd=cwd, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()[-2000:]}")
