"""Reads a Node object's GPUs: as its agent published them, or as far as they can be known without an
agent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from gpuslice import names
from gpuslice.cluster.annotations import MAX_INDEX, decode_gpus
from gpuslice.devices.availability import sick
from gpuslice.devices.inventory import MAX_GPUS, Gpu, NodeGpus
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node
from gpuslice.requests.kinds import SHARES, WHOLE_GPUS, kind_of
from gpuslice.units import MemoryUnit, parse_count, read_digits


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node's GPUs and what its device plugin lets the kubelet give out now (units, whole GPUs by resource).

    `problem` is a sentence if the node's own data could not be read; it then has no GPUs. `rest`: units left
    over when the total is split evenly among the GPUs, on nodes that only give their total.
    """

    gpus: NodeGpus
    units: int
    whole: Mapping[str, int]
    address: str = "unknown"
    problem: str = ""
    rest: int = 0


def read_node(node: Node, default_unit: MemoryUnit, unhealthy: Collection[int] = ()) -> NodeInfo:
    """Read a node. Never raises: a damaged annotation or quantity becomes `problem`.

    `unhealthy`: GPU indexes that gpushare's ConfigMap takes out.
    """
    address = next((a.address for a in node.status.addresses or () if a.type == "InternalIP"), "unknown")
    try:
        published = decode_gpus(node.annotations)
        gpus, rest = (published, 0) if published else _without_agent(node, default_unit)
        units = _count(node.status.allocatable, SHARES.resource)
        whole = {resource: _count(node.status.allocatable, resource) for resource in gpus.resources}
    except InputError as error:
        return NodeInfo(NodeGpus((), default_unit), 0, {}, address, f"node {node.name}: {error}")
    marked = tuple(
        replace(gpu, availability=sick(f"listed in ConfigMap {names.UNHEALTHY_PREFIX}{node.name}"))
        if gpu.index in unhealthy
        else gpu
        for gpu in gpus.gpus
    )
    return NodeInfo(NodeGpus(marked, gpus.unit), units, whole, address, rest=rest)


def _without_agent(node: Node, default_unit: MemoryUnit) -> tuple[NodeGpus, int]:
    """Nodes of gpushare's plugin: the total split evenly, and the rest. Nodes of NVIDIA's: whole GPUs of
    unknown memory.

    Only our agent knows to which GPU a container's ids belong; gpushare's plugin gives all containers of a
    pod the one GPU that is in its annotation. So the GPUs are `lone`.
    """
    unit = default_unit
    if names.MEMORY_UNIT in node.annotations:
        unit = MemoryUnit.parse(node.annotations[names.MEMORY_UNIT])
    capacity = node.status.capacity
    units, count = _count(capacity, names.GPU_MEM), _count(capacity, names.GPU_COUNT)
    if not units:
        units, count = 0, _count(capacity, names.WHOLE_GPU)
    count = min(count, MAX_GPUS)
    size = unit.to_mib(units // count) if count else 0
    gpus = [Gpu(i, f"{node.name}/gpu{i}", "", min(size, 2**31 - 1), lone=True) for i in range(count)]
    for resource in sorted(capacity or {}):
        kind = kind_of(resource)
        if kind is not None and kind.whole and kind != WHOLE_GPUS:
            # NVIDIA's device plugin only publishes the number of GPUs.
            for i in range(min(_count(capacity, resource), MAX_GPUS - len(gpus))):
                uuid = f"{node.name}/{resource}/{i}"
                gpus.append(Gpu(len(gpus), uuid, "", 0, resource=resource, shareable=False))
    return NodeGpus(tuple(gpus), unit), units % count if count else 0


def _count(amounts: Mapping[str, str | int | float] | None, resource: str) -> int:
    value = (amounts or {}).get(resource, 0)
    return parse_count(value, field=f"status[{resource}]")


def read_unhealthy(text: str | None) -> frozenset[int]:
    """GPU indexes of a ConfigMap's `gpus: "0,2"`. Blanks, and words that are not numbers, are passed over.

    (gpushare took every such word for GPU 0.)
    """
    words = (word.strip() for word in (text or "").split(","))
    return frozenset(index for word in words if (index := read_digits(word, MAX_INDEX)) is not None)
