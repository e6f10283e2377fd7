"""The cluster's own kube-scheduler, wired to an extender by the files that `gpuslice install scheduler-config` prints."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from .cluster import RealCluster
from .machine import run

GPUSLICE = Path(sys.executable).parent / "gpuslice"
CLIENT_FILES = ("ca.crt", "client.crt", "client.key")


def save_client_files(cluster: RealCluster, secret: str, namespace: str, folder: Path) -> None:
    """The authority and the client's certificate of our own Secret, as docs/install.md takes them out."""
    data = cluster.get("secrets", secret, namespace)["data"]
    for file in CLIENT_FILES:
        (folder / file).write_bytes(base64.b64decode(data[file]))


def options(url: str, server_name: str, folder: Path) -> list[str]:
    """What `gpuslice install scheduler-config` has to be told of an extender."""
    ca, certificate, key = (folder / file for file in CLIENT_FILES)
    return [
        f"--url={url}",
        f"--server-name={server_name}",
        f"--ca={ca}",
        f"--client-cert={certificate}",
        f"--client-key={key}",
    ]


def scheduler_kubeconfig(cluster: RealCluster) -> Path:
    """The one of kube-scheduler, with the rights that Kubernetes gives it and no others; it needs no other file."""
    certificate, key = cluster.plane.authority.issue("scheduler", "system:kube-scheduler")
    user = {"client-certificate-data": _inline(certificate), "client-key-data": _inline(key)}
    path = cluster.plane.write_kubeconfig("scheduler", user)
    config = json.loads(path.read_text())
    server = config["clusters"][0]["cluster"]
    server["certificate-authority-data"] = _inline(Path(server.pop("certificate-authority")))
    path.write_text(json.dumps(config))
    return path


@contextmanager
def configured(cluster: RealCluster, extender: Sequence[str], kubeconfig: Path) -> Iterator[None]:
    """The cluster's kube-scheduler runs with the printed configuration, and afterwards without it."""
    said = run(
        GPUSLICE,
        "install",
        "scheduler-config",
        *extender,
        f"--scheduler-kubeconfig={kubeconfig}",
        "--kubernetes=1.36",
    )
    cluster.configure_scheduler(yaml.safe_load(said))
    try:
        yield
    finally:
        cluster.configure_scheduler({})


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
