"""A plan for the MIG instances of one GPU: single steps, each of which the driver does whole or not at all.

All instances that go are destroyed before any is created, so that every state on the way is a part of a legal
layout and legal itself. Every step has an inverse, so that a plan can be undone from wherever it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, reduce

from gpuslice.devices.mig import GiProfile
from gpuslice.devices.miglayout import ComputeInstance, GpuInstance, MigLayout
from gpuslice.errors import InputError


class Action(StrEnum):
    """What a step does: NVML has one call for each."""

    DESTROY_CI = "destroy compute instance"
    DESTROY_GI = "destroy GPU instance"
    CREATE_GI = "create GPU instance"
    CREATE_CI = "create compute instance"


_OPPOSITE = {
    Action.DESTROY_CI: Action.CREATE_CI,
    Action.DESTROY_GI: Action.CREATE_GI,
    Action.CREATE_GI: Action.DESTROY_GI,
    Action.CREATE_CI: Action.DESTROY_CI,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One call to the driver. The GPU instance is meant by its place: `profile` at `start`.

    `slices` is the size of the compute instance, 0 for steps of GPU instances. `gi_id` and `ci_id` are the
    ids that it has, or that it will have unless the driver numbers otherwise.
    """

    action: Action
    profile: GiProfile
    start: int
    gi_id: int
    slices: int = 0
    ci_id: int = 0

    @property
    def inverse(self) -> Step:
        """The step that undoes this one."""
        return replace(self, action=_OPPOSITE[self.action])

    @property
    def destroys(self) -> bool:
        """True if something that was there is gone afterwards."""
        return self.action in (Action.DESTROY_CI, Action.DESTROY_GI)

    def apply(self, layout: MigLayout) -> MigLayout:
        """The layout after this step. Raises InputError if the driver would refuse it."""
        after = self.change(layout)
        if not self.destroys and (fault := after.fault) is not None:
            raise InputError(f"{self} is impossible: {fault}")
        return after

    def change(self, layout: MigLayout) -> MigLayout:
        """As `apply`, but without checking whether the rules allow what is created."""
        there = layout.at(self.start)
        if self.action is Action.CREATE_GI:
            made = GpuInstance(self.profile, self.start, self.gi_id)
            return replace(layout, instances=(*layout.instances, made))
        if there is None or there.profile != self.profile:
            raise InputError(f"{self} is impossible: there is no such GPU instance")
        if self.action is Action.DESTROY_GI:
            if there.compute:
                raise InputError(f"{self} is impossible: it has compute instances")
            return replace(layout, instances=tuple(gi for gi in layout.instances if gi is not there))
        changed = replace(there, compute=self._compute(there))
        return replace(layout, instances=tuple(changed if gi is there else gi for gi in layout.instances))

    def _compute(self, there: GpuInstance) -> tuple[ComputeInstance, ...]:
        if self.action is Action.CREATE_CI:
            return (*there.compute, ComputeInstance(self.slices, self.ci_id))
        gone = next((ci for ci in there.compute if ci.id == self.ci_id and ci.slices == self.slices), None)
        if gone is None:
            raise InputError(f"{self} is impossible: there is no such compute instance")
        if gone.in_use:
            raise InputError(f"{self} is impossible: it is in use")
        return tuple(ci for ci in there.compute if ci is not gone)

    def __str__(self) -> str:
        where = f"{self.profile} at {self.profile.window(self.start)}"
        if self.action in (Action.CREATE_GI, Action.DESTROY_GI):
            return f"{self.action} {where}"
        device = replace(self.profile.name, compute=self.slices)
        return f"{self.action} {device} in {where}"


@lru_cache(4096)
def step_of(
    action: Action, profile: GiProfile, start: int, gi_id: int, slices: int = 0, ci_id: int = 0
) -> Step:
    """That step, the same one each time: thousands of plans that are remembered are made of a few hundred."""
    return Step(action, profile, start, gi_id, slices, ci_id)


@dataclass(frozen=True, slots=True)
class MigPlan:
    """How one GPU comes from `before` to `after`. Without steps it is there already.

    `future` is how many placements (of a single instance, by profile and start) remain possible then.
    """

    before: MigLayout
    steps: tuple[Step, ...]
    future: int

    @property
    def after(self) -> MigLayout:
        """The layout when all steps are done."""
        return reduce(lambda layout, step: step.change(layout), self.steps, self.before)

    @property
    def destroyed(self) -> int:
        """How many GPU and compute instances it destroys. None of them is in use."""
        return sum(step.destroys for step in self.steps)

    def states(self) -> tuple[MigLayout, ...]:
        """The layouts on the way: before the first step, and after each."""
        found = [self.before]
        for step in self.steps:
            found.append(step.apply(found[-1]))
        return tuple(found)

    def rollback(self, done: int) -> tuple[Step, ...]:
        """The steps that lead back to `before` when the first `done` have been taken."""
        return tuple(step.inverse for step in reversed(self.steps[:done]))


def destroy_parts(gi: GpuInstance, parts: Iterable[ComputeInstance]) -> Iterator[Step]:
    """Steps that destroy compute instances of a GPU instance."""
    for ci in parts:
        yield step_of(Action.DESTROY_CI, gi.profile, gi.start, gi.id, ci.slices, ci.id)


def create_parts(
    profile: GiProfile, start: int, gi_id: int, sizes: Iterable[int], there: Iterable[ComputeInstance]
) -> Iterator[Step]:
    """Steps that create compute instances beside those that are there, with the lowest free ids."""
    taken = {ci.id for ci in there}
    for size in sizes:
        number = next(n for n in range(profile.slices) if n not in taken)
        taken.add(number)
        yield step_of(Action.CREATE_CI, profile, start, gi_id, size, number)
