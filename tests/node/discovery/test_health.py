"""What XIDs, silence and the driver's own wishes make of the health of GPUs and MIG devices."""

from __future__ import annotations

from dataclasses import replace

from gpuslice.clock import SystemClock
from gpuslice.config.devices import DevicesFile
from gpuslice.devices.found import Found
from gpuslice.devices.machine import PaperMachine
from gpuslice.devices.sharing import MigStrategy
from gpuslice.devices.xids import XidPolicy
from gpuslice.node.discovery.backend import DiscoveredGpus
from gpuslice.node.discovery.driver import Xid
from gpuslice.node.discovery.health import QUIET_SECONDS, Health
from gpuslice.node.discovery.simulated import DirectDriver, SimulatedDriver


def machine(gpus: str) -> PaperMachine:
    head = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: "
    return DevicesFile.parse(f"{head}{{gpus: [{gpus}]}}").machine("n1")


def seen(gpus: str) -> Found:
    return SimulatedDriver(machine(gpus)).query()


def sick(health: Health) -> list[int]:
    return [gpu.index for gpu in health.found().gpus if not gpu.healthy]


CUT = "{model: A100-40, mig: [3g.20gb@4, 1g.5gb@0]}"


def test_an_xid_of_no_known_gpu_may_be_about_any() -> None:
    health = Health(XidPolicy(), seen("{model: T4, count: 2}"))
    health.xid(Xid(None, 79), 0)
    assert sick(health) == [0, 1]


def test_an_xid_of_an_instance_that_is_gone_is_one_of_the_gpu() -> None:
    found = seen(CUT)
    health = Health(XidPolicy(), found)
    health.xid(Xid(found.gpus[0].uuid, 94, 13, 0), 0)
    assert sick(health) == [0]
    assert [mig.healthy for mig in health.found().gpus[0].mig_devices] == [False, False]


def test_an_xid_of_a_gpu_instance_is_one_of_all_compute_instances_in_it() -> None:
    driver = SimulatedDriver(machine(CUT))
    gpu = driver.query().gpus[0].uuid
    driver.destroy_compute_instance(gpu, 2, 0)
    for slices in (1, 2):
        driver.create_compute_instance(gpu, 2, slices)
    health = Health(XidPolicy(), driver.query())
    health.xid(Xid(gpu, 94, 2), 0)
    assert [(mig.gpu_instance, mig.healthy) for mig in health.found().gpus[0].mig_devices] == [
        (2, False), (2, False), (7, True),
    ]  # fmt: skip
    health.xid(Xid(gpu, 94, 7, 0), 0)
    assert sick(health) == []


def test_every_xid_that_counts_begins_the_quiet_time_anew() -> None:
    found = seen("{model: T4}")
    health = Health(XidPolicy(), found)
    health.xid(Xid(found.gpus[0].uuid, 48), 0)
    health.xid(Xid(found.gpus[0].uuid, 94), QUIET_SECONDS - 1)
    health.update(found, QUIET_SECONDS)
    assert sick(health) == [0]
    assert health.found().gpus[0].reason == "XID 94: contained memory error"
    health.update(found, 2 * QUIET_SECONDS - 1)
    assert sick(health) == []


def test_nothing_heals_while_the_driver_asks_for_a_reset() -> None:
    found = seen("{model: T4}")
    wish = replace(found.gpus[0], healthy=False, reason="the driver asks for a reset of the GPU")
    health = Health(XidPolicy(), found)
    health.xid(Xid(found.gpus[0].uuid, 48), 0)
    health.update(replace(found, gpus=(wish,)), 10 * QUIET_SECONDS)
    (gpu,) = health.found().gpus
    assert gpu.reason == "XID 48: double-bit ECC error; the driver asks for a reset of the GPU"
    health.update(found, 11 * QUIET_SECONDS)
    assert sick(health) == []


def test_nothing_heals_while_a_gpu_is_silent() -> None:
    found = seen("{model: T4, count: 2}")
    health = Health(XidPolicy(), found)
    health.xid(Xid(found.gpus[1].uuid, 79), 0)
    without = replace(found, gpus=found.gpus[:1], silent=((1, "gone"),))
    health.update(without, 10 * QUIET_SECONDS)
    assert not health.all_answer
    assert health.found().gpus[1].reason == "XID 79: the GPU has fallen off the bus; gone"
    health.update(found, 11 * QUIET_SECONDS)
    assert (health.all_answer, sick(health)) == (True, [])


def test_an_instance_cut_anew_has_nothing_of_the_old_one() -> None:
    found = seen(CUT)
    health = Health(XidPolicy(), found)
    health.xid(Xid(found.gpus[0].uuid, 94, 7, 0), 0)
    health.update(seen("{model: A100-40, mig: [3g.20gb@4]}"), 1)
    health.update(found, 2)
    assert all(mig.healthy for mig in health.found().gpus[0].mig_devices)


async def test_a_gpu_for_displays_is_seen_but_not_offered() -> None:
    text = "{model: A100-40, count: 4}, {model: NVIDIA DGX Display, memoryMiB: 4096}"
    backend = DiscoveredGpus(DirectDriver(SimulatedDriver(machine(text))), XidPolicy(), SystemClock())
    await backend.start()
    assert len(backend.found().gpus) == 5
    assert [gpu.model for gpu in backend.gpus()] == ["NVIDIA A100-SXM4-40GB"] * 4


async def test_after_a_reboot_the_agent_is_there_to_cut_the_gpus_again() -> None:
    """MIG mode outlives a reboot of an A100 and its instances do not: NVIDIA's plugin ends then, and waits for
    another program to make them.
    """
    driver = SimulatedDriver(machine("{model: A100-40, mig: [], count: 2}"))
    backend = DiscoveredGpus(DirectDriver(driver), XidPolicy(), SystemClock(), MigStrategy.SINGLE)
    await backend.start()
    assert backend.gpus() == ()
    assert backend.labels()["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    async with backend.partitioning():
        for gpu in driver.query().gpus:
            made = driver.create_gpu_instance(gpu.uuid, 9, None)
            driver.create_compute_instance(gpu.uuid, made.id, 3)
    assert len(backend.gpus()) == 2
    assert {gpu.resource for gpu in backend.gpus()} == {"nvidia.com/gpu"}
    assert backend.labels()["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"
