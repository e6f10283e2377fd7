"""Plans for a pool's nodes: who is repartitioned next, how many machines, which go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.capacity.poolplan import (
    CLOSED_SECONDS,
    PoolNode,
    Size,
    next_names,
    plan_count,
    plan_range,
    plan_repartition,
)
from gpuslice.devices.migstate import MigState

OLD = PoolNode(
    "a",
    config="all-1g.5gb",
    strategy="single",
    state=MigState.SUCCESS,
    partitioned=True,
    wanted="all-2g.10gb",
    wanted_strategy="single",
)


def shut(node: PoolNode, seconds: float = CLOSED_SECONDS) -> PoolNode:
    """The node once it gets no new pods."""
    return replace(node, cordoned=True, closed=True, closed_s=seconds)


def told(node: PoolNode, state: str = "pending") -> PoolNode:
    """The node once its labels say what is wanted."""
    return replace(node, config=node.wanted, strategy=node.wanted_strategy, state=state)


def test_a_node_is_told_once_nobody_is_on_the_way_to_it() -> None:
    """A pod that is bound to a device which is just closed would be rejected by the kubelet, and lost."""
    assert (plan_repartition([OLD]).tell, plan_repartition([OLD]).close) == ((), ("a",))
    assert plan_repartition([shut(OLD, 0.5)]).tell == (), "a scheduler may have decided just before"
    assert plan_repartition([replace(shut(OLD), arriving=1)]).tell == ()
    assert (plan_repartition([shut(OLD)]).tell, plan_repartition([shut(OLD)]).close) == (("a",), ("a",))
    waiting = replace(told(shut(OLD)), answered=False, holders=1)
    assert plan_repartition([waiting]).close == ("a",), "the scheduler does not know yet what is closed"
    assert plan_repartition([replace(waiting, answered=True)]).close == (), "what is free is for others"


def test_one_node_after_the_other_those_without_holders_first() -> None:
    a, b = replace(OLD, holders=3), replace(OLD, name="b")
    assert plan_repartition([a, b]).close == ("b",)
    assert plan_repartition([a, told(b)]).close == (), "one at a time"
    done = plan_repartition([a, told(b, MigState.SUCCESS)])
    assert (done.close, done.done) == (("a",), 1), (
        "its free GPUs are partitioned, the others as their pods end"
    )


def test_a_node_that_waits_for_pods_does_not_hold_up_one_that_is_free() -> None:
    stuck = told(replace(OLD, holders=1, reason="these have to end first: GPU 0: default/stays"))
    free, busy = replace(OLD, name="b"), replace(OLD, name="c", holders=2)
    plan = plan_repartition([stuck, busy, free])
    assert plan.close == ("b",)
    assert plan.waits == "0 of 3 nodes are partitioned; node a: these have to end first: GPU 0: default/stays"
    assert plan_repartition([stuck, busy]).close == (), "two nodes that wait would be twice the loss"
    assert plan_repartition([stuck, shut(busy)]).close == (), (
        "nor one that a pod came to while it was being closed"
    )


def test_what_failed_on_one_node_is_not_tried_on_the_next() -> None:
    failed = told(replace(OLD, reason="GPU 0: no"), MigState.FAILED)
    plan = plan_repartition([failed, replace(OLD, name="b")])
    assert (plan.tell, plan.close, plan.failed, plan.waits) == ((), (), True, "node a: GPU 0: no")
    other = replace(failed, wanted="all-3g.20gb")
    assert plan_repartition([other]).close == ("a",), "another target is another try"


def test_counting_in_another_way_waits_for_holders() -> None:
    node = replace(OLD, wanted_strategy="mixed", holders=1)
    assert plan_repartition([node]).close == ("a",)
    assert (plan_repartition([shut(node)]).tell, plan_repartition([shut(node)]).close) == ((), ("a",))
    left = replace(shut(node), holders=0)
    assert plan_repartition([left]).tell == ("a",)
    free = replace(OLD, name="b")
    assert plan_repartition([shut(node), free]).close == ("a", "b"), "the other one need not wait for it"


def test_a_node_without_mig_devices_may_be_counted_in_another_way_at_once() -> None:
    node = replace(OLD, config="", strategy="none", partitioned=False, holders=4)
    assert plan_repartition([shut(node)]).tell == ("a",)


def test_nothing_is_told_to_nodes_of_which_nothing_is_wanted() -> None:
    assert plan_repartition([PoolNode("a"), PoolNode("b", config="custom")]) == plan_repartition([])


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from(["single", "mixed"])),
        min_size=1,
        max_size=5,
    )
)
def test_every_pool_ends_as_wished_once_its_pods_end_and_no_two_nodes_wait(
    world: list[tuple[int, bool, str]],
) -> None:
    """The node agents' part is played: what is told is partitioned when it has no holders; pods end one by one."""
    nodes = {
        f"n{i}": replace(OLD, name=f"n{i}", holders=holders, partitioned=partitioned, strategy=strategy)
        for i, (holders, partitioned, strategy) in enumerate(world)
    }
    for _ in range(100):
        plan = plan_repartition(list(nodes.values()))
        assert len(plan.tell) <= 1
        for name, node in nodes.items():
            assert not (name in plan.tell and node.has_to_wait), "a name changed in use"
            open_or_shut = replace(node, cordoned=False, closed=False, closed_s=0.0)
            if name in plan.close:
                open_or_shut = shut(node)
            nodes[name] = told(open_or_shut) if name in plan.tell else open_or_shut
        waiting = [n for n in nodes.values() if (n.told and n.state != MigState.SUCCESS) or n.closed]
        assert len([n for n in waiting if n.holders]) <= 1
        for name, node in nodes.items():
            if node.told and not node.holders:
                nodes[name] = replace(node, state=MigState.SUCCESS, partitioned=True)
        if all(node.told and node.state == MigState.SUCCESS for node in nodes.values()):
            assert plan_repartition(list(nodes.values())).close == ()
            return
        for name, node in nodes.items():
            if node.holders:
                nodes[name] = replace(node, holders=node.holders - 1)
                break
    pytest.fail(f"never done: {nodes}")


A, B, C = (PoolNode(f"pool-{n}") for n in range(3))


def test_a_fixed_count() -> None:
    assert plan_count([A], 3) == Size(add=2)
    assert plan_count([A, B], 2) == Size()
    busy = replace(A, pods=2)
    assert plan_count([busy, B, C], 1).retire == ("pool-2", "pool-1"), "those without pods, the newest first"
    assert plan_count([busy, B], 1).remove == (), "not before it gets no new pods"
    assert plan_count([busy, replace(B, cordoned=True)], 1).remove == ("pool-1",)
    both = plan_count([busy, replace(B, pods=1)], 0)
    assert (both.evict, both.remove) == (("pool-1", "pool-0"), ())


def test_a_node_that_was_chosen_to_go_stays_chosen() -> None:
    leaving = replace(A, cordoned=True, pods=1)
    assert plan_count([leaving, B], 1).retire == ("pool-0",)


def test_autoscaling_follows_the_pods_within_its_limits() -> None:
    assert plan_range([A], 0, 3, needed=1, idle_s=60) == Size(add=1)
    assert plan_range([A], 0, 3, needed=9, idle_s=60) == Size(add=2), "never above the limit"
    assert plan_range([], 2, 3, needed=0, idle_s=60) == Size(add=2), "never below"
    coming = replace(B, ready=False)
    assert plan_range([A, coming], 0, 3, needed=1, idle_s=60) == Size(), "the one that comes will do"


def test_idle_nodes_go_and_nobody_is_evicted() -> None:
    idle, busy = replace(A, idle_s=61.0), replace(B, pods=1)
    assert plan_range([idle, busy], 0, 3, needed=0, idle_s=60).retire == ("pool-0",)
    assert plan_range([idle, busy], 2, 3, needed=0, idle_s=60) == Size(), "never below"
    assert plan_range([idle, busy], 0, 2, needed=1, idle_s=60) == Size(), "somebody waits"
    assert plan_range([replace(idle, idle_s=59.0)], 0, 3, needed=0, idle_s=60) == Size()
    lowered = plan_range([busy, replace(A, pods=1)], 0, 1, needed=0, idle_s=60)
    assert len(lowered.evict) == 1, "a limit that was lowered is what somebody wants"


def test_names_of_new_nodes_fill_gaps() -> None:
    assert next_names("p", 3, {"p-0", "p-2", "other"}) == ("p-1", "p-3", "p-4")
