"""The way to a real API server."""

from __future__ import annotations

from pathlib import Path

from gpuslice.kube.client import Client


def connect(kubeconfig: Path | None) -> Client:
    """Make a client for the kubeconfig's current context.

    Without a file: the pod's service account, else $KUBECONFIG, else ~/.kube/config, as kubectl does.
    Nothing is sent yet. Raises InputError, naming the file, if the configuration is missing or broken.
    """
    # Imported here: the HTTP library costs a command that makes no connection a fifth of a second.
    from gpuslice.kube.kubeconfig import read_access
    from gpuslice.kube.transport import HttpTransport

    return Client(HttpTransport(read_access(kubeconfig)))
