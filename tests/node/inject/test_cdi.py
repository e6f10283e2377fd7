"""CDI: the driver's files found below a root, and the specification that a container runtime reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.config.nvidiaflags import DeviceIdStrategy, DeviceListStrategy, Flags
from gpuslice.errors import InputError
from gpuslice.node.inject.cdi import file_name, gpu_spec
from gpuslice.node.inject.driverfiles import DriverFiles, existing, find_driver
from gpuslice.node.inject.response import InjectedDevice, answer

VERSION = "550.163.01"
LIB = "/usr/lib/x86_64-linux-gnu"
FLAGS = Flags(nvidia_dev_root="/", device_list_strategy=(DeviceListStrategy.CDI_CRI,))
DEVICES = (
    InjectedDevice("GPU-a", "0", ("/dev/nvidia0",)),
    InjectedDevice(
        "MIG-b", "1:0", ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67")
    ),
)


def host(root: Path, *files: str, **links: str) -> Path:
    """A root with these files, and links in the library folder."""
    for path in files:
        made = root / path.lstrip("/")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(b"")
    for name, target in links.items():
        (root / LIB.lstrip("/") / name.replace("__", ".")).symlink_to(target)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return host(
        tmp_path,
        f"{LIB}/libcuda.so.{VERSION}",
        f"{LIB}/libnvidia-ml.so.{VERSION}",
        f"{LIB}/libcuda.so.470.1",
        f"{LIB}/libc.so.6",
        f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}",
        "/usr/bin/nvidia-smi",
        f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin",
        "/dev/nvidiactl",
        libcuda__so__1=f"libcuda.so.{VERSION}",
        libcuda__so="libcuda.so.1",
        libother__so="libc.so.6",
        libloop__so="libloop.so.1",
        libloop__so__1="libloop.so",
    )


def test_the_drivers_files_are_found_and_nothing_else(root: Path) -> None:
    assert find_driver(VERSION, root, host=root) == DriverFiles(
        libraries=(
            f"{LIB}/libcuda.so.{VERSION}",
            f"{LIB}/libnvidia-ml.so.{VERSION}",
            f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}",
        ),
        links=(
            (f"{LIB}/libcuda.so", f"{LIB}/libcuda.so.{VERSION}"),
            (f"{LIB}/libcuda.so.1", f"{LIB}/libcuda.so.{VERSION}"),
        ),
        binaries=("/usr/bin/nvidia-smi",),
        firmware=(f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin",),
    )
    assert existing(("/dev/nvidiactl", "/dev/nvidia-uvm"), root) == ("/dev/nvidiactl",)


def test_toolkit_and_sockets_are_the_hosts(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = host(tmp_path_factory.mktemp("host"), "/usr/bin/nvidia-ctk", "/run/nvidia-persistenced/socket")
    found = find_driver(VERSION, root, host=outside)
    assert (found.hook, found.sockets) == ("/usr/bin/nvidia-ctk", ("/run/nvidia-persistenced/socket",))


def test_a_driver_that_is_elsewhere_is_told(root: Path) -> None:
    with pytest.raises(
        InputError, match=r"--driver-root: there is no libcuda\.so\.999 in /usr/lib64, .* below"
    ):
        find_driver("999", root)


def test_a_runtime_without_nvidias_toolkit_mounts_libraries_under_all_their_names(root: Path) -> None:
    driver = find_driver(VERSION, root, host=root)
    spec = gpu_spec(DEVICES, driver, FLAGS, control_nodes=["/dev/nvidiactl"])
    assert spec["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert spec["devices"] == [
        {"name": "GPU-a", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {
            "name": "MIG-b",
            "containerEdits": {
                "deviceNodes": [
                    {"path": "/dev/nvidia1"},
                    {"path": "/dev/nvidia-caps/nvidia-cap66"},
                    {"path": "/dev/nvidia-caps/nvidia-cap67"},
                ]
            },
        },
    ]
    edits = spec["containerEdits"]
    assert edits["env"] == [f"NVIDIA_CTK_LIBCUDA_DIR={LIB}", "NVIDIA_VISIBLE_DEVICES=void"]
    assert edits["deviceNodes"] == [{"path": "/dev/nvidiactl"}]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    assert mounts[f"{LIB}/libcuda.so.1"] == f"{LIB}/libcuda.so.{VERSION}"
    assert mounts["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert len(mounts) == len(edits["mounts"]) == 7
    assert all("ro" in mount["options"] for mount in edits["mounts"])
    assert "hooks" not in edits
    assert json.loads(json.dumps(spec)) == spec


def test_with_nvidias_toolkit_its_hooks_make_the_names(root: Path) -> None:
    driver = replace(
        find_driver(VERSION, root, host=root), hook="/usr/bin/nvidia-ctk", sockets=("/run/x/socket",)
    )
    edits = gpu_spec(DEVICES, driver, FLAGS)["containerEdits"]
    assert [hook["args"] for hook in edits["hooks"]] == [
        [
            "nvidia-ctk", "hook", "create-symlinks",
            "--link", f"libcuda.so.{VERSION}::{LIB}/libcuda.so",
            "--link", f"libcuda.so.{VERSION}::{LIB}/libcuda.so.1",
        ],
        ["nvidia-ctk", "hook", "update-ldcache", "--folder", LIB, "--folder", f"{LIB}/vdpau"],
    ]  # fmt: skip
    assert {hook["hookName"] for hook in edits["hooks"]} == {"createContainer"}
    assert f"{LIB}/libcuda.so.1" not in [mount["containerPath"] for mount in edits["mounts"]]
    assert edits["mounts"][-1]["containerPath"] == "/run/x/socket"
    direct = gpu_spec(DEVICES, replace(driver, hook="/opt/nvidia-cdi-hook"), FLAGS)["containerEdits"]["hooks"]
    assert direct[-1]["args"][:2] == ["nvidia-cdi-hook", "update-ldcache"]


def test_a_driver_containers_files_come_from_its_root(root: Path) -> None:
    flags = replace(FLAGS, nvidia_driver_root="/run/nvidia/driver", nvidia_dev_root="/run/nvidia/driver")
    spec = gpu_spec(DEVICES[:1], find_driver(VERSION, root, host=root), flags)
    assert spec["containerEdits"]["mounts"][0] == {
        "hostPath": f"/run/nvidia/driver{LIB}/libcuda.so.{VERSION}",
        "containerPath": f"{LIB}/libcuda.so.{VERSION}",
        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
    }
    assert spec["devices"][0]["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia0"}
    ]


@pytest.mark.parametrize("strategy", DeviceIdStrategy)
def test_every_name_that_a_container_is_given_is_in_the_specification(
    strategy: DeviceIdStrategy, root: Path
) -> None:
    flags = replace(FLAGS, device_id_strategy=strategy)
    spec = gpu_spec(DEVICES, find_driver(VERSION, root, host=root), flags)
    defined = {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
    given = answer("nvidia.com/gpu", ["GPU-a", "MIG-b"], {one.uuid: one for one in DEVICES}, flags, token="t")
    assert set(given.cdi_devices) <= defined
    assert file_name() == "k8s.device-plugin.nvidia.com-gpu.json"
