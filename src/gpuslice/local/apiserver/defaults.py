"""Defaults: what Kubernetes fills in for a client that left it out (`pkg/apis/*/v1/defaults.go`)."""

from __future__ import annotations

from gpuslice.local.apiserver.kinds import Kind
from gpuslice.local.apiserver.status import Json
from gpuslice.local.apiserver.store import Store


def apply(kind: Kind, obj: Json) -> None:
    """Fill in the defaults of a kind, in place."""


def initial_status(kind: Kind, obj: Json) -> None:
    """The status an object is born with."""
    if kind.key == ("", "pods"):
        obj["status"] = {"phase": "Pending"}


def admit_pod(obj: Json, store: Store) -> None:
    """Priority, tolerations and service account of a new pod."""


def admit_service(obj: Json, store: Store) -> None:
    """A cluster IP and node ports for a service that wants them."""
