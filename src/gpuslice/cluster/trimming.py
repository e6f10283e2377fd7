"""Drops the parts of a pod that nobody reads: the annotations of each pod can take 262,144 bytes."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from gpuslice import names
from gpuslice.cluster.text import RECORD_LIMIT
from gpuslice.kube.wire import Pod

READ: Final = frozenset(
    {*names.GPUSHARE_ANNOTATIONS, names.GPUSHARE_ALLOCATION, names.ALLOCATION, names.SHARES_ACROSS}
)
"""The annotations of a pod that anything of ours reads."""


def trimmed(pod: Pod) -> Pod:
    """The pod without labels and without the annotations that nobody reads.

    An annotation that is too long to be believed is kept, but empty.
    """
    annotations = pod.metadata.annotations
    if not annotations and not pod.metadata.labels:
        return pod
    kept = {
        key: text if len(text) <= RECORD_LIMIT else ""
        for key, text in (annotations or {}).items()
        if key in READ
    }
    return replace(pod, metadata=replace(pod.metadata, labels=None, annotations=kept or None))
