"""Ids that nobody has any more are free again before a pod would be turned away for them."""

from __future__ import annotations

import pytest
from node_world import NodeWorld, Part, app

from gpuslice.local.kubelet.devicemanager import Holding
from gpuslice.names import GPU_MEM
from gpuslice.node.grants.identity import Identity
from gpuslice.node.grants.ledger import SETTLED_SECONDS, STRANGER_SECONDS
from gpuslice.node.kubelet.messages import ContainerAllocation
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.kinds import SHARES

INIT_ONLY = (Part("i", 5, init=True), Part("c0"))


def make(world: NodeWorld, parts: tuple[Part, ...]) -> str:
    uid = world.create(parts)
    assert uid is not None
    world.tell()
    return uid


def taken_for_another(world: NodeWorld, parts: tuple[Part, ...] = app(5)) -> str:
    """Two equal pods; the later one is admitted, taken for the first, and gone before it starts."""
    first, second = make(world, parts), make(world, parts)
    assert world.admit(second)
    assert [h.owner and h.owner.uid for h in world.ledger.held()] == [first]
    world.runs.pop(second)
    world.remove(second)
    world.tell()
    return first


def test_what_a_pod_held_that_was_deleted_before_its_start_is_not_its_equals() -> None:
    """A burst of equal pods on a full node: two of a hundred were turned away though their room was free."""
    world = NodeWorld(5, 5)
    first = taken_for_another(world)
    third = make(world, app(5))
    assert world.admit(third), world.failures
    assert world.admit(first), world.failures
    assert all(isinstance(answer, Identity) for uid in (first, third) for answer in world.start(uid))


def test_a_kubelet_that_gives_out_all_that_is_left_gets_them_too() -> None:
    """It does not ask which ids to take then, so that Allocate itself has to find out."""
    world = NodeWorld(10)
    first = taken_for_another(world)
    for parts in (app(3), app(2)):
        assert world.admit(make(world, parts)), world.failures
    assert world.admit(first), world.failures


def test_a_look_by_the_way_gives_the_container_back_its_turn() -> None:
    """What it was taken for stays out of use until all pods are known, or for a minute."""
    world = NodeWorld(5, 5)
    first = taken_for_another(world)
    world.now += SETTLED_SECONDS
    assert world.reconcile() == []
    assert [h.owner for h in world.ledger.held()] == [None]
    assert world.ledger.expects(SHARES, 5, world.seen), f"{first} waits again"
    world.now += STRANGER_SECONDS
    assert len(world.reconcile()) == 1


def test_nothing_is_released_for_a_pod_that_may_only_not_be_known_yet() -> None:
    """Whose it is cannot be told while the list of pods is not complete, however long that takes."""
    world = NodeWorld(5, 5)
    taken_for_another(world)
    world.now += SETTLED_SECONDS + STRANGER_SECONDS
    assert world.reconcile(complete=False) == []
    assert len(world.reconcile(fresh=True, complete=False)) == 1


def test_an_admission_that_the_kubelet_lost_is_made_anew() -> None:
    """kubelet died between our answer and its own record: nothing but the ledger knows of those ids."""
    world = NodeWorld(5)
    uid = make(world, app(5))
    assert not world.admit(uid, crash_at=0)
    assert world.ledger.held()
    assert world.admit(uid), world.failures


def test_ids_that_an_init_container_may_have_are_kept() -> None:
    """pod-resources lists none of these: that it does not name their owner says nothing."""
    world = NodeWorld(5, 5)
    kept, other = make(world, INIT_ONLY), make(world, app(5))
    assert world.admit(kept)
    (holding,) = world.ledger.held()
    assert holding.owner
    world.ledger.doubt(holding.owner.uid)
    world.now += SETTLED_SECONDS
    assert world.reconcile(fresh=True) == []
    world.manager.lose_track_of(kept)
    assert world.admit(other), world.failures
    assert not world.held(other)["c0"] & world.held(kept)["i"]


def test_a_container_goes_elsewhere_only_after_a_look() -> None:
    """Its scheduler counts it where it planned it: room that is free there must not be missed."""
    world = NodeWorld(5, 10)
    first = taken_for_another(world)
    planned = world.seen[first].planned
    assert planned is not None
    assert world.admit(first), world.failures
    assert world.gpus_of(first)["c0"] == set(planned.gpus)


def test_a_restarted_agent_knows_whose_place_a_swapped_pod_has_taken() -> None:
    """Who it was taken for is forgotten then; that one is still to find the place that is free instead."""
    world = NodeWorld(8, 8)
    first, beside_first, third, beside_third = (make(world, app(units)) for units in (3, 5, 3, 5))
    assert world.admit(third)
    assert world.gpus_of(third)["c0"] == {"GPU-n1-0"}, "it was taken for the first"
    world.restart_agent()
    for uid in (first, beside_first, beside_third):
        assert world.admit(uid), world.failures


def test_after_a_lost_admission_two_equal_pods_can_still_be_confused() -> None:
    """The place of the lost one is where the pod will go that was taken for it last."""
    world = NodeWorld(8, 8)
    first, beside_first, third, beside_third = (make(world, app(units)) for units in (3, 5, 3, 5))
    assert not world.admit(first, crash_at=0)
    for uid in (first, third, beside_first, beside_third):
        assert world.admit(uid), world.failures


def test_an_unlisted_container_does_not_start_on_ids_that_another_pod_has() -> None:
    """An init container's ids, given out once more: the one that pod-resources names is not the one that starts."""
    world = NodeWorld(10)
    starter = make(world, INIT_ONLY)
    assert world.admit(starter)
    world.restart_agent()  # which forgets what is listed nowhere
    world.manager.lose_track_of(starter)
    other = make(world, app(3))
    assert world.admit(other)
    (answer,) = world.start(starter)
    assert isinstance(answer, Verdict)
    assert "kubelet gave ids of this container to default/p2" in answer.message


def test_an_init_container_restarts_whatever_became_of_the_pod_whose_name_it_had() -> None:
    """Pods of which only an init container asks are told apart by nothing; one of them ends, the other restarts."""
    world = NodeWorld(5, 5)
    first, second = make(world, INIT_ONLY), make(world, INIT_ONLY)
    assert world.admit(first)
    assert world.admit(second)
    world.restart_agent()
    for uid in (second, first):
        world.start(uid)
    world.runs.pop(first)
    world.remove(first)
    world.tell()
    world.reconcile()
    (answer,) = world.start(second)
    assert isinstance(answer, Identity)
    assert answer.pod.uid == second
    world.now += STRANGER_SECONDS
    world.reconcile(fresh=True)
    assert [h.ids for h in world.ledger.held()] == [world.held(second)["i"]]


@pytest.mark.parametrize("behind", [False, True])
def test_a_pod_is_not_taken_for_its_predecessor_that_still_ends(behind: bool) -> None:
    """Deleted by force and made again under the same name: pod-resources tells no uid.

    kubelet lists the old one no more as soon as it has heard of the deletion, and both if it is behind.
    """
    world = NodeWorld(10)
    old = world.create(app(2), name="same")
    world.tell()
    assert old
    assert world.admit(old)
    world.start(old)
    world.remove(old)
    world.ledger.lingering = frozenset([old])
    if not behind:
        world.runs.pop(old)
    new = world.create(app(2), name="same")
    world.tell()
    assert new
    assert world.admit(new)
    for _ in range(2):
        (answer,) = world.start(new)
        assert isinstance(answer, Identity)
        assert answer.held.ids == world.held(new)["c0"]
        world.reconcile()
    assert [h.ids for h in world.ledger.held() if h.owner and h.owner.uid == new] == [world.held(new)["c0"]]
    (running,) = (h.ids for h in world.ledger.held() if h.owner and h.owner.uid == old)
    assert not running & world.held(new)["c0"], "what still runs is given out last"
    world.restart_agent()
    (answer,) = world.start(new)
    assert isinstance(answer, Identity), "what starts is what lives, also if nothing else is remembered"
    assert answer.held.ids == world.held(new)["c0"]


def test_who_was_taken_for_a_pod_that_is_gone_waits_still() -> None:
    """Of two equal pods the other one was admitted, and deleted by force: kubelet lists its ids by its name."""
    world = NodeWorld(8, 8, 16, 10)
    first, second = world.create(app(4), across=2), world.create(app(4), across=2)
    assert first is not None
    assert second is not None
    world.set_health(0, healthy=False)  # so neither gets what it was planned for, and the agent looks again
    assert world.admit(second)
    world.remove(second)
    assert world.admit(first)
    assert isinstance(world.start(first)[0], Identity)
    assert len(world.gpus_of(first)["c0"]) == 2


def test_a_share_that_was_admitted_on_too_few_gpus_is_refused_at_every_try() -> None:
    """The record says where its ids are, that others do not get them; it does not change what was asked for."""
    world = NodeWorld(8, 8)
    uid = world.create(app(4), across=2, placed=False)
    assert uid is not None
    ids = frozenset(list(world.ids.of(SHARES, world.gpus.gpus[0]))[:4])
    world.manager.insert(Holding(uid, "c0", GPU_MEM, ids, ContainerAllocation()))
    world.runs[uid].admitted = True
    world.tell()
    for _ in range(3):
        (answer,) = world.start(uid)
        assert isinstance(answer, Verdict)
        assert "asks for 2 GiB on 2 GPU(s), but its ids lie on 1" in answer.message
    charged = world.cluster.pod(uid)
    assert charged is not None
    assert {grant.gpu: grant.mib for grant in charged.charges} == {world.gpus.gpus[0].uuid: 4096}
