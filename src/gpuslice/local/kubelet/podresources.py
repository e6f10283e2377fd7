"""The pod-resources service of one node: the kubelet's list of who holds which ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuslice.local.kubelet.devicemanager import Holding
from gpuslice.local.kubelet.devices import Devices
from gpuslice.local.kubelet.podspec import RunPod
from gpuslice.node.kubelet.messages import ContainerDevices, ContainerResources, PodName, PodResources
from gpuslice.node.kubelet.rpc import RpcCode, RpcError


class Lister:
    """Answers from the device manager. `pods` are those whose containers may run."""

    def __init__(self, devices: Devices, pods: Callable[[], Iterable[RunPod]]) -> None:
        self._devices = devices
        self._pods = pods
        self._known: dict[str, tuple[tuple[Holding, ...], PodResources]] = {}

    async def list(self) -> Sequence[PodResources]:
        """Every such pod. As in the kubelet, asking also settles which ids are in use."""
        pods = list(self._pods())
        active = {pod.uid for pod in pods}
        self._devices.manager.update(active)
        for uid in self._known.keys() - active:
            del self._known[uid]
        return [self._of(pod) for pod in pods]

    async def get(self, pod: PodName) -> PodResources:
        for candidate in self._pods():
            if (candidate.namespace, candidate.name) == (pod.namespace, pod.name):
                return self._of(candidate)
        raise RpcError(RpcCode.UNKNOWN, f"pod {pod.name} in namespace {pod.namespace} not found")

    async def allocatable(self) -> Sequence[ContainerDevices]:
        return [
            ContainerDevices(resource, (id_,))
            for resource, ids in self._devices.manager.healthy_ids().items()
            for id_ in ids
        ]

    def _of(self, pod: RunPod) -> PodResources:
        """A pod's entry, made anew only when what it holds has changed."""
        holdings = tuple(self._devices.manager.all_holdings(pod.uid))
        known = self._known.get(pod.uid)
        if known is not None and known[0] == holdings:
            return known[1]
        containers = tuple(
            ContainerResources(container.name, _entries(holdings, container.name))
            for container in pod.long_lived
        )
        entry = PodResources(pod.namespace, pod.name, containers)
        self._known[pod.uid] = (holdings, entry)
        return entry


def _entries(holdings: Iterable[Holding], container: str) -> tuple[ContainerDevices, ...]:
    """An entry per id, as the kubelet sends it."""
    return tuple(
        ContainerDevices(holding.resource, (id_,))
        for holding in holdings
        if holding.container == container
        for id_ in holding.ids
    )
