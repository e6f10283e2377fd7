"""MIG on demand over time, on every family: pods come and go, the machine is killed between any two calls.

The parts are those that run on a cluster: the plan for the pods that wait, what the node is told, and the
executor that makes it so on a driver; only the API server between them is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import cast

import pytest
from nvml_world import machine

from gpuslice.cluster.migrecords import (
    Target,
    decode_partitions,
    decode_wanted,
    encode_partitions,
    encode_wanted,
    placements,
    target_layout,
)
from gpuslice.devices.catalogue import MODELS
from gpuslice.devices.miglayout import MigLayout
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migspace import space_of
from gpuslice.names import MIG_PARTITIONS, MIG_WANTED
from gpuslice.node.discovery.driver import Driver
from gpuslice.node.discovery.simulated import SimulatedDriver
from gpuslice.node.mig.executor import MigExecutor, MigGoal, MigRefused
from gpuslice.node.mig.reset import reset_of
from gpuslice.node.mig.survey import survey
from gpuslice.placement.migcluster import MigDemand
from gpuslice.placement.migdemand import DemandGpu, plan_demand
from gpuslice.placement.migrestore import plan_restore
from gpuslice.placement.migsteps import MigPlan

MODEL_OF = {model.mig_family: model.name for model in MODELS if model.mig_family}
MAKES = ("set_mig_mode", "create_", "destroy_")
EVENTS = 40


class Killed(BaseException):
    """The machine stops, without a word."""


class Mortal:
    """A driver of a machine that dies at some of the calls that change something."""

    def __init__(self, driver: SimulatedDriver, dice: Random, chance: float) -> None:
        self._driver, self._dice, self._chance = driver, dice, chance
        self.guarded: set[str] = set()
        """UUIDs of MIG devices that containers hold."""

    def __getattr__(self, name: str) -> object:
        found = getattr(self._driver, name)
        if not name.startswith(MAKES):
            return found

        def call(*arguments: object) -> object:
            if self._dice.random() < self._chance:
                raise Killed
            answer = found(*arguments)
            there = {mig.uuid for gpu in self._driver.query().gpus for mig in gpu.mig_devices}
            assert self.guarded <= there, f"{name}{arguments} took what is in use"
            return answer

        return call


class World:
    """One node with two GPUs, its annotations, and pods."""

    def __init__(self, family: str, seed: int) -> None:
        self.dice = Random(seed)
        self.paper = SimulatedDriver(machine(f"{{gpus: [{{model: {MODEL_OF[family]}, count: 2}}]}}"))
        self.mortal = Mortal(self.paper, self.dice, 0.1)
        self.driver = cast("Driver", self.mortal)
        self.annotations: dict[str, str] = {}
        self.waiting: dict[str, Counter[MigProfile]] = {}
        self.running: dict[str, tuple[str, ...]] = {}
        self.drains = bool(seed % 2)

    @property
    def held(self) -> set[str]:
        return {uuid for uuids in self.running.values() for uuid in uuids}

    def plan(self) -> None:
        """What whoever looks at the pods writes; it knows nothing but the annotations."""
        self.annotations[MIG_PARTITIONS] = encode_partitions(survey(self.paper).partitions)
        wanted = decode_wanted(self.annotations)
        gpus = []
        for partitioned in decode_partitions(self.annotations):
            layout, enabled = partitioned.marked(self.held), partitioned.enabled
            if partitioned.uuid in wanted:
                found = plan_restore(layout, target_layout(layout.geometry, wanted[partitioned.uuid]))
                if isinstance(found, MigPlan):
                    layout, enabled = found.after, wanted[partitioned.uuid] is not None
            idle = frozenset(gi.start for gi in layout.instances if self.dice.random() < 0.2)
            gpus.append(DemandGpu("n", partitioned.uuid, layout, enabled, drains=self.drains, idle_long=idle))
        plan = plan_demand(gpus, [MigDemand(name, spec) for name, spec in self.waiting.items()])
        targets: dict[str, Target] = {
            gpu.uuid: placements(gpu.layout) if gpu.enabled else None for gpu in gpus if gpu.uuid in wanted
        }
        targets |= {uuid: None if made is None else placements(made) for uuid, made in plan.targets.items()}
        self.annotations[MIG_WANTED] = encode_wanted(targets)

    def obey(self) -> None:
        """What the agent does, as often as it has to start anew."""
        goals = {
            uuid: MigGoal(target is not None, partial(_towards, target=target))
            for uuid, target in decode_wanted(self.annotations).items()
        }
        while True:
            self.mortal.guarded = self.held
            try:
                MigExecutor(self.driver, held=self.held, reset=reset_of(self.paper)).apply(goals)
            except Killed:
                continue
            break

    def follow(self) -> None:
        """What the scheduler and the kubelet do: idle devices to the pods that wait for such."""
        for name, spec in list(self.waiting.items()):
            idle: dict[MigProfile, list[str]] = {}
            for gpu in self.paper.query().gpus:
                for mig in gpu.mig_devices:
                    if mig.uuid not in self.held:
                        idle.setdefault(mig.profile, []).append(mig.uuid)
            if all(len(idle.get(profile, ())) >= count for profile, count in spec.items()):
                self.running[name] = tuple(u for p, count in spec.items() for u in idle[p][:count])
                del self.waiting[name]

    def layouts(self) -> Iterator[tuple[str, bool, MigLayout]]:
        for one in survey(self.paper).gpus:
            assert one.layout is not None
            yield one.gpu.uuid, bool(one.gpu.mig and one.gpu.mig.current), one.layout


def _towards(now: MigLayout, target: Target) -> object:
    return plan_restore(now, target_layout(now.geometry, target))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", MODEL_OF)
def test_pods_come_and_go_and_machines_die(family: str, seed: int) -> None:
    world = World(family, seed)
    geometry = next(world.layouts())[2].geometry
    profiles = [profile.name for profile in geometry.profiles]
    served = 0
    for number in range(EVENTS):
        if world.running and world.dice.random() < 0.4:
            del world.running[world.dice.choice(sorted(world.running))]
        else:
            spec = Counter(world.dice.choices(profiles, k=world.dice.choice([1, 1, 2])))
            if space_of(geometry).why_impossible(spec) is None:
                world.waiting[f"p{number}"] = spec
        waited = len(world.waiting)
        world.plan()
        try:
            world.obey()
        except MigRefused as error:
            pytest.fail(f"what was planned from what the node said cannot be: {error}")
        # Whatever happened on the way, the node is as its annotation says.
        wanted = decode_wanted(world.annotations)
        for uuid, enabled, layout in world.layouts():
            assert layout.fault is None
            if uuid in wanted:
                assert (placements(layout) if enabled else None) == wanted[uuid]
        world.follow()
        served += waited - len(world.waiting)
        if len(world.waiting) > 3:
            world.waiting.pop(next(iter(world.waiting)))  # somebody lost patience
    assert served > EVENTS // 8, "pods are served"
