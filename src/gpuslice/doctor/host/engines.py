"""The container runtimes that kubelet speaks to, and the commands that mend each of them.

Of NVIDIA's own commands: `nvidia-ctk runtime configure` writes a drop-in since NVIDIA Container Toolkit 1.18.
Its default for CRI-O was a folder that CRI-O does not read (/etc/crio/conf.d; mended in 1.19), so ours names
the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GENERATE: Final = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
"""Runtimes watch the folder: no restart is needed. Since toolkit 1.18, nvidia-cdi-refresh does it at boot."""


class Engine(StrEnum):
    """A container runtime, as people call it."""

    DOCKER = "docker"
    CONTAINERD = "containerd"
    CRIO = "CRI-O"
    K3S = "k3s"
    RKE2 = "RKE2"


@dataclass(frozen=True, slots=True)
class Care:
    """Where an engine is configured, and the commands that change that."""

    file: str
    """The main file."""
    restart: str
    set_default: str
    """NVIDIA's runtime for every container, with the restart."""
    enable_cdi: str


def _toolkit(runtime: str, options: str) -> str:
    return (
        f"sudo nvidia-ctk runtime configure --runtime={runtime} {options} && sudo systemctl restart {runtime}"
    )


def _rancher(name: str, server: str) -> Care:
    """k3s and RKE2 write containerd's file themselves, at every start."""
    folder, restart = f"/etc/rancher/{name}/config.yaml.d", f"sudo systemctl restart {server}"
    default = (
        f"sudo mkdir -p {folder} && echo 'default-runtime: nvidia' | sudo tee {folder}/nvidia.yaml && "
        f"{restart}   # {name}-agent on a node without control plane"
    )
    return Care(f"/var/lib/rancher/{name}/agent/etc/containerd/config.toml", restart, default, default)


CARE: Final[Mapping[Engine, Care]] = {
    Engine.DOCKER: Care(
        "/etc/docker/daemon.json",
        "sudo systemctl restart docker",
        _toolkit("docker", "--set-as-default"),
        _toolkit("docker", "--cdi.enabled"),
    ),
    Engine.CONTAINERD: Care(
        "/etc/containerd/config.toml",
        "sudo systemctl restart containerd",
        _toolkit("containerd", "--set-as-default"),
        _toolkit("containerd", "--cdi.enabled"),
    ),
    Engine.CRIO: Care(
        "/etc/crio/crio.conf",
        "sudo systemctl restart crio",
        _toolkit("crio", "--set-as-default --drop-in-config=/etc/crio/crio.conf.d/99-nvidia.toml"),
        "sudo grep -r cdi_spec_dirs /etc/crio   # take it out; its default is /etc/cdi and /var/run/cdi\n"
        "sudo systemctl restart crio",
    ),
    Engine.K3S: _rancher("k3s", "k3s"),
    Engine.RKE2: _rancher("rke2", "rke2-server"),
}


def engine_of(path: str) -> Engine | None:
    """Whose file that is, by its folder; None for anybody else's."""
    for engine, care in CARE.items():
        if path.startswith(f"{care.file.rpartition('/')[0]}/"):
            return engine
    return None
