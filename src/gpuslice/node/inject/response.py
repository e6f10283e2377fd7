"""Allocate's response for whole GPUs, MIG devices and replicas, as a value. Pure.

The forms are those of NVIDIA's device plugin, because container runtimes read them: an environment variable,
mounts of /dev/null, or CDI names, by the device list strategy. Source: NVIDIA/k8s-device-plugin
`internal/plugin/server.go`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuslice import names
from gpuslice.config.nvidiaflags import DeviceIdStrategy, DeviceListStrategy, Flags
from gpuslice.devices.sharing import UNSHARED, Sharing, device_of
from gpuslice.errors import InputError
from gpuslice.node.kubelet.messages import ContainerAllocation, DeviceNode, Mount

MOUNTED: Final = "/var/run/nvidia-container-devices"
"""The folder in which mounts name devices; NVIDIA_VISIBLE_DEVICES then has this value."""
CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Device files that every container with a GPU needs, as far as the node has them."""
CDI_VENDOR: Final = "k8s.device-plugin.nvidia.com"
_MINOR: Final = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")

MigMinors = Mapping[tuple[int, int, int | None], int]
"""Minor numbers of /dev/nvidia-caps/nvidia-capN by GPU, GPU instance, compute instance (None: the former)."""


@dataclass(frozen=True, slots=True)
class InjectedDevice:
    """A device as a container gets it: `index` is "3" or "3:1", `nodes` its device files."""

    uuid: str
    index: str
    nodes: tuple[str, ...] = ()


def read_mig_minors(text: str) -> MigMinors:
    """The text of /proc/driver/nvidia-caps/mig-minors; other lines (config, monitor) are passed over."""
    return {
        (int(match[1]), int(match[2]), int(match[3]) if match[3] is not None else None): int(match[4])
        for line in text.splitlines()
        if (match := _MINOR.fullmatch(line.strip()))
    }


def gpu_nodes(minor: int) -> tuple[str, ...]:
    """The device files of a whole GPU."""
    return (f"/dev/nvidia{minor}",)


def mig_nodes(minor: int, gpu_instance: int, compute_instance: int, minors: MigMinors) -> tuple[str, ...]:
    """The device files of a MIG device on the GPU of that minor number: the GPU's and two capabilities'.

    Raises InputError if the driver does not list the device.
    """
    try:
        caps = minors[minor, gpu_instance, None], minors[minor, gpu_instance, compute_instance]
    except KeyError as error:
        raise InputError(
            f"mig-minors of the driver does not list gpu{minor}/gi{gpu_instance}/ci{compute_instance}; "
            "the instance has just gone, or that file is not of this node"
        ) from error
    return (*gpu_nodes(minor), *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps))


def answer(
    resource: str,
    ids: Sequence[str],
    devices: Mapping[str, InjectedDevice],
    flags: Flags,
    sharing: Sharing = UNSHARED,
    *,
    control_nodes: Sequence[str] = (),
    token: str,
) -> ContainerAllocation:
    """The answer to a kubelet that gives a container these ids of a resource.

    `devices` are those of the resource by UUID; `control_nodes` those of CONTROL_NODES that the node has;
    `token` is new for each response, since annotation keys must not collide. Raises InputError, in NVIDIA's
    words where it has some, for ids that are not known and for requests that sharing forbids.
    """
    handed = [devices[uuid] for uuid in _checked(resource, ids, devices, sharing)]
    strategies = flags.device_list_strategy
    envs = _features(flags)
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    cdi = _cdi_names(handed, flags)
    if {DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS} & set(strategies):
        called = [device_name(one, flags) for one in handed]
        if DeviceListStrategy.ENVVAR in strategies:
            envs[names.VISIBLE_DEVICES] = ",".join(called)
            if flags.imex_channel_ids:
                envs["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, flags.imex_channel_ids))
        if DeviceListStrategy.VOLUME_MOUNTS in strategies:
            envs[names.VISIBLE_DEVICES] = MOUNTED
            mounts = tuple(Mount(f"{MOUNTED}/{one}", "/dev/null", read_only=False) for one in called)
            mounts += tuple(
                Mount(f"{MOUNTED}/imex/{channel}", "/dev/null", read_only=False)
                for channel in flags.imex_channel_ids
            )
        if flags.pass_device_specs:
            nodes = _device_nodes(handed, control_nodes, flags)
    annotations = {}
    if DeviceListStrategy.CDI_ANNOTATIONS in strategies:
        key = f"{flags.cdi_annotation_prefix}nvidia-device-plugin_{token}"
        annotations[key] = ",".join(cdi)
    by_cri = cdi if DeviceListStrategy.CDI_CRI in strategies else ()
    return ContainerAllocation(envs, mounts, nodes, annotations, by_cri)


def _checked(
    resource: str, ids: Sequence[str], devices: Mapping[str, InjectedDevice], sharing: Sharing
) -> tuple[str, ...]:
    """The UUIDs of the ids, each once, in the order of the ids."""
    what = f'invalid allocation request for "{resource}": invalid request: '
    times = Counter(map(device_of, ids))
    for device_id in ids:
        if device_of(device_id) not in devices:
            raise InputError(f"{what}unknown device: {device_id}")
    if any(device_of(device_id) != device_id for device_id in ids):
        if sharing.fail_requests_greater_than_one and len(ids) > 1:
            raise InputError(f"{what}maximum request size for shared resources is 1; found {len(ids)}")
        twice = [uuid for uuid, count in times.items() if count > 1]
        if twice and not sharing.allow_same_gpu:
            raise InputError(
                f"{what}{len(ids)} replicas would be of {len(times)} device{'s' if len(times) > 1 else ''} "
                f"({twice[0]} twice), which makes "
                "nothing faster, and sharing.timeSlicing.allowSameGPU forbids it; ask for fewer"
            )
    return tuple(times)


def device_name(device: InjectedDevice, flags: Flags) -> str:
    """What a device is called to the container runtime."""
    return device.uuid if flags.device_id_strategy is DeviceIdStrategy.UUID else device.index


def _cdi_names(handed: Sequence[InjectedDevice], flags: Flags) -> tuple[str, ...]:
    kinds = ("gdrcopy", flags.gdrcopy_enabled), ("gds", flags.gds_enabled), ("mofed", flags.mofed_enabled)
    channels = tuple(f"{CDI_VENDOR}/imex-channel={channel}" for channel in flags.imex_channel_ids)
    return (
        *(f"{CDI_VENDOR}/gpu={device_name(one, flags)}" for one in handed),
        *channels,
        *(f"{CDI_VENDOR}/{kind}=all" for kind, enabled in kinds if enabled),
    )


def _device_nodes(
    handed: Sequence[InjectedDevice], control_nodes: Sequence[str], flags: Flags
) -> tuple[DeviceNode, ...]:
    root = flags.nvidia_dev_root.rstrip("/")
    channels = (f"/dev/nvidia-caps-imex-channels/channel{channel}" for channel in flags.imex_channel_ids)
    paths = (*control_nodes, *(path for one in handed for path in one.nodes), *channels)
    return tuple(DeviceNode(path, root + path) for path in dict.fromkeys(paths))


def _features(flags: Flags) -> dict[str, str]:
    given = {
        "NVIDIA_GDRCOPY": flags.gdrcopy_enabled,
        "NVIDIA_GDS": flags.gds_enabled,
        "NVIDIA_MOFED": flags.mofed_enabled,
    }
    return {name: "enabled" for name, enabled in given.items() if enabled}
