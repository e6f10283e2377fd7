"""A machine's MIG layout without a cluster: what a file asks for, what is there, and the plan between
them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuslice.config.migcheckpoint import MigCheckpoint, SavedGpu, checkpoint
from gpuslice.config.migexport import export, text_of
from gpuslice.config.migparted import MigPartedFile, MigSpec, unmet
from gpuslice.devices.found import Found
from gpuslice.devices.inventory import NodeGpus
from gpuslice.devices.miglayout import MigLayout
from gpuslice.errors import GpuSliceError, InputError
from gpuslice.node.discovery.driver import Driver
from gpuslice.node.discovery.drivers import driver_of
from gpuslice.node.kubelet.rpc import RpcError
from gpuslice.node.mig.executor import (
    GpuPlan,
    MigExecutor,
    MigGoal,
    MigRefused,
    MigResetNeeded,
    goals_of,
)
from gpuslice.node.mig.podusers import held_by_pods
from gpuslice.node.mig.reset import reset_of
from gpuslice.node.mig.survey import MigGpu, MigMachine, survey
from gpuslice.placement.migrestore import plan_restore
from gpuslice.placement.migsteps import MigPlan
from gpuslice.placement.verdict import Verdict
from gpuslice.units import MemoryUnit


class NotApplied(GpuSliceError):
    """An assertion does not hold."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration as the command line names it: a `file` of `-` is standard input, None the standard
    configurations.
    """

    file: str | None
    name: str | None

    def specs(self, machine: MigMachine) -> dict[str, MigSpec]:
        """What the GPUs are to become, by UUID; GPUs that cannot be partitioned have MIG off without doing
        anything.

        Raises InputError for a wrong file or name, MigRefused if this machine cannot be partitioned so.
        """
        file = self._read(machine)
        name = self._name(file)
        file.select(name)
        try:
            return machine.specs(file, name)
        except InputError as error:
            raise MigRefused(f"{error}; nothing was changed") from error

    def _read(self, machine: MigMachine) -> MigPartedFile:
        if self.file is None:
            return machine.standard
        if self.file != "-":
            return MigPartedFile.load(Path(self.file))
        try:
            return MigPartedFile.parse(sys.stdin.read())
        except InputError as error:
            raise InputError(str(error), field="standard input") from error

    def _name(self, file: MigPartedFile) -> str:
        if self.name is not None:
            return self.name
        names = [*file.configs, *file.refused]
        if len(names) > 1:
            raise InputError(f"name one of {', '.join(names)}", field="--selected-config")
        return names[0]


class StandaloneMachine:
    """One machine whose driver is open."""

    def __init__(self, devices: Path | None, node: str) -> None:
        driver = driver_of(devices, node)
        driver.open()
        self.driver: Driver = driver
        self.on_paper = devices is not None
        self.held: frozenset[str] = frozenset()
        """UUIDs of the GPUs and MIG devices that pods have."""
        self._reset = reset_of(driver)

    async def ask_kubelet(self, kubelet_dir: Path) -> str | None:
        """Learn what pods hold, if there is a kubelet; returns a warning if it does not answer."""
        socket = kubelet_dir / "pod-resources" / "kubelet.sock"
        if self.on_paper or not socket.exists():
            return None

        gpus = NodeGpus(tuple(gpu.shared for gpu in self.query().gpus), MemoryUnit(1))
        try:
            self.held = await held_by_pods(socket, gpus)
        except RpcError as error:
            return f"the kubelet does not say what pods hold ({error}); only running programs count as in use"
        return None

    def machine(self) -> MigMachine:
        """The GPUs now."""
        return survey(self.driver)

    def waiting(self) -> list[int]:
        """GPUs (indexes) whose pending MIG mode takes effect when they are reset."""
        modes = [(gpu.index, gpu.mig) for gpu in self.driver.query().gpus]
        return [index for index, mode in modes if mode is not None and mode.current != mode.pending]

    def plan(self, choice: Choice) -> tuple[GpuPlan, ...]:
        """What `apply` would do."""
        return MigExecutor(self.driver, held=self.held).plan(goals_of(choice.specs(self.machine())))

    def apply(self, choice: Choice, *, mode_only: bool, skip_reset: bool) -> tuple[GpuPlan, ...]:
        """Partition the GPUs so; with `mode_only`, a mode that still waits for a reset is enough if
        `skip_reset` is set.
        """
        goals = goals_of(choice.specs(self.machine()))
        return self._apply(goals, mode_only=mode_only, skip_reset=skip_reset)

    def restore(self, path: Path) -> tuple[GpuPlan, ...]:
        """Partition the GPUs as a checkpoint has them."""
        saved = MigCheckpoint.load(path).gpus
        goals = {gpu.uuid: MigGoal(gpu.enabled, partial(_as_saved, saved=gpu)) for gpu in saved}
        return self._apply(goals, mode_only=False, skip_reset=False)

    def check(self, choice: Choice, *, mode_only: bool) -> None:
        """Raises NotApplied with every GPU that differs."""
        machine = self.machine()
        specs = choice.specs(machine)
        concerned = {one.gpu.index: one for one in machine.gpus if one.gpu.uuid in specs}
        wanted = {index: specs[one.gpu.uuid] for index, one in concerned.items()}
        states = {index: one.spec for index, one in concerned.items()}
        if mode_only:
            wanted, states = _modes(wanted), _modes(states)
        differences = unmet(wanted, states) or list(filter(None, map(_unfinished, concerned.values())))
        if differences:
            raise NotApplied(
                "Assertion failure: selected configuration not currently applied: " + "; ".join(differences)
            )

    def export(self, label: str, form: str) -> str:
        """The machine as a configuration file. Raises MigRefused if it has no GPU to write down."""
        gpus = [one.state for one in self.machine().gpus]
        if not gpus:
            raise MigRefused("there is no GPU whose configuration could be exported")
        return export(gpus, label=label, form=form)

    def standard(self, form: str) -> str:
        """The configurations that go by standard names on these GPUs, as a file."""
        return text_of(self.machine().standard, form=form)

    def checkpoint(self, path: Path) -> None:
        """Write the machine's layouts to a file, whole or not at all. Raises InputError naming it."""
        text = checkpoint([(one.gpu.uuid, _partitioned(one)) for one in self.machine().gpus if one.layout])
        aside = path.with_name(f"{path.name}.new")
        try:
            aside.write_text(text)
            aside.replace(path)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", field=str(path)) from error

    def query(self) -> Found:
        """The machine as it is now, with its MIG devices."""
        return self.driver.query()

    def _apply(
        self, goals: Mapping[str, MigGoal], *, mode_only: bool, skip_reset: bool
    ) -> tuple[GpuPlan, ...]:
        executor = MigExecutor(self.driver, held=self.held, reset=None if skip_reset else self._reset)
        plans = executor.plan(goals)
        try:
            return executor.apply(goals, mode_only=mode_only)
        except MigResetNeeded:
            if not mode_only:
                raise
            return plans


def _as_saved(now: MigLayout, *, saved: SavedGpu) -> MigPlan | Verdict:
    return plan_restore(now, saved.layout(now.geometry))


def _modes(specs: Mapping[int, MigSpec]) -> dict[int, MigSpec]:
    return {index: MigSpec(spec.enabled, {}) for index, spec in specs.items()}


def _unfinished(one: MigGpu) -> str | None:
    """What a count of devices does not show."""
    mode = one.gpu.mig
    if mode is not None and mode.current != mode.pending:
        return f"GPU {one.gpu.index}: MIG will be {'on' if mode.pending else 'off'} when the GPU is reset"
    empty = [gi for gi in one.layout.instances if not gi.compute] if one.layout else []
    return f"GPU {one.gpu.index}: {empty[0]} has no compute instance" if empty else None


def _partitioned(one: MigGpu) -> MigLayout | None:
    return one.layout if one.spec.enabled else None
