"""What NVML says about a machine, through the real binding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from nvml_world import Opened, machine

from gpuslice.config.devices import machines
from gpuslice.devices.found import Found, Nearness, Window
from gpuslice.node.discovery.driver import DriverError, Trouble
from gpuslice.node.discovery.simulated import SimulatedDriver

MIXED = "{gpus: [{model: A100-40, mig: [3g.20gb, 2g.10gb, 1g.5gb, 1g.5gb+me]}, {model: A100-40}]}"

CLUSTER = "2b1c1e5e-8b0d-4d5f-9a37-3b2a4f0e1d2c"
FABRIC = f"{{gpus: [{{model: T4, count: 2}}], clique: {CLUSTER}.32766}}"


def comparable(found: Found) -> Found:
    """Without what only the maker of an answer can know."""
    gpus = (
        replace(
            gpu,
            mig_devices=tuple(
                replace(mig, uuid="", memory_mib=mig.memory_mib or 0) for mig in gpu.mig_devices
            ),
        )
        for gpu in found.gpus
    )
    return replace(found, gpus=tuple(gpus), complete=False)


@pytest.mark.parametrize("name", [*machines(), MIXED, FABRIC])
def test_both_drivers_tell_the_same_about_a_machine(name: str, switched_on: Opened) -> None:
    driver, _ = switched_on(name)
    assert comparable(driver.query()) == comparable(SimulatedDriver(machine(name)).query())


def test_eight_a100_are_listed_with_all_that_is_known(switched_on: Opened) -> None:
    driver, hardware = switched_on("8xA100-40")
    found = driver.query()
    assert (found.driver_version, found.cuda_version) == ("550.163.01", "12.4")
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    gpu = found.gpus[5]
    assert gpu.uuid == hardware.uuid(5)
    assert (gpu.name, gpu.brand, gpu.compute_capability) == ("NVIDIA A100-SXM4-40GB", "Nvidia", "8.0")
    assert (gpu.memory_mib, gpu.reserved_mib, gpu.usable_mib) == (40960, 424, 40536)
    assert (gpu.minor, gpu.pci_bus_id, gpu.numa_node) == (5, "00000000:15:00.0", 1)
    assert gpu.pci_device_id == 0x20B010DE
    assert gpu.mig is not None
    assert not gpu.mig.current
    near = {link.uuid: link for link in gpu.links}
    assert near[hardware.uuid(4)].nearness is Nearness.NUMA_NODE
    assert near[hardware.uuid(0)].nearness is Nearness.SYSTEM
    assert {link.nvlinks for link in gpu.links} == {12}
    assert gpu.shared.memory_mib == 40536


def test_mig_devices_are_named_by_their_attributes(switched_on: Opened) -> None:
    driver, _ = switched_on(MIXED)
    partitioned, whole = driver.query().gpus
    assert [(str(mig.profile), mig.gpu_instance, mig.memory_mib) for mig in partitioned.mig_devices] == [
        ("3g.20gb", 2, 19968), ("2g.10gb", 3, 9856), ("1g.5gb", 9, 4864), ("1g.5gb+me", 10, 4864),
    ]  # fmt: skip
    assert partitioned.mig_devices[0].window == Window(4, 4)
    assert len({mig.uuid for mig in partitioned.mig_devices}) == 4
    assert whole.mig_devices == ()


def test_an_old_driver_has_no_reserved_memory_and_no_mig(switched_on: Opened, old_library: Path) -> None:
    driver, _ = switched_on("2xT4", using=old_library)
    gpu = driver.query().gpus[0]
    assert (gpu.memory_mib, gpu.reserved_mib, gpu.usable_mib) == (15109, 0, 15109)
    assert gpu.mig is None
    with pytest.raises(DriverError, match="this driver is too old: its library has no nvmlDevice"):
        driver.set_mig_mode(gpu.uuid, enabled=True)


def test_nvlinks_from_gpu_to_gpu_are_counted(switched_on: Opened) -> None:
    driver, hardware = switched_on("{gpus: [{model: V100, count: 2}]}")
    hardware.now("nvlink 0 0 1", "nvlink 0 1 1", "nvlink 1 0 0", "nvlink 1 1 0")
    driver.open()
    assert [link.nvlinks for gpu in driver.query().gpus for link in gpu.links] == [2, 2]


@pytest.mark.parametrize(
    ("state", "status", "cluster", "clique"),
    [
        (3, 0, CLUSTER, f"{CLUSTER}.7"),
        (2, 0, CLUSTER, ""),
        (3, 999, CLUSTER, ""),
        (3, 0, "0" * 32, ""),
    ],
    ids=["joined", "still joining", "could not join", "inside one machine"],
)
def test_a_gpu_is_in_a_clique_once_it_has_joined_a_fabric(
    state: int, status: int, cluster: str, clique: str, switched_on: Opened
) -> None:
    driver, hardware = switched_on("{gpus: [{model: T4}]}")
    hardware.now(f"fabric 0 {state} {status} {cluster.replace('-', '')} 7")
    assert driver.query().gpus[0].clique == clique


def test_a_gpu_that_vanishes_is_said_and_the_others_go_on(switched_on: Opened) -> None:
    driver, hardware = switched_on("8xA100-40")
    hardware.now("lost 3")
    found = driver.query()
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2, 4, 5, 6, 7]
    assert found.silent == ((3, "the GPU has fallen off the bus or does not answer"),)


def test_a_driver_that_wants_a_reset_makes_the_gpu_unhealthy(switched_on: Opened) -> None:
    driver, hardware = switched_on("2xT4")
    hardware.now("action 1 1")
    assert [(gpu.healthy, gpu.reason) for gpu in driver.query().gpus] == [
        (True, ""), (False, "the driver asks for a reset of the GPU"),
    ]  # fmt: skip


def test_a_machine_without_gpus_is_no_error(switched_on: Opened) -> None:
    driver, hardware = switched_on("P100")
    hardware.now("gone 0")
    driver.open()
    assert driver.query().gpus == ()


def test_an_unknown_gpu_is_named(switched_on: Opened) -> None:
    driver, _ = switched_on("8xA100-40")
    with pytest.raises(DriverError, match="no GPU GPU-x that answers") as caught:
        driver.layout("GPU-x")
    assert caught.value.trouble is Trouble.NOT_FOUND
