"""Which resources a node has and with which ids: whole GPUs, MIG devices, replicas of them. Pure.

The names, ids and error texts are those of NVIDIA's device plugin (`internal/rm`), with one difference: a
part of a GPU instance (1c.4g.20gb) is a resource like any other; NVIDIA's plugin does not start with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuslice import names
from gpuslice.devices.found import Found, FoundGpu, MigDevice
from gpuslice.devices.sharing import UNSHARED, MigStrategy, Sharing, replicate
from gpuslice.errors import InputError


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A device that containers are given: a GPU, or a MIG device on one.

    `index` is "3" for a GPU, "3:1" for the second MIG device on it. It is unhealthy if its GPU is.
    """

    index: str
    gpu: FoundGpu
    mig: MigDevice | None = None

    @property
    def uuid(self) -> str:
        return self.mig.uuid if self.mig else self.gpu.uuid

    @property
    def healthy(self) -> bool:
        return self.gpu.healthy and (self.mig is None or self.mig.healthy)

    @property
    def reason(self) -> str:
        """Why it is not healthy."""
        return self.gpu.reason or (self.mig.reason if self.mig else "")


@dataclass(frozen=True, slots=True)
class Announced:
    """One id that a kubelet counts, and the device that it stands for, alone or with other replicas."""

    id: str
    device: GpuDevice


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node has: ids by resource, devices by index. `warnings` are sentences about what is left out."""

    resources: Mapping[str, tuple[Announced, ...]]
    warnings: tuple[str, ...] = ()


def announce(found: Found, strategy: MigStrategy, sharing: Sharing = UNSHARED) -> Announcement:
    """Decide as which resources, with which ids, the GPUs of a node are announced.

    none: every GPU is a nvidia.com/gpu, in MIG mode or not. single: every MIG device is one, if all GPUs are
    partitioned alike. mixed: MIG devices have resources by their profile. Raises InputError if `single`
    cannot be met, or if sharing selects devices that are not there.
    """
    gpus = [gpu for gpu in found.gpus if not gpu.is_for_displays]
    warnings: list[str] = []
    if strategy is MigStrategy.SINGLE:
        named = _single(gpus)
    elif strategy is MigStrategy.MIXED:
        named = _mixed(gpus, warnings)
    else:
        named = {names.WHOLE_GPU: [GpuDevice(str(gpu.index), gpu) for gpu in gpus]} if gpus else {}
        warnings += [
            f"device {gpu.index} is in MIG mode and is given out as a whole, which a container cannot use; "
            "choose migStrategy single or mixed"
            for gpu in gpus
            if _partitioned(gpu)
        ]
    resources: dict[str, list[Announced]] = {}
    for resource, devices in named.items():
        plan = replicate(sharing, resource, devices)
        for device in devices:
            replicas = plan[device.uuid]
            ids = [Announced(one, device) for one in replicas.ids(device.uuid)]
            resources.setdefault(replicas.resource, []).extend(ids)
    warnings += [
        f"sharing: no device of this node is a {entry.name}"
        for entry in sharing.resources
        if entry.name not in named
    ]
    return Announcement({name: tuple(ids) for name, ids in resources.items()}, tuple(warnings))


def _partitioned(gpu: FoundGpu) -> bool:
    return gpu.mig is not None and gpu.mig.current


def _mig_devices(gpu: FoundGpu) -> list[GpuDevice]:
    return [GpuDevice(f"{gpu.index}:{number}", gpu, device) for number, device in enumerate(gpu.mig_devices)]


def _single(gpus: Sequence[FoundGpu]) -> dict[str, list[GpuDevice]]:
    wrong = "invalid MIG configuration: "
    partitioned = [gpu for gpu in gpus if _partitioned(gpu)]
    if not partitioned:
        return {names.WHOLE_GPU: [GpuDevice(str(gpu.index), gpu) for gpu in gpus]} if gpus else {}
    if len(partitioned) < len(gpus):
        raise InputError(f"{wrong}all devices on the node must be configured with the same migEnabled value")
    for gpu in partitioned:
        if not gpu.mig_devices:
            raise InputError(
                f"{wrong}at least one device with migEnabled=true was not configured correctly: "
                f"error visiting device: device {gpu.index} has no MIG devices configured"
            )
    devices = [device for gpu in partitioned for device in _mig_devices(gpu)]
    if len({device.mig.profile for device in devices if device.mig}) > 1:
        raise InputError(f"{wrong}more than one MIG device type present on node")
    return {names.WHOLE_GPU: devices}


def _mixed(gpus: Sequence[FoundGpu], warnings: list[str]) -> dict[str, list[GpuDevice]]:
    named: dict[str, list[GpuDevice]] = {}
    for gpu in gpus:
        if not _partitioned(gpu):
            named.setdefault(names.WHOLE_GPU, []).append(GpuDevice(str(gpu.index), gpu))
            continue
        if not gpu.mig_devices:
            warnings.append(f"device {gpu.index} has no MIG devices configured")
        for device in _mig_devices(gpu):
            assert device.mig is not None
            named.setdefault(device.mig.profile.resource, []).append(device)
    return named
