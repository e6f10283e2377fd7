"""Carries out plans for MIG layouts on a driver, whole or not at all.

Everything is planned from what is there now and checked before the first call. Modes come first, because a
GPU that waits for a reset stops everything; then the instances, step by step. When the driver refuses a step,
the steps before it are undone. Nothing is remembered between runs: after a crash the next run plans from what
it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpuslice.config.migparted import MigSpec
from gpuslice.devices.found import FoundGpu
from gpuslice.devices.miglayout import MigLayout
from gpuslice.errors import GpuSliceError, InputError
from gpuslice.node.discovery.driver import Driver, DriverError, Trouble
from gpuslice.node.mig.survey import MigGpu, survey
from gpuslice.placement.migplan import Wanted, plan_exactly
from gpuslice.placement.migsteps import Action, MigPlan, Step
from gpuslice.placement.verdict import Verdict

Reset = Callable[[Sequence[FoundGpu]], None]
"""Reset these GPUs and have the driver connected anew. Raises DriverError."""


class MigRefused(GpuSliceError):
    """The plan cannot be carried out; no GPU was touched."""


class MigFailed(GpuSliceError):
    """The driver refused on the way; `restored`: everything is as it was before."""

    def __init__(self, message: str, *, restored: bool) -> None:
        super().__init__(message)
        self.restored = restored


class MigResetNeeded(GpuSliceError):
    """The MIG mode changes only when these GPUs (indexes) are reset; until then no instance is made
    anywhere.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        indexes = ",".join(map(str, gpus))
        super().__init__(
            f"MIG's mode waits for a reset of GPU {indexes}: free it, run nvidia-smi --gpu-reset "
            f"-i {indexes} (or reboot the node), then apply again; no instances were made"
        )
        self.gpus = tuple(gpus)


@dataclass(frozen=True, slots=True)
class MigGoal:
    """What one GPU is to become: its MIG mode, and a plan from any layout; `plan` may raise InputError."""

    enabled: bool
    plan: Callable[[MigLayout], MigPlan | Verdict]

    @classmethod
    def of(cls, enabled: bool, wanted: Wanted) -> MigGoal:
        """The goal of so many devices of each profile, wherever they lie."""
        return cls(enabled, partial(plan_exactly, wanted=wanted))


def goals_of(specs: Mapping[str, MigSpec]) -> dict[str, MigGoal]:
    """What a configuration asks for, as goals; both by the GPU's UUID."""
    return {uuid: MigGoal.of(spec.enabled, spec.devices) for uuid, spec in specs.items()}


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """What will be done with one GPU. `enabled` is the mode that MIG is to have."""

    gpu: FoundGpu
    enabled: bool
    plan: MigPlan

    @property
    def changes_mode(self) -> bool:
        """Also true if another mode is pending, which is taken back."""
        mode = self.gpu.mig
        return mode is not None and (mode.current != self.enabled or mode.pending != self.enabled)

    @property
    def does_nothing(self) -> bool:
        """True if the GPU already is as its goal says."""
        return not self.changes_mode and not self.plan.steps


class MigExecutor:
    """One machine's. `held` are the UUIDs of MIG devices and GPUs that containers hold: those stay as they
    are.

    Without `reset` a mode that waits for one ends in MigResetNeeded. The driver is open; calls block.
    """

    def __init__(self, driver: Driver, *, held: Collection[str] = (), reset: Reset | None = None) -> None:
        self._driver = driver
        self._held = frozenset(held)
        self._reset = reset

    def plan(self, goals: Mapping[str, MigGoal]) -> tuple[GpuPlan, ...]:
        """What `apply` would do now, by GPU; goals are by UUID. Nothing is changed.

        Raises MigRefused with the GPU and the reason, DriverError if the driver cannot be queried.
        """
        machine = survey(self._driver, self._held)
        for uuid in goals:
            if machine.find(uuid) is None:
                raise MigRefused(f"there is no GPU {uuid} that answers; nothing was changed")
        plans = (self._plan(one, goals[one.gpu.uuid]) for one in machine.gpus if one.gpu.uuid in goals)
        return tuple(plan for plan in plans if plan is not None)

    def apply(self, goals: Mapping[str, MigGoal], *, mode_only: bool = False) -> tuple[GpuPlan, ...]:
        """Reach the goals; with `mode_only` only the MIG mode is set, and switching it off removes all
        instances.

        Returns what was done, by GPU. Raises MigRefused before anything is touched, MigResetNeeded, and
        MigFailed after undoing what was done.
        """
        plans = first = self.plan(goals)
        work = _Work(self._driver, self._reset)
        switching = [plan for plan in plans if plan.changes_mode]
        try:
            for plan in switching:
                if not plan.enabled:
                    work.run(plan.gpu, plan.plan.steps)
            work.switch(switching)
            if not mode_only:
                plans = self._anew(goals, plans) if switching else plans
                for plan in plans:
                    if plan.enabled:
                        work.run(plan.gpu, plan.plan.steps)
        except MigResetNeeded:
            raise
        except GpuSliceError as error:
            raise work.back(error, {plan.gpu.index: plan.plan.before for plan in first}) from error
        return plans

    def apply_plans(self, plans: Mapping[str, MigPlan]) -> None:
        """Carry out plans, by the UUID of their GPU, that were made earlier, if they still can be carried
        out.

        Raises MigRefused if the GPU is not as the plan expects or something in use would go, MigFailed after
        undoing what was done.
        """
        machine = survey(self._driver, self._held)
        ready: list[tuple[FoundGpu, MigPlan]] = []
        for uuid, plan in plans.items():
            one = machine.find(uuid)
            if one is None or one.layout is None:
                raise MigRefused(f"there is no GPU {uuid} that answers; nothing was changed")
            ready.append((one.gpu, _checked(one, replace(plan, before=one.layout))))
        work = _Work(self._driver, self._reset)
        try:
            for gpu, plan in ready:
                work.run(gpu, plan.steps)
        except GpuSliceError as error:
            raise work.back(error, {gpu.index: plan.before for gpu, plan in ready}) from error

    def _plan(self, one: MigGpu, goal: MigGoal) -> GpuPlan | None:
        gpu, layout = one.gpu, one.layout
        if layout is None:
            if goal.enabled:
                raise MigRefused(f"{one.target} does not support MIG; nothing was changed")
            return None
        try:
            plan = (goal if goal.enabled else MigGoal.of(False, {})).plan(layout)
        except InputError as error:
            raise MigRefused(f"{one.target}: {error}; nothing was changed") from error
        if isinstance(plan, Verdict):
            raise MigRefused(f"{one.target}: {plan.message}; nothing was changed")
        made = GpuPlan(gpu, goal.enabled, _checked(one, plan))
        if made.changes_mode and gpu.uuid in self._held:
            raise MigRefused(f"{one.target} is in use, so MIG's mode cannot change; nothing was changed")
        return made

    def _anew(self, goals: Mapping[str, MigGoal], before: Iterable[GpuPlan]) -> tuple[GpuPlan, ...]:
        """Plan anew once modes have changed: only now does the driver say what can be partitioned."""
        fresh = {made.gpu.uuid: made.plan for made in self.plan(goals)}
        return tuple(replace(one, plan=fresh[one.gpu.uuid]) if one.enabled else one for one in before)


def _checked(one: MigGpu, plan: MigPlan) -> MigPlan:
    """The plan, checked: every step is possible from what is there and touches nothing in use."""
    try:
        plan.states()
    except InputError as error:
        raise MigRefused(f"{one.target}: {error}; nothing was changed") from error
    return plan


class _Work:
    """Calls to the driver, and how to undo them from wherever they stopped.

    A driver may also report something impossible (InputError): that is a refusal like any other.
    """

    def __init__(self, driver: Driver, reset: Reset | None) -> None:
        self._driver = driver
        self._reset = reset
        self._done: list[tuple[FoundGpu, Step] | list[GpuPlan]] = []
        self._ids: dict[tuple[str, int], int] = {}
        self._parts: dict[tuple[str, int, int], int] = {}
        self._doing = ""

    def run(self, gpu: FoundGpu, steps: Iterable[Step]) -> None:
        for step in steps:
            self._doing = f"GPU {gpu.index}: {step}"
            self._call(gpu.uuid, step)
            self._done.append((gpu, step))

    def switch(self, plans: Sequence[GpuPlan]) -> None:
        """Set modes, and reset the GPUs that wait for it, all together as NVLink demands."""
        switched: list[GpuPlan] = []
        self._done.append(switched)
        waiting: list[FoundGpu] = []
        for plan in plans:
            self._doing = f"GPU {plan.gpu.index}: switching MIG {'on' if plan.enabled else 'off'}"
            ready = self._driver.set_mig_mode(plan.gpu.uuid, plan.enabled)
            switched.append(plan)
            if not ready:
                waiting.append(plan.gpu)
        if waiting and self._reset is None:
            raise MigResetNeeded([gpu.index for gpu in waiting])
        if waiting and self._reset is not None:
            self._doing = f"resetting GPU {','.join(str(gpu.index) for gpu in waiting)}"
            self._reset(waiting)
            modes = {gpu.uuid: gpu.mig for gpu in self._driver.query().gpus}
            for plan in plans:
                mode = modes.get(plan.gpu.uuid)
                if mode is None or mode.current != plan.enabled:
                    raise DriverError(Trouble.RESET_REQUIRED, f"GPU {plan.gpu.index} has the mode it had")
        self._doing = "what was planned before MIG was switched"

    def back(self, error: GpuSliceError, before: Mapping[int, MigLayout]) -> MigFailed:
        """Undo what was done, the last first, as far as the driver lets it; returns the error that describes
        it all.

        `before`: the layouts at the beginning, by the GPU's index.
        """
        said = str(error).removesuffix("; nothing was changed")
        what = f"{self._doing} was refused: {said}"
        troubles: dict[int, str] = {}
        gpus: dict[int, FoundGpu] = {}
        for done in reversed(self._done):
            if isinstance(done, list):
                gpus |= {plan.gpu.index: plan.gpu for plan in done}
                troubles |= self._modes_back(done)
                continue
            gpu, step = done
            gpus[gpu.index] = gpu
            try:
                self._call(gpu.uuid, step.inverse)
            except GpuSliceError as refusal:
                troubles.setdefault(gpu.index, f"{step.inverse}: {refusal}")
        for index, gpu in gpus.items():
            if gpu.mig is not None and gpu.mig.current and not self._is(gpu, before[index]):
                troubles.setdefault(index, f"it had {before[index]}")
        if not troubles:
            return MigFailed(f"{what}; everything is as it was before", restored=True)
        left = "; ".join(
            f"GPU {index} could not be put back ({trouble}) and has {self._now(gpus[index])}"
            for index, trouble in sorted(troubles.items())
        )
        return MigFailed(f"{what}; {left}; apply again when the cause is gone", restored=False)

    def _modes_back(self, plans: Iterable[GpuPlan]) -> dict[int, str]:
        troubles: dict[int, str] = {}
        waiting: list[FoundGpu] = []
        for plan in plans:
            gpu, before = plan.gpu, plan.gpu.mig
            try:
                if before is not None and not self._driver.set_mig_mode(gpu.uuid, before.current):
                    waiting.append(gpu)
            except GpuSliceError as refusal:
                troubles[gpu.index] = f"MIG's mode: {refusal}"
        if waiting and self._reset is not None:
            try:
                self._reset(waiting)
            except GpuSliceError as refusal:
                troubles |= {gpu.index: f"its reset: {refusal}" for gpu in waiting}
        return troubles

    def _is(self, gpu: FoundGpu, before: MigLayout) -> bool:
        try:
            return _shape(self._driver.layout(gpu.uuid)) == _shape(before)
        except GpuSliceError:
            return False

    def _now(self, gpu: FoundGpu) -> str:
        try:
            return str(self._driver.layout(gpu.uuid))
        except GpuSliceError:
            return "an unknown layout"

    def _call(self, uuid: str, step: Step) -> None:
        """Make one call. What is created may get other ids than planned; later steps use the real ids."""
        driver, place = self._driver, (uuid, step.start)
        gi, part = self._ids.get(place, step.gi_id), (*place, step.ci_id)
        if step.action is Action.CREATE_GI:
            self._ids[place] = driver.create_gpu_instance(uuid, step.profile.id, step.start).id
        elif step.action is Action.CREATE_CI:
            self._parts[part] = driver.create_compute_instance(uuid, gi, step.slices).id
        elif step.action is Action.DESTROY_CI:
            driver.destroy_compute_instance(uuid, gi, self._parts.get(part, step.ci_id))
        else:
            driver.destroy_gpu_instance(uuid, gi)


def _shape(layout: MigLayout) -> list[tuple[int, int, list[int]]]:
    """The layout without ids."""
    return [(gi.profile.id, gi.start, sorted(ci.slices for ci in gi.compute)) for gi in layout.instances]
