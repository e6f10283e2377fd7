"""What is done to the MIG instances of a machine, for people and programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from gpuslice.cli.output import Report
from gpuslice.node.mig.executor import GpuPlan
from gpuslice.placement.migsteps import Action, Step

_RESETS = "8."
"""Compute capability of Ampere, whose MIG mode changes by a reset (MIG user guide, "Enable MIG Mode")."""


class InstanceReport(Report, frozen=True):
    profile: str
    placement: str


class GpuPlanReport(Report, frozen=True):
    index: int
    uuid: str
    name: str
    mig_mode: bool
    mig_mode_pending: bool
    mig_mode_wanted: bool
    resets: bool
    destroy: tuple[InstanceReport, ...]
    create: tuple[InstanceReport, ...]
    keep: tuple[InstanceReport, ...]


class PlanReport(Report, frozen=True):
    gpus: list[GpuPlanReport]


def report(plans: Iterable[GpuPlan], *, mode_only: bool = False) -> PlanReport:
    """By GPU. A MIG device is a line each; its place is that of its GPU instance, start:size."""
    return PlanReport([_gpu(plan, mode_only) for plan in plans])


def table(plans: Iterable[GpuPlan], *, mode_only: bool = False) -> str:
    """The same for people; GPUs with which the same is done are told once."""
    alike: dict[GpuPlanReport, list[int]] = {}
    for gpu in report(plans, mode_only=mode_only).gpus:
        alike.setdefault(msgspec.structs.replace(gpu, index=0, uuid=""), []).append(gpu.index)
    lines: list[str] = []
    for gpu, indexes in alike.items():
        changes = _mode(gpu)
        if not (changes or gpu.destroy or gpu.create):
            changes = "nothing to do"
        which = ",".join(map(str, indexes))
        lines.append(f"GPU {which} ({gpu.name})" + (f": {changes}" if changes else ""))
        for word, instances in (("destroy", gpu.destroy), ("keep", gpu.keep), ("create", gpu.create)):
            lines += [f"  {word:<8} {one.profile:<12} at {one.placement}" for one in instances]
    return "".join(f"{line}\n" for line in lines)


def _mode(gpu: GpuPlanReport) -> str:
    if gpu.mig_mode == gpu.mig_mode_wanted:
        return "" if gpu.mig_mode_pending == gpu.mig_mode else f"MIG stays {_on(gpu.mig_mode)} after a reset"
    return f"MIG {_on(gpu.mig_mode)} -> {_on(gpu.mig_mode_wanted)}" + (", by a reset" if gpu.resets else "")


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"


def _gpu(planned: GpuPlan, mode_only: bool) -> GpuPlanReport:
    gpu, plan = planned.gpu, planned.plan
    now = gpu.mig is not None and gpu.mig.current
    if mode_only and planned.enabled:
        plan = replace(plan, steps=())
    # An instance that is empty is no MIG device, but it goes and comes, too.
    spoken = {step.start for step in plan.steps if step.action in (Action.DESTROY_CI, Action.CREATE_CI)}
    destroy = [step for step in plan.steps if step.destroys and _told(step, spoken)]
    create = [step for step in plan.steps if not step.destroys and _told(step, spoken)]
    gone = {(step.start, step.ci_id) for step in destroy if step.action is Action.DESTROY_CI}
    keep = tuple(
        InstanceReport(str(gi.device(ci)), gi.profile.window(gi.start))
        for gi in plan.before.instances
        for ci in gi.compute
        if (gi.start, ci.id) not in gone
    )
    return GpuPlanReport(
        gpu.index,
        gpu.uuid,
        gpu.name,
        now,
        gpu.mig is not None and gpu.mig.pending,
        planned.enabled,
        now != planned.enabled and gpu.compute_capability.startswith(_RESETS),
        _instances(destroy),
        _instances(create),
        keep,
    )


def _told(step: Step, spoken: set[int]) -> bool:
    return step.slices > 0 or step.start not in spoken


def _instances(steps: Sequence[Step]) -> tuple[InstanceReport, ...]:
    return tuple(
        InstanceReport(
            str(replace(step.profile.name, compute=step.slices or step.profile.slices)),
            step.profile.window(step.start),
        )
        for step in steps
    )
