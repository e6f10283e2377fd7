"""Device ids: the words that a kubelet counts. Each one names the GPU that it is a part of.

One id of gpu-mem stands for one unit of one GPU's memory: `<tag>-<j>`, where the tag is four base36 digits
of sha256(UUID) and j is the unit's number in base36. A whole GPU's id is its UUID, as NVIDIA's
plugin has it, and so is a MIG device's. The same devices give the same ids after every restart, whatever
the GPUs' indexes are.

A kubelet takes no ListAndWatch message of more than 4 MiB, so ids are short and the unit has a floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final

from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.errors import InputError
from gpuslice.requests.kinds import Kind
from gpuslice.units import MemoryUnit

MESSAGE_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of one ListAndWatch message (grpc-go's default; the kubelet sets none of its own)."""

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_TAG: Final = 4
_FRAMES: Final = 6
"""Protobuf's tag and length of the device, of its id and of its health: all shorter than 128 bytes."""
_HEALTHY: Final = len("Healthy")
_UNHEALTHY: Final = len("Unhealthy")


class DeviceIds:
    """The ids of one node's GPUs, both directions."""

    def __init__(self, gpus: NodeGpus) -> None:
        self.gpus = gpus
        self._tags = _tags(gpu.uuid for gpu in gpus.gpus)
        self._by_tag = {self._tags[gpu.uuid]: gpu for gpu in gpus.gpus}

    def of(self, kind: Kind, gpu: Gpu) -> Iterator[str]:
        """All ids of one GPU: of its units if it is shared, its own if it is given out whole."""
        if kind.whole:
            if kind.is_offered_by(gpu):
                yield gpu.uuid
            return
        tag = self._tags[gpu.uuid]
        for unit in range(self.gpus.units_of(gpu)):
            yield f"{tag}-{_base36(unit)}"

    def gpu(self, kind: Kind, device_id: str) -> Gpu | None:
        """The GPU that an id is a part of, or None if this node never gave out such an id."""
        if kind.whole:
            whole = self.gpus.find(device_id)
            return whole if whole is not None and kind.is_offered_by(whole) else None
        tag, _, number = device_id.partition("-")
        gpu, unit = self._by_tag.get(tag), _unit(number)
        return gpu if gpu is not None and 0 <= unit < self.gpus.units_of(gpu) else None

    def locate(self, kind: Kind, device_id: str) -> str | None:
        """The UUID of that GPU."""
        gpu = self.gpu(kind, device_id)
        return gpu.uuid if gpu else None

    def per_gpu(self, kind: Kind, ids: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """Ids by the UUID of their GPU, GPUs by index; ids that are not of this node are left out."""
        found: dict[str, list[tuple[int, str]]] = {}
        for device_id in ids:
            gpu = self.gpu(kind, device_id)
            if gpu is not None:
                found.setdefault(gpu.uuid, []).append((len(device_id), device_id))
        order = [gpu.uuid for gpu in self.gpus.gpus if gpu.uuid in found]
        return {uuid: tuple(device_id for _, device_id in sorted(found[uuid])) for uuid in order}

    def listed(self, kind: Kind) -> Sequence[tuple[str, bool]]:
        """What ListAndWatch reports: (id, healthy).

        "Unhealthy" is a longer word than "Healthy": if many sick GPUs made the message too large, the ids
        of the last of them are left out, which a kubelet takes as just as unusable.
        """
        size = 0 if kind.whole else message_size(self.gpus)
        listed: list[tuple[str, bool]] = []
        for gpu in self.gpus.gpus:
            if not gpu.available:
                size += (_UNHEALTHY - _HEALTHY) * self.gpus.units_of(gpu)
                if size > MESSAGE_LIMIT:
                    size -= _gpu_size(self.gpus.units_of(gpu), _UNHEALTHY)
                    continue
            listed.extend((device_id, gpu.available) for device_id in self.of(kind, gpu))
        return listed


def message_size(gpus: NodeGpus) -> int:
    """Bytes of the ListAndWatch message that lists every unit of these GPUs as healthy."""
    return sum(_gpu_size(gpus.units_of(gpu), _HEALTHY) for gpu in gpus.gpus)


def smallest_unit(gpus: NodeGpus) -> MemoryUnit:
    """The finest unit, a power of two MiB, whose ids fit into one message."""
    mib = 1
    while message_size(NodeGpus(gpus.gpus, MemoryUnit(mib))) > MESSAGE_LIMIT:
        mib *= 2
    return MemoryUnit(mib)


def check_unit(gpus: NodeGpus) -> None:
    """Raises InputError, naming the smallest unit that works, if the list is too large for a kubelet."""
    if message_size(gpus) > MESSAGE_LIMIT:
        raise InputError(
            f"{gpus.unit} is too fine for this node: its {sum(map(gpus.units_of, gpus.gpus))} ids do not fit "
            f"into the 4 MiB that a kubelet takes; use {smallest_unit(gpus)} or more",
            field="memory unit",
        )


def _gpu_size(units: int, health: int) -> int:
    """Bytes for that many ids of one GPU."""
    total, low, digits = 0, 0, 1
    while low < units:
        high = min(units, 36**digits)
        total += (high - low) * (_FRAMES + _TAG + 1 + digits + health)
        low, digits = high, digits + 1
    return total


def _tags(uuids: Iterable[str]) -> dict[str, str]:
    """A tag per UUID. Where two are equal (once in 1.7 million pairs) the later UUID takes further digits."""
    tags: dict[str, str] = {}
    taken: set[str] = set()
    for uuid in sorted(uuids):
        number = int.from_bytes(sha256(uuid.encode()).digest())
        while (tag := _base36(number % 36**_TAG).rjust(_TAG, "0")) in taken:
            number //= 36
        tags[uuid] = tag
        taken.add(tag)
    return tags


@lru_cache(maxsize=1 << 14)
def _unit(number: str) -> int:
    """The unit that an id ends with, or -1 if we write none so. A kubelet offers the same ids often."""
    # Six digits are more units than MAX_UNITS allows on one GPU; int() of a long text is slow.
    if not 1 <= len(number) <= 6 or not set(number) <= set(_DIGITS):
        return -1
    unit = int(number, 36)
    return unit if _base36(unit) == number else -1


def _base36(number: int) -> str:
    text = ""
    while True:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
        if not number:
            return text
