"""CDI specifications: what a container runtime does to a container that is given a device by name. Pure.

The kind and the names are those of `response`; the contents are what NVIDIA's toolkit writes, so that a
runtime without that toolkit can start GPU containers, too. Sources: Container Device Interface 0.5; NVIDIA
Container Toolkit `pkg/nvcdi`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gpuslice import names
from gpuslice.config.nvidiaflags import Flags
from gpuslice.node.inject.driverfiles import DriverFiles
from gpuslice.node.inject.response import CDI_VENDOR, InjectedDevice, device_name

VERSION: Final = "0.5.0"
FOLDER: Final = "/var/run/cdi"
_OPTIONS: Final = ["ro", "nosuid", "nodev", "rbind", "rprivate"]

Json = dict[str, Any]


def file_name(kind: str = "gpu") -> str:
    """The file of a kind of devices in FOLDER."""
    return f"{CDI_VENDOR}-{kind}.json"


def gpu_spec(
    devices: Sequence[InjectedDevice], driver: DriverFiles, flags: Flags, *, control_nodes: Sequence[str] = ()
) -> Json:
    """The specification of whole GPUs and MIG devices, each by its name; like NVIDIA's, but without the
    device `all`.
    """
    named = [(device_name(device, flags), device.nodes) for device in devices]
    return {
        "cdiVersion": VERSION,
        "kind": f"{CDI_VENDOR}/gpu",
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": _nodes(nodes, flags)}} for name, nodes in named
        ],
        "containerEdits": {
            # The second variable, else NVIDIA's runtime, where there is one, would add the devices that the
            # image names.
            "env": [f"NVIDIA_CTK_LIBCUDA_DIR={driver.libcuda_folder}", f"{names.VISIBLE_DEVICES}=void"],
            "deviceNodes": _nodes(control_nodes, flags),
            "mounts": _mounts(driver, flags),
            **({"hooks": _hooks(driver)} if driver.hook else {}),
        },
    }


def _nodes(paths: Sequence[str], flags: Flags) -> list[Json]:
    root = flags.nvidia_dev_root.rstrip("/")
    return [{"path": path, **({"hostPath": root + path} if root else {})} for path in paths]


def _mounts(driver: DriverFiles, flags: Flags) -> list[Json]:
    """Files of the driver at their own places. A library is there under the names of its links, too, if no
    hook of NVIDIA's makes them: a program asks for libcuda.so.1.
    """
    root = flags.nvidia_driver_root.rstrip("/")
    pairs = [(path, path) for path in (*driver.libraries, *driver.binaries, *driver.firmware)]
    if driver.hook is None:
        pairs += [(library, link) for link, library in driver.links]
    mounts = [
        {"hostPath": root + host, "containerPath": inside, "options": _OPTIONS} for host, inside in pairs
    ]
    return mounts + [
        {"hostPath": socket, "containerPath": socket, "options": [*_OPTIONS, "noexec"]}
        for socket in driver.sockets
    ]


def _hooks(driver: DriverFiles) -> list[Json]:
    assert driver.hook is not None
    program = driver.hook.rpartition("/")[2]
    start = [program, "hook"] if program == "nvidia-ctk" else [program]
    links = [part for link, library in driver.links for part in ("--link", f"{_name(library)}::{link}")]
    folders = [part for folder in driver.folders for part in ("--folder", folder)]
    commands = [["create-symlinks", *links]] if links else []
    return [
        {"hookName": "createContainer", "path": driver.hook, "args": [*start, *command]}
        for command in [*commands, ["update-ldcache", *folders]]
    ]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
