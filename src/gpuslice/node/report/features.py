"""A node's labels in the two forms that Node Feature Discovery (NFD) reads. Pure.

Both are GPU feature discovery's: a file that NFD's worker reads, an object that its master reads. NFD does
not take labels under kubernetes.io, so `alpha.kubernetes.io/nvidia-gpu-name` is in neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

FILE: Final = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
API_VERSION: Final = "nfd.k8s-sigs.io/v1alpha1"
NODE_LABEL: Final = "nfd.node.kubernetes.io/node-name"
"""The label of the object that names its node."""


def feature_file(labels: Mapping[str, str]) -> str:
    """The file: a line for each label."""
    return "".join(f"{key}={value}\n" for key, value in _taken(labels).items())


def node_feature(
    labels: Mapping[str, str], node: str, namespace: str, owners: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The NodeFeature object. `owners` are its ownerReferences: with them it goes when its agent does."""
    metadata: dict[str, Any] = {
        "name": f"nvidia-features-for-{node}",
        "namespace": namespace,
        "labels": {NODE_LABEL: node},
    }
    if owners:
        metadata["ownerReferences"] = [dict(owner) for owner in owners]
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeFeature",
        "metadata": metadata,
        "spec": {"labels": _taken(labels)},
    }


def _taken(labels: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in sorted(labels.items())
        if not key.partition("/")[0].endswith("kubernetes.io")
    }
