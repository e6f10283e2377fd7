"""What the engine places on a node whose GPUs are cut: the counts and names of NVIDIA's device plugin."""

from __future__ import annotations

from collections import Counter

import pytest

from gpuslice.config.devices import DevicesFile
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.devices.offered import offered
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError
from gpuslice.node.discovery.simulated import SimulatedDriver

HEAD = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: {gpus: "
SEVEN = "[1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]"


def devices(gpus: str, strategy: MigStrategy) -> tuple[Gpu, ...]:
    machine = DevicesFile.parse(f"{HEAD}{gpus}}}").machine("n")
    return offered(SimulatedDriver(machine).look(), strategy)


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
    (uncut,) = [gpu for gpu in found if not gpu.parent]
    assert (uncut.index, uncut.shareable) == (1, True)
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
