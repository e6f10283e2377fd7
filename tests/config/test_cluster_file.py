"""Cluster and Devices files: what they mean, and one sentence for each way to get them wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.config.cluster import ClusterFile
from gpuslice.config.devices import DevicesFile
from gpuslice.errors import InputError
from gpuslice.units import MemoryUnit

EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = "apiVersion: gpuslice.io/v1alpha1\nkind: Cluster\n"
DEVICES = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\n"


def test_a_node_gets_its_gpus_in_the_order_of_the_file_with_their_own_sizes() -> None:
    plan = ClusterFile.parse(
        CLUSTER
        + "spec: {memoryUnit: 256MiB, policy: spread, nodes: [{name: a, cpu: 500m, memory: 1Gi, pods: 7,"
        " gpus: [{model: t4, count: 2}, {model: Own, memoryMiB: 3000, uuid: GPU-x, healthy: false}]}]}"
    ).plan()
    (node,) = plan.nodes
    assert (plan.unit, plan.policy.name) == (MemoryUnit(256), "spread")
    assert (node.cpu_milli, node.memory_mib, node.pods, node.address) == (500, 1024, 7, "10.0.0.1")
    assert [(g.index, g.model, g.memory_mib, g.available) for g in node.gpus.gpus] == [
        (0, "Tesla T4", 15109, True),
        (1, "Tesla T4", 15109, True),
        (2, "Own", 3000, False),
    ]
    assert node.gpus.gpus[2].uuid == "GPU-x"
    assert node.gpus.gpus[2].availability.reason


def test_generated_uuids_are_the_same_every_time_and_never_shared() -> None:
    text = CLUSTER + "spec: {nodes: [{namePrefix: n, count: 20, gpus: [{model: T4, count: 8}]}]}"
    first, again = (
        [gpu.uuid for node in ClusterFile.parse(text).plan().nodes for gpu in node.gpus.gpus]
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == 160


def test_numbered_nodes_have_addresses_of_their_own() -> None:
    plan = ClusterFile.parse(CLUSTER + "spec: {nodes: [{namePrefix: n, count: 300}]}").plan()
    assert [node.name for node in plan.nodes[:2]] == ["n-0", "n-1"]
    assert len({node.address for node in plan.nodes}) == 300


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected a mapping with apiVersion, kind: Cluster and spec"),
        ("a: [", "line 1, column 5"),
        ("kind: Cluster", "apiVersion: missing; write gpuslice.io/v1alpha1"),
        (DEVICES + "spec: {}", "kind: 'Devices' is not known here; write Cluster"),
        (CLUSTER + "sepc: {}", "unknown key 'sepc'"),
        (CLUSTER, "key 'spec' is missing"),
        (CLUSTER + "spec: {nodes: []}", "spec.nodes: no nodes; write at least one"),
        (CLUSTER + "spec: {nodes: []}\nspec: {nodes: []}", "key 'spec' appears twice"),
        (CLUSTER + "spec: {nodes: [{name: a, gpu: []}]}", "spec.nodes[0]: unknown key 'gpu'"),
        (CLUSTER + "spec: {nodes: [{cpu: 1}]}", "spec.nodes[0]: give either name, or namePrefix and count"),
        (CLUSTER + "spec: {nodes: [{namePrefix: a}]}", "spec.nodes[0]: namePrefix needs a count"),
        (CLUSTER + "spec: {nodes: [{namePrefix: a, count: 0}]}", "spec.nodes[0].count: write a whole number"),
        (CLUSTER + "spec: {nodes: [{name: a, count: 2}]}", "spec.nodes[0].count: count goes with namePrefix"),
        (CLUSTER + "spec: {nodes: [{name: A_b}]}", "spec.nodes[0]: 'A_b' is not a node name"),
        (
            CLUSTER + "spec: {nodes: [{name: a}, {name: a}]}",
            "spec.nodes[1]: node 'a' is in spec.nodes[0] already",
        ),
        (CLUSTER + "spec: {nodes: [{name: a, cpu: -1}]}", "spec.nodes[0].cpu: -1 is no size of a node"),
        (CLUSTER + "spec: {nodes: [{name: a, cpu: x}]}", "spec.nodes[0].cpu: 'x' is not a quantity"),
        (CLUSTER + "spec: {nodes: [{name: a, memory: [1]}]}", "spec.nodes[0].memory: expected"),
        (
            CLUSTER + "spec: {nodes: [{name: a, labels: {gpushare: true}}]}",
            "spec.nodes[0].labels[...]: expected text (in quotes, if it looks like something else)",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, labels: {-x: a}}]}",
            "spec.nodes[0].labels: -x=a is not a label",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, taints: [{key: b, effect: Nope}]}]}",
            "spec.nodes[0].taints[0].effect: 'Nope' is not one of the known values",
        ),
        (CLUSTER + "spec: {policy: x, nodes: [{name: a}]}", "spec.policy: 'x' is not one of"),
        (
            CLUSTER + "spec: {memoryUnit: GB, nodes: [{name: a}]}",
            "spec.memoryUnit: memory unit 'GB' is unknown",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, gpus: [{model: T44}]}]}",
            "spec.nodes[0].gpus[0].model: GPU model 'T44'",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, gpus: [{count: 2}]}]}",
            "spec.nodes[0].gpus[0]: key 'model' is missing",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, gpus: [{model: T4, count: 0}]}]}",
            "gpus[0].count: write a whole number",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, gpus: [{model: T4, count: 513}]}]}",
            "gpus[0].count: write a whole number",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, gpus: [{model: T4, memoryMiB: 900}]}]}",
            "spec.nodes[0].gpus[0]: 900 MiB is less than one unit of GiB",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, gpus: [{model: T4, uuid: GPU-1, count: 2}]}]}",
            "spec.nodes[0].gpus[0]: 2 GPUs cannot share one uuid",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, gpus: [{model: T4, uuid: 'a,b'}]}]}",
            "spec.nodes[0].gpus[0].uuid: 'a,b' is not a UUID",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, gpus: [{model: T4, uuid: G1}, {model: T4, uuid: G1}]}]}",
            "spec.nodes[0].gpus: gpus.uuid: 'G1' appears 2 times",
        ),
        (
            CLUSTER + "spec: {nodes: [{name: a, gpus: [{model: T4, uuid: G1}]},"
            " {name: b, gpus: [{model: T4, uuid: G1}]}]}",
            "spec.nodes[1].gpus: GPU G1 is on node 'a' already",
        ),
    ],
)
def test_a_wrong_cluster_file_is_refused_with_the_place_and_the_remedy(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        ClusterFile.parse(text).plan()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (CLUSTER + "spec: {gpus: []}", "kind: 'Cluster' is not known here; write Devices"),
        (DEVICES + "spec: {gpus: []}", "spec.gpus: no GPUs"),
        (DEVICES + "spec: {gpus: [{model: T4, healthy: 3}]}", "spec.gpus[0].healthy: expected true or false"),
        (
            DEVICES + "spec: {gpus: [{model: T4, uuid: G1}, {model: T4, uuid: G1}]}",
            "spec.gpus: gpus.uuid: 'G1' appears 2 times; every GPU needs its own uuid",
        ),
    ],
)
def test_a_wrong_devices_file_is_refused_with_the_place_and_the_remedy(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        DevicesFile.parse(text).inventory("node")
    assert sentence in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml: there is no such file"):
        ClusterFile.load(tmp_path / "nowhere.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"broken\.yaml: cannot be read: it is not UTF-8 text"):
        ClusterFile.load(broken)
    with pytest.raises(InputError, match="cannot be read"):
        ClusterFile.load(tmp_path)


@pytest.mark.parametrize("path", sorted((EXAMPLES / "clusters").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_example_clusters_are_right(path: Path) -> None:
    plan = ClusterFile.load(path).plan()
    assert all(node.gpus.gpus for node in plan.nodes)


def test_the_example_devices_are_right() -> None:
    for path in (EXAMPLES / "devices").glob("*.yaml"):
        assert DevicesFile.load(path).inventory("node").gpus
