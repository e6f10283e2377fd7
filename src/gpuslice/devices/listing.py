"""Devices in the layout of `nvidia-smi -L`: a machine's, or those of it that a container was given. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpuslice.devices.found import Found, FoundGpu


def listing(found: Found) -> str:
    """Lines as those of `nvidia-smi -L`."""
    if not found.gpus:
        return "No devices found.\n"
    lines = []
    for gpu in found.gpus:
        lines.append(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})")
        lines += [
            f"  MIG {mig.profile!s:<11} Device {mig.index:>2}: (UUID: {mig.uuid})" for mig in gpu.mig_devices
        ]
    return "\n".join(lines) + "\n"


def inside(found: Found, uuids: Collection[str]) -> Found:
    """The machine as a container sees it that has these GPUs and MIG devices: numbered anew from 0.

    A MIG device's GPU is there, too, with no other MIG devices than the container's own.
    """
    gpus: list[FoundGpu] = []
    for gpu in found.gpus:
        parts = [mig for mig in gpu.mig_devices if mig.uuid in uuids]
        if parts or gpu.uuid in uuids:
            numbered = tuple(replace(mig, index=number) for number, mig in enumerate(parts))
            gpus.append(replace(gpu, index=len(gpus), mig_devices=numbered))
    return replace(found, gpus=tuple(gpus), silent=())
