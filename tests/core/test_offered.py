"""What the engine places on a node whose GPUs are partitioned: the counts and names of NVIDIA's device plugin."""

from __future__ import annotations

from collections import Counter

import pytest

from gpuslice.config.devices import DevicesFile
from gpuslice.config.nvidia import NvidiaConfig
from gpuslice.devices.inventory import Gpu, NodeGpus, ReplicaRule
from gpuslice.devices.offered import offered
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError
from gpuslice.node.discovery.simulated import SimulatedDriver

HEAD = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: {gpus: "
SEVEN = "[1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]"


def devices(gpus: str, strategy: MigStrategy, sharing: str = "") -> tuple[Gpu, ...]:
    machine = DevicesFile.parse(f"{HEAD}{gpus}}}").machine("n")
    config = NvidiaConfig.parse(f"sharing: {{timeSlicing: {{{sharing}}}}}" if sharing else "")
    return offered(SimulatedDriver(machine).query(), strategy, config.sharing)


@pytest.mark.parametrize(
    ("strategy", "resource"),
    [(MigStrategy.SINGLE, "nvidia.com/gpu"), (MigStrategy.MIXED, "nvidia.com/mig-1g.5gb")],
)
def test_eight_a100_of_seven_small_instances_are_56(strategy: MigStrategy, resource: str) -> None:
    found = devices(f"[{{model: A100-40, count: 8, mig: {SEVEN}}}]", strategy)
    assert Counter(gpu.resource for gpu in found) == {resource: 56}
    assert {gpu.model for gpu in found} == {"NVIDIA A100-SXM4-40GB MIG 1g.5gb"}
    assert {gpu.memory_mib for gpu in found} == {4864}
    assert Counter(Counter(gpu.parent for gpu in found).values()) == {7: 8}
    inventory = NodeGpus(found)
    assert sum(map(inventory.units_of, found)) == 0, "no memory of a MIG device is shared"


def test_mixed_offers_gpus_beside_mig_devices_and_nothing_of_a_gpu_that_is_cut() -> None:
    gpus = (
        f"[{{model: A100-40, mig: [3g.20gb, 2g.10gb]}}, {{model: A100-40}}, {{model: A100-40, mig: {SEVEN}}}]"
    )
    found = devices(gpus, MigStrategy.MIXED)
    assert Counter(gpu.resource for gpu in found) == {
        "nvidia.com/gpu": 1,
        "nvidia.com/mig-3g.20gb": 1,
        "nvidia.com/mig-2g.10gb": 1,
        "nvidia.com/mig-1g.5gb": 7,
    }
    (unpartitioned,) = [gpu for gpu in found if not gpu.parent]
    assert (unpartitioned.index, unpartitioned.shareable) == (1, True)
    assert sorted(gpu.index for gpu in found) == [1, *range(3, 12)]


def test_without_a_strategy_a_gpu_that_is_cut_is_one_but_its_memory_is_not_shared() -> None:
    found = devices("[{model: A100-40, mig: [3g.20gb]}, {model: T4}]", MigStrategy.NONE)
    assert [(gpu.resource, gpu.shareable) for gpu in found] == [
        ("nvidia.com/gpu", False),
        ("nvidia.com/gpu", True),
    ]


def test_single_that_cannot_be_met_is_refused_in_nvidias_words() -> None:
    with pytest.raises(InputError, match="more than one MIG device type present on node"):
        devices("[{model: A100-40, mig: [3g.20gb, 2g.10gb]}]", MigStrategy.SINGLE)


def test_replicas_are_in_the_place_of_their_gpu_and_share_no_memory() -> None:
    found = devices(
        "[{model: T4, count: 2}]", MigStrategy.NONE, "resources: [{name: gpu, replicas: 4, devices: ['1']}]"
    )
    assert [gpu.index for gpu in found] == [0, 2, 3, 4, 5]
    whole, *replicas = found
    assert [gpu.uuid.removeprefix(replicas[0].device) for gpu in replicas] == ["::0", "::1", "::2", "::3"]
    assert {gpu.physical for gpu in replicas} == {replicas[0].device}
    assert {gpu.memory_mib for gpu in replicas} == {whole.memory_mib // 4}
    inventory = NodeGpus(found)
    assert [inventory.units_of(gpu) for gpu in found] == [whole.memory_mib // 1024, 0, 0, 0, 0]


def test_different_gpus_have_different_numbers_of_replicas() -> None:
    """NVIDIA's device plugin, issues 1786, 1787, 628, 443."""
    entries = "{name: gpu, replicas: 2, devices: [0]}, {name: gpu, replicas: 8, devices: ['2']}"
    found = devices("[{model: T4, count: 3}]", MigStrategy.NONE, f"resources: [{entries}]")
    assert sorted(Counter(gpu.device for gpu in found).values()) == [1, 2, 8]


def test_mig_devices_have_replicas_of_which_each_has_a_name_of_its_own() -> None:
    found = devices(
        f"[{{model: A100-40, count: 8, mig: {SEVEN}}}]",
        MigStrategy.MIXED,
        "renameByDefault: true, resources: [{name: nvidia.com/mig-1g.5gb, replicas: 8}]",
    )
    assert Counter(gpu.resource for gpu in found) == {"nvidia.com/mig-1g.5gb.shared": 448}
    assert len(NodeGpus(found).gpus) == 448
    assert Counter(Counter(gpu.parent for gpu in found).values()) == {56: 8}


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("", ReplicaRule.ANY),
        ("allowSameGPU: true, ", ReplicaRule.ANY),
        ("allowSameGPU: false, ", ReplicaRule.OTHER_DEVICES),
        ("failRequestsGreaterThanOne: true, ", ReplicaRule.ALONE),
        ("failRequestsGreaterThanOne: true, allowSameGPU: true, ", ReplicaRule.ALONE),
    ],
)
def test_what_a_container_may_hold_besides_is_the_files_word(options: str, rule: ReplicaRule) -> None:
    found = devices(
        "[{model: T4, count: 2}]", MigStrategy.NONE, f"{options}resources: [{{name: gpu, replicas: 2}}]"
    )
    assert {gpu.replica_rule for gpu in found} == {rule}


def test_a_sick_gpu_makes_all_its_replicas_sick() -> None:
    """Defect of NVIDIA's device plugin 0.20.0: of four replicas it took one away."""
    found = devices(
        "[{model: T4, healthy: false}]", MigStrategy.NONE, "resources: [{name: gpu, replicas: 4}]"
    )
    assert [gpu.available for gpu in found] == [False] * 4
