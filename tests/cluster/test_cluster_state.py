"""The cluster's one truth: what it counts, when it lets go, and the defects of gpushare it does not have.

Tests named after "9.A.n" show the n-th defect of gpushare's extender, as its users met it.
"""

from __future__ import annotations

import json

import msgspec
import pytest
from builders import StoppedClock, agent_node, plain_node, pod
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice import names
from gpuslice.cluster.nodes import read_unhealthy
from gpuslice.cluster.podcode import PodCode
from gpuslice.cluster.state import Cluster
from gpuslice.devices.inventory import Mode
from gpuslice.kube.wire import Pod
from gpuslice.placement.policies import KNOWN
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.policies.spread import SPREAD
from gpuslice.placement.verdict import Code, Verdict
from gpuslice.requests.allocation import Allocation
from gpuslice.units import MemoryUnit


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(clock=StoppedClock())


def free(cluster: Cluster, node: str) -> list[int]:
    """Free GiB of each GPU."""
    return [one.free_mib // 1024 for one in cluster.fleet.free_gpus(node)]


def assume(cluster: Cluster, new: Pod, node: str) -> Allocation:
    outcome = cluster.assume(new, node)
    assert not isinstance(outcome, Verdict), outcome
    return outcome[0]


def test_bound_pods_count_on_their_gpu_after_a_restart(cluster: Cluster) -> None:
    """Everything is rebuilt from API objects, in whatever order they come."""
    cluster.set_pod(pod("a", 3, node="n", index=1))
    cluster.set_pod(pod("b", 4, node="n", index=0))
    cluster.set_node(plain_node("n", 30, 2))
    assert free(cluster, "n") == [11, 12]


def test_a_reservation_survives_until_the_api_server_says_so(cluster: Cluster) -> None:
    cluster.set_node(agent_node("n", 15, 15))
    new = pod("a", 5)
    allocation = assume(cluster, new, "n")
    cluster.set_pod(new)  # an old event: still unbound
    assert free(cluster, "n") == [10, 15]
    assert assume(cluster, new, "n") == allocation  # a retry of the same bind gets the same answer
    bound = pod("a", 5, node="n", annotations=cluster.annotations_for(new, "n", allocation))
    cluster.set_pod(bound)
    cluster.forget(new.uid)  # too late: the API server has confirmed it
    assert free(cluster, "n") == [10, 15]
    cluster.drop_pod(new.uid)
    assert free(cluster, "n") == [15, 15]


def test_a_failed_bind_gives_everything_back(cluster: Cluster) -> None:
    cluster.set_node(agent_node("n", 15))
    assume(cluster, pod("a", 15), "n")
    assert not cluster.check(cluster.request_of(pod("b", 1)), "n").ok
    cluster.forget("uid-a")
    assert cluster.check(cluster.request_of(pod("b", 15)), "n").ok


def test_a_pod_reserved_on_one_node_is_refused_on_another(cluster: Cluster) -> None:
    cluster.set_node(agent_node("n", 15))
    cluster.set_node(agent_node("m", 15))
    assume(cluster, pod("a", 5), "n")
    verdict = cluster.assume(pod("a", 5), "m")
    assert isinstance(verdict, Verdict)
    assert verdict.code is PodCode.ALREADY_BOUND
    assert free(cluster, "m") == [15]


def test_annotations_are_gpushares_five_and_ours(cluster: Cluster) -> None:
    cluster.set_node(agent_node("n", 15, 15))
    new = pod("a", 5)
    written = cluster.annotations_for(new, "n", assume(cluster, new, "n"))
    assert written == {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
        "gpuslice.io/allocation": '{"c0":{"GPU-n-0":5120}}',
    }


def test_containers_on_different_gpus_are_written_as_gpushare_2_does(cluster: Cluster) -> None:
    """Two containers of 10 GiB fit no single GPU of 15, but one each."""
    cluster.set_node(agent_node("n", 15, 15))
    new = pod("a", (10, 10))
    written = cluster.annotations_for(new, "n", assume(cluster, new, "n"))
    assert json.loads(written[names.GPUSHARE_ALLOCATION]) == {"0": {"0": 10}, "1": {"1": 10}}
    assert names.MEM_IDX not in written
    assert written[names.MEM_POD] == "20"


def test_shares_of_two_gpus_are_never_reduced_to_one(cluster: Cluster) -> None:
    cluster.set_node(agent_node("n", 15, 15))
    cluster.set_pod(pod("x", 12, node="n", index=1))
    two = pod("a", 8, annotations={names.SHARES_ACROSS: "2"})
    verdict = cluster.assume(two, "n")
    assert isinstance(verdict, Verdict)
    assert verdict.code is Code.INSUFFICIENT_GPUS
    cluster.drop_pod("uid-x")
    allocation = assume(cluster, two, "n")
    assert [(g.gpu, g.mib) for g in allocation.grants] == [("GPU-n-0", 4096), ("GPU-n-1", 4096)]


def test_gpushares_own_records_are_read(cluster: Cluster) -> None:
    cluster.set_node(plain_node("n", 30, 2))
    record = json.dumps({"0": {"0": 3, "1": 3}})
    cluster.set_pod(pod("multi", 6, node="n", annotations={names.GPUSHARE_ALLOCATION: record}))
    assert free(cluster, "n") == [12, 12]


def test_whole_gpus_and_shares_exclude_each_other(cluster: Cluster) -> None:
    cluster.set_node(agent_node("n", 15, 15))
    assume(cluster, pod("s", 1), "n")
    whole = assume(cluster, pod("w", whole=1), "n")
    assert whole.gpus == ("GPU-n-1",)
    assert not cluster.check(cluster.request_of(pod("w2", whole=1)), "n").ok
    view = cluster.snapshot("n")
    assert view is not None
    assert [gpu.mode for gpu in view.gpus] == [Mode.SHARED, Mode.WHOLE]
    assert cluster.check(cluster.request_of(pod("s2", 14)), "n").ok
    assert not cluster.check(cluster.request_of(pod("s3", 15)), "n").ok


def test_9a1_an_overcommitted_gpu_is_negative_not_endless(cluster: Cluster) -> None:
    cluster.set_node(plain_node("n", 15, 1))
    for i in range(4):
        cluster.set_pod(pod(f"p{i}", 5, node="n", index=0))
    assert free(cluster, "n") == [-5]
    assert not cluster.check(cluster.request_of(pod("x", 1_000_000)), "n").ok


def test_9a2_recreation_under_the_same_name_leaks_nothing(cluster: Cluster) -> None:
    """A StatefulSet's pod comes back with another uid; the old one's memory is its own."""
    cluster.set_node(plain_node("n", 15, 1))
    for generation in range(5):
        cluster.set_pod(pod("web-0", 3, uid=f"u{generation}", node="n", index=0))
        cluster.drop_pod(f"u{generation}")
    assert free(cluster, "n") == [15]


def test_9a4_memory_is_held_until_the_containers_have_ended(cluster: Cluster) -> None:
    cluster.set_node(plain_node("n", 15, 1))
    running = [{"name": "c0", "state": {"running": {}}}]
    ended = [{"name": "c0", "state": {"terminated": {"exitCode": 0}}}]
    dying = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    cluster.set_pod(pod("a", 5, node="n", index=0, phase="Running", containerStatuses=running, **dying))
    assert free(cluster, "n") == [10]
    cluster.set_pod(pod("a", 5, node="n", index=0, phase="Failed", containerStatuses=running, **dying))
    assert free(cluster, "n") == [10]
    cluster.set_pod(pod("a", 5, node="n", index=0, phase="Failed", containerStatuses=ended, **dying))
    assert free(cluster, "n") == [15]


def test_9a5_node_changes_are_seen(cluster: Cluster) -> None:
    cluster.set_node(plain_node("n", 0, 2))  # gpu-count arrives before gpu-mem
    assert cluster.check(cluster.request_of(pod("a", 1)), "n").code is Code.NOT_GPU_NODE
    cluster.set_node(plain_node("n", 30, 2))
    cluster.set_pod(pod("a", 4, node="n", index=0))
    assert free(cluster, "n") == [11, 15]
    cluster.set_node(plain_node("n", 80, 1))  # the GPUs were swapped
    assert free(cluster, "n") == [76]
    cluster.drop_node("n")
    assert cluster.node_names() == []
    assert cluster.snapshot("n") is None


def test_9a6_pods_on_vanished_nodes_stop_nothing(cluster: Cluster) -> None:
    cluster.set_pod(pod("lost", 3, node="gone", index=0))
    cluster.set_node(plain_node("n", 15, 1))
    assert cluster.check(cluster.request_of(pod("a", 15)), "n").ok
    cluster.set_node(plain_node("gone", 15, 1))
    assert free(cluster, "gone") == [12]


def test_9a11_a_bad_word_in_the_health_map_marks_no_gpu(cluster: Cluster) -> None:
    assert read_unhealthy("") == frozenset()
    assert read_unhealthy(" 1, x,") == {1}
    cluster.set_node(plain_node("n", 30, 2))
    cluster.set_pod(pod("a", 3, node="n", index=1))
    cluster.set_unhealthy("n", "0")
    assert cluster.check(cluster.request_of(pod("b", 13)), "n").code is Code.UNHEALTHY
    assert assume(cluster, pod("c", 12), "n").gpus == ("n/gpu1",)
    cluster.set_unhealthy("n", None)
    assert cluster.check(cluster.request_of(pod("b", 15)), "n").ok


def test_9a11_what_the_plugin_withdraws_is_not_given_out(cluster: Cluster) -> None:
    """gpushare looked at capacity; kubelet admits by allocatable."""
    node = plain_node("n", 30, 2)
    gone = {names.GPU_MEM: "0", names.GPU_COUNT: "2"}
    status = msgspec.structs.replace(node.status, allocatable=gone)
    cluster.set_node(msgspec.structs.replace(node, status=status))
    assert cluster.check(cluster.request_of(pod("a", 1)), "n").code is Code.NODE_FULL


@pytest.mark.parametrize("index", [None, "7", "-1", "x", "99999999999"])
def test_9a12_pods_whose_gpu_is_unknown_are_counted_and_visible(cluster: Cluster, index: str | None) -> None:
    cluster.set_node(plain_node("n", 30, 2))
    cluster.set_pod(pod("a", 12, node="n", index=0))
    cluster.set_pod(pod("b", 4, node="n", index=index))
    assert free(cluster, "n") == [3, 11]
    view = cluster.snapshot("n")
    assert view is not None
    assert [(share.name, share.mib // 1024) for share in view.pending] == [("b", 4)]
    assert [gpu.used_mib // 1024 for gpu in view.gpus] == [12, 0]


def test_a_damaged_node_annotation_stops_only_that_node(cluster: Cluster) -> None:
    cluster.set_node(plain_node("bad", 30, 2, annotations={names.NODE_GPUS: "[{broken"}))
    cluster.set_node(plain_node("good", 30, 2))
    request = cluster.request_of(pod("a", 5))
    assert cluster.filter(request, ["bad", "good"]).fits == ["good"]
    view = cluster.snapshot("bad")
    assert view is not None
    assert "restart the node's agent" in view.problem


def test_annotations_edited_by_hand_change_where_but_never_how_much(cluster: Cluster) -> None:
    cluster.set_node(agent_node("n", 15, 15))
    mine = {names.ALLOCATION: '{"c0":{"GPU-n-1":999999999}}', names.MEM_POD: "1000000", names.MEM_IDX: "0"}
    cluster.set_pod(pod("a", 5, node="n", annotations=mine))
    assert free(cluster, "n") == [15, 10]


def test_filter_answers_in_the_order_asked_with_gpushares_words(cluster: Cluster) -> None:
    cluster.set_node(plain_node("small", 4, 1))
    cluster.set_node(plain_node("big", 15, 1))
    cluster.set_node(plain_node("cpu", 0, 0))
    outcome = cluster.filter(cluster.request_of(pod("a", 5)), ["ghost", "big", "small", "cpu"])
    assert outcome.fits == ["big"]
    assert {name: verdict.message for name, verdict in outcome.refused.items()} == {
        "ghost": 'node "ghost" not found',
        "small": "Insufficient GPU Memory in one device",
        "cpu": "The node cpu is not for GPU share, need skip",
    }


def test_units_differ_by_node_and_are_never_guessed() -> None:
    """A pod that asks 8 units gets 8 GiB here and 2 GiB there, as each node says."""
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("gib", 15))
    cluster.set_node(agent_node("chunks", 15, unit=MemoryUnit(256)))
    assert assume(cluster, pod("a", 8), "gib").grants[0].mib == 8192
    assert assume(cluster, pod("b", 8), "chunks").grants[0].mib == 2048


def test_spread_policy_reaches_gpu_and_node() -> None:
    cluster = Cluster(clock=StoppedClock(), policy=SPREAD)
    cluster.set_node(agent_node("n", 15, 15))
    assert assume(cluster, pod("a", 3), "n").gpus == ("GPU-n-0",)
    assert assume(cluster, pod("b", 3), "n").gpus == ("GPU-n-1",)


def test_victims_are_named_as_pods(cluster: Cluster) -> None:
    cluster.set_node(agent_node("n", 15, 15))
    cluster.set_pod(pod("low", 10, node="n", index=0, priority=1))
    cluster.set_pod(pod("high", 10, node="n", index=1, priority=100))
    victims = cluster.victims(cluster.request_of(pod("new", 12)), "n", 50)
    assert victims is not None
    assert [victim.name for victim in victims] == ["low"]
    assert cluster.victims(cluster.request_of(pod("new", 12)), "n", 1) is None


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_happens_the_state_equals_one_built_afresh(data: st.DataObject) -> None:
    """Any history of events and reservations ends in the same rooms as the objects that are left."""
    clock = StoppedClock()
    cluster = Cluster(clock=clock)
    nodes: dict[str, object] = {}
    pods: dict[str, Pod] = {}
    for step in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["node", "drop-node", "bind", "set", "drop-pod", "forget"])):
            case "node":
                name = data.draw(st.sampled_from(["n", "m"]))
                node = agent_node(
                    name, *data.draw(st.lists(st.sampled_from([8, 15]), min_size=1, max_size=3))
                )
                nodes[name] = node
                cluster.set_node(node)
            case "drop-node":
                name = data.draw(st.sampled_from(["n", "m"]))
                nodes.pop(name, None)
                cluster.drop_node(name)
            case "bind" | "forget" as what:
                new = pod(f"p{step}", data.draw(st.integers(1, 9)))
                name = data.draw(st.sampled_from(["n", "m"]))
                outcome = cluster.assume(new, name)
                if isinstance(outcome, Verdict):
                    continue
                assert all(one.free_mib >= 0 for one in cluster.fleet.free_gpus(name)) or what
                written = cluster.annotations_for(new, name, outcome[0])
                if what == "forget":
                    cluster.forget(new.uid)
                    continue
                units = int(written[names.MEM_POD])
                pods[new.uid] = pod(new.name, units, node=name, annotations=written)
                cluster.set_pod(pods[new.uid])
            case "set":
                name = data.draw(st.sampled_from(["n", "m"]))
                index = data.draw(st.sampled_from([0, 1, 2, 9]))
                foreign = pod(f"f{step}", data.draw(st.integers(1, 9)), node=name, index=index)
                pods[foreign.uid] = foreign
                cluster.set_pod(foreign)
            case "drop-pod":
                if pods:
                    uid = data.draw(st.sampled_from(sorted(pods)))
                    del pods[uid]
                    cluster.drop_pod(uid)
    fresh = Cluster(clock=clock)
    for node in nodes.values():
        fresh.set_node(node)  # type: ignore[arg-type]
    for one in pods.values():
        fresh.set_pod(one)
    for name in nodes:
        placed = {r.uid for r in fresh.pods_on(name) if r.allocation is not None}
        assert placed == {r.uid for r in cluster.pods_on(name) if r.allocation is not None}
        # Pods of unknown GPU may count on another GPU by history, but never for another amount.
        assert sum(r.free_mib for r in cluster.fleet.free_gpus(name)) == sum(
            r.free_mib for r in fresh.fleet.free_gpus(name)
        )


def several(name: str, *sizes: int, annotations: dict[str, str] | None = None) -> Pod:
    """A pod of several containers."""
    one = pod(name, sizes[0], annotations=annotations)
    containers = [
        msgspec.structs.replace(pod(name, size).spec.containers[0], name=f"c{number}")
        for number, size in enumerate(sizes)
    ]
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, containers=containers))


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (several("fits", 8, 7), Code.FITS),
        (several("apart", 8, 8), Code.NEEDS_AGENT),
        (several("across", 16, annotations={names.SHARES_ACROSS: "2"}), Code.NEEDS_AGENT),
        (several("both", 8, 8, annotations={names.SHARES_ACROSS: "2"}), Code.NEEDS_AGENT),
        (several("never", 15, 15, 15), Code.INSUFFICIENT),
        (several("large", 16, 2), Code.INSUFFICIENT),
    ],
)
@pytest.mark.parametrize("policy", KNOWN.values())
def test_only_our_agent_serves_a_pod_from_several_gpus(new: Pod, code: Code, policy: Policy) -> None:
    """gpushare's extender refuses such a pod, and its plugin gives all containers the GPU of one annotation."""
    cluster = Cluster(clock=StoppedClock(), policy=policy)
    cluster.set_node(plain_node("gpushares", 30, 2))
    cluster.set_node(agent_node("ours", 15, 15))
    request = cluster.request_of(new)
    expected = {Code.NEEDS_AGENT: Code.FITS}.get(code, code)
    assert cluster.check(request, "gpushares").code is code
    assert cluster.check(request, "ours").code is expected
    outcome = cluster.filter(request, ["gpushares", "ours"])
    assert (outcome.refused["gpushares"].code if outcome.refused.get("gpushares") else Code.FITS) is code
    assert ("ours" in outcome.fits) == (expected is Code.FITS)
    if code is Code.NEEDS_AGENT:
        refused = cluster.assume(new, "gpushares")
        assert isinstance(refused, Verdict)
        assert refused.code is code
        assert refused.message.startswith("Insufficient GPU Memory in one device")
        assert "with gpuslice's agent on the node they could be on several" in refused.message
