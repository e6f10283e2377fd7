"""Node labels, compared with what GPU feature discovery was seen to write, and with what Kubernetes takes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.devices.found import Found, FoundGpu, MigDevice, MigMode
from gpuslice.devices.labels import COMPUTE, GRAPHICS, Machine, Vgpu, node_labels, stale
from gpuslice.devices.labelvalue import label_value
from gpuslice.devices.mig import Engines
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.sharing import UNSHARED, MigStrategy, Replicated, Selection, Sharing, SharingStrategy

VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
A100 = "NVIDIA A100-SXM4-40GB"
NONE, SINGLE, MIXED = MigStrategy
DEVICES = {
    "1g.5gb": (4864, Engines(14, 1, 0, 0, 0, 0)),
    "1g.5gb+me": (4864, Engines(14, 1, 1, 0, 1, 1)),
    "3g.20gb": (19968, Engines(42, 3, 2, 0, 0, 0)),
    "1c.3g.20gb": (19968, Engines(14, 3, 2, 0, 0, 0)),
}


def device(profile: str, number: int = 0) -> MigDevice:
    memory, engines = DEVICES[profile]
    return MigDevice(f"MIG-{number}", number, 0, MigProfile.parse(profile), memory, engines)


def gpu(
    index: int,
    *profiles: str,
    mig: bool | None = False,
    name: str = A100,
    mib: int = 40960,
    capability: str = "8.0",
) -> FoundGpu:
    """An A100; with profiles, or `mig` True, in MIG mode; `mig` None: it has none."""
    mode = None if mig is None else MigMode(bool(profiles) or mig, bool(profiles) or mig)
    devices = tuple(device(profile, number) for number, profile in enumerate(profiles))
    return FoundGpu(
        index, f"GPU-{index}", name, mib, 424, compute_capability=capability, mig=mode, mig_devices=devices
    )


def labels(
    *gpus: FoundGpu,
    strategy: MigStrategy = NONE,
    sharing: Sharing = UNSHARED,
    machine: Machine | None = None,
) -> dict[str, str]:
    classes = {one.uuid: COMPUTE for one in gpus}
    found = Found("550.163.01", "12.4", gpus)
    return dict(node_labels(found, machine or Machine("DGX A100", classes), strategy, sharing).labels)


def slicing(*resources: Replicated) -> Sharing:
    return Sharing(SharingStrategy.TIME_SLICING, resources)


def of(prefix: str, found: dict[str, str]) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}


def test_eight_whole_gpus_have_feature_discoverys_labels_and_ours() -> None:
    machine = Machine("DGX A100", {f"GPU-{i}": COMPUTE for i in range(8)}, timestamp=1795220829)
    assert labels(*(gpu(index) for index in range(8)), machine=machine) == {
        "alpha.kubernetes.io/nvidia-gpu-name": "NVIDIA-A100-SXM4-40GB",
        "gpuslice.io/gpu.memory": "40GB",
        "gpuslice.io/gpu.memory-mib": "40960",
        "nvidia.com/cuda.driver-version.full": "550.163.01",
        "nvidia.com/cuda.driver-version.major": "550",
        "nvidia.com/cuda.driver-version.minor": "163",
        "nvidia.com/cuda.driver-version.revision": "01",
        "nvidia.com/cuda.driver.major": "550",
        "nvidia.com/cuda.driver.minor": "163",
        "nvidia.com/cuda.driver.rev": "01",
        "nvidia.com/cuda.runtime-version.full": "12.4",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "4",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/cuda.runtime.minor": "4",
        "nvidia.com/gfd.timestamp": "1795220829",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.family": "ampere",
        "nvidia.com/gpu.machine": "DGX-A100",
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/vgpu.present": "false",
    }


def test_a_node_without_gpus_has_no_labels() -> None:
    assert labels() == {}


@pytest.mark.parametrize(("gpus", "count"), [(2, "14"), (8, "56")])
def test_single_describes_a_mig_device_as_the_gpu(gpus: int, count: str) -> None:
    found = labels(*(gpu(i, *["1g.5gb"] * 7) for i in range(gpus)), strategy=SINGLE)
    assert of("nvidia.com/gpu.", found) == {
        "compute.major": "8", "compute.minor": "0", "family": "ampere", "machine": "DGX-A100", "mode": "compute",
        "count": count, "replicas": "1", "sharing-strategy": "none",
        "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "memory": "4864", "multiprocessors": "14",
        "slices.gi": "1", "slices.ci": "1", "engines.copy": "1", "engines.decoder": "0", "engines.encoder": "0",
        "engines.jpeg": "0", "engines.ofa": "0",
    }  # fmt: skip
    assert found["nvidia.com/mig.strategy"] == "single"
    assert of("gpuslice.io/gpu.", found) == {"memory": "5GB", "memory-mib": "4864"}


def test_single_with_replicas_is_marked_and_its_count_stays() -> None:
    found = labels(
        *(gpu(i, *["1g.5gb"] * 7) for i in range(2)),
        strategy=SINGLE,
        sharing=slicing(Replicated("nvidia.com/gpu", 2)),
    )
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED"
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/gpu.replicas"]) == ("14", "2")
    assert found["nvidia.com/gpu.sharing-strategy"] == "time-slicing"
    assert found["gpuslice.io/gpu.memory-mib"] == "2432"


def test_single_without_mig_is_as_none() -> None:
    found = labels(gpu(0), gpu(1), strategy=SINGLE)
    assert found == labels(gpu(0), gpu(1)) | {"nvidia.com/mig.strategy": "single"}


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ((gpu(0, "1g.5gb"), gpu(1, mig=True)), "at least one MIG device is enabled but empty"),
        ((gpu(0, "1g.5gb"), gpu(1)), "devices with MIG enabled and disabled detected"),
        ((gpu(0, "1g.5gb", "3g.20gb"),), "more than one MIG device type present on node"),
    ],
)
def test_single_that_cannot_be_is_called_invalid(gpus: tuple[FoundGpu, ...], why: str) -> None:
    answer = node_labels(Found("550.163.01", "12.4", gpus), Machine(), SINGLE)
    assert of("nvidia.com/gpu.", dict(answer.labels)) == {
        "product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID", "count": "0", "replicas": "0", "memory": "0",
        "sharing-strategy": "", "machine": "unknown", "mode": "unknown",
        "family": "ampere", "compute.major": "8", "compute.minor": "0",
    }  # fmt: skip
    assert answer.warnings == (f"mig-strategy=single cannot be met: {why}",)
    assert "gpuslice.io/gpu.memory" not in answer.labels


def test_mixed_describes_each_kind_of_mig_device_and_counts_partitioned_gpus_as_gpus() -> None:
    sharing = slicing(Replicated("nvidia.com/gpu", 3), Replicated("nvidia.com/mig-1g.5gb", 4))
    found = labels(gpu(0, "1g.5gb", "1g.5gb", "1g.5gb+me"), gpu(1), strategy=MIXED, sharing=sharing)
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/gpu.replicas"]) == ("2", "3")
    assert of("nvidia.com/mig-1g.5gb.", found) == {
        "count": "2", "replicas": "4", "sharing-strategy": "time-slicing", "memory": "4864",
        "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "multiprocessors": "14",
        "slices.gi": "1", "slices.ci": "1", "engines.copy": "1", "engines.decoder": "0", "engines.encoder": "0",
        "engines.jpeg": "0", "engines.ofa": "0",
        "me.count": "1", "me.replicas": "1", "me.sharing-strategy": "none", "me.memory": "4864",
        "me.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me", "me.multiprocessors": "14",
        "me.slices.gi": "1", "me.slices.ci": "1", "me.engines.copy": "1", "me.engines.decoder": "1",
        "me.engines.encoder": "0", "me.engines.jpeg": "1", "me.engines.ofa": "1",
    }  # fmt: skip
    assert found["gpuslice.io/gpu.memory-mib"] == str(40960 // 3)


def test_mixed_has_labels_for_parts_of_an_instance() -> None:
    found = labels(gpu(0, "1c.3g.20gb", "1c.3g.20gb"), strategy=MIXED)
    assert found["nvidia.com/mig-1c.3g.20gb.count"] == "2"
    assert (found["nvidia.com/mig-1c.3g.20gb.slices.gi"], found["nvidia.com/mig-1c.3g.20gb.slices.ci"]) == (
        "3",
        "1",
    )


def test_replicas_of_a_node_whose_gpus_are_all_partitioned_are_zero() -> None:
    assert labels(gpu(0, "1g.5gb"), strategy=MIXED)["nvidia.com/gpu.replicas"] == "0"


def test_replicas_under_another_name_are_not_marked_as_shared() -> None:
    found = labels(gpu(0), sharing=slicing(Replicated("nvidia.com/gpu", 4, "nvidia.com/gpu.shared")))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert found["nvidia.com/gpu.replicas"] == "4"
    assert "gpuslice.io/gpu.memory" not in found, "no pod can be given a nvidia.com/gpu there"


def test_different_replicas_per_gpu_tell_the_largest_number() -> None:
    sharing = slicing(
        Replicated("nvidia.com/gpu", 2, devices=Selection(refs=("0",))),
        Replicated("nvidia.com/gpu", 8, devices=Selection(refs=("1",))),
    )
    found = labels(gpu(0), gpu(1), sharing=sharing)
    assert (found["nvidia.com/gpu.replicas"], found["gpuslice.io/gpu.memory"]) == ("8", "5GB")


def test_mps_is_told() -> None:
    found = labels(gpu(0), sharing=Sharing(SharingStrategy.MPS, (Replicated("nvidia.com/gpu", 10),)))
    assert found["nvidia.com/mps.capable"] == "true"
    assert found["nvidia.com/gpu.sharing-strategy"] == "mps"
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-SHARED"


def test_of_several_models_one_is_described_and_a_sentence_says_so() -> None:
    t4 = gpu(1, name="Tesla T4", mig=None, mib=15360, capability="7.5")
    answer = node_labels(Found("535.1", "12.2", (gpu(0), t4)), Machine())
    assert answer.labels["nvidia.com/gpu.product"] == "Tesla-T4"
    assert answer.labels["nvidia.com/gpu.count"] == "1"
    assert answer.labels["gpuslice.io/gpu.memory-mib"] == "15360", "the least that one may get"
    assert answer.labels["alpha.kubernetes.io/nvidia-gpu-name"] == "NVIDIA-A100-SXM4-40GB", "that of GPU 0"
    assert answer.warnings == (
        "several GPU models on one node (NVIDIA A100-SXM4-40GB, Tesla T4): the labels of gpu describe one of them",
    )


def test_the_screen_adapter_of_a_dgx_station_is_no_gpu() -> None:
    assert labels(gpu(0), gpu(1, name="DGX Display", mig=None, mib=4096)) == labels(gpu(0))


def test_a_guest_with_a_vgpu_tells_its_size_and_its_host() -> None:
    one = gpu(0, name="GRID P100-4Q", mig=None, mib=4096, capability="6.0")
    machine = Machine("VMware Virtual Platform", {one.uuid: GRAPHICS}, vgpu=Vgpu("535.129.03", "r535_00"))
    found = labels(one, machine=machine)
    assert of("nvidia.com/vgpu.", found) == {
        "present": "true",
        "host-driver-version": "535.129.03",
        "host-driver-branch": "r535_00",
    }
    assert (found["gpuslice.io/gpu.memory"], found["gpuslice.io/gpu.memory-mib"]) == ("4GB", "4096")
    assert (found["nvidia.com/gpu.mode"], found["nvidia.com/gpu.machine"]) == (
        "graphics",
        "VMware-Virtual-Platform",
    )
    assert (found["nvidia.com/mig.capable"], found["nvidia.com/gpu.family"]) == ("false", "pascal")


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ("3.7", "kepler"),
        ("6.0", "pascal"),
        ("7.0", "volta"),
        ("7.5", "turing"),
        ("8.6", "ampere"),
        ("8.9", "ada-lovelace"),
        ("9.0", "hopper"),
        ("10.0", "blackwell"),
        ("12.0", "blackwell"),
        ("11.0", "undefined"),
    ],
)
def test_families(capability: str, family: str) -> None:
    assert labels(gpu(0, capability=capability))["nvidia.com/gpu.family"] == family


def test_the_nvlink_fabric_is_told_where_all_gpus_are_in_one() -> None:
    clique = "2b1c1e5e-8b0d-4d5f-9a37-3b2a4f0e1d2c.1"
    one, two, apart = (replace(gpu(i), clique=c) for i, c in enumerate((clique, clique, "other.2")))
    assert labels(one, two)["nvidia.com/gpu.clique"] == clique
    assert "nvidia.com/gpu.clique" not in labels(one, apart)
    assert "nvidia.com/gpu.clique" not in labels(gpu(0))


def test_when_the_layout_changes_its_labels_go_and_others_stay() -> None:
    before = labels(gpu(0, "1g.5gb", "1g.5gb+me"), strategy=MIXED)
    after = labels(gpu(0, "3g.20gb"), strategy=MIXED)
    others = [
        "nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/gpu.present",
        "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/device-plugin.config", "kubernetes.io/arch",
        "nvidia.com/mig-1g.5gb.of-somebody", "nvidia.com/mig-custom.count",
    ]  # fmt: skip
    gone = stale([*before, *others], after)
    assert gone == tuple(sorted(key for key in before if key.startswith("nvidia.com/mig-1g.5gb")))
    assert len(gone) == 26
    assert stale(before, before) == ()
    assert set(stale(before, {})) == set(before), "every label that is written can be taken away again"


@given(
    name=st.text(max_size=90),
    product=st.text(max_size=90),
    driver=st.text(max_size=80),
    cuda=st.text(max_size=80),
    clique=st.text(max_size=90),
    version=st.text(max_size=80),
    strategy=st.sampled_from(MigStrategy),
    profiles=st.lists(st.sampled_from(sorted(DEVICES)), max_size=3),
    replicas=st.integers(1, 50),
)
def test_every_value_is_one_that_kubernetes_takes(
    name: str, product: str, driver: str, cuda: str, clique: str, version: str,
    strategy: MigStrategy, profiles: list[str], replicas: int,
) -> None:  # fmt: skip
    sharing = slicing(Replicated("nvidia.com/gpu", replicas)) if replicas > 1 else UNSHARED
    machine = Machine(product, {}, Vgpu(version, version), 1)
    found = node_labels(
        Found(driver, cuda, (replace(gpu(0, *profiles, name=name), clique=clique), gpu(1, name="T4 " * 30))),
        machine,
        strategy,
        sharing,
    ).labels
    for key, value in found.items():
        assert VALUE.fullmatch(value), (key, value)
        assert len(key.partition("/")[2]) <= 63


def test_a_long_name_keeps_its_ending() -> None:
    value = label_value("NVIDIA " + "X" * 80, "MIG", "1g.5gb", "SHARED")
    assert len(value) == 63
    assert value.endswith("X-MIG-1g.5gb-SHARED")
