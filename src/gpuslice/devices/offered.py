"""What the engine places on a node: its GPUs and, in the place of those that are cut, MIG devices. Pure.

Which of them there are and by which resource they are counted says `devices.announced`.
"""

from __future__ import annotations

from dataclasses import replace

from gpuslice.devices.announced import GpuDevice, announce
from gpuslice.devices.found import Found
from gpuslice.devices.inventory import Gpu
from gpuslice.devices.sharing import MigStrategy


def offered(found: Found, strategy: MigStrategy) -> tuple[Gpu, ...]:
    """The devices by index; MIG devices are numbered after the GPUs. Only uncut GPUs are shared by memory.

    Raises InputError, in NVIDIA's words, if the strategy `single` cannot be met.
    """
    announced = announce(found, strategy)
    devices = [(resource, one.device) for resource, ids in announced.resources.items() for one in ids]
    gpus = [replace(d.gpu.shared, resource=r, shareable=not _cut(d)) for r, d in devices if d.mig is None]
    first = 1 + max((gpu.index for gpu in found.gpus), default=-1)
    if not gpus:
        first = 0
    parts = sorted(((r, d) for r, d in devices if d.mig), key=lambda part: _place(part[1]))
    gpus += [_part(number, resource, device) for number, (resource, device) in enumerate(parts, first)]
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _place(device: GpuDevice) -> tuple[int, int]:
    """The GPU's index and the number of the MIG device on it: "3:1" is (3, 1)."""
    gpu, _, part = device.index.partition(":")
    return int(gpu), int(part or 0)


def _cut(device: GpuDevice) -> bool:
    return device.gpu.mig is not None and device.gpu.mig.current


def _part(index: int, resource: str, device: GpuDevice) -> Gpu:
    mig, gpu = device.mig, device.gpu
    assert mig is not None
    return Gpu(
        index,
        mig.uuid,
        f"{gpu.name} MIG {mig.profile}",
        mig.memory_mib or 0,
        device.healthy,
        device.reason,
        resource,
        parent=gpu.uuid,
        shareable=False,
    )
