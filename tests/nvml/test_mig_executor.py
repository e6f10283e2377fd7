"""MIG layouts made real: every refusal undone, every crash survived, nothing in use touched; on both drivers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from nvml_world import Hardware, Opened, command, environment, machine

from gpuslice.devices.found import FoundGpu
from gpuslice.devices.miglayout import GpuInstance, MigLayout, layout
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migtables import geometry_of
from gpuslice.errors import InputError
from gpuslice.node.discovery.driver import Driver, DriverError, Trouble
from gpuslice.node.discovery.nvml import NvmlDriver
from gpuslice.node.discovery.simulated import SimulatedDriver
from gpuslice.node.mig.executor import MigExecutor, MigFailed, MigGoal, MigRefused, MigResetNeeded
from gpuslice.node.mig.reset import by_nvidia_smi, reset_of
from gpuslice.node.mig.survey import survey
from gpuslice.placement.migplan import plan_besides
from gpuslice.placement.migrestore import plan_restore
from gpuslice.placement.migsteps import MigPlan

HOPPERS = "{gpus: [{model: H100-80, mig: [3g.40gb@4, 1g.10gb@0]}, {model: H100-80}, {model: H100-80, mig: [1g.10gb@6]}]}"
SPECS = ({"1g.10gb": 1, "2c.3g.40gb": 1, "1c.3g.40gb": 1, "2g.20gb": 1}, {"1g.10gb": 7}, None)
"""What the three GPUs become: one repartition around an instance in use, one switched on, one switched off."""
AMPERES = "{gpus: [{model: A100-40}, {model: A100-40, mig: [1g.5gb@6]}]}"
MAKES = ("set_mig_mode", "create_", "destroy_")


class Killed(BaseException):
    """The process ends, without a word."""


class Faulty:
    """A driver whose calls that change something can fail, by number."""

    def __init__(self, driver: Driver, fails: Callable[[int], BaseException | None]) -> None:
        self._driver = driver
        self._fails = fails
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        if not name.startswith(MAKES):
            return found

        def call(*arguments: object) -> object:
            error = self._fails(len(self.calls))
            self.calls.append((name, arguments))
            if error is not None:
                raise error
            return found(*arguments)

        return call


def failing(driver: Driver, fails: Callable[[int], BaseException | None]) -> tuple[Driver, Faulty]:
    faulty = Faulty(driver, fails)
    return cast("Driver", faulty), faulty


@pytest.fixture(params=["nvml", "paper"])
def driver_for(request: pytest.FixtureRequest, switched_on: Opened) -> Callable[[str], Driver]:
    def make(text: str) -> Driver:
        return switched_on(text)[0] if request.param == "nvml" else SimulatedDriver(machine(text))

    return make


def wanted(spec: dict[str, int] | None) -> MigGoal:
    devices = {MigProfile.parse(name): count for name, count in (spec or {}).items()}
    return MigGoal.of(spec is not None, devices)


def goals(driver: Driver, *specs: dict[str, int] | None) -> dict[str, MigGoal]:
    return {gpu.uuid: wanted(spec) for gpu, spec in zip(driver.query().gpus, specs, strict=False)}


def picture(driver: Driver) -> list[str]:
    """All that can be seen of MIG on a machine."""
    return [
        f"{one.gpu.mig} {one.layout}: " + " ".join(str(mig.profile) for mig in one.gpu.mig_devices)
        for one in survey(driver).gpus
    ]


def back(driver: Driver) -> dict[str, MigGoal]:
    """Goals that lead to where the machine is now."""
    return {
        one.gpu.uuid: MigGoal(
            one.gpu.mig is not None and one.gpu.mig.current,
            partial(plan_restore, target=one.layout),  # type: ignore[arg-type]
        )
        for one in survey(driver).gpus
    }


def held(driver: Driver) -> tuple[str, tuple[object, ...]]:
    """The MIG device of one slice on GPU 0: its UUID, and how calls name it."""
    gpu = driver.query().gpus[0]
    mig = next(mig for mig in gpu.mig_devices if str(mig.profile) == "1g.10gb")
    return mig.uuid, (gpu.uuid, mig.gpu_instance, mig.compute_instance)


def untouched(faulty: Faulty, device: tuple[object, ...]) -> bool:
    """No call destroyed it, nor the GPU instance around it."""
    return not any(
        name.startswith("destroy_") and arguments in (device, device[:2]) for name, arguments in faulty.calls
    )


def test_a_machine_becomes_what_it_is_to_be_and_the_second_time_nothing_is_done(
    driver_for: Callable[[str], Driver],
) -> None:
    driver, watched = failing(driver_for(HOPPERS), lambda _: None)
    uuid, device = held(driver)
    done: list[int] = []
    for _ in range(2):
        MigExecutor(driver, held={uuid}).apply(goals(driver, *SPECS))
        assert picture(driver) == [
            "MigMode(current=True, pending=True) 1g.10gb at 0:1, 2g.20gb at 2:2, 3g.40gb at 4:4: "
            "2c.3g.40gb 1c.3g.40gb 2g.20gb 1g.10gb",
            "MigMode(current=True, pending=True) "
            + ", ".join(f"1g.10gb at {start}:1" for start in range(7))
            + ": "
            + " ".join(["1g.10gb"] * 7),
            "MigMode(current=False, pending=False) nothing: ",
        ]
        done.append(len(watched.calls))
    assert done[0] == done[1]
    assert untouched(watched, device)


def test_a_refusal_at_any_step_is_undone(driver_for: Callable[[str], Driver]) -> None:
    driver = driver_for(HOPPERS)
    uuid, device = held(driver)
    before = picture(driver)
    step, refuse = 0, DriverError(Trouble.OTHER, "no")
    while True:
        one, watched = failing(driver, lambda number, at=step: refuse if number == at else None)  # type: ignore[misc]
        try:
            MigExecutor(one, held={uuid}).apply(goals(driver, *SPECS))
        except MigFailed as error:
            assert error.restored
            assert "was refused: no; everything is as it was before" in str(error)
            assert picture(driver) == before, watched.calls
            assert untouched(watched, device)
            step += 1
            continue
        break
    assert step > 20, "every call of the whole way was refused once"


def test_a_process_that_is_killed_at_any_step_goes_on_when_it_is_started_again(
    driver_for: Callable[[str], Driver],
) -> None:
    driver = driver_for(HOPPERS)
    uuid, device = held(driver)
    home, step, ends = back(driver), 0, set()
    while True:
        one, watched = failing(driver, lambda number, at=step: Killed() if number == at else None)  # type: ignore[misc]
        killed = False
        try:
            MigExecutor(one, held={uuid}).apply(goals(driver, *SPECS))
        except Killed:
            killed = True
            again, second = failing(driver, lambda _: None)
            MigExecutor(again, held={uuid}).apply(goals(driver, *SPECS))
            assert untouched(second, device)
        assert untouched(watched, device)
        ends.add(tuple(sorted(map(str, picture(driver)))))
        if not killed:
            break
        step += 1
        MigExecutor(driver, held={uuid}).apply(home)
    assert step > 20
    assert len({tuple(end) for end in ends}) == 1, "every way ends in the same layout"


def test_what_cannot_be_put_back_is_told(driver_for: Callable[[str], Driver]) -> None:
    driver = driver_for(HOPPERS)
    gone = DriverError(Trouble.LOST, "the GPU has fallen off the bus or does not answer")
    one, _ = failing(driver, lambda number: gone if number >= 5 else None)
    with pytest.raises(MigFailed) as caught:
        MigExecutor(one).apply(goals(driver, {"7g.80gb": 1}))
    assert not caught.value.restored
    said = str(caught.value)
    assert said.startswith(
        "GPU 0: create compute instance 7g.80gb in 7g.80gb at 0:8 was refused: the GPU has"
    )
    assert "GPU 0 could not be put back (destroy GPU instance 7g.80gb at 0:8: the GPU has fallen" in said
    assert said.endswith("and has 7g.80gb at 0:8; apply again when the cause is gone")
    MigExecutor(driver).apply(goals(driver, {"7g.80gb": 1}))
    assert [str(mig.profile) for mig in driver.query().gpus[0].mig_devices] == ["7g.80gb"]


def test_a_program_that_nobody_knew_of_is_left_alone(switched_on: Opened) -> None:
    text = "{gpus: [{model: A100-40, mig: [1g.5gb@0, 3g.20gb@4]}]}"
    real, hardware = switched_on(text)
    paper = SimulatedDriver(machine(text))
    gpu = hardware.uuid(0)
    hardware.now("busy 0 2")
    paper.use(gpu, 2)
    for driver in (real, paper):
        before = picture(driver)
        with pytest.raises(
            MigFailed, match=r"3g.20gb at 4:4 was refused: .* in use.*as it was before"
        ) as caught:
            MigExecutor(driver).apply({gpu: wanted({"1g.5gb": 7})})
        assert caught.value.restored
        assert picture(driver) == before


@pytest.mark.parametrize("spec", [{"1g.5gb": 7}, {"4g.20gb": 1, "1g.5gb": 1}, None])
def test_what_a_container_holds_is_never_planned_away(
    spec: dict[str, int] | None, driver_for: Callable[[str], Driver]
) -> None:
    driver, watched = failing(
        driver_for("{gpus: [{model: A100-40, mig: [1g.5gb@0, 3g.20gb@4]}]}"), lambda _: None
    )
    mine = next(mig.uuid for mig in driver.query().gpus[0].mig_devices if str(mig.profile) == "3g.20gb")
    with pytest.raises(MigRefused, match=r"GPU 0 \(.*in use would have to go; nothing was changed"):
        MigExecutor(driver, held={mine}).apply(goals(driver, spec))
    assert watched.calls == []


def test_a_gpu_that_a_container_holds_whole_keeps_its_mode() -> None:
    driver, watched = failing(SimulatedDriver(machine(HOPPERS)), lambda _: None)
    whole = driver.query().gpus[1].uuid
    with pytest.raises(MigRefused, match=r"GPU 1 \(NVIDIA H100.*\) is in use, so MIG's mode cannot change"):
        MigExecutor(driver, held={whole}).apply(goals(driver, {"7g.80gb": 1}, {"7g.80gb": 1}))
    assert watched.calls == [], "GPU 0 comes first, and is not touched either"


def test_ids_that_the_driver_chooses_otherwise_are_followed() -> None:
    class Renumbering(SimulatedDriver):
        """Instances that are new are called 50 more than planned."""

        def create_gpu_instance(self, gpu: str, profile_id: int, start: int | None = None) -> GpuInstance:
            made = super().create_gpu_instance(gpu, profile_id, start)
            return replace(made, id=made.id + 50)

        def create_compute_instance(self, gpu: str, gpu_instance: int, slices: int) -> Any:
            return super().create_compute_instance(gpu, gpu_instance % 50, slices)

        def destroy_compute_instance(self, gpu: str, gpu_instance: int, compute_instance: int) -> None:
            super().destroy_compute_instance(gpu, gpu_instance % 50, compute_instance)

        def destroy_gpu_instance(self, gpu: str, gpu_instance: int) -> None:
            assert gpu_instance >= 50 or gpu_instance == 2
            super().destroy_gpu_instance(gpu, gpu_instance % 50)

    paper = Renumbering(machine("{gpus: [{model: A100-40, mig: [3g.20gb@4]}]}"))
    before = picture(paper)
    refuse = DriverError(Trouble.NO_ROOM, "no")
    driver, _ = failing(paper, lambda number: refuse if number == 7 else None)
    with pytest.raises(MigFailed, match="as it was before"):
        MigExecutor(driver).apply(goals(paper, {"2g.10gb": 3}))
    assert picture(paper) == before


@pytest.mark.parametrize("model", ["A100-40", "H100-80", "A30", "RTX-PRO-6000"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_wanted_and_whenever_it_is_killed_what_is_held_stays(model: str, seed: int) -> None:
    random = Random(seed)
    paper = SimulatedDriver(machine(f"{{gpus: [{{model: {model}, mig: []}}]}}"))
    gpu = paper.query().gpus[0]
    names = [kind.name for kind in paper.geometry(gpu.uuid).profiles]
    made = refused = killed = 0
    for _ in range(60):
        devices = paper.query().gpus[0].mig_devices
        mine = random.sample(devices, random.randint(0, min(2, len(devices))))
        spec = dict(Counter(random.choices(names, k=random.randint(1, 4))))
        before, last = picture(paper), random.randint(0, 12)
        one, watched = failing(paper, lambda number, at=last: Killed() if number == at else None)  # type: ignore[misc]
        try:
            MigExecutor(one, held={mig.uuid for mig in mine}).apply({gpu.uuid: MigGoal.of(True, spec)})
            made += 1
            assert paper.layout(gpu.uuid).devices == Counter(spec)
        except MigRefused:
            refused += 1
            assert picture(paper) == before
            assert watched.calls == []
        except Killed:
            killed += 1
        assert all(untouched(watched, (gpu.uuid, mig.gpu_instance, mig.compute_instance)) for mig in mine)
        assert {mig.uuid for mig in mine} <= {mig.uuid for mig in paper.query().gpus[0].mig_devices}
        assert paper.layout(gpu.uuid).fault is None
    assert made
    assert refused
    assert killed


# --- modes --------------------------------------------------------------------------------------------
def test_on_ampere_nothing_else_is_touched_until_the_reset(switched_on: Opened) -> None:
    real, hardware = switched_on(AMPERES)
    paper = SimulatedDriver(machine(AMPERES))
    resets: list[Callable[[], None]] = [
        lambda: hardware.happens("reset", 0),
        lambda: paper.reset(hardware.uuid(0)),
    ]
    for driver, reset in zip((real, paper), resets, strict=True):
        executor = MigExecutor(driver)
        for _ in range(2):
            with pytest.raises(MigResetNeeded) as caught:
                executor.apply(goals(driver, {"7g.40gb": 1}, {"7g.40gb": 1}))
            assert caught.value.gpus == (0,)
            assert "GPU 0: free it, run nvidia-smi --gpu-reset -i 0 (or reboot the node)" in str(caught.value)
            assert picture(driver) == [
                "MigMode(current=False, pending=True) nothing: ",
                "MigMode(current=True, pending=True) 1g.5gb at 6:1: 1g.5gb",
            ]
        reset()
        executor.apply(goals(driver, {"7g.40gb": 1}, {"7g.40gb": 1}))
        assert [str(one.layout) for one in survey(driver).gpus] == ["7g.40gb at 0:8"] * 2


def test_gpus_that_wait_are_reset_together() -> None:
    paper = SimulatedDriver(machine("{gpus: [{model: A100-40, count: 3}]}"))
    asked: list[list[int]] = []

    def reset(gpus: Any) -> None:
        asked.append([gpu.index for gpu in gpus])
        reset_of(paper)(gpus)

    MigExecutor(paper, reset=reset).apply(goals(paper, {"7g.40gb": 1}, {}, {"7g.40gb": 1}))
    assert asked == [[0, 1, 2]]
    assert [str(one.layout) for one in survey(paper).gpus] == ["7g.40gb at 0:8", "nothing", "7g.40gb at 0:8"]


def test_a_reset_that_is_refused_or_does_nothing_is_undone() -> None:
    paper = SimulatedDriver(machine("{gpus: [{model: A100-40, mig: [1g.5gb@6]}, {model: A100-40}]}"))
    before = picture(paper)

    def refused(gpus: object) -> None:
        raise DriverError(Trouble.IN_USE, "GPU 1 is in use by another client")

    for reset, why in (
        (refused, "in use by another client"),
        (lambda gpus: None, "GPU 0 has the mode it had"),
    ):
        with pytest.raises(MigFailed) as caught:
            MigExecutor(paper, reset=reset).apply(goals(paper, None, {"7g.40gb": 1}))
        assert str(caught.value).startswith("resetting GPU 0,1 was refused: ")
        assert why in str(caught.value)
        assert picture(paper) == before


@pytest.mark.parametrize("works", [True, False])
def test_nvidia_smi_resets_a_real_gpu(
    works: bool, switched_on: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, hardware = switched_on("{gpus: [{model: A100-40}]}")
    nvidia_smi(tmp_path / "bin", hardware, works=works)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    executor = MigExecutor(driver, reset=lambda gpus: by_nvidia_smi(driver, gpus))
    if works:
        executor.apply(goals(driver, {"7g.40gb": 1}))
        assert [str(mig.profile) for mig in driver.query().gpus[0].mig_devices] == ["7g.40gb"]
    else:
        with pytest.raises(
            MigFailed, match=r"nvidia-smi --gpu-reset: GPU 00000000:10:00.0 is in use.*as it was"
        ):
            executor.apply(goals(driver, {"7g.40gb": 1}))
        assert picture(driver) == ["MigMode(current=False, pending=False) nothing: "]
    assert (tmp_path / "bin" / "asked").read_text() == "--gpu-reset -i 00000000:10:00.0\n"


def nvidia_smi(folder: Path, hardware: Hardware, *, works: bool) -> None:
    """A tool of that name: it resets GPU 0 of the stand-in, or says why not."""
    folder.mkdir()
    tool = folder / "nvidia-smi"
    end = (
        f'echo "reset 1 0" >> {hardware.path}'
        if works
        else 'echo "GPU $3 is in use by another client"; exit 255'
    )
    tool.write_text(f'#!/bin/sh\necho "$@" > {folder}/asked\n{end}\n')
    tool.chmod(0o755)


def test_without_nvidia_smi_the_driver_stays_open(
    switched_on: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, _ = switched_on("{gpus: [{model: A100-40}]}")
    monkeypatch.setenv("PATH", "/nowhere")
    assert isinstance(driver, NvmlDriver)
    with pytest.raises(MigFailed, match=r"nvidia-smi is not in the PATH.*everything is as it was before"):
        MigExecutor(driver, reset=reset_of(driver)).apply(goals(driver, {"7g.40gb": 1}))
    assert picture(driver) == ["MigMode(current=False, pending=False) nothing: "]


class Silent(SimulatedDriver):
    """NVML while MIG is off: profiles are not told, nor places."""

    def geometry(self, gpu: str) -> Any:
        mode = next(one.mig for one in super().query().gpus if one.uuid == gpu)
        if mode is None or not mode.current:
            raise DriverError(Trouble.NOT_SUPPORTED, "MIG is off")
        return super().geometry(gpu)


def test_a_driver_that_says_nothing_while_mig_is_off_is_checked_against_the_tables() -> None:
    driver = Silent(machine("{gpus: [{model: H100-80}]}"))
    with pytest.raises(MigRefused, match=r"1g.5gb does not exist on H100-80; it has 1g.10gb"):
        MigExecutor(driver).apply(goals(driver, {"1g.5gb": 1}))
    MigExecutor(driver).apply(goals(driver, {"1g.10gb": 7}))
    assert str(driver.query().gpus[0].mig) == "MigMode(current=True, pending=True)"
    assert len(driver.query().gpus[0].mig_devices) == 7


def test_a_board_that_no_table_knows_is_switched_on_first() -> None:
    class Unknown(Silent):
        def query(self) -> Any:
            found = super().query()
            return replace(found, gpus=tuple(replace(gpu, name="NVIDIA R900") for gpu in found.gpus))

    driver = Unknown(machine("{gpus: [{model: H100-80}]}"))
    with pytest.raises(
        MigRefused, match=r"NVIDIA R900 \(no table knows it; switch MIG on first, by all-enabled\)"
    ):
        MigExecutor(driver).apply(goals(driver, {"1g.10gb": 7}))
    MigExecutor(driver).apply(goals(driver, {}))
    MigExecutor(driver).apply(goals(driver, {"1g.10gb": 7}))
    assert len(driver.query().gpus[0].mig_devices) == 7


def test_a_driver_whose_profiles_are_not_those_of_the_table_gets_its_mode_back() -> None:
    """As when a driver's update changes the names: 1g.23gb becomes 1g.24gb."""

    class Renamed(Silent):
        def layout(self, gpu: str) -> MigLayout:
            return MigLayout(geometry_of("H100-94"))

    driver = Renamed(machine("{gpus: [{model: H100-80}]}"))
    with pytest.raises(MigFailed) as caught:
        MigExecutor(driver).apply(goals(driver, {"1g.10gb": 7}))
    assert caught.value.restored
    assert str(caught.value).startswith(
        "what was planned before MIG was switched was refused: GPU 0 (NVIDIA H100 80GB HBM3): "
        "1g.10gb does not exist on H100-94; it has 1g.12gb"
    )
    assert str(caught.value).endswith("; everything is as it was before")
    assert str(driver.query().gpus[0].mig) == "MigMode(current=False, pending=False)"


def test_a_driver_that_contradicts_itself_once_mig_is_on_gets_its_mode_back() -> None:
    class Unsound(Silent):
        def layout(self, gpu: str) -> MigLayout:
            raise InputError("two MIG profiles are called 1g.10gb; the driver's answers are not sound")

    driver = Unsound(machine("{gpus: [{model: H100-80}]}"))
    with pytest.raises(MigFailed, match="answers are not sound; everything is as it was before"):
        MigExecutor(driver).apply(goals(driver, {"1g.10gb": 7}))
    assert str(driver.query().gpus[0].mig) == "MigMode(current=False, pending=False)"


def test_mode_only_cuts_nothing() -> None:
    driver = SimulatedDriver(machine(HOPPERS))
    MigExecutor(driver).apply(goals(driver, *SPECS), mode_only=True)
    assert picture(driver) == [
        "MigMode(current=True, pending=True) 1g.10gb at 0:1, 3g.40gb at 4:4: 3g.40gb 1g.10gb",
        "MigMode(current=True, pending=True) nothing: ",
        "MigMode(current=False, pending=False) nothing: ",
    ]


# --- plans made before --------------------------------------------------------------------------------
@pytest.fixture
def one_more() -> Iterator[tuple[SimulatedDriver, FoundGpu, MigPlan]]:
    driver = SimulatedDriver(machine("{gpus: [{model: A100-40, mig: [1g.5gb@0, 3g.20gb@4]}]}"))
    gpu = driver.query().gpus[0]
    plan = plan_besides(driver.layout(gpu.uuid), {MigProfile.parse("2g.10gb"): 1})
    assert isinstance(plan, MigPlan)
    yield driver, gpu, plan


def test_a_plan_for_one_more_instance_is_carried_out(
    one_more: tuple[SimulatedDriver, FoundGpu, MigPlan],
) -> None:
    driver, gpu, plan = one_more
    MigExecutor(driver, held={mig.uuid for mig in gpu.mig_devices}).apply_plans({gpu.uuid: plan})
    assert str(driver.layout(gpu.uuid)) == "1g.5gb at 0:1, 2g.10gb at 2:2, 3g.20gb at 4:4"


def test_a_plan_that_is_not_true_any_more_is_refused(
    one_more: tuple[SimulatedDriver, FoundGpu, MigPlan],
) -> None:
    driver, gpu, plan = one_more
    driver.create_gpu_instance(gpu.uuid, 19, 2)
    with pytest.raises(
        MigRefused,
        match=r"create GPU instance 2g.10gb at 2:2 is impossible: .* overlaps.*nothing was changed",
    ):
        MigExecutor(driver).apply_plans({gpu.uuid: plan})
    assert str(driver.layout(gpu.uuid)) == "1g.5gb at 0:1, 1g.5gb at 2:1, 3g.20gb at 4:4"


def test_a_plan_that_would_take_what_is_held_by_now_is_refused(
    one_more: tuple[SimulatedDriver, FoundGpu, MigPlan],
) -> None:
    driver, gpu, _ = one_more
    now = driver.layout(gpu.uuid)
    plan = plan_restore(now, layout(now.geometry, "7g.40gb@0"))
    assert isinstance(plan, MigPlan)
    with pytest.raises(MigRefused, match="is impossible: it is in use; nothing was changed"):
        MigExecutor(driver, held={gpu.mig_devices[1].uuid}).apply_plans({gpu.uuid: plan})
    assert driver.layout(gpu.uuid) == now


def test_a_gpu_that_does_not_answer_is_named(one_more: tuple[SimulatedDriver, FoundGpu, MigPlan]) -> None:
    driver, gpu, plan = one_more
    driver.lose(gpu.uuid)
    for work in (
        lambda: MigExecutor(driver).apply_plans({gpu.uuid: plan}),
        lambda: MigExecutor(driver).plan({gpu.uuid: wanted({})}),
    ):
        with pytest.raises(MigRefused, match=f"there is no GPU {gpu.uuid} that answers; nothing was changed"):
            work()


# --- the command over NVML ----------------------------------------------------------------------------
def test_the_command_cuts_real_gpus_that_wait_for_a_reset(library: Path, tmp_path: Path) -> None:
    hardware = Hardware(tmp_path, machine("{gpus: [{model: A100-40}]}"))
    nvidia_smi(tmp_path / "bin", hardware, works=True)
    env = environment(library, hardware)
    env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
    done = command("mig", "apply", "-c", "all-balanced", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "GPU 0 (NVIDIA A100-SXM4-40GB): MIG off -> on, by a reset\n"
        "  create   3g.20gb      at 4:4\n"
        "  create   2g.10gb      at 0:2\n"
        "  create   1g.5gb       at 2:1\n"
        "  create   1g.5gb       at 3:1\n"
        "MIG configuration applied successfully\n"
    )


def test_the_command_says_what_nvidia_smi_says(library: Path, tmp_path: Path) -> None:
    hardware = Hardware(tmp_path, machine("{gpus: [{model: A100-40}]}"))
    nvidia_smi(tmp_path / "bin", hardware, works=False)
    env = environment(library, hardware)
    env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
    done = command("mig", "apply", "-c", "all-balanced", env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: resetting GPU 0 was refused: nvidia-smi --gpu-reset: GPU 00000000:10:00.0 is in use by another "
        "client; everything is as it was before\n"
    )
