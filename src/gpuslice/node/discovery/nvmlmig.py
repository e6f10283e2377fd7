"""MIG through NVML: what can be made of a GPU, which instances exist, and making and removing them. All
functions take NVML's handles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuslice.devices.mig import DriverProfile, Engines, GiProfile, MigGeometry, geometry_from_driver
from gpuslice.devices.miglayout import ComputeInstance, GpuInstance, MigLayout
from gpuslice.node.discovery import nvmlcalls
from gpuslice.node.discovery.driver import DriverError, Trouble
from gpuslice.node.discovery.nvmlcalls import call


def geometry(device: Any, name: str, total_mib: int) -> MigGeometry:
    """All that the GPU offers. Raises DriverError NOT_SUPPORTED if it cannot be partitioned."""
    answers = [
        DriverProfile(
            number,
            info.id,
            info.sliceCount,
            int(info.memorySizeMB),
            info.instanceCount,
            nvmlcalls.placements(device, info.id),
            Engines(
                info.multiprocessorCount,
                info.copyEngineCount,
                info.decoderCount,
                info.encoderCount,
                info.jpegCount,
                info.ofaCount,
            ),
        )
        for number, info in _profiles(device)
    ]
    if not answers:
        raise DriverError(Trouble.NOT_SUPPORTED, f"{name} cannot be partitioned: it has no MIG profiles")
    return geometry_from_driver(name, total_mib, answers)


def numbers(device: Any) -> dict[int, int]:
    """NVML's number of each profile, by the id that instances carry."""
    return {info.id: number for number, info in _profiles(device)}


def layout(device: Any, geometry: MigGeometry) -> MigLayout:
    """The instances that exist."""
    found = (
        _described(instance, profile)
        for profile in geometry.profiles
        for instance in nvmlcalls.gpu_instances(device, profile.id, profile.max_count)
    )
    return MigLayout(geometry, tuple(found))


def create_gpu_instance(
    device: Any, geometry: MigGeometry, profile_id: int, start: int | None
) -> GpuInstance:
    """Create one; without a start the driver chooses."""
    profile = geometry.by_id(profile_id)
    if profile is None:
        raise DriverError(Trouble.NOT_SUPPORTED, f"{geometry.name} has no MIG profile {profile_id}")
    window = None if start is None else (start, profile.size)
    return _described(nvmlcalls.create_gpu_instance(device, profile_id, window), profile)


def create_compute_instance(instance: Any, slices: int) -> ComputeInstance:
    """Make a MIG device of that many compute slices."""
    for info in _compute_profiles(instance):
        if info.sliceCount == slices:
            made = call("nvmlGpuInstanceCreateComputeInstance", instance, info.id)
            return ComputeInstance(slices, int(call("nvmlComputeInstanceGetInfo", made).id))
    raise DriverError(Trouble.NOT_SUPPORTED, f"no compute instance of {slices} slices can be made there")


def _described(instance: Any, profile: GiProfile) -> GpuInstance:
    info = call("nvmlGpuInstanceGetInfo", instance)
    computes = [
        ComputeInstance(kind.sliceCount, int(call("nvmlComputeInstanceGetInfo", compute).id))
        for kind in _compute_profiles(instance)
        for compute in nvmlcalls.compute_instances(instance, kind.id, kind.instanceCount)
    ]
    return GpuInstance(profile, info.placement.start, info.id, tuple(computes))


def _profiles(device: Any) -> Iterator[tuple[int, Any]]:
    """NVML's number of each profile that the GPU has, and what it says about it."""
    for number in nvmlcalls.PROFILES:
        try:
            yield number, call("nvmlDeviceGetGpuInstanceProfileInfo", device, number, nvmlcalls.PROFILE_V1)
        except DriverError as error:
            if error.trouble not in (Trouble.NOT_SUPPORTED, Trouble.INVALID, Trouble.NO_FUNCTION):
                raise


def _compute_profiles(instance: Any) -> Iterator[Any]:
    """What NVML says about each compute instance profile that the GPU instance has."""
    for number in nvmlcalls.COMPUTE_PROFILES:
        try:
            yield call(
                "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                instance,
                number,
                nvmlcalls.OWN_ENGINES,
                nvmlcalls.PROFILE_V1,
            )
        except DriverError as error:
            if error.trouble not in (Trouble.NOT_SUPPORTED, Trouble.INVALID):
                raise
