"""The annotations that carry our state: a node's GPUs, a pod's allocation. Text to values and back.

Three records of a pod's allocation are read, the most exact first:

1. `gpuslice.io/allocation`: per container and GPU UUID, in MiB. What we write.
2. `scheduler.framework.gpushare.allocation` (gpushare 2.0): per container index and GPU index, in units.
3. `ALIYUN_COM_GPU_MEM_IDX` (gpushare): one GPU index for the whole pod.

A record counts as absent if it names GPUs that the node does not have, does not cover the containers that ask
for a GPU, or breaks the format: numbers without leading zeros, no key twice. The pod is then on the node with
its GPU unknown, which is visible and accounted. Amounts come from the spec, which nobody can edit; the user's
own annotations are not read here, since they can be edited while the pod runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpuslice import names
from gpuslice.cluster.text import decode, decode_once
from gpuslice.devices.availability import closed, of_health
from gpuslice.devices.inventory import Gpu, NodeGpus, ReplicaRule
from gpuslice.errors import InputError
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.pod import ContainerRequest, PodRequest, can_be_spread
from gpuslice.units import MAX_UNITS, MemoryUnit, read_digits


class _GpuRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """`healthy` is false for a closed GPU, too, so that a reader who does not know `closed` does not give it
    out.
    """

    index: int
    uuid: str
    model: str
    mib: int
    healthy: bool = True
    reason: str = ""
    resource: str = names.WHOLE_GPU
    parent: str = ""
    shareable: bool = True
    replica_rule: ReplicaRule = msgspec.field(default=ReplicaRule.ANY, name="apart")
    packed: bool = False
    closed: bool = False


MAX_INDEX = 99_999
"""More than any GPU's index on a node."""

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
            gpu.available,
            gpu.availability.reason,
            gpu.resource,
            gpu.parent,
            gpu.shareable,
            gpu.replica_rule,
            gpu.packed,
            gpu.availability.closed,
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
        records = decode(_gpus, text)
    except InputError as error:
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
            closed(r.reason) if r.closed else of_health(r.healthy, r.reason),
            r.resource,
            r.parent,
            r.shareable,
            r.replica_rule,
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
    written = {names.ALLOCATION: encode_record(allocation)}
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


def encode_record(allocation: Allocation) -> str:
    """Our own record alone."""
    per_container: dict[str, dict[str, int]] = {}
    for grant in allocation.grants:
        per_container.setdefault(grant.container, {})[grant.gpu] = grant.mib
    return msgspec.json.encode(per_container).decode()


def gpushare_allocation(
    container_names: Sequence[str], allocation: Allocation, gpus: NodeGpus
) -> dict[str, str]:
    """gpushare 2.0's record, needed when one index is not enough: several GPUs or several containers.

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


def recorded_spread(
    annotations: Mapping[str, str], container_names: Sequence[str], gpus: NodeGpus | None = None
) -> dict[str, int]:
    """On how many GPUs each container is, in equal parts, by the pod's records; {} if there are none.

    `gpus`: those of its node, if they are known; a record that names other GPUs counts as absent.
    """
    ours = _decode_record(annotations, names.ALLOCATION)
    if ours and (gpus is None or all(gpus.find(uuid) for named in ours.values() for uuid in named)):
        return {name: len(named) for name, named in ours.items()}
    spread: dict[str, int] = {}
    for position, shares in (_decode_record(annotations, names.GPUSHARE_ALLOCATION) or {}).items():
        number = read_digits(position, len(container_names) - 1)
        known = all(
            read_digits(index, MAX_INDEX) is not None if gpus is None else _at(gpus, index)
            for index in shares
        )
        if number is None or not known:
            return {}
        if len(set(shares.values())) == 1:
            spread[container_names[number]] = len(shares)
    return spread


def decode_allocation(
    annotations: Mapping[str, str], request: PodRequest, container_names: Sequence[str], gpus: NodeGpus
) -> Allocation | None:
    """What a pod holds on a node with these GPUs, or None if no annotation says it believably."""
    wanted = {c.name for c in request.containers}
    if len(wanted) != len(request.containers):
        return None  # a container with GPUs of two kinds: no record tells which of its GPUs are which
    for read in (_read_ours, _read_gpushare_allocation, _read_index):
        grants = read(annotations, request, container_names, gpus)
        if grants and {g.container for g in grants} == wanted:
            return Allocation(tuple(grants))
    return None


def _read_ours(
    annotations: Mapping[str, str], request: PodRequest, _names: Sequence[str], gpus: NodeGpus
) -> list[Grant] | None:
    record = _decode_record(annotations, names.ALLOCATION)
    if record is None:
        return None
    grants: list[Grant] = []
    for container in request.containers:
        uuids = record.get(container.name, {})
        if not _believable(container, len(uuids)) or not all(map(gpus.find, uuids)):
            return None
        whole = container.kind.whole
        each = container.units // len(uuids)
        grants += [_grant(container.name, uuid, gpus, each, whole) for uuid in uuids]
    return grants


def _believable(container: ContainerRequest, gpus: int) -> bool:
    return gpus == container.whole if container.kind.whole else can_be_spread(container, gpus)


def _read_gpushare_allocation(
    annotations: Mapping[str, str], request: PodRequest, container_names: Sequence[str], gpus: NodeGpus
) -> list[Grant] | None:
    record = _decode_record(annotations, names.GPUSHARE_ALLOCATION)
    if record is None:
        return None
    grants: list[Grant] = []
    asking = {container.name: container for container in request.containers}
    for position, shares in record.items():
        number = read_digits(position, len(container_names) - 1)
        wanted = None if number is None else asking.get(container_names[number])
        if wanted is None or wanted.whole or sum(shares.values()) != wanted.units:
            return None
        for index, units in shares.items():
            gpu = _at(gpus, index)
            # A share of 0 MiB would still keep a GPU from pods that ask for it whole.
            if gpu is None or not 1 <= units <= MAX_UNITS:
                return None
            grants.append(_grant(wanted.name, gpu.uuid, gpus, units, whole=False))
    return grants


def _read_index(
    annotations: Mapping[str, str], request: PodRequest, _names: Sequence[str], gpus: NodeGpus
) -> list[Grant] | None:
    gpu = _at(gpus, annotations.get(names.MEM_IDX, ""))
    if gpu is None or any(container.whole for container in request.containers):
        return None
    return [_grant(c.name, gpu.uuid, gpus, c.units, whole=False) for c in request.containers]


def _grant(container: str, uuid: str, gpus: NodeGpus, units: int, whole: bool) -> Grant:
    gpu = gpus.find(uuid)
    mib = gpu.memory_mib if whole and gpu else gpus.unit.to_mib(units)
    return Grant(container, uuid, mib, whole)


def _at(gpus: NodeGpus, text: str) -> Gpu | None:
    index = read_digits(text, MAX_INDEX)
    return None if index is None else gpus.at(index)


def _decode_record(annotations: Mapping[str, str], key: str) -> dict[str, dict[str, int]] | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return decode_once(_by_container, text)
    except InputError:
        return None
