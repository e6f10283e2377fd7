"""The device manager's rules, each by its name in the measured behaviour of the real kubelet (pure)."""

from __future__ import annotations

from random import Random

import pytest

from gpuslice.local.kubelet.devicemanager import (
    STOP_GRACE_SECONDS,
    AllocationError,
    Ask,
    DeviceManager,
    Holding,
    Take,
)
from gpuslice.node.kubelet.messages import ContainerAllocation, Device

GPU = "aliyun.com/gpu-mem"
IDS = [f"g{gpu}-{number}" for gpu in range(4) for number in range(16)]


def manager(seed: int = 1, ids: list[str] = IDS) -> DeviceManager:
    made = DeviceManager(Random(seed))
    made.connect(GPU)
    made.set_devices(GPU, [Device(id_) for id_ in ids])
    return made


def ask(made: DeviceManager, size: int, uid: str = "p", reusable: frozenset[str] = frozenset()) -> Ask:
    decision = made.plan(uid, "c", GPU, size, reusable, running=False)
    assert isinstance(decision, Ask)
    return decision


def give(made: DeviceManager, uid: str, ids: frozenset[str]) -> None:
    made.insert(Holding(uid, "c", GPU, ids, ContainerAllocation()))


def take(made: DeviceManager, uid: str, preferred: list[str]) -> frozenset[str]:
    ids = made.settle(ask(made, len(preferred), uid), preferred).ids
    give(made, uid, ids)
    return ids


def test_a_preference_of_the_right_size_is_taken_exactly() -> None:
    made = manager()
    wanted = ["g3-0", "g3-7", "g3-9"]
    assert made.settle(ask(made, 3), wanted) == Take(frozenset(wanted))


def test_too_few_preferred_ids_are_filled_at_random_from_other_gpus() -> None:
    """4 of g3 for a request of 6: kept, and two more from anywhere, other ones in other runs."""
    wanted = ["g3-0", "g3-1", "g3-2", "g3-3"]
    fills = set()
    for seed in range(20):
        made = manager(seed)
        ids = made.settle(ask(made, 6), wanted).ids
        assert len(ids) == 6
        assert ids > set(wanted)
        fills |= {id_[:2] for id_ in ids - set(wanted)}
    assert fills == {"g0", "g1", "g2", "g3"}


def test_too_many_preferred_ids_give_a_random_subset_of_them() -> None:
    subsets = set()
    for seed in range(10):
        made = manager(seed)
        ids = made.settle(ask(made, 2), IDS[:8]).ids
        assert len(ids) == 2
        assert ids < set(IDS[:8])
        subsets.add(ids)
    assert len(subsets) > 1


def test_preferred_ids_that_are_not_available_are_ignored() -> None:
    made = manager()
    held = take(made, "other", ["g0-0", "g0-1"])
    ids = made.settle(ask(made, 2), ["g0-0", "nonsense"]).ids
    assert len(ids) == 2
    assert not ids & held
    assert ids < set(IDS)


def test_the_plugin_is_not_asked_when_everything_available_is_needed() -> None:
    made = manager()
    take(made, "other", IDS[:60])
    assert made.plan("p", "c", GPU, 4, (), running=False) == Take(frozenset(IDS[60:]))


def test_the_plugin_is_not_asked_when_reusable_ids_suffice() -> None:
    """A random subset of the init container's ids, not its first ones."""
    reusable = frozenset(IDS[:8])
    seen = set()
    for seed in range(10):
        decision = manager(seed).plan("p", "app", GPU, 3, reusable, running=False)
        assert isinstance(decision, Take)
        assert decision.ids < reusable
        seen.add(decision.ids)
    assert len(seen) > 1


def test_an_app_container_that_needs_more_gets_the_reusable_ids_as_must_include() -> None:
    made = manager()
    init = take(made, "p", ["g1-0", "g1-1"])
    decision = made.plan("p", "app", GPU, 5, init, running=False)
    assert isinstance(decision, Ask)
    assert (decision.must_include, decision.size) == (init, 5)
    assert decision.available >= init
    ids = made.settle(decision, ["g1-0", "g1-1", "g1-2", "g1-3", "g1-4"]).ids
    assert ids == {"g1-0", "g1-1", "g1-2", "g1-3", "g1-4"}


def test_ids_in_use_are_not_offered() -> None:
    made = manager()
    held = take(made, "other", ["g0-0", "g0-1"])
    assert ask(made, 1).available == set(IDS) - held


def test_unhealthy_ids_are_not_offered() -> None:
    made = manager()
    made.set_devices(GPU, [Device("a"), Device("b", healthy=False), Device("c")])
    assert ask(made, 1).available == {"a", "c"}
    assert (made.capacity(), made.allocatable()) == ({GPU: 3}, {GPU: 2})


def test_ids_come_back_when_their_pod_has_ended() -> None:
    made = manager()
    take(made, "p", ["g0-0"])
    made.update({"p"})
    assert made.in_use()[GPU] == {"g0-0"}
    made.update(set())
    assert not made.in_use().get(GPU)


def test_too_many_ids_asked_is_refused_with_the_kubelets_text() -> None:
    made = manager(ids=["a", "b"])
    with pytest.raises(AllocationError) as refusal:
        made.plan("p", "c", GPU, 3, (), running=False)
    assert str(refusal.value) == (
        "requested number of devices unavailable for aliyun.com/gpu-mem. Requested: 3, Available: 2"
    )


def test_no_healthy_device_is_refused_with_the_kubelets_text() -> None:
    made = manager()
    made.disconnect(GPU, 0.0)
    with pytest.raises(AllocationError) as refusal:
        made.plan("p", "c", GPU, 3, (), running=False)
    assert str(refusal.value) == (
        "no healthy devices present; cannot allocate unhealthy devices aliyun.com/gpu-mem"
    )


def test_a_container_keeps_its_ids_and_is_not_allocated_again() -> None:
    made = manager()
    take(made, "p", ["g0-0"])
    assert made.plan("p", "c", GPU, 1, (), running=False) is None


def test_ids_that_became_unhealthy_are_refused_on_readmission() -> None:
    made = manager(ids=["a", "b"])
    take(made, "p", ["a"])
    made.set_devices(GPU, [Device("a", healthy=False), Device("b")])
    with pytest.raises(AllocationError, match="previously allocated devices are no longer healthy"):
        made.plan("p", "c", GPU, 1, (), running=False)


def test_a_running_container_is_passed_over_on_readmission() -> None:
    """Even while its plugin is away."""
    made = manager()
    take(made, "p", ["g0-0"])
    made.disconnect(GPU, 0.0)
    assert made.plan("p", "c", GPU, 1, (), running=True) is None


def test_a_gone_plugin_leaves_capacity_and_takes_allocatable() -> None:
    made = manager()
    made.disconnect(GPU, 0.0)
    assert (made.capacity(), made.allocatable()) == ({GPU: 64}, {GPU: 0})


def test_a_plugin_gone_for_five_minutes_takes_capacity_too() -> None:
    made = manager()
    made.disconnect(GPU, 100.0)
    assert not made.forget_gone(100.0 + STOP_GRACE_SECONDS - 1)
    assert made.forget_gone(100.0 + STOP_GRACE_SECONDS)
    assert made.capacity() == {}


def test_a_restored_resource_has_no_ids_until_its_plugin_is_back() -> None:
    """But what running containers hold is remembered, and not offered to others."""
    made = DeviceManager(Random(1))
    made.restore([GPU], [Holding("p", "c", GPU, frozenset({"g0-0"}), ContainerAllocation())], 0.0)
    assert (made.capacity(), made.allocatable()) == ({GPU: 0}, {GPU: 0})
    made.connect(GPU)
    made.set_devices(GPU, [Device(id_) for id_ in IDS])
    assert ask(made, 1, "other").available == set(IDS) - {"g0-0"}


def test_a_list_during_allocate_makes_the_kubelet_forget_ids_in_use() -> None:
    """The race: another pod's end rebuilds the table without the pod in flight; insert does not repair."""
    made = manager()
    take(made, "old", ["g0-0"])
    in_flight = made.settle(ask(made, 4, "inflight"), IDS[4:8]).ids
    made.update({"inflight"})  # a List: `old` has ended, `inflight` is not in the table yet
    give(made, "inflight", in_flight)
    assert ask(made, 1, "next").available == set(IDS), "64 of 64 ids are offered, four of them in use"

    take(made, "short", ["g3-0"])
    made.update({"inflight"})  # the next pod's end rebuilds the table, now with it
    assert ask(made, 1, "next").available == set(IDS) - in_flight


def test_a_test_can_make_it_offer_ids_in_use() -> None:
    made = manager()
    held = take(made, "p", ["g0-0", "g0-1"])
    made.lose_track_of("p")
    assert held < ask(made, 1, "next").available


def test_a_failed_allocation_leaves_nothing_in_use() -> None:
    made = manager()
    made.settle(ask(made, 4), IDS[:4])
    made.rollback()
    assert ask(made, 1).available == set(IDS)
