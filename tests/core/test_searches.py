"""Every search has a bound, whatever a pod asks for: adversarial inputs, counted in steps, never in time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import favourite

from gpuslice import names
from gpuslice.devices.inventory import Gpu, NodeGpus, ReplicaRule
from gpuslice.devices.miglayout import MigLayout
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migtables import geometry_of
from gpuslice.placement import migcluster, whole
from gpuslice.placement.fleet import CODES, PASS_STEPS, Fleet
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.migcluster import MigDemand, MigGpu, plan_cluster
from gpuslice.placement.migplan import plan_besides
from gpuslice.placement.node import place
from gpuslice.placement.policies import KNOWN
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.policies.spread import SPREAD
from gpuslice.placement.preempt import VICTIM_STEPS, Holder, choose_victims
from gpuslice.placement.search import MOST_LEGS, STEPS, Leg, Picks, Steps, divide
from gpuslice.placement.verdict import Code, Verdict
from gpuslice.requests.allocation import Allocation, Charge
from gpuslice.requests.kinds import REPLICAS, SHARES, WHOLE_GPUS
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role
from gpuslice.units import MemoryUnit

GIB = MemoryUnit(1024)
PLENTY = 10**9
A100 = geometry_of("A100-40")
ONE = MigProfile.parse("1g.5gb")


def legs_of(sizes: list[int], gpus: int = 1, unit: int = 1024) -> list[Leg]:
    return [Leg(size * unit, gpus) for size in sorted(sizes, reverse=True)]


def rooms_of(free: list[int], unit: int = 1024) -> list[tuple[int, int]]:
    return [(mib * unit, index) for index, mib in enumerate(free)]


def ask(legs: list[Leg], rooms: list[tuple[int, int]], policy: Policy) -> tuple[Picks | Code, int]:
    steps = Steps(PLENTY)
    return divide(legs, rooms, policy, steps), PLENTY - steps.left


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([1, 1, 2, 3])), max_size=5),
    st.lists(st.tuples(st.integers(-2, 15), st.sampled_from([0, 0, 300, 773])), max_size=5),
    st.sampled_from(list(KNOWN.values())),
)
def test_the_first_in_the_order_of_preference_is_found(
    wanted: list[tuple[int, int]], free: list[tuple[int, int]], policy: Policy
) -> None:
    """What is left out on the way changes neither whether there is an answer nor which comes first."""
    legs = [Leg(size * 1024, gpus) for size, gpus in sorted(wanted, key=lambda w: (-w[1], -w[0]))]
    rooms = [(gib * 1024 + more, index) for index, (gib, more) in enumerate(free)]
    found, _ = ask(legs, rooms, policy)
    expected = favourite([(leg.mib, leg.gpus) for leg in legs], rooms, policy)
    assert found == (Code.INSUFFICIENT if expected is None else expected)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(list(KNOWN.values())), st.sampled_from([1, 1, 2]))
def test_how_gpus_are_numbered_changes_nothing(chance: random.Random, policy: Policy, gpus: int) -> None:
    """The same answer in as many steps, and the same rooms are left, also where the steps run out."""
    sizes = [chance.randint(9, 41) for _ in range(chance.choice([3, 5, 20, 32]))]
    free = [chance.randint(40, 130) for _ in range(chance.randint(4, 8))]

    def told(free: list[int]) -> tuple[object, int]:
        found, used = ask(legs_of(sizes, gpus), rooms_of(free), policy)
        if isinstance(found, Code):
            return found, used
        left = [gib * 1024 for gib in free]
        for leg, pick in zip(legs_of(sizes, gpus), found, strict=True):
            for index in pick:
                left[index] -= leg.mib
        return sorted(left), used

    assert told(free) == told(chance.sample(free, len(free)))


def tight(
    count: int, gpus: int, size: int, seed: int, unit: int = 1024
) -> tuple[list[Leg], list[tuple[int, int]]]:
    """Odd sizes that add up to exactly what there is: by their sum nothing speaks against them."""
    chance = random.Random(seed)
    sizes = [2 * chance.randint(size // 8, size // 4) + 1 for _ in range(count)]
    free = [sum(sizes) // gpus] * gpus
    for index in range(sum(sizes) % gpus):
        free[index] += 1
    return legs_of(sizes, unit=unit), rooms_of(free, unit)


@pytest.mark.parametrize("policy", KNOWN.values())
@pytest.mark.parametrize(("containers", "gpus"), [(32, 8), (32, 16), (48, 16)])
def test_32_containers_of_odd_sizes_end_after_a_few_steps(policy: Policy, containers: int, gpus: int) -> None:
    """On 8 GPUs they took over a minute and half a gigabyte."""
    codes: Counter[Code] = Counter()
    for seed in range(20):
        found, used = ask(*tight(containers, gpus, 80, seed), policy)
        assert used <= STEPS
        codes[found if isinstance(found, Code) else Code.FITS] += 1
    assert codes[Code.UNDECIDED] or containers == 2 * gpus, "none was hard: the test looks at nothing"


@pytest.mark.parametrize("gpus", [2, 5, 8])
def test_containers_spread_over_gpus_end_after_a_few_steps(gpus: int) -> None:
    chance = random.Random(gpus)
    for _ in range(20):
        sizes = [chance.randint(3, 60) for _ in range(chance.randint(4, 32))]
        free = [chance.randint(40, 80) for _ in range(16)]
        assert ask(legs_of(sizes, gpus), rooms_of(free), SPREAD)[1] <= STEPS


def test_mebibytes_and_giant_gpus_take_no_more_steps() -> None:
    for unit, size in ((1, 81_251), (1, 4_000_000), (7, 1 << 27)):
        for seed in range(3):
            assert ask(*tight(32, 8, size, seed, unit), BINPACK)[1] <= STEPS


def test_pods_of_up_to_three_containers_are_always_decided() -> None:
    chance = random.Random(1)
    for _ in range(300):
        free = [chance.randint(0, 40) for _ in range(chance.randint(1, 19))]
        sizes = [chance.randint(1, 25) for _ in range(chance.randint(1, 3))]
        assert (
            ask(legs_of(sizes), rooms_of(free), chance.choice(list(KNOWN.values())))[0] is not Code.UNDECIDED
        )


def test_equal_containers_on_equal_gpus_need_no_search() -> None:
    """60 containers that fit 7 to a GPU do not fit on 8 GPUs, and nobody tries 8**60 ways."""
    found, used = ask(legs_of([11] * 60), rooms_of([80] * 8), BINPACK)
    assert (found, used) == (Code.INSUFFICIENT, 56)


def test_equal_gpus_and_states_that_failed_are_tried_once() -> None:
    """Nothing but trying says no here: twice as many steps if each equal GPU is tried, thrice without memory."""
    sizes = [7, 7, 7, 7, 7, 6, 6, 6, 6, 6, 5, 4, 4, 4, 4]
    found, used = ask(legs_of(sizes), rooms_of([15] * 6), BINPACK)
    assert found is Code.INSUFFICIENT
    assert used <= 70


@pytest.mark.parametrize(
    ("sizes", "free"),
    [
        ([8, 7, 7, 6, 5, 5], [11, 14, 13]),
        ([9, 8, 7, 6, 6, 5, 5], [14, 12, 8, 14]),
        ([5, 5, 4, 4, 2], [14, 6]),
    ],
)
def test_what_fits_only_after_turning_back_is_not_ruled_out(sizes: list[int], free: list[int]) -> None:
    """No more legs could be there, and the tightest GPUs first is no way: the glance leaves it to the search."""
    assert not isinstance(ask(legs_of(sizes), rooms_of(free), SPREAD)[0], Code)
    fleet = fleet_of([free])
    assert fleet.codes(pod(sizes))[fleet.rows(["n0000"])[0]] == 0


# --- a pod --------------------------------------------------------------------------------------------
def pod(sizes: list[int], *, whole: int = 0) -> PodRequest:
    shares = [ContainerRequest(f"c{number}", Role.APP, SHARES, size) for number, size in enumerate(sizes)]
    return PodRequest((*shares, *([ContainerRequest("w", Role.APP, WHOLE_GPUS, whole)] if whole else [])))


HARD, FREE = next(
    ([leg.mib // 1024 for leg in legs], [mib // 1024 for mib, _ in rooms])
    for legs, rooms in (tight(32, 8, 80, seed) for seed in range(99))
    if divide(legs, rooms, BINPACK) is Code.UNDECIDED
)


def node(free: list[int], name: str = "") -> list[FreeGpu]:
    return [FreeGpu(Gpu(i, f"{name}GPU-{i}", "m", 200 * 1024), gib * 1024, 1) for i, gib in enumerate(free)]


@pytest.mark.parametrize("policy", KNOWN.values())
def test_what_was_not_decided_says_so_and_what_to_do(policy: Policy) -> None:
    """Never "insufficient": with other sizes, or after another pod has left, it may fit."""
    verdict = place(pod(HARD), GIB, node(FREE), policy)
    assert isinstance(verdict, Verdict)
    assert verdict.code is Code.UNDECIDED
    assert not verdict.ok
    assert "too many ways" in verdict.message
    assert "fewer different sizes" in verdict.message
    assert isinstance(place(pod(HARD), GIB, node([gib + 4 for gib in FREE]), policy), Allocation)
    assert isinstance(place(pod(sorted(HARD)[:-1]), GIB, node([200] * 8), policy), Allocation)


def test_more_containers_than_anybody_has_are_not_looked_at() -> None:
    many = pod([1] * (MOST_LEGS + 1))
    verdict = place(many, GIB, node([40] * 8))
    assert isinstance(verdict, Verdict)
    assert verdict.code is Code.UNDECIDED
    assert isinstance(place(many, GIB, node([70])), Allocation), "together on one GPU they are one"


# --- a cluster ----------------------------------------------------------------------------------------
def fleet_of(nodes: list[list[int]]) -> Fleet:
    fleet = Fleet()
    for number, free in enumerate(nodes):
        name = f"n{number:04}"
        fleet.set_node(
            name, NodeGpus(tuple(Gpu(i, f"{name}-{i}", "m", gib * 1024) for i, gib in enumerate(free)), GIB)
        )
    return fleet


def different_nodes(count: int) -> list[list[int]]:
    """All as hard as `FREE`, no two alike."""
    chance = random.Random(2)
    nodes = []
    for number in range(count):
        free = list(FREE)
        for _ in range(1 + number % 9):
            one, other = chance.sample(range(len(free)), 2)
            free[one], free[other] = free[one] + 1, free[other] - 1
        nodes.append([*free, 1 + number % 3])
    return nodes


def test_all_nodes_together_have_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many different nodes as one likes: the last ones are not asked, and say so."""
    whole = Steps.__init__

    def counting(self: Steps, left: int = STEPS) -> None:
        whole(self, left)
        if left == PASS_STEPS:
            kept.append(self)

    kept: list[Steps] = []
    monkeypatch.setattr(Steps, "__init__", counting)
    codes = fleet_of(different_nodes(300)).codes(pod(HARD))
    used = [PASS_STEPS - steps.left for steps in kept]
    assert used
    assert max(used) <= PASS_STEPS
    said = Counter(CODES[code] for code in codes[1:].tolist())
    assert said[Code.UNDECIDED] > 250
    assert said.keys() <= {Code.UNDECIDED, Code.FITS, Code.INSUFFICIENT}


def test_a_node_with_room_is_found_beyond_the_budget() -> None:
    """Where nobody has to turn back the array view is sure by itself, however many nodes are hopelessly hard."""
    fleet = fleet_of([*different_nodes(300), [200] * 8])
    codes = fleet.codes(pod(HARD))
    assert CODES[codes[fleet.rows(["n0300"])[0]]] is Code.FITS


def test_filter_and_the_single_node_say_the_same_of_hard_pods() -> None:
    fleet = fleet_of([FREE, [gib + 4 for gib in FREE], [gib - 1 for gib in FREE], different_nodes(3)[1]])
    codes = fleet.codes(pod(HARD))[fleet.rows(fleet.names())]
    for policy in KNOWN.values():
        assert [CODES[c] for c in codes] == [fleet.verdict(pod(HARD), n, policy).code for n in fleet.names()]
    assert CODES[codes[0]] is Code.UNDECIDED


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_glance_at_many_nodes_says_what_each_says_alone(data: st.DataObject) -> None:
    """Pods of many containers, some with a whole GPU besides, on nodes of several units."""
    fleet = Fleet()
    for number in range(data.draw(st.integers(1, 5))):
        unit = data.draw(st.sampled_from([MemoryUnit(1024), MemoryUnit(512), MemoryUnit(1)]))
        lone = data.draw(st.sampled_from([False, False, True]))
        gpus = [
            Gpu(
                i,
                f"n{number}-{i}",
                "m",
                data.draw(st.integers(0, 40)) * 512 + data.draw(st.sampled_from([0, 7])),
                lone=lone,
            )
            for i in range(data.draw(st.integers(1, 6)))
        ]
        fleet.set_node(f"n{number}", NodeGpus(tuple(gpus), unit))
        for gpu in gpus:
            if data.draw(st.booleans()):
                charge = Charge(gpu.uuid, data.draw(st.integers(0, 40)) * 512, whole=False)
                fleet.charge(f"n{number}", [charge], PodRequest())
    across = data.draw(st.sampled_from([1, 1, 2]))
    scale = data.draw(st.sampled_from([1, 512]))
    request = PodRequest(
        (
            *[
                ContainerRequest(f"c{i}", Role.APP, SHARES, scale * units * across, across)
                for i, units in enumerate(data.draw(st.lists(st.integers(1, 15), min_size=1, max_size=9)))
            ],
            *[
                ContainerRequest("w", Role.APP, WHOLE_GPUS, n)
                for n in data.draw(st.sampled_from([[], [1], [2]]))
            ],
        )
    )
    codes = fleet.codes(request)[fleet.rows(fleet.names())]
    for name, code in zip(fleet.names(), codes, strict=True):
        assert CODES[code] is fleet.verdict(request, name).code, name


# --- victims ------------------------------------------------------------------------------------------
def test_victims_of_a_hard_pod_have_a_budget_and_nobody_leaves_in_doubt() -> None:
    holders = [
        Holder(f"h{i}-{j}", 1, (Charge(f"GPU-{i}", 1024, whole=False),)) for i in range(8) for j in range(7)
    ]
    steps = Steps(VICTIM_STEPS)
    assert choose_victims(pod(HARD), GIB, node(FREE), holders, 10, steps) is None, "it may fit as it is"
    assert VICTIM_STEPS - steps.left <= STEPS
    steps = Steps(VICTIM_STEPS)
    chosen = choose_victims(pod(HARD), GIB, node([gib - 7 for gib in FREE]), holders, 10, steps)
    assert steps.left >= 0
    assert chosen is None or not isinstance(
        place(pod(HARD), GIB, _without(node([gib - 7 for gib in FREE]), chosen)), Verdict
    )


def _without(rooms: list[FreeGpu], gone: tuple[Holder, ...]) -> list[FreeGpu]:
    freed = Counter(charge.gpu for holder in gone for charge in holder.charges)
    return [FreeGpu(r.gpu, r.free_mib + 1024 * freed[r.gpu.uuid], r.holders) for r in rooms]


# --- whole devices and MIG ----------------------------------------------------------------------------
def test_replicas_that_cannot_be_had_are_refused_without_trying_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """448 of them, and 50 containers that ask for one of each of 8 GPUs: one look, not one per replica."""
    looks = 0
    possible = whole.possible

    def counting(*args: Any, **more: Any) -> bool:
        nonlocal looks
        looks += 1
        return possible(*args, **more)

    monkeypatch.setattr(whole, "possible", counting)
    rooms = [
        FreeGpu(Gpu(n, uuid, "m", 10, resource=names.SHARED_GPU, replica_rule=ReplicaRule.OTHER_DEVICES), 10)
        for n, uuid in enumerate(f"GPU-{n % 8}::{n // 8}" for n in range(397))
    ]
    asking = [ContainerRequest(f"c{n}", Role.APP, REPLICAS, 8) for n in range(49)]
    fits = place(PodRequest(tuple(asking)), GIB, [*rooms, *_like(rooms[0], 3)])
    assert isinstance(fits, Allocation)
    looks = 0
    uneven = [r for r in rooms if r.gpu.device != "GPU-7"] + _like(rooms[0], 60)
    verdict = place(PodRequest(tuple(asking[:45])), GIB, uneven)
    assert isinstance(verdict, Verdict)
    assert verdict.code is Code.SAME_DEVICE
    assert looks <= 2


def _like(room: FreeGpu, count: int) -> list[FreeGpu]:
    return [
        replace(room, gpu=replace(room.gpu, index=1000 + n, uuid=f"{room.gpu.device}::{1000 + n}"))
        for n in range(count)
    ]


def test_more_mig_devices_than_can_be_counted_out_are_refused() -> None:
    """Two billion of them were written down one by one, for one pod."""
    gpus = [MigGpu("n", f"g{i}", MigLayout(A100, ()), index=i) for i in range(2)]
    few, many = MigDemand("few", {ONE: 2}), MigDemand("many", {ONE: 2_000_000_000})
    plan = plan_cluster(gpus, [many, few])
    assert [placed.pod for placed in plan.placed] == ["few"]
    assert plan.refused["many"].code is Code.MIG_NO_ROOM
    part = MigProfile.parse("1c.7g.40gb")
    outcome = plan_besides(MigLayout(A100, ()), {part: 2_000_000_000})
    assert isinstance(outcome, Verdict)
    assert "14000000000" not in outcome.message
    assert "2000000000 compute slices" in outcome.message


def test_mig_devices_of_a_pod_are_placed_within_a_number_of_dead_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the pods beside it get theirs."""
    calls = 0
    options = migcluster.States.options

    def counting(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        return options(self, *args)

    monkeypatch.setattr(migcluster.States, "options", counting)
    monkeypatch.setattr(migcluster, "DEAD_ENDS", 40)
    sizes = {"3g.20gb": 6, "4g.20gb": 3, "1g.5gb": 8, "1g.10gb": 8, "2g.10gb": 4}
    hard = MigDemand("hard", {MigProfile.parse(name): count for name, count in sizes.items()})
    gpus = [MigGpu("n", f"g{i}", MigLayout(A100, ()), index=i) for i in range(8)]
    plan = plan_cluster(gpus, [hard])
    assert plan.refused["hard"].code is Code.UNDECIDED
    assert "ask for fewer devices" in plan.refused["hard"].message
    assert calls <= migcluster.FEWEST_ROUNDS * (40 + len(hard.devices)) * 2
    plan = plan_cluster(gpus, [hard, MigDemand("small", {ONE: 1})])
    assert [placed.pod for placed in plan.placed] == ["small"]
