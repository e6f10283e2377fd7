"""Whatever anybody writes into an object: nothing ends, nobody else's account changes, and it goes with the object."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from builders import StoppedClock, agent_node, pod
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice import names
from gpuslice.capacity.nodepatch import new_node, node_patch, read_record
from gpuslice.capacity.nodepool import READY, GPUNodePool, read_pool
from gpuslice.capacity.poolobserver import members
from gpuslice.capacity.poolplan import Repartition, Size
from gpuslice.capacity.poolstatus import readiness, status_of
from gpuslice.cluster.migrecords import MigPolicy, decode_partitions, decode_wanted
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.waiting import read_waiting
from gpuslice.config.migparted import MigPartedFile
from gpuslice.config.nvidia import NvidiaConfig
from gpuslice.devices.migprofile import MigProfile
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node, Pod
from gpuslice.node.grants.nodepod import read_pod
from gpuslice.requests.pod import count_spec, read_request
from gpuslice.units import MemoryUnit, parse_count

STEADY = settings(max_examples=60, deadline=None, derandomize=True, database=None)
HUGE = "9" * 4301
NUMBERS = [
    "",
    "0",
    "00",
    "1",
    "2",
    "-1",
    "+1",
    "1.5",
    "1e9",
    "1e999999999",
    "9999999999999Ei",
    HUGE,
    f"-{HUGE}",
]
NUMBERS += ["2147483647", "2147483648", "9223372036854775808", "\u0661", "0x10", "NaN"]
SHAPES = [
    "null",
    "true",
    "GiB",
    "[" * 50_000,
    '{"a":' * 50_000,
    "x" * 40_000,
    '"',
    "{}",
    "[]",
    "\u0000",
    "\ud7ff",
]
texts = st.one_of(
    st.sampled_from([*NUMBERS, *SHAPES]),
    st.text(max_size=20),
)
keys = st.one_of(
    st.sampled_from(["c0", "c1", "0", "1", "00", "GPU-n-0", "GPU-n-1", "gpu", "uuid", "index"]), texts
)
trees = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
records = st.dictionaries(keys, st.dictionaries(keys, st.integers(-2, 2**70), max_size=3), max_size=3)
values = st.one_of(texts, st.one_of(trees, records).map(lambda tree: msgspec.json.encode(tree).decode()))
pod_annotations = st.dictionaries(
    st.sampled_from(
        [*names.GPUSHARE_ANNOTATIONS, names.GPUSHARE_ALLOCATION, names.ALLOCATION, names.SHARES_ACROSS]
    ),
    values,
    max_size=5,
)
resources = st.dictionaries(
    st.sampled_from(
        [names.GPU_MEM, names.WHOLE_GPU, names.SHARED_GPU, f"{names.MIG_PREFIX}1g.5gb", "cpu", "memory"]
    ),
    st.one_of(st.sampled_from(["1", "3", "14"]), texts, st.integers(-5, 2**40)),
    max_size=3,
)
containers = st.lists(
    st.builds(
        lambda name, limits, requests: {"name": name, "resources": {"limits": limits, "requests": requests}},
        st.sampled_from(["c0", "c1", "c2", ""]),
        resources,
        resources,
    ),
    max_size=4,
)


@st.composite
def hostile_pods(draw: st.DrawFn, node: str = "n") -> Pod:
    spec = {"nodeName": node, "containers": draw(containers), "initContainers": draw(containers)}
    metadata = {"name": "evil", "namespace": "default", "uid": "evil", "annotations": draw(pod_annotations)}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


hostile_nodes = st.builds(
    lambda annotations, labels, capacity: msgspec.convert(
        {
            "metadata": {"name": "m", "annotations": annotations, "labels": labels},
            "status": {"capacity": capacity, "allocatable": capacity},
        },
        Node,
    ),
    st.dictionaries(
        st.sampled_from(
            [names.NODE_GPUS, names.MEMORY_UNIT, names.MIG_PARTITIONS, names.MIG_WANTED, names.POOL_RECORD]
        ),
        values,
    ),
    st.dictionaries(st.sampled_from([names.MIG_POLICY, names.MIG_CONFIG]), texts),
    resources,
)


counts = st.one_of(st.none(), st.integers(-1, 4), st.integers(-(2**70), 2**70))
labels = st.dictionaries(
    st.one_of(st.sampled_from(["a", names.POOL, names.MIG_POLICY]), texts), texts, max_size=3
)
words = st.one_of(
    st.none(), st.sampled_from(["MIG1g", "none", "single", "mixed", "static", "on-demand"]), texts
)
hostile_pools = st.builds(
    lambda name, spec: msgspec.convert(
        {"metadata": {"name": name, "uid": "evil"}, "spec": spec}, GPUNodePool
    ),
    st.one_of(st.just("evil"), texts),
    st.fixed_dictionaries(
        {"vmSize": st.one_of(st.sampled_from(["", "Standard_ND96asr_v4"]), texts)},
        optional={
            "count": counts,
            "minCount": counts,
            "maxCount": counts,
            "idleSeconds": st.integers(-(2**70), 2**70),
            "gpuInstanceProfile": words,
            "migStrategy": words,
            "migPolicy": words,
            "nodeLabels": labels,
            "nodeTaints": st.lists(st.one_of(st.just("sku=gpu:NoSchedule"), texts), max_size=3),
            "selector": st.one_of(labels, st.just({f"l{n}": "x" * 60 for n in range(1000)})),
        },
    ),
)


def innocent() -> Cluster:
    """A node with a pod of each kind of record, and one of unknown GPU."""
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(agent_node("n", 15, 15, 15))
    cluster.set_pod(pod("ours", 3, node="n", annotations={names.ALLOCATION: '{"c0":{"GPU-n-0":3072}}'}))
    cluster.set_pod(pod("theirs", 4, node="n", index=1))
    cluster.set_pod(pod("unknown", 2, node="n"))
    return cluster


def accounts(cluster: Cluster) -> dict[str, object]:
    return {record.name: record.charges for record in cluster.pods_on("n") if record.name != "evil"}


def free_gpus(cluster: Cluster) -> list[tuple[int, int]]:
    return [(one.free_mib, one.holders) for one in cluster.fleet.free_gpus("n")]


@STEADY
@given(hostile_pods(), hostile_pods())
def test_no_pod_changes_anothers_account(first: Pod, then: Pod) -> None:
    cluster = innocent()
    before, empty = accounts(cluster), free_gpus(cluster)
    for one in (first, then, first):
        cluster.set_pod(one)
        assert accounts(cluster) == before
        cluster.set_node(agent_node("n", 15, 15, 15))
        cluster.snapshots()
    cluster.drop_pod("evil")
    assert accounts(cluster) == before
    assert free_gpus(cluster) == empty
    assert cluster.quarantine.counts() == {}


@STEADY
@given(hostile_pods(), pod_annotations)
def test_no_edit_changes_what_a_pod_takes(placed: Pod, edit: dict[str, str]) -> None:
    """Where it is may change with a record that can be believed; how much never does."""
    cluster = innocent()
    cluster.set_pod(placed)
    known = cluster.pod("evil")
    taken = known.request if known else None
    annotations = {**placed.annotations, **edit}
    edited = msgspec.structs.replace(
        placed, metadata=msgspec.structs.replace(placed.metadata, annotations=annotations)
    )
    cluster.set_pod(edited)
    now = cluster.pod("evil")
    assert (now.request if now else None) == taken
    if now:
        asked = sum(container.units for container in now.request.containers)
        assert sum(charge.mib for charge in now.charges if not charge.whole) <= asked * 1024


@STEADY
@given(hostile_pods(""))
def test_no_pod_that_waits_ends_a_decision(waiting: Pod) -> None:
    cluster = innocent()
    before = free_gpus(cluster)
    facts = read_waiting(waiting)
    cluster.filter(facts.demand.request, ["n", "ghost"])
    cluster.scores(facts.demand.request, ["n"])
    cluster.assume(waiting, "n")
    cluster.forget("evil")
    assert free_gpus(cluster) == before


@STEADY
@given(hostile_nodes, texts)
def test_no_node_and_no_health_map_touches_another_node(node: Node, mark: str) -> None:
    cluster = innocent()
    before, left = accounts(cluster), free_gpus(cluster)
    cluster.set_unhealthy("m", mark)
    cluster.set_node(node)
    cluster.set_pod(pod("there", 3, node="m", index=0))
    cluster.filter(read_request(pod("new", 3).spec, {}), ["n", "m"])
    cluster.snapshots()
    read_record(node)
    for read in (decode_partitions, decode_wanted):
        only_input_errors(lambda read=read: read(node.annotations))  # type: ignore[misc]
    only_input_errors(lambda: MigPolicy.of(node.labels))
    cluster.drop_node("m")
    assert accounts(cluster) == before
    assert free_gpus(cluster) == left


@STEADY
@given(hostile_pools, hostile_nodes)
def test_no_pool_ends_a_decision_or_takes_anothers_node(pool: GPUNodePool, node: Node) -> None:
    only_input_errors(lambda: read_pool(pool))
    try:
        desired = read_pool(pool)
    except InputError:
        return
    record = {names.POOL_RECORD: '{"pool":"ours","uid":"u"}'}
    ours = msgspec.convert(
        {"metadata": {"name": "n", "annotations": record, "labels": desired.selector}}, Node
    )
    assert members([ours], desired, makes=False) == []
    members([node], desired, makes=True)
    node_patch(node, desired, cordon=True)
    new_node("evil-0", desired)
    status = status_of(pool, [], {READY: readiness(desired, [], Size(), Repartition())}, now="")
    assert len(msgspec.json.encode(status)) < 2000


@STEADY
@given(hostile_pods(), hostile_pods())
def test_no_pod_ends_its_nodes_agent(first: Pod, then: Pod) -> None:
    gpus = innocent().gpus("n")
    assert gpus is not None
    known = read_pod(first, gpus)
    again = read_pod(msgspec.structs.replace(first, metadata=then.metadata), gpus, known)
    assert {c.name: c.units for c in again.request.containers} == {
        c.name: c.units for c in known.request.containers
    }
    count_spec(first.spec)


@settings(STEADY, max_examples=25)
@given(st.one_of(values, trees.map(lambda tree: msgspec.yaml.encode(tree).decode())))
def test_no_text_gets_more_than_a_sentence(text: str) -> None:
    for read in (
        MemoryUnit.parse,
        MigProfile.parse,
        MigPartedFile.parse,
        NvidiaConfig.parse,
        lambda text: parse_count(text, field="f"),
    ):
        only_input_errors(lambda read=read: read(text))  # type: ignore[misc]


def only_input_errors(read: Callable[[], object]) -> None:
    try:
        read()
    except InputError as error:
        assert len(str(error)) < 2000


@pytest.mark.parametrize("count", [129, 5_000])
def test_a_pod_of_any_number_of_containers_is_counted(count: int) -> None:
    """More than are searched for: each is counted, on the emptiest GPU."""
    many = [{"name": f"c{n}", "resources": {"limits": {names.GPU_MEM: "1"}}} for n in range(count)]
    cluster = innocent()
    metadata = {"name": "evil", "namespace": "default", "uid": "evil"}
    cluster.set_pod(
        msgspec.convert({"metadata": metadata, "spec": {"nodeName": "n", "containers": many}}, Pod)
    )
    assert sum(free for free, _ in free_gpus(cluster)) == (45 - 9 - count) * 1024
    waiting = msgspec.convert({"metadata": metadata, "spec": {"containers": many}}, Pod)
    assert "at most 128" in read_waiting(waiting).problem
