"""Says who uses a node's GPUs and MIG devices, or is about to: those must not be partitioned. Pure.

A pod that is bound to the node and has not started is about to use devices. If a scheduler chose its device,
it is that one; if only the kubelet will choose (kube-scheduler counts MIG devices and no more), it is every
device of the kind, as long as the pod might get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuslice.devices.inventory import Gpu
from gpuslice.devices.sharing import device_of
from gpuslice.node.grants.held import Held, Owner
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.requests.kinds import Kind

SOMEBODY = "a container"


def users(held: Iterable[Held], pods: Mapping[str, NodePod], gpus: Iterable[Gpu]) -> dict[str, str]:
    """The users, as namespace/name by UUID. `gpus`: devices that have to go are closed in it, so that nobody
    new gets them.
    """
    held, gpus = tuple(held), tuple(gpus)
    found: dict[str, str] = {}
    owned: set[Owner] = set()
    for holding in held:
        pod = pods.get(holding.owner.uid) if holding.owner else None
        found |= dict.fromkeys(map(device_of, holding.gpus), pod.key if pod else SOMEBODY)
        if holding.owner is not None:
            owned.add(holding.owner)
    unplanned: dict[Kind, list[str]] = {}
    for pod in pods.values():
        if not pod.alive:
            continue
        for container in pod.request.containers:
            if Owner(pod.uid, container.name) in owned:
                continue
            if pod.planned is not None:
                for grant in pod.planned.of(container.name):
                    found.setdefault(device_of(grant.gpu), pod.key)
            else:
                unplanned.setdefault(container.kind, []).extend([pod.key] * container.gpus)
    for kind, keys in unplanned.items():
        suitable = [gpu for gpu in gpus if kind.is_offered_by(gpu) and gpu.device not in found]
        if len(keys) > sum(gpu.available for gpu in suitable):
            found |= {gpu.device: keys[-1] for gpu in suitable if not gpu.available}
    return found
