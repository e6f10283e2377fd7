"""The doctor is silent where nothing is wrong."""

from __future__ import annotations

import pytest
from doctor_world import Site, owner_of

from gpuslice import names
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.devices.availability import closed
from gpuslice.devices.inventory import Gpu, NodeGpus


@pytest.mark.parametrize("mode", ["bundled", "extender", "own"])
async def test_what_the_chart_installs_is_healthy(site: Site, mode: str) -> None:
    await site.install(mode)
    await site.kube_scheduler(
        *(["--config=/etc/kubernetes/gpuslice-scheduler.yaml"] if mode == "extender" else [])
    )
    scheduler = "default-scheduler" if mode == "extender" else "gpuslice"
    await site.pod("placed", 5, on="gpu-1", index=1, scheduler=scheduler)
    await site.pod("waiting", 20, scheduler=scheduler)
    assert await site.findings() == []


async def test_the_systems_own_pods_are_no_surprise(site: Site) -> None:
    """kube-proxy is privileged, DCGM's exporter sees every GPU, ordinary pods go by kube-scheduler."""
    await site.install()
    await site.kube_scheduler()
    everything = {"env": [{"name": names.VISIBLE_DEVICES, "value": "all"}]}
    nothing = {"env": [{"name": names.VISIBLE_DEVICES, "value": "void"}]}
    privileged = {"securityContext": {"privileged": True}}
    exporter = {"image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.0"}
    await site.pod("proxy", on="gpu-1", container=privileged, namespace="kube-system")
    await site.pod("csi", on="gpu-1", container=privileged, owner=owner_of("DaemonSet", "csi"))
    await site.pod("dcgm", on="gpu-1", container=everything | exporter)
    await site.pod("web", on="gpu-1", container=nothing, scheduler="default-scheduler")
    await site.pod("elsewhere", on="cpu-1", container=everything, scheduler="default-scheduler")
    plugin = {"image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"}
    await site.pod("plugin", on="whole-gpus-1", container=plugin, namespace="kube-system")
    await site.pod("done", 40, on="gpu-1", index=0, status={"phase": "Succeeded"})
    assert await site.findings() == []


async def test_gpus_that_are_being_cut_are_not_sick(site: Site) -> None:
    """Nor is the kubelet blamed that has nothing to hand out of them."""
    await site.install()
    await site.kube_scheduler()
    partitioned = closed("being partitioned into MIG devices")
    shut = encode_gpus(
        NodeGpus(tuple(Gpu(i, f"GPU-gpu-1-{i}", "A100", 40536, partitioned) for i in range(2)))
    )
    await site.patch("Node", "gpu-1", {"metadata": {"annotations": shut}})
    nothing = {names.GPU_MEM: "0", names.GPU_COUNT: "2", names.WHOLE_GPU: "0"}
    await site.patch("Node", "gpu-1", {"status": {"allocatable": nothing}}, subresource="status")
    assert await site.findings() == []


async def test_a_kube_scheduler_that_cannot_be_seen_is_not_blamed(site: Site) -> None:
    """k3s and others run it in a process of theirs: it may well ask the extender."""
    await site.install("extender")
    await site.pod("placed", 5, on="gpu-1", index=1, scheduler="default-scheduler")
    await site.pod("waiting", 20, scheduler="default-scheduler")
    assert await site.findings() == []
