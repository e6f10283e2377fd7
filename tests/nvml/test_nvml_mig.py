"""MIG created and destroyed, as the driver does it: by NVML's binding over the stand-in, and on paper."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from nvml_world import Opened, machine

from gpuslice.node.discovery.driver import Driver, DriverError, Trouble
from gpuslice.node.discovery.simulated import SimulatedDriver

A100 = "{gpus: [{model: A100-40, mig: []}]}"
ONE, ONE_MEDIA, TWO, THREE = 19, 20, 14, 9
"""Ids of A100's profiles as nvidia-smi shows them."""


@pytest.fixture(params=["nvml", "paper"])
def driver_for(request: pytest.FixtureRequest, switched_on: Opened) -> Callable[[str], Driver]:
    def make(text: str) -> Driver:
        return switched_on(text)[0] if request.param == "nvml" else SimulatedDriver(machine(text))

    return make


def gpu_of(driver: Driver) -> str:
    return driver.query().gpus[0].uuid


def trouble(call: Callable[[], object]) -> Trouble:
    with pytest.raises(DriverError) as caught:
        call()
    return caught.value.trouble


def test_instances_come_and_go(driver_for: Callable[[str], Driver]) -> None:
    driver = driver_for(A100)
    gpu = gpu_of(driver)
    made = driver.create_gpu_instance(gpu, THREE, 4)
    assert (made.start, made.id, str(made.profile)) == (4, 2, "3g.20gb")
    assert driver.query().gpus[0].mig_devices == ()
    small = driver.create_compute_instance(gpu, made.id, 1)
    large = driver.create_compute_instance(gpu, made.id, 2)
    assert [str(mig.profile) for mig in driver.query().gpus[0].mig_devices] == ["1c.3g.20gb", "2c.3g.20gb"]
    assert trouble(lambda: driver.create_compute_instance(gpu, made.id, 1)) is Trouble.NO_ROOM
    assert trouble(lambda: driver.destroy_gpu_instance(gpu, made.id)) is Trouble.IN_USE
    for compute in (small, large):
        driver.destroy_compute_instance(gpu, made.id, compute.id)
    driver.destroy_gpu_instance(gpu, made.id)
    assert driver.layout(gpu).instances == ()
    assert trouble(lambda: driver.destroy_gpu_instance(gpu, made.id)) is Trouble.NOT_FOUND


def test_the_driver_chooses_starts_as_documented(driver_for: Callable[[str], Driver]) -> None:
    """NVIDIA's MIG user guide: `-cgi 19,19,14` lie at 6, 4 and 0, and a 9 has no room any more."""
    driver = driver_for(A100)
    gpu = gpu_of(driver)
    made = [driver.create_gpu_instance(gpu, profile) for profile in (ONE, ONE, TWO)]
    assert [(one.start, one.id) for one in made] == [(6, 13), (4, 11), (0, 3)]
    assert trouble(lambda: driver.create_gpu_instance(gpu, THREE)) is Trouble.NO_ROOM


def test_what_cannot_be_is_refused(driver_for: Callable[[str], Driver]) -> None:
    driver = driver_for(A100)
    gpu = gpu_of(driver)
    assert trouble(lambda: driver.create_gpu_instance(gpu, 99)) is Trouble.NOT_SUPPORTED
    assert trouble(lambda: driver.create_gpu_instance(gpu, THREE, 2)) is Trouble.INVALID
    driver.create_gpu_instance(gpu, ONE_MEDIA, 0)
    assert trouble(lambda: driver.create_gpu_instance(gpu, ONE_MEDIA, 1)) is Trouble.NO_ROOM
    assert trouble(lambda: driver.create_gpu_instance(gpu, THREE, 0)) is Trouble.NO_ROOM


def test_without_mig_there_is_nothing_to_cut(driver_for: Callable[[str], Driver]) -> None:
    driver = driver_for("2xT4")
    gpu = gpu_of(driver)
    assert trouble(lambda: driver.geometry(gpu)) is Trouble.NOT_SUPPORTED
    assert trouble(lambda: driver.set_mig_mode(gpu, enabled=True)) is Trouble.NOT_SUPPORTED


@pytest.mark.parametrize(("name", "at_once"), [("8xA100-40", False), ("8xH100-80", True)])
def test_the_mode_waits_for_a_reset_on_ampere_only(
    name: str, at_once: bool, driver_for: Callable[[str], Driver]
) -> None:
    driver = driver_for(name)
    gpu = gpu_of(driver)
    assert driver.set_mig_mode(gpu, enabled=True) is at_once
    mode = driver.query().gpus[0].mig
    assert mode is not None
    assert (mode.current, mode.pending) == (at_once, True)
    if not at_once:
        assert trouble(lambda: driver.create_gpu_instance(gpu, ONE)) is Trouble.NOT_SUPPORTED


def test_a_reset_makes_the_pending_mode_true(switched_on: Opened) -> None:
    driver, hardware = switched_on("8xA100-40")
    paper = SimulatedDriver(machine("8xA100-40"))
    gpu = hardware.uuid(0)
    for one in (driver, paper):
        one.set_mig_mode(gpu, enabled=True)
    hardware.happens("reset", 0)
    paper.reset(gpu)
    for one in (driver, paper):
        assert one.create_gpu_instance(gpu, ONE).id == 13
        assert trouble(lambda one=one: one.set_mig_mode(gpu, enabled=False)) is Trouble.IN_USE


def test_an_instance_with_a_program_stays(switched_on: Opened) -> None:
    text = "{gpus: [{model: A100-40, mig: [1g.5gb@6]}]}"
    driver, hardware = switched_on(text)
    paper = SimulatedDriver(machine(text))
    gpu = hardware.uuid(0)
    hardware.now("busy 0 13")
    paper.use(gpu, 13)
    for one in (driver, paper):
        assert trouble(lambda one=one: one.destroy_compute_instance(gpu, 13, 0)) is Trouble.IN_USE
    assert trouble(lambda: paper.reset(gpu)) is Trouble.IN_USE
    hardware.now()
    paper.use(gpu, 13, in_use=False)
    for one in (driver, paper):
        one.destroy_compute_instance(gpu, 13, 0)
        one.destroy_gpu_instance(gpu, 13)


@pytest.mark.parametrize("name", ["A100-40", "H100-80", "A30"])
@pytest.mark.parametrize("seed", range(3))
def test_both_drivers_do_the_same(name: str, seed: int, switched_on: Opened) -> None:
    """Whatever is asked, in whatever order: the stand-in is a second opinion about the driver's rules."""
    random = Random(seed)
    text = f"{{gpus: [{{model: {name}, mig: []}}]}}"
    real, paper = switched_on(text)[0], SimulatedDriver(machine(text))
    gpu = gpu_of(real)
    profiles = real.geometry(gpu).profiles
    assert [profile.id for profile in profiles] == [p.id for p in paper.geometry(gpu).profiles]

    def outcome(driver: Driver, action: object, *arguments: object) -> object:
        try:
            return getattr(getattr(driver, str(action))(gpu, *arguments), "id", None)
        except DriverError as error:
            return error.trouble

    for _ in range(60):
        instances = paper.layout(gpu).instances
        profile, one = random.choice(profiles), random.choice(instances) if instances else None
        actions: list[tuple[object, ...]] = [
            ("create_gpu_instance", profile.id, random.choice([None, *profile.starts]))
        ]
        if one is not None:
            actions.append(("create_compute_instance", one.id, random.randint(1, 4)))
            actions.append(("destroy_gpu_instance", one.id))
            actions += [("destroy_compute_instance", one.id, compute.id) for compute in one.compute[:1]]
        action = random.choice(actions)
        assert outcome(real, *action) == outcome(paper, *action), action
        assert str(real.layout(gpu)) == str(paper.layout(gpu))
        names = [[str(mig.profile) for mig in driver.query().gpus[0].mig_devices] for driver in (real, paper)]
        assert names[0] == names[1]
