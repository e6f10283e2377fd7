"""Replicas: one device announced several times, as NVIDIA's `sharing` has it. Pure.

A replica is no smaller than its device; the containers that hold replicas of one GPU take turns on it
(time-slicing) or run side by side (MPS). Sources: NVIDIA/k8s-device-plugin `api/config/v1`, `internal/rm`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from gpuslice.errors import InputError

SEPARATOR: Final = "::"
"""Between the UUID of a device and the number of the replica, in the id that a kubelet counts."""


class MigStrategy(StrEnum):
    """Which resources MIG devices are announced as."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class SharingStrategy(StrEnum):
    """How the containers that hold replicas of one device share it."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


class AllocationPolicy(StrEnum):
    """Which replicas are preferred: of the devices with the fewest or with the most given out."""

    DISTRIBUTED = "distributed"
    PACKED = "packed"


class Device(Protocol):
    """What can be selected: `index` is "3" for a GPU, "3:1" for the second MIG device on it."""

    @property
    def uuid(self) -> str: ...
    @property
    def index(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Which devices of a resource an entry is about: those in `refs`, the first `count`, or all.

    A ref is an index ("0", "0:1"), a UUID ("GPU-...", "MIG-...") or MIG's old name ("MIG-GPU-.../gi/ci").
    """

    count: int | None = None
    refs: tuple[str, ...] | None = None

    @property
    def all(self) -> bool:
        """True if no device is left out, whatever the node has."""
        return self.count is None and self.refs is None


ALL: Final = Selection()


@dataclass(frozen=True, slots=True)
class Replicated:
    """Devices of the resource `name` are announced `replicas` times each; as `rename` if it is not empty."""

    name: str
    replicas: int
    rename: str = ""
    devices: Selection = ALL

    @property
    def announced(self) -> str:
        """The resource that pods ask for."""
        return self.rename or self.name


@dataclass(frozen=True, slots=True)
class Sharing:
    """All that is shared on a node.

    `fail_requests_greater_than_one`: a container may ask for one replica only. `allow_same_gpu`: one that
    asks for several may be given several of one GPU, as by NVIDIA's plugin; otherwise they are of as many.
    """

    strategy: SharingStrategy = SharingStrategy.NONE
    resources: tuple[Replicated, ...] = ()
    fail_requests_greater_than_one: bool = False
    allow_same_gpu: bool = True

    def of(self, resource: str) -> tuple[Replicated, ...]:
        """The entries about a resource, by its own name."""
        return tuple(entry for entry in self.resources if entry.name == resource)


UNSHARED: Final = Sharing()


@dataclass(frozen=True, slots=True)
class Replicas:
    """How one device is announced: under which resource and how many times (1: as itself)."""

    resource: str
    count: int = 1

    def ids(self, uuid: str) -> tuple[str, ...]:
        """The ids that a kubelet counts: the UUID itself, or one for each replica."""
        if self.count == 1:
            return (uuid,)
        return tuple(f"{uuid}{SEPARATOR}{number}" for number in range(self.count))


def device_of(device_id: str) -> str:
    """The UUID of the device that an id stands for, whether it is a replica's or the device's own."""
    return device_id.partition(SEPARATOR)[0]


def replicate(sharing: Sharing, resource: str, devices: Sequence[Device]) -> Mapping[str, Replicas]:
    """How each device of a resource is announced, by UUID; `devices` are in the order of their indexes.

    A device that no entry selects is announced as itself. Raises InputError if an entry selects a device that
    is not there, or two entries the same one: a mistyped index must not leave a GPU unshared in silence.
    """
    shared: dict[str, Replicas] = {}
    for entry in sharing.of(resource):
        for device in _select(entry, devices):
            if device.uuid in shared:
                raise InputError(
                    f"device {device.index} of {resource} is selected twice; name it in one entry only",
                    field="sharing",
                )
            shared[device.uuid] = Replicas(entry.announced, entry.replicas)
    return {device.uuid: shared.get(device.uuid, Replicas(resource)) for device in devices}


def _select(entry: Replicated, devices: Sequence[Device]) -> Sequence[Device]:
    wanted = entry.devices
    if wanted.refs is not None:
        return [_find(entry.name, ref, devices) for ref in wanted.refs]
    if wanted.count is not None:
        if wanted.count > len(devices):
            raise InputError(
                f"{wanted.count} devices of {entry.name} are to be shared, but this node has {len(devices)}",
                field="sharing",
            )
        return devices[: wanted.count]
    return devices


def _find(resource: str, ref: str, devices: Sequence[Device]) -> Device:
    for device in devices:
        if ref in (device.uuid, device.index):
            return device
    known = ", ".join(device.index for device in devices) or "none"
    raise InputError(f"{ref!r} is no device of {resource} on this node; it has {known}", field="sharing")
