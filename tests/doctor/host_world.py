"""The files of a GPU node as its packages leave them, healthy, to be broken by a test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuslice.doctor.finding import Finding
from gpuslice.doctor.host.checks import examine
from gpuslice.doctor.host.look import look

DRIVER = "570.86.15"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
RUNTIME = "/usr/bin/nvidia-container-runtime"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
DAEMON_JSON = "/etc/docker/daemon.json"
CONTAINERD = "/etc/containerd/config.toml"
CONTAINERD_DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
CRIO_DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.toml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
SPEC = "/etc/cdi/nvidia.yaml"
FLAGS = "/var/lib/kubelet/kubeadm-flags.env"

CLOSED = """\
accept-nvidia-visible-devices-as-volume-mounts = true
accept-nvidia-visible-devices-envvar-when-unprivileged = false
disable-require = false

[nvidia-container-runtime]
mode = "auto"

[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
"""
SECOND = 'plugins."io.containerd.grpc.v1.cri"'
THIRD = "plugins.'io.containerd.cri.v1.runtime'"
CDI = f"""\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-ctk
    args: [nvidia-ctk, hook, update-ldcache]
  mounts:
  - hostPath: {LIBRARIES}/libnvidia-ml.so.{DRIVER}
    containerPath: {LIBRARIES}/libnvidia-ml.so.{DRIVER}
    options: [ro, nosuid, nodev, bind]
"""


def handlers(section: str, *, default: str = "nvidia", program: str = RUNTIME, **more: str) -> str:
    """containerd's section with runc and NVIDIA's runtime; `more` are settings of the CRI plugin."""
    settings = "".join(f"{key} = {value}\n" for key, value in more.items())
    return f"""\
[{section}]
{settings}
[{section}.containerd]
default_runtime_name = "{default}"

[{section}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[{section}.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"

[{section}.containerd.runtimes.nvidia.options]
BinaryName = "{program}"
"""


CRIO_NVIDIA = f"""\
[crio.runtime]
default_runtime = "nvidia"

[crio.runtime.runtimes.nvidia]
runtime_path = "{RUNTIME}"
runtime_type = "oci"
"""


@dataclass
class Node:
    """One host, under a folder."""

    root: Path

    def write(self, path: str, text: str = "") -> None:
        here = self.root / path.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_text(text)

    def link(self, path: str, target: str) -> None:
        here = self.root / path.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        here.symlink_to(target)

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def change(self, path: str, old: str, new: str) -> None:
        text = self.read(path)
        assert old in text
        self.write(path, text.replace(old, new))

    def remove(self, *paths: str) -> None:
        for path in paths:
            (self.root / path.lstrip("/")).unlink()

    def json(self, path: str, value: Any) -> None:
        self.write(path, json.dumps(value, indent=4))

    def findings(self) -> list[Finding]:
        return examine(look(self.root))

    # --- what is there --------------------------------------------------------------------------
    def hardware(self) -> None:
        """One T4 with its driver, beside its sound function and somebody else's network card."""
        for slot, vendor, kind in (
            ("0000:00:1e.0", "0x10de", "0x030200"),
            ("0000:00:1e.1", "0x10de", "0x040300"),
            ("0000:00:05.0", "0x1d0f", "0x020000"),
        ):
            self.write(f"/sys/devices/pci0000:00/{slot}/vendor", f"{vendor}\n")
            self.write(f"/sys/devices/pci0000:00/{slot}/class", f"{kind}\n")
            self.link(f"/sys/bus/pci/devices/{slot}", f"../../../devices/pci0000:00/{slot}")
        self.write(
            "/proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER}  Thu Jan 23 02:33:49 UTC 2025\n"
            "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n",
        )
        for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "null"):
            self.write(f"/dev/{name}")
        self.write(f"{LIBRARIES}/libnvidia-ml.so.{DRIVER}")
        self.link(f"{LIBRARIES}/libnvidia-ml.so.1", f"libnvidia-ml.so.{DRIVER}")

    def toolkit(self) -> None:
        self.write(RUNTIME)
        self.write("/usr/bin/nvidia-ctk")
        self.write(TOOLKIT, CLOSED)

    def kubelet(self, socket: str) -> None:
        """kubeadm's kubelet."""
        self.write("/var/lib/kubelet/device-plugins/kubelet.sock")
        self.write(FLAGS, f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix://{socket} --v=2"\n')
        self.link("/var/run", "/run")
        self.write(socket.replace("/var/run/", "/run/"))


def base(path: Path, socket: str) -> Node:
    """A GPU node without a configured runtime."""
    node = Node(path)
    node.hardware()
    node.toolkit()
    node.kubelet(socket)
    return node


def docker(path: Path) -> Node:
    """As gpushare's installation wants it."""
    node = base(path, "/var/run/cri-dockerd.sock")
    node.json(
        DAEMON_JSON,
        {
            "default-runtime": "nvidia",
            "runtimes": {"nvidia": {"path": RUNTIME, "runtimeArgs": []}},
            "exec-opts": ["native.cgroupdriver=systemd"],
        },
    )
    return node


def containerd_2(path: Path) -> Node:
    """containerd 1.7 with NVIDIA's runtime as the default."""
    node = base(path, "/var/run/containerd/containerd.sock")
    node.write(CONTAINERD, f"version = 2\n{handlers(SECOND)}")
    return node


def containerd_3(path: Path) -> Node:
    """containerd 2 with what nvidia-ctk 1.18 writes: a drop-in that the main file imports."""
    node = base(path, "/run/containerd/containerd.sock")
    node.write(CONTAINERD, f'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n[{THIRD}]\n')
    node.write(CONTAINERD_DROP_IN, f"version = 3\n{handlers(THIRD)}")
    return node


def containerd_cdi(path: Path) -> Node:
    """containerd 2 as it comes, and CDI: nothing else is needed, not even NVIDIA's runtime."""
    node = base(path, "/run/containerd/containerd.sock")
    node.write(CONTAINERD, "version = 3\n")
    node.write(SPEC, CDI)
    return node


def crio(path: Path) -> Node:
    """CRI-O with NVIDIA's runtime as the default."""
    node = base(path, "/var/run/crio/crio.sock")
    node.write("/etc/crio/crio.conf", '[crio.runtime]\ndefault_runtime = "crun"\n')
    node.write(
        "/etc/crio/crio.conf.d/10-crun.conf", '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n'
    )
    node.write(CRIO_DROP_IN, CRIO_NVIDIA)
    return node


def crio_cdi(path: Path) -> Node:
    """CRI-O on its defaults, and CDI, whose specification is in the folder that is empty after a boot."""
    node = base(path, "/var/run/crio/crio.sock")
    node.write("/run/cdi/nvidia.yaml", CDI)
    return node


def k3s(path: Path) -> Node:
    """k3s has found NVIDIA's runtime and was told to make it the default. Its kubelet has no files."""
    node = base(path, "/run/k3s/containerd/containerd.sock")
    node.remove(FLAGS)
    node.write(
        K3S,
        'version = 3\nimports = ["/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml"]\n'
        f"{handlers(THIRD, enable_cdi='true')}",
    )
    return node


def k3s_cdi(path: Path) -> Node:
    """k3s as it comes, and CDI."""
    node = k3s(path)
    node.change(K3S, 'default_runtime_name = "nvidia"', "")
    node.write("/run/cdi/nvidia.yaml", CDI)
    return node


HEALTHY = (docker, containerd_2, containerd_3, containerd_cdi, crio, crio_cdi, k3s, k3s_cdi)
