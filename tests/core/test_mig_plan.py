"""The planner of one GPU against the slow reference, and the cases that people know."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from migreference import cheapest

from gpuslice.devices.mig import MigGeometry
from gpuslice.devices.miglayout import ComputeInstance, MigLayout, instance, layout
from gpuslice.devices.migprofile import MigProfile, parts_of
from gpuslice.devices.migspace import space_of
from gpuslice.devices.migtables import FAMILIES, geometry_of
from gpuslice.errors import InputError
from gpuslice.placement.migplan import plan_besides, plan_exactly
from gpuslice.placement.migrestore import plan_restore
from gpuslice.placement.migsteps import Action, MigPlan, Step
from gpuslice.placement.verdict import Code, Verdict

A100 = geometry_of("A100-40")
A30 = geometry_of("A30")
BASIC = replace(A100, profiles=tuple(p for p in A100.profiles if p.enum not in (7, 9)))


@st.composite
def layouts(draw: st.DrawFn, geometry: MigGeometry) -> MigLayout:
    """Some instances, whole, divided or empty, some of them in use."""
    now = MigLayout(geometry)
    for _ in range(draw(st.integers(0, 7))):
        space = space_of(geometry)
        free = [(p, s) for p in geometry.profiles for s in space.starts(*space.state(now), p)]
        if not free:
            break
        profile, start = draw(st.sampled_from(free))
        parts: list[int] = []
        kind = draw(st.sampled_from(["whole", "whole", "whole", "divided", "empty"]))
        if kind == "whole":
            parts = [profile.slices]
        elif kind == "divided":
            for _ in range(draw(st.integers(1, 3))):
                fitting = [size for size in parts_of(profile.slices) if size <= profile.slices - sum(parts)]
                if fitting:
                    parts.append(draw(st.sampled_from(fitting)))
        compute = tuple(ComputeInstance(size, n, draw(st.booleans())) for n, size in enumerate(parts))
        gi = replace(instance(geometry, profile.name, start, 0), compute=compute)
        now = replace(now, instances=(*now.instances, gi))
    return now


@st.composite
def demands(draw: st.DrawFn, geometry: MigGeometry) -> Counter[MigProfile]:
    profile = st.sampled_from(geometry.profiles)
    device = profile.flatmap(
        lambda p: st.sampled_from([p.slices, *parts_of(p.slices)]).map(
            lambda size: replace(p.name, compute=size)
        )
    )
    return Counter(draw(st.lists(device, max_size=4)))


@st.composite
def demands_that_keep(draw: st.DrawFn, now: MigLayout) -> Counter[MigProfile]:
    """What is in use and something more, so that an exact configuration is often possible; not always."""
    used = draw(st.sampled_from([now.devices - now.idle_devices] * 4 + [Counter()]))
    return used + draw(demands(now.geometry))


def check(plan: MigPlan, now: MigLayout) -> None:
    """What every plan must keep: nothing in use is touched, every state is legal, every prefix can be undone."""
    states = plan.states()
    assert states[0] == now
    assert states[-1] == plan.after
    used = {(gi.profile, gi.start, ci) for gi in now.instances for ci in gi.compute if ci.in_use}
    for done, state in enumerate(states):
        assert state.fault is None
        assert used <= {(gi.profile, gi.start, ci) for gi in state.instances for ci in gi.compute}
        back = state
        for step in plan.rollback(done):
            back = step.apply(back)
            assert back.fault is None
        assert back == now


GEOMETRIES = [
    pytest.param(A30, 150, id="A30"),
    pytest.param(BASIC, 60, id="A100 basic"),
    pytest.param(geometry_of("RTX-PRO-5000"), 60, id="RTX PRO 5000"),
]


@pytest.mark.parametrize(("geometry", "examples"), GEOMETRIES)
@pytest.mark.parametrize("exactly", [True, False], ids=["exactly", "besides"])
def test_no_plan_destroys_more_or_is_longer_than_the_best(
    geometry: MigGeometry, examples: int, exactly: bool
) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        now = data.draw(layouts(geometry))
        wanted = data.draw(demands_that_keep(now) if exactly else demands(geometry))
        outcome = (plan_exactly if exactly else plan_besides)(now, wanted)
        best = cheapest(now, wanted, exactly=exactly)
        if isinstance(outcome, Verdict):
            assert best is None
            return
        assert (outcome.destroyed, len(outcome.steps), outcome.future) == best
        check(outcome, now)

    compare()


@pytest.mark.parametrize("family", FAMILIES)
def test_plans_of_all_families_touch_nothing_in_use_and_can_be_undone(family: str) -> None:
    geometry = geometry_of(family)

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        now = data.draw(layouts(geometry))
        wanted = data.draw(demands_that_keep(now))
        outcome = plan_exactly(now, wanted)
        if isinstance(outcome, MigPlan):
            check(outcome, now)
            assert outcome.after.devices == wanted
            assert all(gi.compute for gi in outcome.after.instances)
        outcome = plan_besides(now, wanted)
        if isinstance(outcome, MigPlan):
            check(outcome, now)
            assert not wanted - outcome.after.idle_devices

    compare()


@pytest.mark.parametrize("family", FAMILIES)
def test_while_pods_come_and_go_nothing_in_use_is_touched(family: str) -> None:
    """Devices are asked for one by one, taken, given back; what is idle is repartitioned when it is in the way."""
    geometry = geometry_of(family)

    @settings(max_examples=15, deadline=None)
    @given(st.data())
    def live(data: st.DataObject) -> None:
        now = MigLayout(geometry)
        for _ in range(data.draw(st.integers(5, 25))):
            used = [(gi.start, ci) for gi in now.instances for ci in gi.compute if ci.in_use]
            if used and data.draw(st.booleans()):
                now = turn(now, *data.draw(st.sampled_from(used)), in_use=False)
                continue
            profile = data.draw(st.sampled_from(geometry.profiles))
            size = data.draw(st.sampled_from(parts_of(profile.slices)))
            device = replace(profile.name, compute=size)
            outcome = plan_besides(now, {device: 1})
            if isinstance(outcome, MigPlan):
                check(outcome, now)
                now = outcome.after
                start, ci = next(
                    (gi.start, ci)
                    for gi in now.instances
                    for ci in gi.compute
                    if gi.device(ci) == device and not ci.in_use
                )
                now = turn(now, start, ci, in_use=True)
            elif family == "A30":
                assert cheapest(now, {device: 1}, exactly=False) is None

    live()


def turn(now: MigLayout, start: int, which: ComputeInstance, *, in_use: bool) -> MigLayout:
    changed = tuple(
        replace(gi, compute=tuple(replace(ci, in_use=in_use) if ci == which else ci for ci in gi.compute))
        if gi.start == start
        else gi
        for gi in now.instances
    )
    return replace(now, instances=changed)


def want(text: str) -> dict[MigProfile, int]:
    """ "2x1g.5gb 1x3g.20gb"."""
    pairs = (word.split("x", 1) for word in text.split())
    return {MigProfile.parse(name): int(count) for count, name in pairs}


def use(now: MigLayout, *starts: int) -> MigLayout:
    """The same layout with everything at these places in use."""
    return replace(
        now,
        instances=tuple(
            replace(gi, compute=tuple(replace(ci, in_use=True) for ci in gi.compute))
            if gi.start in starts
            else gi
            for gi in now.instances
        ),
    )


def planned(outcome: MigPlan | Verdict) -> MigPlan:
    assert isinstance(outcome, MigPlan), outcome
    return outcome


def refused(outcome: MigPlan | Verdict) -> Verdict:
    assert isinstance(outcome, Verdict), outcome
    return outcome


def test_what_the_driver_cannot_place_one_by_one_is_placed_together() -> None:
    """In the order 1g, 1g, 2g, 3g the driver's own places end in "Insufficient Resources"."""
    plan = planned(plan_exactly(MigLayout(A100), want("2x1g.5gb 1x2g.10gb 1x3g.20gb")))
    assert [(str(gi.profile), gi.start) for gi in plan.after.instances if gi.profile.size > 1] == [
        ("2g.10gb", 0),
        ("3g.20gb", 4),
    ]


def test_steps_are_said_with_their_places() -> None:
    plan = planned(plan_exactly(layout(A100, "1g.5gb@4"), want("1x3g.20gb 1x4g.20gb")))
    assert [str(step) for step in plan.steps] == [
        "destroy compute instance 1g.5gb in 1g.5gb at 4:1",
        "destroy GPU instance 1g.5gb at 4:1",
        "create GPU instance 4g.20gb at 0:4",
        "create compute instance 4g.20gb in 4g.20gb at 0:4",
        "create GPU instance 3g.20gb at 4:4",
        "create compute instance 3g.20gb in 3g.20gb at 4:4",
    ]


def test_a_gpu_that_is_as_wanted_is_left_alone() -> None:
    now = use(layout(A100, "3g.20gb@4", "1g.5gb@0", "1g.5gb@3"), 3)
    assert planned(plan_exactly(now, want("1x3g.20gb 2x1g.5gb"))).steps == ()
    assert planned(plan_besides(now, want("1x3g.20gb 1x1g.5gb"))).steps == ()


def test_an_unknown_profile_changes_nothing_and_says_what_there_is() -> None:
    """mig-parted v0.15.0: "MIG configuration applied successfully", and the GPU is empty."""
    verdict = refused(plan_exactly(layout(A100, "1g.5gb@0"), want("1x1g.24gb 1x3g.20gb")))
    assert verdict.code is Code.MIG_UNKNOWN_PROFILE
    assert verdict.message.startswith("1g.24gb does not exist on A100-40; it has 1g.5gb, ")


@pytest.mark.parametrize("text", ["8x1g.5gb", "1x4g.20gb 1x3g.20gb 1x1g.5gb", "2x7g.40gb"])
def test_an_impossible_configuration_is_refused_before_anything_is_destroyed(text: str) -> None:
    """mig-parted v0.15.0 calls it valid, destroys what runs, then fails."""
    verdict = refused(plan_exactly(layout(A100, "1g.5gb@0"), want(text)))
    assert verdict.code is Code.MIG_IMPOSSIBLE
    assert verdict.numbers["wanted"] > 0


def test_what_is_in_use_and_not_wanted_is_named() -> None:
    now = use(layout(A100, "3g.20gb@4", "1g.5gb@0", "1g.5gb@1"), 0, 1)
    verdict = refused(plan_exactly(now, want("1x1g.5gb 1x4g.20gb")))
    assert verdict.code is Code.MIG_IN_USE
    assert verdict.message == "1 x 1g.5gb in use would have to go"
    assert verdict.numbers == {"in_use": 2, "surplus": 1}


def test_an_instance_in_use_in_the_wrong_place_is_named() -> None:
    now = use(layout(A100, "1g.5gb@2", "2g.10gb@4"), 2)
    verdict = refused(plan_besides(now, want("1x4g.20gb")))
    assert verdict.code is Code.MIG_NO_ROOM
    assert verdict.message == "1 x 4g.20gb cannot be had besides the instances in use: 1g.5gb at 2:1"
    assert verdict.numbers == {"wanted": 1, "memory_slices_kept": 1}


def test_idle_instances_stay_where_none_may_be_destroyed() -> None:
    now = layout(A100, "1g.5gb@0", "2g.10gb@4")
    verdict = refused(plan_besides(now, want("1x4g.20gb"), may_destroy=False))
    assert verdict.code is Code.MIG_NO_ROOM
    assert verdict.message.endswith("besides the instances there: 1g.5gb at 0:1, 2g.10gb at 4:2")
    plan = planned(plan_besides(now, want("2x2g.10gb"), may_destroy=False))
    assert (plan.destroyed, len(plan.after.instances)) == (0, 3)


def test_instances_that_match_are_kept() -> None:
    """mig-parted destroys every instance of a GPU that differs, those too that are wanted again."""
    now = layout(A100, "1g.5gb@0", "1g.5gb@1", "2g.10gb@2", "3g.20gb@4")
    plan = planned(plan_exactly(now, want("2x1g.5gb 2x2g.10gb")))
    assert [(str(gi.profile), gi.start) for gi in plan.after.instances] == [
        ("1g.5gb", 0), ("1g.5gb", 1), ("2g.10gb", 2), ("2g.10gb", 4),
    ]  # fmt: skip
    assert plan.destroyed == 2


def test_compute_instances_share_a_gpu_instance() -> None:
    """mig-parted's `1c.4g.20gb: 2, 2c.4g.20gb: 1`: one 4g with 2c, 1c, 1c."""
    plan = planned(plan_exactly(MigLayout(A100), want("2x1c.4g.20gb 1x2c.4g.20gb")))
    (gi,) = plan.after.instances
    assert (str(gi.profile), gi.start, [ci.slices for ci in gi.compute]) == ("4g.20gb", 0, [2, 1, 1])


def test_a_compute_instance_goes_where_there_is_room_for_it() -> None:
    now = use(layout(A100, "1c.3g.20gb@4"), 4)
    plan = planned(plan_besides(now, want("1x2c.3g.20gb")))
    assert [(step.action, step.start, step.slices) for step in plan.steps] == [(Action.CREATE_CI, 4, 2)]


def test_idle_instances_go_only_as_far_as_needed() -> None:
    now = layout(A100, "1g.5gb@0", "1g.5gb@1", "1g.5gb@4", "1g.5gb@5", "1g.5gb@6")
    plan = planned(plan_besides(use(now, 4), want("1x3g.20gb")))
    assert [gi.start for gi in plan.after.instances] == [0, 4, 5, 6]
    assert plan.destroyed == 4


def test_a_gpu_instance_without_compute_instance_is_filled_before_another_is_made() -> None:
    """What an agent leaves behind that was killed between two steps."""
    now = MigLayout(A100, (instance(A100, "2g.10gb", 2, 0),))
    plan = planned(plan_besides(now, want("1x2g.10gb")))
    assert [str(step) for step in plan.steps] == ["create compute instance 2g.10gb in 2g.10gb at 2:2"]
    assert planned(plan_exactly(now, {})).after.instances == ()


def test_a_negative_count_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"-1 instances of 1g.5gb are wanted"):
        plan_exactly(MigLayout(A100), want("-1x1g.5gb"))


def shape(of: MigLayout) -> set[tuple[str, int, tuple[int, ...]]]:
    return {(str(gi.profile), gi.start, tuple(sorted(ci.slices for ci in gi.compute))) for gi in of.instances}


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(["A30", "A100-40", "RTX-PRO-6000"]))
def test_a_layout_that_was_written_down_is_made_again_in_its_places(data: st.DataObject, family: str) -> None:
    now, target = (data.draw(layouts(geometry_of(family))) for _ in range(2))
    outcome = plan_restore(now, target)
    used = {(gi.profile, gi.start): Counter(c.slices for c in gi.compute if c.in_use) for gi in now.instances}
    goal = {(gi.profile, gi.start): Counter(c.slices for c in gi.compute) for gi in target.instances}
    possible = all(not sizes - goal.get(place, Counter()) for place, sizes in used.items())
    assert isinstance(outcome, MigPlan) == possible
    if isinstance(outcome, MigPlan):
        check(outcome, now)
        assert shape(outcome.after) == shape(target)
        unchanged = shape(now) & shape(target)
        assert not {step.start for step in outcome.steps} & {start for _, start, _ in unchanged}


def test_a_layout_of_another_gpu_is_not_restored() -> None:
    verdict = refused(plan_restore(MigLayout(A100), layout(A30, "1g.6gb@0")))
    assert verdict.code is Code.MIG_IMPOSSIBLE
    assert verdict.message.startswith("1g.6gb does not exist on A100-40; it has ")
    now = use(layout(A100, "1g.5gb@0"), 0)
    verdict = refused(plan_restore(now, layout(A100, "1g.5gb@1")))
    assert (verdict.code, verdict.message) == (
        Code.MIG_IN_USE,
        "1g.5gb at 0:1 is in use and would have to go",
    )


@pytest.mark.parametrize(
    "step",
    [
        Step(Action.DESTROY_GI, A100.profiles[0], 0, 7),
        Step(Action.DESTROY_CI, A100.profiles[0], 0, 7, 1, 0),
        Step(Action.DESTROY_CI, A100.profiles[0], 1, 8, 1, 0),
        Step(Action.CREATE_GI, A100.profiles[3], 0, 3),
        Step(Action.CREATE_CI, A100.profiles[0], 0, 7, 1, 1),
    ],
)
def test_steps_that_the_driver_would_refuse_are_refused(step: Step) -> None:
    with pytest.raises(InputError, match="is impossible: "):
        step.apply(use(layout(A100, "1g.5gb@0"), 0))
