"""Changes the mode of a GPU as soon as it is free, since a GPU is used in one way at a time. Pure.

What a node announces changes with its configuration: whole GPUs and shares of their memory become replicas,
replicas become other replicas. Containers keep what they hold all the same. So a device that is held in
another way than it is announced is given to nobody until it is given back; what is held stays in the list, so
that every reader knows its holder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from gpuslice.devices.inventory import MAX_GPUS, Gpu, NodeGpus
from gpuslice.devices.sharing import device_of
from gpuslice.node.grants.deviceids import DeviceIds
from gpuslice.node.grants.held import Held
from gpuslice.requests.kinds import Kind

CHANGING: Final = "it changes its use as soon as nobody holds it"


def settle(wanted: NodeGpus, plain: Sequence[Gpu], known: NodeGpus, held: Iterable[Held]) -> NodeGpus:
    """The devices, closed where they are changing their mode, together with what is still held of those.

    `wanted` as they are announced, `plain` as they would be if none were shared, `known` as they were last.
    """
    devices = {gpu.uuid: gpu for gpu in plain}
    kept: dict[str, Gpu] = {}
    for uuid, kind in _held(held, plain, wanted):
        now = wanted.find(uuid)
        if now is not None and kind.is_offered_by(now):
            continue
        device = devices.get(device_of(uuid))
        if device is not None:
            kept[uuid] = now or known.find(uuid) or _replica(uuid, device)
    if not kept:
        return wanted
    changing = {device_of(uuid) for uuid in kept}
    gpus = [gpu.closed(CHANGING) if gpu.device in changing else gpu for gpu in wanted.gpus]
    former = [gpu.closed(CHANGING) for uuid, gpu in kept.items() if wanted.find(uuid) is None]
    return NodeGpus((*gpus, *_numbered(former[: MAX_GPUS - len(gpus)], gpus)), wanted.unit)


def _held(held: Iterable[Held], plain: Sequence[Gpu], wanted: NodeGpus) -> Iterable[tuple[str, Kind]]:
    """What is held, by UUID or the id of a replica, and of which kind."""
    ids: DeviceIds | None = None
    for holding in held:
        found: Collection[str] = holding.gpus
        if not found and not holding.kind.whole:
            # Only the former devices tell what these ids are.
            ids = ids or DeviceIds(NodeGpus(tuple(plain), wanted.unit))
            found = ids.per_gpu(holding.kind, holding.ids)
        for uuid in found or holding.ids:
            yield uuid, holding.kind


def _replica(uuid: str, device: Gpu) -> Gpu:
    """A device as it was announced, of which nobody remembers how: after a restart of the agent."""
    if uuid == device.uuid:
        return device
    return replace(device, uuid=uuid, parent=device.physical, shareable=False)


def _numbered(former: Sequence[Gpu], gpus: Sequence[Gpu]) -> list[Gpu]:
    """With their own indexes where nobody else has those."""
    taken: dict[int, Gpu] = {gpu.index: gpu for gpu in gpus}
    numbered: list[Gpu] = []
    for gpu in former:
        index = gpu.index if gpu.index not in taken else 1 + max(taken)
        taken[index] = gpu
        numbered.append(replace(gpu, index=index))
    return numbered
