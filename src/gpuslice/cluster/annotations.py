"""The annotations that carry our state: a node's GPUs, a pod's allocation. Text to values and back.

Three records of a pod's allocation are read, the most exact first:

1. `gpuslice.io/allocation`: per container and GPU UUID, in MiB. What we write.
2. `scheduler.framework.gpushare.allocation` (gpushare 2.0): per container index and GPU index, in units.
3. `ALIYUN_COM_GPU_MEM_IDX` (gpushare): one GPU index for the whole pod.

A record that names GPUs the node does not have, or that does not cover the containers that ask for a
GPU, counts as absent: the pod is then on the node with its GPU unknown, which is visible and accounted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpuslice import names
from gpuslice.devices.inventory import Apart, Gpu, NodeGpus
from gpuslice.errors import InputError
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.pod import PodRequest
from gpuslice.units import MemoryUnit


class _GpuRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    index: int
    uuid: str
    model: str
    mib: int
    healthy: bool = True
    reason: str = ""
    resource: str = names.WHOLE_GPU
    parent: str = ""
    shareable: bool = True
    apart: Apart = Apart.NO
    packed: bool = False


_gpus = msgspec.json.Decoder(list[_GpuRecord])
_by_container = msgspec.json.Decoder(dict[str, dict[str, int]])


def encode_gpus(gpus: NodeGpus) -> dict[str, str]:
    """The annotations by which a node's agent publishes its GPUs and its unit."""
    records = [
        _GpuRecord(
            gpu.index,
            gpu.uuid,
            gpu.model,
            gpu.memory_mib,
            gpu.healthy,
            gpu.reason,
            gpu.resource,
            gpu.parent,
            gpu.shareable,
            gpu.apart,
            gpu.packed,
        )
        for gpu in gpus.gpus
    ]
    return {names.NODE_GPUS: msgspec.json.encode(records).decode(), names.MEMORY_UNIT: str(gpus.unit)}


def decode_gpus(annotations: Mapping[str, str]) -> NodeGpus | None:
    """A node's GPUs as its agent published them, or None if it published none.

    Raises InputError if the annotations were damaged: such a node gets no pods until its agent mends them.
    """
    text = annotations.get(names.NODE_GPUS)
    if text is None:
        return None
    field = f"metadata.annotations[{names.NODE_GPUS}]"
    try:
        records = _gpus.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InputError(
            f"not readable ({error}); restart the node's agent, it writes it anew", field=field
        ) from error
    unit = MemoryUnit.parse(annotations.get(names.MEMORY_UNIT, "GiB"))
    gpus = (
        Gpu(
            r.index,
            r.uuid,
            r.model,
            r.mib,
            r.healthy,
            r.reason,
            r.resource,
            r.parent,
            r.shareable,
            r.apart,
            r.packed,
        )
        for r in records
    )
    return NodeGpus(tuple(gpus), unit)


def encode_allocation(
    request: PodRequest, allocation: Allocation, gpus: NodeGpus, *, assume_time_ns: int, assigned: bool
) -> dict[str, str]:
    """The pod annotations that record an allocation, for us and for gpushare's own clients.

    `ALIYUN_COM_GPU_MEM_IDX` is written only if all shares are on one GPU, as it can name only one.
    """
    per_container: dict[str, dict[str, int]] = {}
    for grant in allocation.grants:
        per_container.setdefault(grant.container, {})[grant.gpu] = grant.mib
    written = {names.ALLOCATION: msgspec.json.encode(per_container).decode()}
    shared = [
        gpu
        for uuid in dict.fromkeys(g.gpu for g in allocation.grants if not g.whole)
        if (gpu := gpus.find(uuid))
    ]
    if not shared:
        return written
    written |= {
        names.MEM_POD: str(request.units),
        names.MEM_DEV: str(gpus.units_of(shared[0])),
        names.MEM_ASSIGNED: "true" if assigned else "false",
        names.MEM_ASSUME_TIME: str(assume_time_ns),
    }
    if len(shared) == 1:
        written[names.MEM_IDX] = str(shared[0].index)
    return written


def gpushare_allocation(
    container_names: Sequence[str], allocation: Allocation, gpus: NodeGpus
) -> dict[str, str]:
    """gpushare 2.0's record, needed when one index cannot say it: several GPUs or several containers.

    `container_names`: spec.containers in order; its keys are their positions (init containers have none).
    """
    record: dict[str, dict[str, int]] = {}
    for position, name in enumerate(container_names):
        for grant in allocation.of(name):
            gpu = gpus.find(grant.gpu)
            if gpu is not None and not grant.whole:
                record.setdefault(str(position), {})[str(gpu.index)] = gpus.unit.units_in(grant.mib)
    if sum(len(shares) for shares in record.values()) < 2:
        return {}
    return {names.GPUSHARE_ALLOCATION: msgspec.json.encode(record).decode()}


def decode_allocation(
    annotations: Mapping[str, str], request: PodRequest, container_names: Sequence[str], gpus: NodeGpus
) -> Allocation | None:
    """What a pod holds on a node with these GPUs, or None if no annotation says it believably."""
    for read in (_read_ours, _read_gpushare_allocation, _read_index):
        grants = read(annotations, request, container_names, gpus)
        if grants and {g.container for g in grants} == {c.name for c in request.containers}:
            return Allocation(tuple(grants))
    return None


def _read_ours(
    annotations: Mapping[str, str], request: PodRequest, _names: Sequence[str], gpus: NodeGpus
) -> list[Grant] | None:
    record = _decode_record(annotations.get(names.ALLOCATION))
    if record is None:
        return None
    grants: list[Grant] = []
    for container in request.containers:
        # The amounts come from the spec, which nobody can edit; the annotation only says where.
        uuids = [uuid for uuid in record.get(container.name, {}) if gpus.find(uuid)]
        if len(uuids) != (container.whole or container.across):
            return None
        whole = bool(container.whole)
        grants += [_grant(container.name, uuid, gpus, container.units_per_gpu, whole) for uuid in uuids]
    return grants


def _read_gpushare_allocation(
    annotations: Mapping[str, str], request: PodRequest, container_names: Sequence[str], gpus: NodeGpus
) -> list[Grant] | None:
    record = _decode_record(annotations.get(names.GPUSHARE_ALLOCATION))
    if record is None:
        return None
    grants: list[Grant] = []
    for position, shares in record.items():
        if not position.isdecimal() or int(position) >= len(container_names):
            return None
        wanted = request.container(container_names[int(position)])
        if wanted is None or wanted.whole or sum(shares.values()) != wanted.units:
            return None
        for index, units in shares.items():
            gpu = gpus.at(int(index)) if index.isdecimal() else None
            if gpu is None or units < 0:
                return None
            grants.append(_grant(wanted.name, gpu.uuid, gpus, units, whole=False))
    return grants


def _read_index(
    annotations: Mapping[str, str], request: PodRequest, _names: Sequence[str], gpus: NodeGpus
) -> list[Grant] | None:
    index = annotations.get(names.MEM_IDX, "")
    gpu = gpus.at(int(index)) if index.isdecimal() and len(index) < 6 else None
    if gpu is None or any(container.whole for container in request.containers):
        return None
    return [_grant(c.name, gpu.uuid, gpus, c.units, whole=False) for c in request.containers]


def _grant(container: str, uuid: str, gpus: NodeGpus, units: int, whole: bool) -> Grant:
    gpu = gpus.find(uuid)
    mib = gpu.memory_mib if whole and gpu else gpus.unit.to_mib(units)
    return Grant(container, uuid, mib, whole)


def _decode_record(text: str | None) -> dict[str, dict[str, int]] | None:
    if text is None:
        return None
    try:
        return _by_container.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return None
