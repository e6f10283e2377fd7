"""The devices of a node that the engine places pods on: its GPUs, with MIG devices in place of partitioned
ones. Pure.

Replicas are in the place of what they are replicas of. `devices.announced` says which there are and by which
resource they are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gpuslice.devices.announced import Announced, GpuDevice, announce
from gpuslice.devices.availability import of_health
from gpuslice.devices.found import Found
from gpuslice.devices.inventory import Gpu, ReplicaRule
from gpuslice.devices.sharing import UNSHARED, AllocationPolicy, MigStrategy, Sharing


def offered(
    found: Found,
    strategy: MigStrategy,
    sharing: Sharing = UNSHARED,
    policy: AllocationPolicy = AllocationPolicy.DISTRIBUTED,
) -> tuple[Gpu, ...]:
    """The devices by index; MIG devices and replicas are numbered after the GPUs.

    Only the memory of GPUs that are neither partitioned nor replicated is shared. Raises InputError, in
    NVIDIA's words, if the strategy `single` cannot be met, or if sharing selects devices that are not there.
    """
    announced = announce(found, strategy, sharing)
    devices = [(resource, one) for resource, ids in announced.resources.items() for one in ids]
    gpus = [
        replace(one.device.gpu.shared, resource=resource, shareable=not _partitioned(one.device))
        for resource, one in devices
        if one.id == one.device.gpu.uuid
    ]
    first = 1 + max((gpu.index for gpu in found.gpus), default=-1)
    if all(one.device.mig for _, one in devices):
        first = 0
    times = Counter(one.device.uuid for _, one in devices)
    parts = sorted(((r, one) for r, one in devices if one.id != one.device.gpu.uuid), key=_place)
    for number, (resource, one) in enumerate(parts, first):
        gpus.append(_part(number, resource, one, times[one.device.uuid]))
    rule, packed = together(sharing), policy is AllocationPolicy.PACKED
    return tuple(
        replace(gpu, replica_rule=rule, packed=packed) if gpu.uuid != gpu.device else gpu
        for gpu in sorted(gpus, key=lambda gpu: gpu.index)
    )


def together(sharing: Sharing) -> ReplicaRule:
    """The rule for what else a container that holds one replica may hold."""
    if sharing.fail_requests_greater_than_one:
        return ReplicaRule.ALONE
    return ReplicaRule.ANY if sharing.allow_same_gpu else ReplicaRule.OTHER_DEVICES


def _place(part: tuple[str, Announced]) -> tuple[int, ...]:
    """The GPU's index, the number of the MIG device on it, and of the replica: "3:1" is (3, 1)."""
    _, one = part
    gpu, _, number = one.device.index.partition(":")
    return int(gpu), int(number or 0), int(one.id.removeprefix(one.device.uuid).lstrip(":") or 0)


def _partitioned(device: GpuDevice) -> bool:
    return device.gpu.mig is not None and device.gpu.mig.current


def _part(index: int, resource: str, one: Announced, times: int) -> Gpu:
    mig, gpu = one.device.mig, one.device.gpu
    return Gpu(
        index,
        one.id,
        f"{gpu.name} MIG {mig.profile}" if mig else gpu.name,
        ((mig.memory_mib or 0) if mig else gpu.usable_mib) // times,
        of_health(one.device.healthy, one.device.reason),
        resource,
        parent=gpu.uuid,
        shareable=False,
        numa_node=gpu.numa_node,
    )
