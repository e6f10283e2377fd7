"""Allocate's answers by device list strategy, compared with what NVIDIA's device plugin was seen to answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.config.nvidiaflags import DeviceIdStrategy, DeviceListStrategy, Flags
from gpuslice.devices.sharing import UNSHARED, Replicated, Sharing, SharingStrategy
from gpuslice.errors import InputError
from gpuslice.node.inject.response import (
    CONTROL_NODES,
    InjectedDevice,
    answer,
    gpu_nodes,
    mig_nodes,
    read_mig_minors,
)
from gpuslice.node.kubelet.messages import ContainerAllocation, DeviceNode, Mount

ENVVAR, MOUNTS, ANNOTATIONS, CRI = DeviceListStrategy
MINORS = """\
config 1
monitor 2
gpu0/gi7/access 66
gpu0/gi7/ci0/access 67
gpu1/gi13/access 255
gpu1/gi13/ci1/access 257
"""
DEVICES = {
    one.uuid: one
    for one in (
        InjectedDevice("GPU-a", "0", gpu_nodes(0)),
        InjectedDevice("GPU-b", "1", gpu_nodes(1)),
        InjectedDevice("MIG-c", "1:4", mig_nodes(1, 13, 1, read_mig_minors(MINORS))),
    )
}
SLICED = Sharing(SharingStrategy.TIME_SLICING, (Replicated("nvidia.com/gpu", 4),))


def answered(*ids: str, sharing: Sharing = UNSHARED, **flags: object) -> ContainerAllocation:
    return answer(
        "nvidia.com/gpu",
        ids,
        DEVICES,
        replace(Flags(nvidia_dev_root="/"), **flags),  # type: ignore[arg-type]
        sharing,
        control_nodes=CONTROL_NODES[:3],
        token="0123",
    )


def test_by_default_an_environment_variable_names_the_devices_in_the_order_asked() -> None:
    assert answered("MIG-c", "GPU-a") == ContainerAllocation({"NVIDIA_VISIBLE_DEVICES": "MIG-c,GPU-a"})
    by_index = answered("MIG-c", "GPU-a", device_id_strategy=DeviceIdStrategy.INDEX)
    assert by_index.envs == {"NVIDIA_VISIBLE_DEVICES": "1:4,0"}


def test_mounts_of_nothing_name_the_devices() -> None:
    given = answered("GPU-a", "GPU-b", device_list_strategy=(MOUNTS,))
    assert given == ContainerAllocation(
        {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
        (
            Mount("/var/run/nvidia-container-devices/GPU-a", "/dev/null", read_only=False),
            Mount("/var/run/nvidia-container-devices/GPU-b", "/dev/null", read_only=False),
        ),
    )
    both = answered("GPU-a", device_list_strategy=(ENVVAR, MOUNTS))
    assert both.envs == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}


def test_cdi_names_the_devices_in_an_annotation_or_to_the_runtime() -> None:
    names = ("k8s.device-plugin.nvidia.com/gpu=GPU-a", "k8s.device-plugin.nvidia.com/gpu=GPU-b")
    assert answered("GPU-a", "GPU-b", device_list_strategy=(ANNOTATIONS,), pass_device_specs=True) == (
        ContainerAllocation(annotations={"cdi.k8s.io/nvidia-device-plugin_0123": ",".join(names)})
    )
    assert answered("GPU-a", "GPU-b", device_list_strategy=(CRI,)) == ContainerAllocation(cdi_devices=names)


def test_further_devices_of_a_gpu_go_along() -> None:
    flags = {"gds_enabled": True, "mofed_enabled": True, "gdrcopy_enabled": True, "imex_channel_ids": (0,)}
    assert answered("GPU-a", **flags).envs == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a",
        "NVIDIA_GDS": "enabled",
        "NVIDIA_MOFED": "enabled",
        "NVIDIA_GDRCOPY": "enabled",
        "NVIDIA_IMEX_CHANNELS": "0",
    }
    by_mounts = answered("GPU-a", device_list_strategy=(MOUNTS,), **flags)
    assert [mount.container_path for mount in by_mounts.mounts] == [
        "/var/run/nvidia-container-devices/GPU-a",
        "/var/run/nvidia-container-devices/imex/0",
    ]
    assert "NVIDIA_IMEX_CHANNELS" not in by_mounts.envs, "the mount says it"
    by_cdi = answered("GPU-a", device_list_strategy=(CRI,), **flags)
    assert by_cdi.envs == dict.fromkeys(("NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY"), "enabled")
    assert by_cdi.cdi_devices == (
        "k8s.device-plugin.nvidia.com/gpu=GPU-a",
        "k8s.device-plugin.nvidia.com/imex-channel=0",
        "k8s.device-plugin.nvidia.com/gdrcopy=all",
        "k8s.device-plugin.nvidia.com/gds=all",
        "k8s.device-plugin.nvidia.com/mofed=all",
    )


def test_device_files_are_passed_where_that_is_asked_for() -> None:
    nodes = answered("GPU-b", "MIG-c", pass_device_specs=True).devices
    assert [node.host_path for node in nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap255",
        "/dev/nvidia-caps/nvidia-cap257",
    ]
    assert {node.permissions for node in nodes} == {"rw"}
    (*_, last) = answered("GPU-a", pass_device_specs=True, nvidia_dev_root="/run/nvidia/driver").devices
    assert last == DeviceNode("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0")


def test_a_mig_device_that_the_driver_does_not_list_is_told() -> None:
    with pytest.raises(InputError, match="does not list gpu0/gi7/ci1"):
        mig_nodes(0, 7, 1, read_mig_minors(MINORS))


def test_replicas_are_named_as_their_device_once() -> None:
    assert answered("GPU-b::3", "GPU-a::0", "GPU-b::1", sharing=SLICED).envs == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a"
    }


@pytest.mark.parametrize(
    ("ids", "sharing", "sentence"),
    [
        (
            ("nope",),
            UNSHARED,
            'invalid allocation request for "nvidia.com/gpu": invalid request: unknown device: nope',
        ),
        (
            ("GPU-a::0", "GPU-b::0"),
            replace(SLICED, fail_requests_greater_than_one=True),
            'invalid allocation request for "nvidia.com/gpu": invalid request: maximum request size for shared '
            "resources is 1; found 2",
        ),
        (
            ("GPU-a::0", "GPU-a::1"),
            replace(SLICED, allow_same_gpu=False),
            'invalid allocation request for "nvidia.com/gpu": invalid request: 2 replicas would be of 1 device '
            "(GPU-a twice), which makes nothing faster, and sharing.timeSlicing.allowSameGPU forbids it; "
            "ask for fewer",
        ),
    ],
)
def test_what_is_not_given_is_said_in_nvidias_words(
    ids: tuple[str, ...], sharing: Sharing, sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        answered(*ids, sharing=sharing)
    assert str(caught.value) == sentence


def test_whole_gpus_may_be_several_where_replicas_may_not() -> None:
    sharing = replace(SLICED, fail_requests_greater_than_one=True)
    assert answered("GPU-a", "GPU-b", sharing=sharing).envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
