"""The one door to NVML, through NVIDIA's own binding (nvidia-ml-py): calls, and what their failures mean.

The binding looks functions up by name when they are called, so an old library fails one call at a time.
Sentences: docs/discovery.md. Names and numbers: NVIDIA's NVML API reference.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import uuid
from typing import Any, Final

import pynvml

from gpuslice.node.discovery.driver import DriverError, Trouble

ANY_INSTANCE: Final = 0xFFFFFFFF
"""NVML's word for "no particular instance" in events."""
XID_EVENT: Final = pynvml.nvmlEventTypeXidCriticalError
MIG_EVENT: Final = pynvml.nvmlEventMigConfigChange
EVENTS: Final = (
    XID_EVENT | MIG_EVENT | pynvml.nvmlEventTypeDoubleBitEccError | pynvml.nvmlEventTypeSingleBitEccError
)
MEMORY_V2: Final = pynvml.nvmlMemory_v2
PROFILE_V1: Final = 1
"""The first version of a call about profiles, which every driver with MIG has."""
OWN_ENGINES: Final = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
SWITCH: Final = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
_FABRIC_COMPLETE: Final = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
MAX_LINKS: Final = pynvml.NVML_NVLINK_MAX_LINKS
PROFILES: Final = range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
COMPUTE_PROFILES: Final = range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)

_TROUBLES: Final = {
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Trouble.INVALID,
    pynvml.NVML_ERROR_NOT_SUPPORTED: Trouble.NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: Trouble.NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND: Trouble.NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Trouble.NO_DRIVER,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Trouble.NO_LIBRARY,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Trouble.NO_FUNCTION,
    pynvml.NVML_ERROR_GPU_IS_LOST: Trouble.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Trouble.RESET_REQUIRED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Trouble.VERSIONS_DIFFER,
    pynvml.NVML_ERROR_IN_USE: Trouble.IN_USE,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: Trouble.NO_ROOM,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Trouble.NO_FUNCTION,
}
SENTENCES: Final = {
    Trouble.NO_LIBRARY: "NVIDIA's library cannot be loaded ({linker}): install the driver on this "
    "node, or, in a container, have the runtime bring it in (NVIDIA_VISIBLE_DEVICES=all, "
    "NVIDIA_DRIVER_CAPABILITIES=utility); for GPUs on paper give --devices FILE",
    Trouble.NO_DRIVER: "NVIDIA's library is here, but its kernel module does not answer: load it "
    "(modprobe nvidia), and if that fails see dmesg",
    Trouble.VERSIONS_DIFFER: "NVIDIA's library and kernel module are of different versions, as after an "
    "update of the driver: reload the module, or reboot the node",
    Trouble.NO_FUNCTION: "this driver is too old: its library has no {name}",
    Trouble.NO_PERMISSION: "the driver does not let this user call {name}: run as root",
    Trouble.LOST: "the GPU has fallen off the bus or does not answer",
    Trouble.RESET_REQUIRED: "the GPU must be reset first",
    Trouble.IN_USE: "the GPU or its instance is in use: end the programs on it, monitoring included",
    Trouble.NO_ROOM: "there is no room for it on the GPU",
}
_LIBRARY: Final = "libnvidia-ml.so.1"
_TIMEOUT: Final = pynvml.NVML_ERROR_TIMEOUT
_NO_GPUS_IS_FINE: Final = pynvml.NVML_INIT_FLAG_NO_GPUS


def initialise() -> None:
    """Load the library and connect it. Calls are counted: each needs its own `shut_down`.

    Raises DriverError.
    """
    if pynvml.nvmlLib is None:
        _try_to_load()
    call("nvmlInitWithFlags", _NO_GPUS_IS_FINE)


def _try_to_load() -> None:
    """Load the library in a process of its own first: a library that an interrupted update has cut short
    kills it.

    Raises DriverError if that process dies; any other fault shows when the library is really loaded.
    """
    load = f"import ctypes; ctypes.CDLL({_LIBRARY!r})"
    command = [sys.executable, "-I", "-S", "-c", load]
    done = subprocess.run(command, check=False, capture_output=True)  # noqa: S603 (nobody else's words)
    if done.returncode < 0:
        died = f"loading it ends a process with {signal.Signals(-done.returncode).name}: the file is damaged"
        raise DriverError(Trouble.NO_LIBRARY, SENTENCES[Trouble.NO_LIBRARY].format(linker=died))


def shut_down() -> None:
    """Let go of what one `initialise` has taken."""
    call("nvmlShutdown")


def call(name: str, *arguments: Any) -> Any:
    """Call one function of the binding by its name. Raises DriverError."""
    try:
        return getattr(pynvml, name)(*arguments)
    except pynvml.NVMLError as error:
        raise _translated(name, error) from error
    except AttributeError as error:
        raise DriverError(Trouble.NO_FUNCTION, SENTENCES[Trouble.NO_FUNCTION].format(name=name)) from error


def wait(events: Any, milliseconds: int) -> Any | None:
    """The next event of a set, None if there is none in time."""
    try:
        return pynvml.nvmlEventSetWait_v2(events, milliseconds)
    except pynvml.NVMLError as error:
        if error.value == _TIMEOUT:
            return None
        raise _translated("nvmlEventSetWait_v2", error) from error


def address(handle: Any) -> int:
    """What makes two handles of one GPU equal."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def recovery_action(device: Any) -> int | None:
    """What the driver wants done about the GPU, 0 for nothing; None if it does not say (before R560).

    Raises DriverError.
    """
    (answer,) = call("nvmlDeviceGetFieldValues", device, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return int(answer.value.uiVal) if answer.nvmlReturn == pynvml.NVML_SUCCESS else None


def clique(device: Any) -> str:
    """The GPU's clique of an NVLink fabric, as GPU feature discovery writes it; "" if it has joined none.

    Inside one machine the fabric has no UUID: all zeros (HGX). Raises DriverError.
    """
    info = pynvml.c_nvmlGpuFabricInfo_t()
    call("nvmlDeviceGetGpuFabricInfo", device, ctypes.byref(info))
    cluster = bytes(info.clusterUuid)
    joined = info.state == _FABRIC_COMPLETE and info.status == pynvml.NVML_SUCCESS and any(cluster)
    return f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}" if joined else ""


def placements(device: Any, profile_id: int) -> tuple[tuple[int, int], ...]:
    """Where instances of a profile may lie: (start, size) in memory slices."""
    name, count = "nvmlDeviceGetGpuInstancePossiblePlacements", ctypes.c_uint()
    call(name, device, profile_id, None, ctypes.byref(count))
    found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    call(name, device, profile_id, found, ctypes.byref(count))
    return tuple((one.start, one.size) for one in found[: count.value])


def gpu_instances(device: Any, profile_id: int, limit: int) -> list[Any]:
    """The GPU instances of a profile, of which there can be `limit`."""
    count, found = ctypes.c_uint(limit), (pynvml.c_nvmlGpuInstance_t * limit)()
    call("nvmlDeviceGetGpuInstances", device, profile_id, found, ctypes.byref(count))
    return [found[number] for number in range(count.value)]


def create_gpu_instance(device: Any, profile_id: int, window: tuple[int, int] | None) -> Any:
    """A new GPU instance, in that window or where the driver likes."""
    if window is None:
        return call("nvmlDeviceCreateGpuInstance", device, profile_id)
    place = pynvml.c_nvmlGpuInstancePlacement_t(*window)
    return call("nvmlDeviceCreateGpuInstanceWithPlacement", device, profile_id, ctypes.byref(place))


def compute_instances(instance: Any, profile_id: int, limit: int) -> list[Any]:
    """The compute instances of a profile in a GPU instance, of which there can be `limit`."""
    count, found = ctypes.c_uint(limit), (pynvml.c_nvmlComputeInstance_t * limit)()
    call("nvmlGpuInstanceGetComputeInstances", instance, profile_id, found, ctypes.byref(count))
    return [found[number] for number in range(count.value)]


def _translated(name: str, error: Any) -> DriverError:
    trouble = _TROUBLES.get(error.value, Trouble.OTHER)
    sentence = SENTENCES.get(trouble, "NVIDIA's driver answers {name} with: {words}")
    # Only the linker knows why the library was not loaded; the binding keeps its error as the context. If
    # there is no context, NVML itself lacks another library.
    linker = error.__context__ or "it does not find another library of the driver"
    return DriverError(trouble, sentence.format(name=name, words=error, linker=linker))
