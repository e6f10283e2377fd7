"""Which container runtime kubelet speaks to: what its files say, else whose socket is there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from gpuslice.doctor.host.engines import Engine
from gpuslice.doctor.host.root import Root

FOLDER: Final = "/var/lib/kubelet"
OTHER_FOLDERS: Final = ("/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet")
FLAG_FILES: Final = (f"{FOLDER}/kubeadm-flags.env", "/etc/default/kubelet", "/etc/sysconfig/kubelet")
CONFIG_FILES: Final = (f"{FOLDER}/instance-config.yaml", f"{FOLDER}/config.yaml")
SOCKETS: Final = (
    "/run/k3s/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/dockershim.sock",
    "/run/containerd/containerd.sock",
)
"""In this order: docker brings a containerd of its own, and so does k3s."""
_FLAG: Final = re.compile(r"--container-runtime-endpoint[=\s]+[\"']?([^\s\"']+)")


class ConfigFile(msgspec.Struct, frozen=True, rename="camel"):
    container_runtime_endpoint: str = ""


@dataclass(frozen=True, slots=True)
class Kubelet:
    """kubelet on a host."""

    folder: str
    """The folder in which it keeps its device plugins' sockets; "" if there is none."""
    socket: str
    """The path of the runtime's socket; "" if nothing tells."""
    source: str
    """The file that says so; "" if the socket was found."""
    listening: bool
    """True if the socket is there."""
    engine: Engine | None
    """Whose socket that is; None for one that is not known here."""


def read(root: Root) -> Kubelet:
    """Look for kubelet."""
    folder = root.first(*(f"{one}/device-plugins" for one in (FOLDER, *OTHER_FOLDERS))).rpartition("/")[0]
    socket, source = _said(root)
    if not socket:
        socket = next((one for one in SOCKETS if _there(root, one)), "")
    return Kubelet(folder, socket, source, _there(root, socket), _engine(root, socket))


def _said(root: Root) -> tuple[str, str]:
    for path in FLAG_FILES:
        flag = _FLAG.search(root.text(path) or "")
        if flag:
            return _plain(flag[1]), path
    for path in CONFIG_FILES:
        one = root.yaml(path, ConfigFile)
        if one is not None and one.container_runtime_endpoint:
            return _plain(one.container_runtime_endpoint), path
    return "", ""


def _plain(endpoint: str) -> str:
    """The path of an endpoint; /var/run is /run on every system of this century."""
    path = endpoint.removeprefix("unix://")
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _there(root: Root, socket: str) -> bool:
    return bool(socket) and bool(root.first(socket, f"/var{socket}"))


def _engine(root: Root, socket: str) -> Engine | None:
    if socket == "/run/k3s/containerd/containerd.sock":
        return Engine.RKE2 if root.exists("/var/lib/rancher/rke2/agent") else Engine.K3S
    if socket == "/run/containerd/containerd.sock":
        return Engine.CONTAINERD
    if socket.endswith("/crio.sock"):
        return Engine.CRIO
    if socket.endswith(("/cri-dockerd.sock", "/dockershim.sock")):
        return Engine.DOCKER
    return None
