"""Reads from kubelet which GPUs and MIG devices pods hold, for commands that run beside an agent.

The driver only knows programs: a container that holds a MIG device and computes nothing at the moment would
lose it. kubelet does not list ordinary init containers, but the driver sees their programs.
"""

from __future__ import annotations

from pathlib import Path

from gpuslice.devices.inventory import NodeGpus
from gpuslice.devices.sharing import device_of
from gpuslice.node.grants.deviceids import DeviceIds
from gpuslice.node.kubelet.rpc import PodResourcesClient
from gpuslice.requests.kinds import kind_of


async def held_by_pods(socket: Path, gpus: NodeGpus) -> frozenset[str]:
    """UUIDs of the devices that a pod holds: whole, a replica or a part. Raises RpcError."""
    client = PodResourcesClient(socket)
    try:
        pods = await client.list()
    finally:
        await client.aclose()
    ids = DeviceIds(gpus)
    held: set[str] = set()
    for pod in pods:
        for container in pod.containers:
            for device in container.devices:
                kind = kind_of(device.resource)
                for device_id in device.ids:
                    uuid = ids.locate(kind, device_id) if kind is not None else None
                    held.add(device_of(uuid or device_id))
    return frozenset(held)
