"""Finds annotations with which a new pod claims to have a GPU, which only schedulers and agents may write.
Pure.

The records of what a pod was given are written at bind and by the node's agent; in a new pod they are a
lie, or a copy from another's `kubectl get -o yaml`. And annotations below `cdi.k8s.io/` name devices to
container runtimes and to NVIDIA's, which ask nobody whether the pod may have them (Container Device
Interface, `pkg/cdi/annotations.go`; NVIDIA Container Toolkit `internal/config/image`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gpuslice import names
from gpuslice.errors import InputError

RECORDS: Final = frozenset(
    {*names.GPUSHARE_ANNOTATIONS, names.GPUSHARE_ALLOCATION, names.ALLOCATION, names.BIND_FENCE}
)
"""Annotations that record a pod's GPU, or keep it from being bound to one."""
CDI: Final = "cdi.k8s.io"
"""The prefix before the slash, or its end: NVIDIA's GPU operator writes nvidia.cdi.k8s.io."""
_DEVICE: Final = re.compile(r"([A-Za-z][-A-Za-z0-9_.]*)/[A-Za-z][-A-Za-z0-9_]*=[^,=\s]+")
_NVIDIA: Final = "nvidia.com"


MOST: Final = 100
"""The most annotations that are taken out of one pod."""


def unclaimed(annotations: Mapping[str, str]) -> tuple[list[dict[str, object]], list[str]]:
    """The JSON patch that takes such annotations out of a new pod, and why.

    Raises InputError if there are more such annotations than anybody has by mistake.
    """
    records = sorted(RECORDS & annotations.keys())
    devices = sorted(key for key, value in annotations.items() if _is_of_cdi(key) and _may_be_gpus(value))
    if len(devices) > MOST:
        raise InputError(
            f"{len(devices)} name devices below {CDI}; leave them out, and ask for aliyun.com/gpu-mem or "
            "nvidia.com/gpu",
            field="metadata.annotations",
        )
    warnings = []
    if records:
        warnings.append(
            f"metadata.annotations: {', '.join(records)} removed; gpuslice writes "
            f"{'them' if len(records) > 1 else 'it'} when the pod gets a GPU"
        )
    warnings += [
        f"metadata.annotations[{key}] was removed: it would give the pod {annotations[key][:80]!r} past "
        "every account; ask for aliyun.com/gpu-mem or nvidia.com/gpu"
        for key in devices
    ]
    patch: list[dict[str, object]] = [
        {"op": "remove", "path": f"/metadata/annotations/{_pointer(key)}"} for key in (*records, *devices)
    ]
    return patch, warnings


def _is_of_cdi(key: str) -> bool:
    prefix, slash, _ = key.partition("/")
    return bool(slash) and (prefix == CDI or prefix.endswith(f".{CDI}"))


def _may_be_gpus(value: str) -> bool:
    """Not if all of them are another vendor's: a bare name is a GPU to NVIDIA's runtime."""
    for device in value.split(","):
        match = _DEVICE.fullmatch(device.strip())
        if match is None:
            return True
        vendor = match[1].lower()
        if vendor == _NVIDIA or vendor.endswith(f".{_NVIDIA}"):
            return True
    return False


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
