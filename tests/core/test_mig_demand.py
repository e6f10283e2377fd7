"""How GPUs that are partitioned on demand become: pods first, unpartitioned GPUs back for who waits, idle instances go."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from gpuslice.devices.miglayout import MigLayout, instance, layout
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migtables import geometry_of
from gpuslice.placement.migcluster import MigDemand
from gpuslice.placement.migdemand import DemandGpu, DemandPlan, WholeDemand, plan_demand
from gpuslice.placement.verdict import Code

A100 = geometry_of("A100-40")
HERE = frozenset(["a"])


def gpu(
    number: int,
    *placements: str,
    off: bool = False,
    node: str = "a",
    idle: tuple[int, ...] = (),
    drains: bool = False,
) -> DemandGpu:
    made = layout(A100, *placements)
    return DemandGpu(node, f"GPU-{number}", made, not off, drains=drains, idle_long=frozenset(idle))


def pod(name: str, *profiles: str, nodes: frozenset[str] = HERE) -> MigDemand:
    wanted = [MigProfile.parse(profile) for profile in profiles]
    return MigDemand(name, {profile: wanted.count(profile) for profile in wanted}, nodes)


def said(plan: DemandPlan) -> dict[str, list[str] | None]:
    return {
        uuid: None if made is None else [str(device) for gi in made.instances for device in gi.devices]
        for uuid, made in plan.targets.items()
    }


def test_a_gpu_that_is_cut_already_is_rather_cut_than_one_that_is_whole() -> None:
    plan = plan_demand(
        [gpu(0, off=True), gpu(1, off=True), gpu(2)], [pod("one", "2g.10gb"), pod("two", "3g.20gb")]
    )
    assert said(plan) == {"GPU-2": ["3g.20gb", "2g.10gb"]} or said(plan) == {"GPU-2": ["2g.10gb", "3g.20gb"]}


def test_of_equal_gpus_the_first_is_cut() -> None:
    gpus = [
        DemandGpu("a", uuid, layout(A100), index=index)
        for index, uuid in enumerate(["GPU-z", "GPU-m", "GPU-a"])
    ]
    assert set(plan_demand(gpus, [pod("one", "1g.5gb")]).targets) == {"GPU-z"}


def test_whole_gpus_are_cut_when_those_that_are_cut_are_full() -> None:
    plan = plan_demand(
        [gpu(0, off=True), gpu(1, "7g.40gb@0")], [pod("one", "7g.40gb"), pod("two", "7g.40gb")]
    )
    assert said(plan) == {"GPU-0": ["7g.40gb"]}
    assert {one.pod: one.devices[0][1] for one in plan.placed}.keys() == {"one", "two"}


def test_a_pod_gets_nothing_on_nodes_that_do_not_suit_it() -> None:
    plan = plan_demand([gpu(0, node="b")], [pod("one", "1g.5gb")])
    assert (said(plan), plan.refused["one"].code) == ({}, Code.MIG_UNKNOWN_PROFILE)
    plan = plan_demand([gpu(0, "7g.40gb@0"), gpu(1, node="b")], [pod("one", "1g.5gb")])
    assert (said(plan), plan.refused["one"].code) == ({}, Code.MIG_NO_ROOM)


def test_what_was_idle_for_long_goes_unless_a_pod_needs_the_gpu() -> None:
    gpus = [gpu(0, "1g.5gb@0", "2g.10gb@2", idle=(0,)), gpu(1, "1g.5gb@0", idle=(0,))]
    assert said(plan_demand(gpus, [])) == {"GPU-0": ["2g.10gb"], "GPU-1": []}
    plan = plan_demand(gpus, [pod("one", "1g.5gb")])
    (served,) = plan.placed
    assert served.devices[0][1] not in said(plan), "what the pod will get stays"


def test_a_gpu_that_is_in_use_keeps_what_is_in_use() -> None:
    used = DemandGpu(
        "a",
        "GPU-0",
        MigLayout(A100, (instance(A100, "1g.5gb", 0, in_use=True), instance(A100, "1g.5gb", 1))),
        idle_long=frozenset([0, 1]),
        drains=True,
    )
    assert said(plan_demand([used], [])) == {"GPU-0": ["1g.5gb"]}
    plan = plan_demand([used], [pod("all", "7g.40gb")])
    assert plan.refused["all"].code is Code.MIG_NO_ROOM
    assert said(plan) == {"GPU-0": ["1g.5gb"]}


def test_empty_gpus_come_back_whole_only_for_pods_that_need_them_and_only_as_many() -> None:
    gpus = [gpu(0, off=True), gpu(1), gpu(2), gpu(3, "1g.5gb@0")]
    assert said(plan_demand(gpus, [])) == {}
    assert said(plan_demand(gpus, [], [WholeDemand("two", 2, HERE)])) == {"GPU-1": None}
    assert said(plan_demand(gpus, [], [WholeDemand("one", 1, HERE)])) == {}, "one is whole already"
    assert said(plan_demand(gpus, [], [WholeDemand("four", 4, HERE)])) == {}, "it would not help"
    # What a pod is about to be made from does not become whole at the same time.
    plan = plan_demand(gpus[1:2], [pod("small", "1g.5gb")], [WholeDemand("one", 1, HERE)])
    assert said(plan) == {"GPU-1": ["1g.5gb"]}


def test_with_drain_idle_instances_give_way_to_a_whole_gpu_too() -> None:
    """The fewest of them, and none that is in use."""
    used = MigLayout(A100, (instance(A100, "1g.5gb", 0, in_use=True),))
    gpus = [
        DemandGpu("a", "GPU-0", used, drains=True),
        gpu(1, "1g.5gb@0", "2g.10gb@2", drains=True),
        gpu(2, "3g.20gb@4", drains=True),
        gpu(3, node="b"),
    ]
    one = WholeDemand("one", 1, HERE)
    assert said(plan_demand(gpus, [], [one])) == {"GPU-2": None}
    assert said(plan_demand(gpus, [], [WholeDemand("two", 2, HERE)])) == {"GPU-1": None, "GPU-2": None}
    assert said(plan_demand(gpus, [], [WholeDemand("three", 3, HERE)])) == {}
    assert said(plan_demand(gpus, [], [WholeDemand("any", 1, frozenset("ab"))])) == {"GPU-3": None}
    plan = plan_demand(gpus, [pod("small", "3g.20gb")], [one])
    assert said(plan) == {"GPU-1": None}, "what serves a pod does not give way to another"
    without = [replace(one, drains=False) for one in gpus]
    assert said(plan_demand(without, [], [one])) == {}


def test_what_may_not_be_changed_is_not() -> None:
    still = DemandGpu("a", "GPU-0", layout(A100, "1g.5gb@0"), may_change=False, idle_long=frozenset([0]))
    assert said(plan_demand([still], [pod("one", "2g.10gb")])) == {}
    assert said(plan_demand([still], [pod("one", "1g.5gb")])) == {}


def test_equal_questions_get_equal_answers_in_any_order() -> None:
    gpus = [gpu(0, off=True), gpu(1, "1g.5gb@0", idle=(0,)), gpu(2), gpu(3, node="b")]
    pods = [
        pod("one", "3g.20gb", nodes=frozenset("ab")),
        pod("two", "1g.5gb", "1g.5gb"),
        pod("three", "7g.40gb"),
    ]
    first = plan_demand(gpus, pods, [WholeDemand("four", 1, HERE)])
    for seed in range(20):
        dice = Random(seed)
        again = plan_demand(dice.sample(gpus, 4), dice.sample(pods, 3), [WholeDemand("four", 1, HERE)])
        assert (said(again), again.placed) == (said(first), first.placed)
