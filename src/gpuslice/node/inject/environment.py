"""What a container can read about its share, beside its devices: gpushare's variables, slice.json. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpuslice import names
from gpuslice.devices.inventory import NodeGpus
from gpuslice.node.grants.held import Held
from gpuslice.node.grants.identity import Identity
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.node.inject.slicefiles import GpuPart, SliceFile


def environment(held: Held, pod: NodePod | None, gpus: NodeGpus) -> Mapping[str, str]:
    """What gpushare's containers find in their environment; nothing for whole devices."""
    if held.kind.whole:
        return {}
    mine = [gpu for uuid in held.gpus if (gpu := gpus.find(uuid)) is not None]
    return {
        names.MEM_IDX: ",".join(str(gpu.index) for gpu in mine),
        # The one value that the ids do not give: right unless a pod with another total waits for as much,
        # too.
        names.MEM_POD: str(pod.request.units if pod else len(held.ids)),
        names.MEM_CONTAINER: str(len(held.ids)),
        names.MEM_DEV: str(gpus.units_of(mine[0])),
    }


def slice_file(identity: Identity, gpus: NodeGpus) -> SliceFile:
    """What the container reads at /run/gpuslice."""
    pod, kind = identity.pod, identity.held.kind
    parts = tuple(
        GpuPart(
            gpu.index,
            gpu.device,
            gpu.model,
            kind.mib(gpus, uuid, count),
            kind.whole and uuid == gpu.device,
        )
        for uuid, count in identity.held.gpus.items()
        if (gpu := gpus.find(uuid)) is not None
    )
    return SliceFile(pod.namespace, pod.name, pod.uid, identity.container, parts)
