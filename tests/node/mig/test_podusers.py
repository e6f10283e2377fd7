"""What pods have, by the kubelet's account: whole GPUs, MIG devices, replicas and shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice import names
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.node.grants.deviceids import DeviceIds
from gpuslice.node.kubelet.messages import ContainerDevices, ContainerResources, PodName, PodResources
from gpuslice.node.kubelet.rpc import RpcCode, RpcError, serve_pod_resources
from gpuslice.node.mig.podusers import held_by_pods
from gpuslice.requests.kinds import SHARES
from gpuslice.units import GIB, MemoryUnit

SHARED = Gpu(0, "GPU-a", "NVIDIA A100-SXM4-40GB", 40536)


def resources(resource: str, *ids: str) -> PodResources:
    return PodResources("default", ids[0], (ContainerResources("c", (ContainerDevices(resource, ids),)),))


async def test_every_kind_of_holding_names_its_device(tmp_path: Path) -> None:
    share = list(DeviceIds(NodeGpus((SHARED,), GIB)).of(SHARES, SHARED))[-1]
    pods = (
        resources("nvidia.com/gpu", "GPU-b"),
        resources("nvidia.com/mig-1g.5gb", "MIG-c"),
        resources("nvidia.com/gpu.shared", "GPU-d::3"),
        resources(names.GPU_MEM, share),
    )

    class Lister:
        async def list(self) -> tuple[PodResources, ...]:
            return pods

        async def get(self, pod: PodName) -> PodResources:
            raise RpcError(RpcCode.NOT_FOUND, f"no pod {pod.name}")

        async def allocatable(self) -> tuple[ContainerDevices, ...]:
            return ()

    server = await serve_pod_resources(tmp_path / "kubelet.sock", Lister())
    gpus = NodeGpus((SHARED,), MemoryUnit(1))
    assert await held_by_pods(tmp_path / "kubelet.sock", gpus) == {"GPU-a", "GPU-b", "MIG-c", "GPU-d"}
    await server.stop()


async def test_a_kubelet_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RpcError):
        await held_by_pods(tmp_path / "kubelet.sock", NodeGpus((SHARED,), MemoryUnit(1)))
