"""Plans the way back to a recorded layout: the same instances in the same places.

A plan for a number of devices chooses the places (`migplan`); a checkpoint gives them. What is in its place
already stays, and what is in use is never touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpuslice.devices.miglayout import ComputeInstance, GpuInstance, MigLayout
from gpuslice.devices.migspace import space_of
from gpuslice.placement.migsteps import Action, MigPlan, Step, create_parts, destroy_parts
from gpuslice.placement.verdict import Code, Verdict


def plan_restore(now: MigLayout, target: MigLayout) -> MigPlan | Verdict:
    """To exactly the instances of `target`, in their places; ids and who uses what are not compared.

    A verdict if this GPU cannot be partitioned so, or if something in use is not in the target or lies
    elsewhere.
    """
    made = MigLayout(now.geometry, target.instances)
    if (fault := made.fault) is not None:
        return Verdict(Code.MIG_IMPOSSIBLE, fault, {"wanted": len(target.instances)})
    goal = {(gi.profile, gi.start): Counter(ci.slices for ci in gi.compute) for gi in target.instances}
    for gi in now.instances:
        used = Counter(ci.slices for ci in gi.compute if ci.in_use)
        if used - goal.get((gi.profile, gi.start), Counter()):
            count = sum(one.in_use for one in now.instances)
            return Verdict(Code.MIG_IN_USE, f"{gi} is in use and would have to go", {"in_use": count})
    steps: list[Step] = []
    stay: dict[int, tuple[ComputeInstance, ...]] = {}
    for gi in now.instances:
        wanted = goal.get((gi.profile, gi.start))
        keep = tuple(_kept(gi, wanted or Counter()))
        steps += destroy_parts(gi, [ci for ci in gi.compute if ci not in keep])
        if wanted is None:
            steps.append(Step(Action.DESTROY_GI, gi.profile, gi.start, gi.id))
        else:
            stay[gi.start] = keep
    for gi in sorted(target.instances, key=lambda gi: (-gi.profile.size, -gi.profile.slices, gi.start)):
        there = now.at(gi.start) if gi.start in stay else None
        number = now.geometry.gi_id(gi.profile, gi.start) if there is None else there.id
        keep = stay.get(gi.start, ())
        missing = Counter(ci.slices for ci in gi.compute) - Counter(ci.slices for ci in keep)
        if there is None:
            steps.append(Step(Action.CREATE_GI, gi.profile, gi.start, number))
        parts = sorted(missing.elements(), reverse=True)
        steps += create_parts(gi.profile, gi.start, number, parts, keep)
    space = space_of(now.geometry)
    return MigPlan(now, tuple(steps), space.future(*space.state(made)))


def _kept(gi: GpuInstance, wanted: Counter[int]) -> Iterator[ComputeInstance]:
    """Compute instances that can stay: as many of each size as are wanted, those in use first."""
    left = wanted.copy()
    for ci in sorted(gi.compute, key=lambda ci: (not ci.in_use, ci.id)):
        if left[ci.slices]:
            left[ci.slices] -= 1
            yield ci
