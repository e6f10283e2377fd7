"""Every search of the engine on what is hardest for it: pods that a tenant writes to hold up everybody.

    python bench/bench_searches.py

Sizes are odd and add up to what there is, so that neither order nor sums say no. What cannot be decided
within the steps is counted as such. Times are those of the processor, so that a busy machine shows less.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.placement.fleet import CODES, Fleet
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.policies import KNOWN
from gpuslice.placement.preempt import Holder, choose_victims
from gpuslice.placement.search import Leg, divide
from gpuslice.placement.verdict import Code
from gpuslice.requests.allocation import Charge
from gpuslice.requests.kinds import SHARES, WHOLE_GPUS
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role
from gpuslice.units import MemoryUnit
from machine import percentiles, report

ROUNDS = 300
NODES = 5000
Question = tuple[list[int], list[int]]
"""Sizes of the containers, rooms of the GPUs."""


def just_right(chance: random.Random, containers: int, gpus: int, size: int) -> Question:
    """Odd sizes, and GPUs with as much room as they need together."""
    mean = size * gpus // containers
    sizes = [max(1, chance.randint(mean // 2, mean * 3 // 2) | 1) for _ in range(containers)]
    rooms = [sum(sizes) // gpus] * gpus
    for index in range(sum(sizes) % gpus):
        rooms[index] += 1
    return sizes, rooms


def thirds(chance: random.Random, _containers: int, gpus: int, size: int) -> Question:
    """Three to a GPU that fill it exactly, mixed up: there is an answer, but hardly any."""
    sizes: list[int] = []
    for _ in range(gpus):
        one, other = (chance.randint(size * 26 // 100, size * 40 // 100) for _ in range(2))
        sizes += [one, other, size - one - other]
    return sizes, [size] * gpus


def one_node(
    ask: Callable[[random.Random, int, int, int], Question],
    containers: int,
    gpus: int,
    size: int,
    across: int = 1,
) -> Iterator[dict[str, object]]:
    for policy in KNOWN.values():
        chance = random.Random(1)
        seconds: list[float] = []
        said: Counter[str] = Counter()
        for _ in range(ROUNDS):
            sizes, rooms = ask(chance, containers, gpus, size)
            legs = [Leg(mib, across) for mib in sorted(sizes, reverse=True)]
            start = time.thread_time()
            found = divide(legs, [(mib * across, index) for index, mib in enumerate(rooms)], policy)
            seconds.append(time.thread_time() - start)
            said[found.value if isinstance(found, Code) else "fits"] += 1
        yield {
            "question": ask.__name__,
            "containers": len(legs),
            "gpus": gpus,
            "of_each": size,
            "across": across,
            "policy": policy.name,
            "said": dict(said),
            **percentiles(seconds),
        }


def pod(sizes: list[int], whole: int = 0) -> PodRequest:
    shares = [ContainerRequest(f"c{i}", Role.APP, SHARES, size) for i, size in enumerate(sizes)]
    return PodRequest((*shares, *([ContainerRequest("w", Role.APP, WHOLE_GPUS, whole)] if whole else [])))


def one_filter(containers: int, size: int, unit: MemoryUnit, whole: int = 0) -> dict[str, object]:
    """One pod held against 5,000 nodes of 8 to 16 GPUs, hardly two alike.

    Pods of many containers find just as much room everywhere as they need together, others any.
    """
    chance = random.Random(3)
    sizes = [chance.randint(size // 8, size // 2) for _ in range(containers)]
    fleet = Fleet()
    for number in range(NODES):
        gpus = chance.randint(8, 16)
        rooms = [chance.randint(0, size) for _ in range(gpus)]
        if containers > 2 * gpus:
            rooms = [sum(sizes) // gpus + chance.randint(-size // 16, size // 16) for _ in range(gpus)]
            rooms[0] = max(*sizes, rooms[0] + sum(sizes) - sum(rooms))
        rooms += [size] * whole
        name = f"node-{number:05d}"
        mine = tuple(Gpu(i, f"{name}-{i}", "m", unit.to_mib(room)) for i, room in enumerate(rooms))
        fleet.set_node(name, NodeGpus(mine, unit))
    request = pod(sizes, whole)
    seconds = []
    for _ in range(20):
        start = time.thread_time()
        codes = fleet.codes(request)
        seconds.append(time.thread_time() - start)
    said = Counter(CODES[code].value for code in codes[1:].tolist() if CODES[code] is not Code.NODE_NOT_FOUND)
    return {
        "nodes": NODES,
        "containers": containers,
        "unit": str(unit),
        "whole": whole,
        "said": dict(said),
        **percentiles(seconds),
    }


def victims() -> dict[str, object]:
    """Who has to go from a node of 8 GPUs with 110 pods, so that 32 containers fit."""
    seconds = []
    chance = random.Random(5)
    for _ in range(30):
        sizes, rooms = just_right(chance, 32, 8, 80)
        holders = [Holder(f"h{i}", 1, (Charge(f"GPU-{i % 8}", 1024, whole=False),)) for i in range(110)]
        taken = Counter(i % 8 for i in range(110))
        free = [
            FreeGpu(Gpu(i, f"GPU-{i}", "m", 200 * 1024), (room - taken[i]) * 1024, 14)
            for i, room in enumerate(rooms)
        ]
        start = time.thread_time()
        choose_victims(pod(sizes), MemoryUnit(1024), free, holders, 10)
        seconds.append(time.thread_time() - start)
    return {"holders": 110, "containers": 32, "gpus": 8, **percentiles(seconds)}


def main() -> None:
    nodes = [
        *one_node(just_right, 32, 8, 80),
        *one_node(just_right, 32, 16, 80),
        *one_node(just_right, 32, 16, 81_251),
        *one_node(just_right, 32, 16, 294_912),
        *one_node(thirds, 24, 8, 80),
        *one_node(thirds, 48, 16, 80),
        *one_node(just_right, 32, 16, 80, 2),
        *one_node(just_right, 8, 16, 80, 8),
    ]
    filters = [
        one_filter(2, 40, MemoryUnit(1024)),
        one_filter(4, 40, MemoryUnit(1024)),
        one_filter(40, 80, MemoryUnit(1024)),
        one_filter(40, 80_000, MemoryUnit(1)),
        one_filter(2, 40, MemoryUnit(1024), whole=1),
        one_filter(40, 80, MemoryUnit(1024), whole=1),
    ]
    report("searches", {"one_node": nodes, "one_filter": filters, "victims": victims()})


if __name__ == "__main__":
    main()
