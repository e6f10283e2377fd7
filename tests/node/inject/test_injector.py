"""How containers get their devices, by device list strategy, through the plugins' sockets.

The values are those that NVIDIA's device plugin was seen to answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_world import World, container, world

from gpuslice import names
from gpuslice.config.devices import DevicesFile
from gpuslice.config.nvidiaflags import effective
from gpuslice.devices.found import Found
from gpuslice.devices.inventory import Gpu
from gpuslice.devices.offered import offered
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError
from gpuslice.node.discovery.simulated import SimulatedDriver
from gpuslice.node.inject.injector import Injector
from gpuslice.node.kubelet.messages import ContainerAllocation, DeviceNode, Mount
from gpuslice.node.kubelet.rpc import PluginClient, RpcError

VERSION = "550.163.01"
LIBCUDA = f"usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
SPEC = "var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"
CDI = "k8s.device-plugin.nvidia.com/gpu="
MINORS = """\
config 1
monitor 2
gpu1/gi2/access 30
gpu1/gi2/ci0/access 31
gpu1/gi3/access 66
gpu1/gi3/ci0/access 67
gpu1/gi9/access 138
gpu1/gi9/ci0/access 139
"""


def simulated(gpus: str) -> SimulatedDriver:
    head = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: {driverVersion: 550.163.01, gpus: "
    return SimulatedDriver(DevicesFile.parse(f"{head}{gpus}}}").machine("n"))


UNCUT = "[{model: A100-40, uuid: GPU-a}, {model: A100-40, uuid: GPU-b}, {model: A100-40, uuid: GPU-c}]"
CUT = "[{model: A100-40, uuid: GPU-a}, {model: A100-40, uuid: GPU-b, mig: [3g.20gb, 2g.10gb, 1g.5gb]}]"

SEVENTHS = f"[{{model: A100-40, count: 2, mig: [{', '.join(['1g.5gb'] * 7)}]}}]"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with a driver, without /dev/nvidia-uvm-tools."""
    for path in (LIBCUDA, "dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-modeset"):
        put(tmp_path / path, "")
    put(tmp_path / "proc/driver/nvidia-caps/mig-minors", MINORS)
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def injector(host: Path, found: Callable[[], Found], **cli: object) -> Injector:
    """As the agent has it with these options."""
    flags = effective({}, cli={name.replace("_", "-"): value for name, value in cli.items()}, env={})
    return Injector(flags, found, host=host, new_token=lambda: "0123")


async def allocated(here: World, *ids: str, resource: str = names.WHOLE_GPU) -> ContainerAllocation:
    """What the agent answers to a kubelet that gives these ids out, without the slice's own folder."""
    socket = f"gpuslice-{resource.partition('/')[2]}.sock"
    plugin = PluginClient(here.folder / "device-plugins" / socket)
    try:
        (answer,) = await plugin.allocate(ids)
    finally:
        await plugin.aclose()
    folder, *others = answer.mounts
    assert folder.container_path == names.SLICE_DIR_IN_CONTAINER
    return ContainerAllocation(
        answer.envs, tuple(others), answer.devices, answer.annotations, answer.cdi_devices
    )


def devices_of(spec: Path) -> dict[str, list[str]]:
    """The device files by the name of a device."""
    return {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in json.loads(spec.read_text())["devices"]
    }


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({}, ContainerAllocation({"NVIDIA_VISIBLE_DEVICES": "GPU-c,GPU-a"})),
        (
            {"device_list_strategy": "volume-mounts"},
            ContainerAllocation(
                {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
                (
                    Mount("/var/run/nvidia-container-devices/GPU-c", "/dev/null", read_only=False),
                    Mount("/var/run/nvidia-container-devices/GPU-a", "/dev/null", read_only=False),
                ),
            ),
        ),
        (
            {"device_list_strategy": "cdi-annotations"},
            ContainerAllocation(
                annotations={"cdi.k8s.io/nvidia-device-plugin_0123": f"{CDI}GPU-c,{CDI}GPU-a"}
            ),
        ),
        (
            {"device_list_strategy": "cdi-cri"},
            ContainerAllocation(cdi_devices=(f"{CDI}GPU-c", f"{CDI}GPU-a")),
        ),
        (
            {"device_list_strategy": "envvar,cdi-cri"},
            ContainerAllocation(
                {"NVIDIA_VISIBLE_DEVICES": "GPU-c,GPU-a"}, cdi_devices=(f"{CDI}GPU-c", f"{CDI}GPU-a")
            ),
        ),
        (
            {"pass_device_specs": True},
            ContainerAllocation(
                {"NVIDIA_VISIBLE_DEVICES": "GPU-c,GPU-a"},
                devices=tuple(
                    DeviceNode(path, path)
                    for path in (
                        "/dev/nvidiactl",
                        "/dev/nvidia-uvm",
                        "/dev/nvidia-modeset",
                        "/dev/nvidia2",
                        "/dev/nvidia0",
                    )
                ),
            ),
        ),
        (
            {"device_id_strategy": "index"},
            ContainerAllocation({"NVIDIA_VISIBLE_DEVICES": "2,0"}),
        ),
    ],
)
async def test_whole_gpus(host: Path, options: dict[str, Any], answer: ContainerAllocation) -> None:
    """In the order in which a kubelet asks for them, as NVIDIA's plugin does."""
    driver = simulated(UNCUT)
    gpus = offered(driver.query(), MigStrategy.NONE)
    async with world(gpus, injector=injector(host, driver.query, **options)) as here:
        assert await allocated(here, "GPU-c", "GPU-a") == answer


@pytest.mark.parametrize(
    ("options", "visible"),
    [
        ({"device_id_strategy": "index"}, "1:4,1:3,0:2"),
        ({}, "{},{},{}"),
    ],
)
async def test_mig_devices_that_count_as_gpus(host: Path, options: dict[str, Any], visible: str) -> None:
    driver = simulated(SEVENTHS)
    first, second = ([mig.uuid for mig in gpu.mig_devices] for gpu in driver.query().gpus)
    asked = (second[4], second[3], first[2])
    gpus = offered(driver.query(), MigStrategy.SINGLE)
    async with world(gpus, injector=injector(host, driver.query, **options)) as here:
        assert await allocated(here, *asked) == ContainerAllocation(
            {"NVIDIA_VISIBLE_DEVICES": visible.format(*asked)}
        )


async def test_mig_devices(host: Path) -> None:
    driver = simulated(CUT)
    large, small, smallest = (mig.uuid for mig in driver.query().gpus[1].mig_devices)
    gpus = offered(driver.query(), MigStrategy.MIXED)
    options = {"device_list_strategy": ("envvar", "cdi-cri"), "pass_device_specs": True}
    async with world(gpus[:1], injector=injector(host, driver.query, **options)) as here:
        here.backend.set_gpus(gpus)
        for profile in ("3g.20gb", "2g.10gb", "1g.5gb"):
            await here.allocatable(1, f"nvidia.com/mig-{profile}")
        assert await allocated(here, small, resource="nvidia.com/mig-2g.10gb") == ContainerAllocation(
            {"NVIDIA_VISIBLE_DEVICES": small},
            devices=tuple(
                DeviceNode(path, path)
                for path in (
                    "/dev/nvidiactl",
                    "/dev/nvidia-uvm",
                    "/dev/nvidia-modeset",
                    "/dev/nvidia1",
                    "/dev/nvidia-caps/nvidia-cap66",
                    "/dev/nvidia-caps/nvidia-cap67",
                )
            ),
            cdi_devices=(f"{CDI}{small}",),
        )
        assert devices_of(host / SPEC)[large] == [
            "/dev/nvidia1",
            "/dev/nvidia-caps/nvidia-cap30",
            "/dev/nvidia-caps/nvidia-cap31",
        ]
        assert smallest in devices_of(host / SPEC)


async def test_a_share_of_memory_comes_with_its_gpu_in_the_same_way(host: Path) -> None:
    driver = simulated(UNCUT)
    gpus = offered(driver.query(), MigStrategy.NONE)
    options = {"device_list_strategy": "cdi-cri,volume-mounts", "pass_device_specs": True}
    async with world(gpus, injector=injector(host, driver.query, **options)) as here:
        await here.create("a", container("c", 30))
        given = here.given(await here.running("a"))
        assert given.cdi_devices == (f"{CDI}GPU-a",)
        assert [mount.container_path for mount in given.mounts] == [
            names.SLICE_DIR_IN_CONTAINER,
            "/var/run/nvidia-container-devices/GPU-a",
        ]
        assert given.devices[-1] == DeviceNode("/dev/nvidia0", "/dev/nvidia0")
        assert given.envs == {
            "NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices",
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "30",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "30",
            "ALIYUN_COM_GPU_MEM_DEV": "39",
        }


async def test_the_specification_comes_with_the_agent_follows_the_devices_and_goes(host: Path) -> None:
    driver = simulated(CUT)
    uuids = [mig.uuid for mig in driver.query().gpus[1].mig_devices]
    gpus = offered(driver.query(), MigStrategy.MIXED)
    given = injector(host, driver.query, device_list_strategy="cdi-annotations")
    async with world(gpus[:1], injector=given) as here:
        spec = host / SPEC
        assert list(devices_of(spec)) == ["GPU-a", "GPU-b", *uuids]
        assert files_in(spec.parent) == [spec.name]
        for instance in driver.query().gpus[1].mig_devices[:2]:
            driver.destroy_compute_instance("GPU-b", instance.gpu_instance, instance.compute_instance)
            driver.destroy_gpu_instance("GPU-b", instance.gpu_instance)
        here.backend.set_gpus(offered(driver.query(), MigStrategy.MIXED))
        await here.allocatable(1, "nvidia.com/mig-1g.5gb")
        assert list(devices_of(spec)) == ["GPU-a", "GPU-b", uuids[2]]
        await here.stop("agent")
        assert not spec.exists()


async def test_without_cdi_nothing_is_looked_for_or_written(tmp_path: Path) -> None:
    driver = simulated(CUT)
    gpus = offered(driver.query(), MigStrategy.MIXED)
    async with world(gpus[:1], injector=injector(tmp_path, driver.query)):
        assert files_in(tmp_path) == []


async def test_that_a_gpu_fell_ill_is_told_though_the_driver_is_gone(host: Path) -> None:
    """Its files may be the first to go, as when a driver container ends."""
    driver = simulated(UNCUT)
    gpus = offered(driver.query(), MigStrategy.NONE)
    given = injector(host, driver.query, device_list_strategy="cdi-cri")
    async with world(gpus, injector=given) as here:
        before = (host / SPEC).read_text()
        (host / LIBCUDA).unlink()
        here.backend.set_health("GPU-b", healthy=False, reason="lost")
        await here.allocatable(2, names.WHOLE_GPU)
        assert (host / SPEC).read_text() == before


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            lambda host: (host / LIBCUDA).unlink(),
            r"^--driver-root: there is no libcuda\.so\.550\.163\.01 in ",
        ),
        (
            lambda host: put(host / "var/run/cdi", ""),
            r"^--device-list-strategy: cannot write .*: File exists",
        ),
        (
            lambda host: (host / "proc/driver/nvidia-caps/mig-minors").unlink(),
            "mig-minors, which .* cannot be read",
        ),
        (
            lambda host: put(host / "proc/driver/nvidia-caps/mig-minors", "config 1\n"),
            "does not list gpu1/gi2/ci0",
        ),
    ],
)
async def test_what_cdi_lacks_is_said_at_the_start(
    host: Path, harm: Callable[[Path], None], sentence: str
) -> None:
    harm(host)
    driver = simulated(CUT)
    here = World(host / "kubelet", injector=injector(host, driver.query, device_list_strategy="cdi-cri"))
    with pytest.raises(InputError, match=sentence):
        await here.agent().run()
    assert not (host / SPEC).exists()


async def test_a_device_whose_files_are_unknown_is_not_given_out(host: Path) -> None:
    """The container is refused with a sentence, and the device is free for the next."""
    driver = simulated(CUT)
    minors = host / "proc/driver/nvidia-caps/mig-minors"
    minors.unlink()
    gpus: tuple[Gpu, ...] = offered(driver.query(), MigStrategy.MIXED)
    uuid = driver.query().gpus[1].mig_devices[1].uuid
    async with world(gpus[:1], injector=injector(host, driver.query, pass_device_specs=True)) as here:
        here.backend.set_gpus(gpus)
        await here.allocatable(1, "nvidia.com/mig-2g.10gb")
        with pytest.raises(RpcError, match=r"mig-minors, which .* cannot be read"):
            await allocated(here, uuid, resource="nvidia.com/mig-2g.10gb")
        put(minors, MINORS)
        assert (await allocated(here, uuid, resource="nvidia.com/mig-2g.10gb")).devices


def test_a_driver_container_is_looked_at_where_it_is_mounted(host: Path, tmp_path: Path) -> None:
    """The paths that others are told are the host's."""
    put(host / "driver-root" / LIBCUDA, "")
    put(host / "driver-root/dev/nvidiactl", "")
    (host / LIBCUDA).unlink()
    driver = simulated(UNCUT)
    given = injector(
        host,
        driver.query,
        driver_root="/run/nvidia/driver",
        device_list_strategy="envvar,cdi-cri",
        pass_device_specs=True,
    )
    given.publish()
    spec = json.loads((host / SPEC).read_text())
    assert [mount["hostPath"] for mount in spec["containerEdits"]["mounts"]] == [
        f"/run/nvidia/driver/{LIBCUDA}"
    ]
    assert given.answer(names.WHOLE_GPU, ["GPU-b"]).devices == (
        DeviceNode("/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl"),
        DeviceNode("/dev/nvidia1", "/run/nvidia/driver/dev/nvidia1"),
    )


def test_a_machine_without_gpus_has_no_specification(host: Path) -> None:
    driver = simulated(UNCUT)
    machine = driver.query()
    given = injector(host, lambda: machine, device_list_strategy="cdi-cri")
    given.publish()
    assert (host / SPEC).exists()
    machine = Found(VERSION, "12.4", ())
    given.publish()
    assert not (host / SPEC).exists()
