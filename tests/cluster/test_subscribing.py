"""Who subscribes to the cluster late: nothing is missed, and nothing old comes after something newer."""

from __future__ import annotations

import msgspec
from builders import StoppedClock, plain_node, pod

from gpuslice import names
from gpuslice.cluster.state import REPLAY, Change, Cluster
from gpuslice.kube.wire import Node, Pod


def named(change: Change) -> tuple[str, str]:
    assert change.object is not None
    return change.kind, change.object.name


async def test_what_was_there_before_is_told_first() -> None:
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(plain_node("n", 15, 1))
    cluster.set_pod(pod("placed", 5, node="n", index=0, phase="Running"))
    cluster.set_pod(pod("waits", 5))
    cluster.set_pod(pod("ended", 5, node="n", phase="Succeeded"))
    told: list[Change] = []
    cluster.subscribe(told.append)
    await cluster.replay(told.append)
    cluster.drop_node("n")
    assert [named(change) for change in told] == [
        ("node", "n"),
        ("pod", "placed"),
        ("pod", "waits"),
        ("node-gone", "n"),
    ]
    assert [change.node for change in told] == ["n", "n", "", "n"]


async def test_what_changes_or_goes_while_it_is_told_is_told_as_it_is() -> None:
    """A pod bound, another one deleted meanwhile: neither comes back as it was."""
    cluster = Cluster(clock=StoppedClock())
    for number in range(REPLAY + 2):
        cluster.set_pod(pod(f"p{number}", 1))
    last, gone = f"p{REPLAY + 1}", f"p{REPLAY}"
    told: list[Change] = []

    def listener(change: Change) -> None:
        told.append(change)
        if named(change) == ("pod", "p0"):
            cluster.set_pod(pod(last, 1, node="n", phase="Running"))
            cluster.drop_pod(pod(gone, 1).uid)

    cluster.subscribe(told.append)
    await cluster.replay(listener)
    about = {
        name: [c for c in told if c.object is not None and c.object.name == name] for name in (last, gone)
    }
    assert {change.node for change in about[last]} == {"n"}
    assert [change.kind for change in about[gone]] == ["pod-gone"]


async def test_who_ends_a_subscription_hears_no_more_and_others_do() -> None:
    cluster = Cluster(clock=StoppedClock())
    one: list[Change] = []
    two: list[Change] = []
    unsubscribe = cluster.subscribe(one.append)
    cluster.subscribe(two.append)
    cluster.set_pod(pod("a", 1))
    unsubscribe()
    cluster.set_pod(pod("b", 1))
    assert ([named(c)[1] for c in one], [named(c)[1] for c in two]) == (["a"], ["a", "b"])


def test_a_change_tells_what_was_before_and_which_node_it_touches() -> None:
    cluster = Cluster(clock=StoppedClock())
    told: list[Change] = []
    cluster.subscribe(told.append)
    waits = pod("a", 1)
    cluster.set_pod(waits)
    cluster.table.set_pod(waits, "n")  # it is about to be bound there
    cluster.drop_pod(waits.uid)
    assert [(c.kind, c.node, c.before) for c in told] == [("pod", "", None), ("pod-gone", "n", waits)]


def test_pods_without_a_node_are_known_with_what_they_ask_for() -> None:
    cluster = Cluster(clock=StoppedClock())
    waits = pod("a", 7)
    cluster.set_pod(waits)
    found = cluster.waiting(waits.uid)
    assert found is not None
    assert found.demand.request.units == 7
    assert cluster.unschedulable() == []
    cluster.set_pod(given_up(waits))
    assert [one.uid for one in cluster.unschedulable()] == [waits.uid]
    cluster.quarantine.hold(waits, "it cannot be handled")
    assert cluster.unschedulable() == []
    cluster.quarantine.release(waits)
    cluster.set_pod(pod("a", 7, node="n", phase="Running"))
    assert cluster.unschedulable() == []
    assert cluster.waiting(waits.uid) is None


def test_suitable_nodes_have_room_on_a_single_gpu_and_for_the_rest() -> None:
    """The two blind spots of adding a node up: 7 GiB on two GPUs with 5 left each, and the number of pods."""
    cluster = Cluster(clock=StoppedClock())
    amounts = {names.GPU_MEM: "30", names.GPU_COUNT: "2", "pods": "3"}
    node = {"metadata": {"name": "n"}, "status": {"capacity": amounts, "allocatable": amounts}}
    cluster.set_node(msgspec.convert(node, Node))
    for number in range(2):
        cluster.set_pod(pod(f"holds{number}", 10, node="n", index=number, phase="Running"))
    for units, there in ((5, ["n"]), (7, []), (16, [])):
        waits = pod(f"w{units}", units)
        cluster.set_pod(waits)
        found = cluster.waiting(waits.uid)
        assert found is not None
        assert cluster.suitable(found.demand) == there
        assert cluster.suitable(found.demand, but_for_gpus=True) == ["n"]
    cluster.set_pod(pod("third", 0, node="n", phase="Running"))
    assert cluster.suitable(found.demand, but_for_gpus=True) == []


def given_up(waits: Pod) -> Pod:
    body = msgspec.to_builtins(waits)
    body["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    return msgspec.convert(body, Pod)


def test_room_that_was_kept_for_a_pod_is_let_go_once_it_is_placed_or_gone_and_everybody_hears_where() -> None:
    cluster = Cluster(clock=StoppedClock())
    told: list[str] = []
    cluster.subscribe(lambda change: told.append(change.not_kept))
    for name, after in (
        ("placed", lambda p: cluster.set_pod(p)),
        ("gone", lambda p: cluster.drop_pod(p.uid)),
    ):
        cluster.set_pod(pod(name, 5))
        waits = cluster.waiting(pod(name, 5).uid)
        assert waits is not None
        cluster.nominations.nominate(waits, "kept", ())
        cluster.set_pod(pod(name, 5))
        assert cluster.nominations.of(waits.uid) is not None
        after(pod(name, 5, node="elsewhere", phase="Running"))
        assert cluster.nominations.of(waits.uid) is None
    assert told == ["", "", "kept"] * 2
