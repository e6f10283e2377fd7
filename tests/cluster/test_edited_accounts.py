"""What a pod was given is fixed when it is bound: later words in its annotations free nothing and move nothing."""

from __future__ import annotations

import msgspec
import pytest
from builders import StoppedClock, agent_node, plain_node, pod

from gpuslice import names
from gpuslice.cluster.state import Cluster
from gpuslice.kube.wire import Pod
from gpuslice.placement.verdict import Verdict

HUGE = "9" * 4301
"""One digit more than Python's int() reads."""
ARABIC_ZERO = "\u0660"
BAD_SPREADS = [
    "0",
    "-1",
    "2",
    "1.5",
    "",
    "two",
    "\u0661",
    HUGE,
    "1e999999999",
    "9999999999999Ei",
    "[" * 100_000,
]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(clock=StoppedClock())
    made.set_node(agent_node("n", 15, 15))
    return made


def free(cluster: Cluster) -> list[int]:
    return [one.free_mib // 1024 for one in cluster.fleet.free_gpus("n")]


def bound(cluster: Cluster, new: Pod) -> Pod:
    """The pod as the API server has it after a bind through the cluster."""
    outcome = cluster.assume(new, "n")
    assert not isinstance(outcome, Verdict), outcome
    written = {**new.annotations, **cluster.annotations_for(new, "n", outcome[0])}
    there = edited(new, node="n", **written)
    cluster.set_pod(there)
    return there


def edited(old: Pod, *, node: str | None = None, **annotations: str | None) -> Pod:
    kept = {key: value for key, value in {**old.annotations, **annotations}.items() if value is not None}
    spec = old.spec if node is None else msgspec.structs.replace(old.spec, node_name=node)
    metadata = msgspec.structs.replace(old.metadata, annotations=kept)
    return msgspec.structs.replace(old, metadata=metadata, spec=spec)


@pytest.mark.parametrize("text", BAD_SPREADS)
def test_an_edited_spread_frees_nothing_now_or_after_a_restart(cluster: Cluster, text: str) -> None:
    bound(cluster, pod("first", 1))
    mine = bound(cluster, pod("a", 14))
    before = free(cluster)
    assert before == [0, 15]
    lie = edited(mine, **{names.SHARES_ACROSS: text})
    cluster.set_pod(lie)
    assert free(cluster) == before
    again = Cluster(clock=StoppedClock())
    again.set_node(agent_node("n", 15, 15))
    again.set_pod(lie)
    assert free(again) == [1, 15]


def test_a_share_on_two_gpus_stays_on_two_whatever_the_annotation_says(cluster: Cluster) -> None:
    mine = bound(cluster, pod("a", 14, annotations={names.SHARES_ACROSS: "2"}))
    assert free(cluster) == [8, 8]
    for text in ("0", "1", None):
        lie = edited(mine, **{names.SHARES_ACROSS: text})
        cluster.set_pod(lie)
        again = Cluster(clock=StoppedClock())
        again.set_node(agent_node("n", 15, 15))
        again.set_pod(lie)
        assert free(cluster) == free(again) == [8, 8]


BAD_RECORDS = [
    "",
    "{}",
    "[]",
    "null",
    "{" * 100_000,
    '{"c0":{}}',
    '{"c0":{"GPU-n-0":1e400}}',
    f'{{"c0":{{"GPU-n-0":{HUGE}}}}}',
    '{"c0":{"GPU-n-0":1,"GPU-n-1":1,"GPU-n-2":1}}',
    '{"c0":{"GPU-of-another":14336}}',
    '{"c0":{"GPU-n-1":14336},"c0":{"GPU-n-0":14336}}',
    '{"c0":{"GPU-n-1":14336,"GPU-n-1":14336}}',
    '{"c0":{"GPU-n-1":14336}}' + " " * 40_000,
]


@pytest.mark.parametrize("text", BAD_RECORDS)
def test_a_record_that_cannot_be_believed_moves_nothing(cluster: Cluster, text: str) -> None:
    mine = bound(cluster, pod("a", 14))
    lie = edited(mine, **{names.ALLOCATION: text, names.MEM_IDX: None, names.MEM_ASSIGNED: "true"})
    cluster.set_pod(lie)
    assert free(cluster) == [1, 15]
    cluster.set_node(agent_node("n", 15, 15, 15))  # everything is read again
    assert free(cluster) == [1, 15, 15]
    again = Cluster(clock=StoppedClock())
    again.set_node(agent_node("n", 15, 15))
    again.set_pod(lie)
    assert sum(free(again)) == 16
    view = again.snapshot("n")
    assert view is not None
    assert [(share.name, share.mib) for share in view.pending] == [("a", 14336)]


def test_what_the_agent_corrects_is_followed_even_after_a_lie(cluster: Cluster) -> None:
    mine = bound(cluster, pod("a", 14))
    cluster.set_pod(edited(mine, **{names.ALLOCATION: "{", names.MEM_IDX: None}))
    truth = {names.ALLOCATION: '{"c0":{"GPU-n-1":14336}}', names.MEM_IDX: "1"}
    cluster.set_pod(edited(mine, **truth))
    assert free(cluster) == [15, 1]


def test_a_correction_that_is_ahead_of_the_nodes_gpus_counts_when_they_come(cluster: Cluster) -> None:
    mine = bound(cluster, pod("a", 14))
    cluster.set_pod(edited(mine, **{names.ALLOCATION: '{"c0":{"GPU-n-2":14336}}', names.MEM_IDX: "2"}))
    assert free(cluster) == [1, 15]
    cluster.set_node(agent_node("n", 15, 15, 15))
    assert free(cluster) == [15, 15, 1]


@pytest.mark.parametrize(
    "record",
    [
        f'{{"{HUGE}":{{"0":14}}}}',
        f'{{"0":{{"{HUGE}":14}}}}',
        '{"0":{"0":7,"00":7}}',
        '{"0":{"0":7},"00":{"0":7}}',
        f'{{"0":{{"{ARABIC_ZERO}":14}}}}',
        f'{{"{ARABIC_ZERO}":{{"0":14}}}}',
        '{"0":{"0":14,"1":0}}',
        '{"0":{"0":15,"1":-1}}',
        f'{{"0":{{"0":{HUGE}}}}}',
        '{"1":{"0":14}}',
        '{"0":{"0":7},"0":{"1":14}}',
    ],
)
def test_gpushares_record_is_read_only_as_gpushare_writes_it(cluster: Cluster, record: str) -> None:
    """Where its GPU is unknown the pod still counts, with what its spec asks for, and on no second GPU."""
    cluster.set_pod(pod("a", 14, node="n", annotations={names.GPUSHARE_ALLOCATION: record}))
    known = cluster.pod("uid-a")
    assert known is not None
    assert known.allocation is None
    assert free(cluster) == [1, 15]


@pytest.mark.parametrize("index", [HUGE, ARABIC_ZERO, "00", "+0", "0 ", "1_0", "-0", ""])
def test_gpushares_index_is_read_only_as_gpushare_writes_it(cluster: Cluster, index: str) -> None:
    cluster.set_pod(pod("a", 14, node="n", index=index))
    known = cluster.pod("uid-a")
    assert known is not None
    assert known.allocation is None
    assert sum(free(cluster)) == 16


def test_a_pod_that_asks_for_gpus_of_two_kinds_counts_with_both(cluster: Cluster) -> None:
    """Bound past every scheduler, with a spec that is no request of ours, kubelet still runs it."""
    both = {names.GPU_MEM: "5", names.WHOLE_GPU: "1"}
    odd = pod("odd", node="n")
    container = msgspec.convert({"name": "c0", "resources": {"limits": both}}, type(odd.spec.containers[0]))
    cluster.set_pod(
        msgspec.structs.replace(odd, spec=msgspec.structs.replace(odd.spec, containers=(container,)))
    )
    assert sorted(free(cluster)) == [0, 10]


@pytest.mark.parametrize("units", ["2147483647", "9999999999999Ei", "1e999999999", HUGE, "-5", "0.5"])
def test_amounts_that_no_node_has_spoil_no_sums(cluster: Cluster, units: str) -> None:
    """Pods bound by hand with any amount; the other accounts stay, and go back to what they were."""
    mine = pod("mine", 4, node="n", index=1)
    cluster.set_pod(mine)
    odd = pod("odd", node="n", index=0)
    containers = [{"name": f"c{n}", "resources": {"limits": {names.GPU_MEM: units}}} for n in range(300)]
    spec = msgspec.convert({"nodeName": "n", "containers": containers}, type(odd.spec))
    for number in range(3):
        uid = f"odd-{number}"
        metadata = msgspec.structs.replace(odd.metadata, uid=uid, name=uid)
        cluster.set_pod(msgspec.structs.replace(odd, metadata=metadata, spec=spec))
    assert free(cluster)[1] == 11
    for number in range(3):
        cluster.drop_pod(f"odd-{number}")
    assert free(cluster) == [15, 11]


def test_json_of_a_node_can_be_as_deep_as_it_likes() -> None:
    cluster = Cluster(clock=StoppedClock())
    for text in ('[{"x":' + "[" * 200_000, "[" * 200_000, f'[{{"index":{HUGE}}}]'):
        cluster.set_node(plain_node("n", 30, 2, annotations={names.NODE_GPUS: text}))
        view = cluster.snapshot("n")
        assert view is not None
        assert "restart the node's agent" in view.problem
