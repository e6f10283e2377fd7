"""GPUNodePool as it is written: strict, one sentence per mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.capacity.nodepool import (
    DEFINITION,
    IDLE_SECONDS,
    PoolFields,
    definition,
    read_fields,
    read_pairs,
)
from gpuslice.capacity.pools import GpuInstanceProfile, PoolTaint
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError

A100 = "Standard_ND96asr_v4"
CHART = Path(__file__).parents[2] / "deploy/helm/gpuslice/crds/gpunodepools.yaml"


def test_the_articles_pool() -> None:
    desired = read_fields("mignode", PoolFields(vm_size=A100, gpu_instance_profile="MIG1g"))
    assert desired.spec.gpu_instance_profile is GpuInstanceProfile.MIG1G
    assert desired.spec.mig_strategy is MigStrategy.SINGLE, (
        "a partitioned GPU is never counted as a whole one"
    )
    assert (desired.spec.count, desired.idle_seconds) == (3, IDLE_SECONDS), "az's default"
    assert desired.partitioning is not None
    assert desired.partitioning.config == "all-1g.5gb"


def test_labels_and_taints() -> None:
    fields = PoolFields(
        vm_size=A100, node_labels={"team": "a"}, node_taints=("sku=gpu:NoSchedule", "x:NoExecute")
    )
    spec = read_fields("p", fields).spec
    assert dict(spec.labels) == {"team": "a"}
    assert spec.taints == (PoolTaint("sku", "NoSchedule", "gpu"), PoolTaint("x", "NoExecute"))
    assert read_pairs(["a=1,b=2", "c= d=4"], "labels") == {"a": "1", "b": "2", "c": "", "d": "4"}


@pytest.mark.parametrize(
    "fields",
    [
        PoolFields(vm_size=A100, mig_policy="on-demand"),
        PoolFields(vm_size=A100, node_labels={"gpuslice.io/mig-policy": "on-demand"}),
    ],
)
def test_cutting_on_demand_is_a_label_of_the_nodes_and_counts_by_profile(fields: PoolFields) -> None:
    spec = read_fields("p", fields).spec
    assert dict(spec.labels) == {"gpuslice.io/mig-policy": "on-demand"}
    assert spec.mig_strategy is MigStrategy.MIXED


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (PoolFields(), "vmSize: say which machines"),
        (PoolFields(vm_size="Standard_NC4as_T4_v3", gpu_instance_profile="MIG1g"), "Tesla T4 cannot be part"),
        (
            PoolFields(vm_size=A100, gpu_instance_profile="MIG5g"),
            "gpuInstanceProfile: 'MIG5g' is not a profile",
        ),
        (PoolFields(vm_size=A100, mig_strategy="both"), "migStrategy: 'both' is not a strategy"),
        (
            PoolFields(vm_size=A100, gpu_instance_profile="MIG1g", mig_strategy="none"),
            "migStrategy: none would count a GPU that is partitioned as a whole one",
        ),
        (
            PoolFields(vm_size=A100, gpu_instance_profile="MIG1g", mig_policy="on-demand"),
            "migPolicy: a profile and partitioning on demand exclude each other",
        ),
        (PoolFields(vm_size=A100, mig_policy="often"), "migPolicy: 'often' is no policy"),
        (
            PoolFields(
                vm_size=A100, mig_policy="static", node_labels={"gpuslice.io/mig-policy": "on-demand"}
            ),
            "migPolicy: static here and on-demand as a label; give one",
        ),
        (
            PoolFields(vm_size=A100, mig_policy="on-demand", min_count=0, max_count=2),
            "minCount: 0 would stay 0: the number of nodes does not follow pods that wait for MIG devices",
        ),
        (
            PoolFields(
                vm_size=A100,
                node_labels={"gpuslice.io/mig-policy": "on-demand-drain"},
                min_count=0,
                max_count=2,
            ),
            "minCount: 0 would stay 0",
        ),
        (
            PoolFields(vm_size=A100, mig_policy="on-demand", mig_strategy="single"),
            "migStrategy: what is created on demand is counted by its profile; use mixed",
        ),
        (PoolFields(vm_size=A100, min_count=1), "minCount and maxCount go together"),
        (PoolFields(vm_size=A100, min_count=2, max_count=1), "maxCount: 1 is less than minCount 2"),
        (PoolFields(vm_size=A100, min_count=0, max_count=0), "maxCount: 0 is less than minCount 0, or 0"),
        (PoolFields(vm_size=A100, count=5, min_count=1, max_count=3), "count: 5 is not between"),
        (PoolFields(vm_size=A100, count=1001), "count: 1001 is not a number of nodes"),
        (
            PoolFields(vm_size=A100, node_labels={"agentpool": "x"}),
            "nodeLabels: agentpool is set by the pool",
        ),
        (PoolFields(vm_size=A100, node_labels={"a b": "x"}), "is not a label as Kubernetes takes it"),
        (PoolFields(vm_size=A100, node_taints=("sku=gpu",)), r"nodeTaints\[0\]: 'sku=gpu' is not a taint"),
    ],
)
def test_mistakes_are_one_sentence_each(fields: PoolFields, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_fields("pool", fields)


def test_the_chart_has_the_same_definition() -> None:
    assert CHART.read_text() == DEFINITION.read_text()
    assert definition()["metadata"]["name"] == "gpunodepools.gpuslice.io"
