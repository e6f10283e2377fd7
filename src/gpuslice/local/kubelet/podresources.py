"""What the kubelet says about who holds which ids: the pod-resources service of one node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuslice.local.kubelet.devices import Devices
from gpuslice.local.kubelet.podspec import RunPod
from gpuslice.node.kubeletapi import RpcCode, RpcError
from gpuslice.node.kubeletmessages import ContainerDevices, ContainerResources, PodName, PodResources


class Lister:
    """Answers from the device manager. `pods` are those whose containers may run."""

    def __init__(self, devices: Devices, pods: Callable[[], Iterable[RunPod]]) -> None:
        self._devices = devices
        self._pods = pods

    async def list(self) -> Sequence[PodResources]:
        """Every such pod. As in the kubelet, asking also settles which ids are in use."""
        pods = list(self._pods())
        self._devices.manager.update({pod.uid for pod in pods})
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
        return PodResources(
            pod.namespace,
            pod.name,
            tuple(
                ContainerResources(container.name, self._devices.held(pod, container))
                for container in pod.long_lived
            ),
        )
