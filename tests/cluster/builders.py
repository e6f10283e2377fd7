"""Nodes and pods for tests, as the API server would send them."""

from __future__ import annotations

import asyncio

import msgspec

from gpuslice import names
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.devices.availability import of_health
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.kube.wire import Node, Pod
from gpuslice.units import GIB, MemoryUnit


class StoppedClock:
    """A clock that shows the time it was given."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self.ns = now_ns

    def now_ns(self) -> int:
        return self.ns

    def monotonic(self) -> float:
        return self.ns / 1e9

    async def sleep(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)
        await asyncio.sleep(0)


def plain_node(name: str, units: int, gpus: int, **more: object) -> Node:
    """A node of gpushare: totals only."""
    amounts = {names.GPU_MEM: str(units), names.GPU_COUNT: str(gpus)}
    return msgspec.convert(
        {"metadata": {"name": name, **more}, "status": {"capacity": amounts, "allocatable": amounts}}, Node
    )


def mig_device(index: int, node: str, profile: str, parent: str = "A100") -> Gpu:
    """A MIG device as the strategy `mixed` offers it."""
    return Gpu(
        index,
        f"MIG-{node}-{index}",
        f"NVIDIA A100-SXM4-40GB MIG {profile}",
        int(profile.partition(".")[2].removesuffix("gb")) * 1024,
        resource=f"{names.MIG_PREFIX}{profile}",
        parent=f"GPU-{node}-{parent}",
        shareable=False,
    )


def agent_node(
    name: str,
    *gib: int,
    unit: MemoryUnit = GIB,
    healthy: tuple[bool, ...] = (),
    mig: tuple[str, ...] = (),
) -> Node:
    """A node whose agent has published its GPUs and registered its plugins; `mig` are devices of one more GPU."""
    gpus = tuple(
        Gpu(i, f"GPU-{name}-{i}", "Tesla T4", size * 1024, of_health(not healthy or healthy[i], ""))
        for i, size in enumerate(gib)
    )
    gpus += tuple(mig_device(len(gib) + i, name, profile) for i, profile in enumerate(mig))
    inventory = NodeGpus(gpus, unit)
    amounts = {
        names.GPU_MEM: str(sum(inventory.units_of(gpu) for gpu in gpus)),
        names.GPU_COUNT: str(len(gpus)),
    }
    for resource in inventory.resources:
        amounts[resource] = str(sum(gpu.resource == resource for gpu in gpus))
    return msgspec.convert(
        {
            "metadata": {"name": name, "annotations": encode_gpus(inventory)},
            "status": {"capacity": amounts, "allocatable": amounts},
        },
        Node,
    )


def pod(
    name: str,
    units: int | tuple[int, ...] = 0,
    *,
    uid: str = "",
    node: str = "",
    index: int | str | None = None,
    annotations: dict[str, str] | None = None,
    phase: str = "Pending",
    whole: int = 0,
    **more: object,
) -> Pod:
    """A pod with a container per number of units; `index` writes gpushare's annotation."""
    shares = units if isinstance(units, tuple) else (units,)
    limits = [{names.GPU_MEM: str(n)} if n else {} for n in shares]
    if whole:
        limits = [{names.WHOLE_GPU: str(whole)}]
    marks = dict(annotations or {})
    if index is not None:
        marks[names.MEM_IDX] = str(index)
    spec: dict[str, object] = {
        "nodeName": node,
        "containers": [{"name": f"c{i}", "resources": {"limits": limit}} for i, limit in enumerate(limits)],
    }
    for key in ("initContainers", "priority"):
        if key in more:
            spec[key] = more.pop(key)
    status: dict[str, object] = {"phase": phase}
    for key in ("containerStatuses",):
        if key in more:
            status[key] = more.pop(key)
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": uid or f"uid-{name}",
        "annotations": marks,
        **more,
    }
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)
