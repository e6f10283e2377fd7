"""Ordinary resources: the kubelet's arithmetic, and arrays that agree with plain counting."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.cluster.nodetable import NodeTable
from gpuslice.cluster.predicates import node_refusal, rules_of
from gpuslice.cluster.resources import Footprint, footprint_of
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.verdict import FITS


def container(cpu: str = "", *, name: str = "c", always: bool = False, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"name": name} | more
    if cpu:
        body["resources"] = {"requests": {"cpu": cpu}}
    if always:
        body["restartPolicy"] = "Always"
    return body


def pod(uid: str = "u", node: str = "", **spec: Any) -> Pod:
    spec.setdefault("containers", [container()])
    return msgspec.convert({"metadata": {"uid": uid, "name": uid}, "spec": {"nodeName": node} | spec}, Pod)


def node(name: str = "n1", labels: dict[str, str] | None = None, taints: Any = (), **amounts: str) -> Node:
    allocatable = {key.replace("_", "-"): value for key, value in amounts.items()}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"taints": list(taints)},
            "status": {"allocatable": {"pods": "10", "cpu": "4", "memory": "8Gi"} | allocatable},
        },
        Node,
    )


def cpu_of(**spec: Any) -> int:
    return dict(footprint_of(pod(**spec).spec).amounts).get("cpu", 0)


def test_containers_add_up() -> None:
    assert cpu_of(containers=[container("500m"), container("1")]) == 1500


def test_init_container_counts_only_where_it_is_larger() -> None:
    assert cpu_of(containers=[container("1")], initContainers=[container("3"), container("2")]) == 3000
    assert cpu_of(containers=[container("4")], initContainers=[container("3")]) == 4000


def test_sidecar_runs_beside_what_follows_it() -> None:
    """An init container before the sidecar does not run beside it, one after it does."""
    inits = [container("2"), container("500m", always=True), container("2")]
    assert cpu_of(containers=[container("1")], initContainers=inits) == 2500


def test_overhead_is_added() -> None:
    assert cpu_of(containers=[container("1")], overhead={"cpu": "250m"}) == 1250


def test_pod_level_requests_stand_in_for_the_sum() -> None:
    assert cpu_of(containers=[container("1"), container("1")], resources={"requests": {"cpu": "3"}}) == 3000


def test_limit_without_request_is_the_request() -> None:
    assert cpu_of(containers=[{"name": "c", "resources": {"limits": {"cpu": "2"}}}]) == 2000


def test_fractions_are_rounded_up() -> None:
    assert cpu_of(containers=[container("0.0001")]) == 1


def test_gpu_shares_are_counted_elsewhere() -> None:
    limits = {"aliyun.com/gpu-mem": "5", "nvidia.com/gpu": "1", "example.com/nic": "2"}
    footprint = footprint_of(pod(containers=[{"name": "c", "resources": {"limits": limits}}]).spec)
    assert footprint.amounts == (("example.com/nic", 2),)


def test_not_a_quantity_is_named() -> None:
    with pytest.raises(InputError, match=r"cpu.*'lots' is not a quantity"):
        footprint_of(pod(containers=[container("lots")]).spec)


def table_of(*nodes: Node) -> NodeTable:
    table = NodeTable()
    for each in nodes:
        table.set_node(each)
    return table


def fits(table: NodeTable, asking: Pod) -> set[str]:
    return set(table.names[table.fits(footprint_of(asking.spec))].tolist())


def test_cpu_of_pods_on_the_node_counts() -> None:
    table = table_of(node("n1"), node("n2"))
    table.set_pod(pod("a", "n1", containers=[container("3")]))
    assert fits(table, pod(containers=[container("2")])) == {"n2"}
    table.drop_pod("a")
    assert fits(table, pod(containers=[container("2")])) == {"n1", "n2"}


def test_too_many_pods() -> None:
    table = table_of(node("n1", pods="1"))
    table.set_pod(pod("a", "n1"))
    assert fits(table, pod()) == set()
    assert [lack.message for lack in table.shortages(Footprint(), 0)] == ["Too many pods"]


def test_extended_resource_that_no_node_has() -> None:
    table = table_of(node("n1"))
    asking = pod(containers=[{"name": "c", "resources": {"limits": {"example.com/fpga": "1"}}}])
    assert fits(table, asking) == set()
    (lack,) = table.shortages(footprint_of(asking.spec), 0)
    assert lack.message == "Insufficient example.com/fpga"


def ports(port: int, ip: str = "", protocol: str = "TCP") -> list[dict[str, Any]]:
    return [container(ports=[{"containerPort": 80, "hostPort": port, "hostIP": ip, "protocol": protocol}])]


@pytest.mark.parametrize(
    ("asked", "free"),
    [
        (ports(8080), False),
        (ports(8080, "10.0.0.1"), False),
        (ports(8080, protocol="UDP"), True),
        (ports(8081), True),
    ],
)
def test_host_port_on_all_addresses(asked: list[dict[str, Any]], free: bool) -> None:
    table = table_of(node("n1"))
    table.set_pod(pod("a", "n1", containers=ports(8080)))
    assert bool(fits(table, pod(containers=asked))) is free


def test_host_port_on_different_addresses_is_no_conflict() -> None:
    table = table_of(node("n1"))
    table.set_pod(pod("a", "n1", containers=ports(8080, "10.0.0.1")))
    assert fits(table, pod(containers=ports(8080, "10.0.0.2"))) == {"n1"}
    table.drop_pod("a")
    assert fits(table, pod(containers=ports(8080))) == {"n1"}


def test_what_no_node_has_costs_no_room_and_counts_once_a_node_has_it() -> None:
    """Pods that were bound by hand, each with a resource of a name of its own."""
    table = table_of(node("n1"))
    before = table.nbytes
    for number in range(300):
        limits = {"limits": {f"example.com/r{number}": "1"}}
        table.set_pod(pod(f"p{number}", "n1", containers=[{"name": "c", "resources": limits}]))
    assert table.nbytes == before
    for _ in range(2):
        table.set_node(node("n1", pods="1000", **{"example.com/r7": "2"}))
        asking = [{"name": "c", "resources": {"limits": {"example.com/r7": "1"}}}]
        assert fits(table, pod(containers=asking)) == {"n1"}
        asking = [{"name": "c", "resources": {"limits": {"example.com/r7": "2"}}}]
        assert fits(table, pod(containers=asking)) == set()
        table.drop_node("n1")


def test_many_ports_are_held_against_many_in_as_many_steps() -> None:
    table = table_of(node("n1"))
    many = [
        {"containerPort": 80, "hostPort": n % 60_000 + 1, "hostIP": f"10.0.0.{n // 60_000}"}
        for n in range(120_000)
    ]
    table.set_pod(pod("a", "n1", containers=[container(ports=many)]))
    other = [{**port, "hostIP": "10.9.9.9"} for port in many[:60_000]]
    assert fits(table, pod(containers=[container(ports=other)])) == {"n1"}


def test_finished_pod_takes_nothing() -> None:
    table = table_of(node("n1", pods="1"))
    table.set_pod(pod("a", "n1"))
    done = msgspec.convert(
        {"metadata": {"uid": "a"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Succeeded"}}, Pod
    )
    table.set_pod(done)
    assert fits(table, pod()) == {"n1"}


def test_pods_of_a_node_that_comes_back_still_count() -> None:
    table = table_of(node("n1"))
    table.set_pod(pod("a", "n1", containers=[container("3")]))
    table.drop_node("n1")
    table.set_node(node("n2"))  # takes the row over
    assert fits(table, pod(containers=[container("2")])) == {"n2"}
    table.set_node(node("n1"))
    assert fits(table, pod(containers=[container("2")])) == {"n2"}


def test_node_without_readable_amounts_gets_no_pods() -> None:
    table = table_of(node("n1", cpu="a lot"))
    assert fits(table, pod()) == set()


_labels = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), max_size=2)
_taints = st.lists(
    st.builds(
        lambda key, effect: {"key": key, "effect": effect},
        st.sampled_from("xy"),
        st.sampled_from(["NoSchedule", "PreferNoSchedule"]),
    ),
    max_size=2,
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.integers(0, 4), _labels, _taints),
        st.tuples(st.just("node-gone"), st.integers(0, 4)),
        st.tuples(st.just("pod"), st.integers(0, 9), st.integers(0, 4), st.integers(0, 3)),
        st.tuples(st.just("pod-gone"), st.integers(0, 9)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps=_steps, selector=_labels, wanted=st.integers(0, 4))
def test_arrays_agree_with_plain_counting(steps: list[Any], selector: dict[str, str], wanted: int) -> None:
    """Whatever comes and goes in whatever order: kept answers and sums are what a fresh look would say."""
    table, nodes, pods = NodeTable(), dict[str, Node](), dict[str, Pod]()
    asking = pod(nodeSelector=selector, containers=[container(str(wanted))])
    rules, footprint = rules_of(asking.spec), footprint_of(asking.spec)
    for step in steps:
        match step:
            case ("node", number, labels, taints):
                nodes[f"n{number}"] = node(f"n{number}", labels, taints)
                table.set_node(nodes[f"n{number}"])
            case ("node-gone", number):
                nodes.pop(f"n{number}", None)
                table.drop_node(f"n{number}")
            case ("pod", number, where, cpu):
                pods[f"p{number}"] = pod(f"p{number}", f"n{where}", containers=[container(str(cpu))])
                table.set_pod(pods[f"p{number}"])
            case ("pod-gone", number):
                pods.pop(f"p{number}", None)
                table.drop_pod(f"p{number}")
        table.answers(rules)
    answers, mask = table.answers(rules), table.fits(footprint)
    assert set(table.names[table.alive].tolist()) == set(nodes)
    for name, each in nodes.items():
        row = table.row(name)
        assert row is not None
        used = sum(
            cpu_of(containers=[msgspec.to_builtins(c) for c in p.spec.containers])
            for p in pods.values()
            if p.spec.node_name == name
        )
        assert table.reasons[answers.refusals[row]] == (node_refusal(rules, each) or FITS)
        assert mask[row] == (not wanted or used + 1000 * wanted <= 4000)
