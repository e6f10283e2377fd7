"""How long it takes to decide what to cut: one GPU, a machine of eight, a cluster.

    python bench/bench_mig_plan.py

Planning does no I/O and runs on one core: times are CPU time, so that other work on the machine is left out.
The layouts are random and all different, which is harder than a cluster is, whose GPUs are mostly cut alike.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace

from gpuslice.devices.mig import MigGeometry
from gpuslice.devices.miglayout import MigLayout, instance
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migspace import space_of
from gpuslice.devices.migtables import geometry_of
from gpuslice.placement.migcluster import MigDemand, MigGpu, plan_cluster
from gpuslice.placement.migplan import plan_besides, plan_exactly
from machine import percentiles, report

BALANCED = {"A100-40": "1g.5gb 1g.5gb 2g.10gb 3g.20gb", "A30": "1g.6gb 1g.6gb 2g.12gb"}
BALANCED["RTX-PRO-6000"] = "1g.24gb 1g.24gb-me 2g.48gb+gfx"


def some_layout(geometry: MigGeometry, random: random.Random) -> MigLayout:
    """A legal layout with every third instance in use."""
    now, space = MigLayout(geometry), space_of(geometry)
    for _ in range(random.randrange(8)):
        free = [(p, s) for p in geometry.profiles for s in space.starts(*space.state(now), p)]
        if free:
            profile, start = random.choice(free)
            gi = instance(geometry, profile.name, start, in_use=random.random() < 0.33)
            now = replace(now, instances=(*now.instances, gi))
    return now


def one_gpu(family: str) -> dict[str, object]:
    """Plans for single GPUs: a configuration, and one device more."""
    geometry, chance = geometry_of(family), random.Random(1)
    wanted = Counter(MigProfile.parse(name) for name in BALANCED[family].split())
    first, seconds = 0.0, []
    for number in range(500):
        now = some_layout(geometry, chance)
        more = Counter([chance.choice(geometry.profiles).name])
        start = time.process_time()
        plan_exactly(now, wanted)
        plan_besides(now, more)
        spent = time.process_time() - start
        if number:
            seconds.append(spent)
        else:
            first = spent
    return {"family": family, "first_ms": round(first * 1000, 3), **percentiles(seconds)}


def many_gpus(nodes: int, pods: int, rounds: int) -> dict[str, object]:
    """Nodes of eight A100 with random layouts, and pods with one or two devices each."""
    geometry, chance = geometry_of("A100-40"), random.Random(2)
    seconds = []
    placed = 0
    for _ in range(rounds):
        gpus = [
            MigGpu(f"n{number:04}", f"GPU-{number}-{i}", some_layout(geometry, chance))
            for number in range(nodes)
            for i in range(8)
        ]
        demands = [
            MigDemand(
                f"p{i:04}",
                Counter(p.name for p in chance.choices(geometry.profiles, k=chance.choice([1, 1, 2]))),
            )
            for i in range(pods)
        ]
        start = time.process_time()
        placed += len(plan_cluster(gpus, demands).placed)
        seconds.append(time.process_time() - start)
    return {"gpus": nodes * 8, "pods": pods, "placed": placed, **percentiles(seconds)}


def enumeration() -> list[dict[str, object]]:
    """Every layout of a family, for the first time."""
    found = []
    for family in ("A100-40", "A30", "RTX-PRO-6000"):
        space_of.cache_clear()
        start = time.process_time()
        count = sum(1 for _ in space_of(geometry_of(family)).layouts())
        found.append(
            {"family": family, "layouts": count, "ms": round((time.process_time() - start) * 1000, 1)}
        )
    return found


def main() -> None:
    report(
        "mig_plan",
        {
            "enumeration": enumeration(),
            "one_gpu": [one_gpu(family) for family in BALANCED],
            "eight_gpus": many_gpus(1, 8, 50),
            "cluster": [many_gpus(20, 50, 3), many_gpus(200, 100, 1)],
        },
    )


if __name__ == "__main__":
    main()
