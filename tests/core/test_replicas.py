"""Which devices are announced how often, and what a mistyped selection says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gpuslice.devices.sharing import (
    Replicas,
    Replicated,
    Selection,
    Sharing,
    SharingStrategy,
    device_of,
    replicate,
)
from gpuslice.errors import InputError

GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Device:
    uuid: str
    index: str


GPUS = [Device(f"GPU-{index}", str(index)) for index in range(4)]


def counts(*entries: Replicated) -> list[int]:
    plan = replicate(Sharing(SharingStrategy.TIME_SLICING, entries), GPU, GPUS)
    return [plan[gpu.uuid].count for gpu in GPUS]


def test_all_devices_are_replicated_unless_some_are_named() -> None:
    assert counts(Replicated(GPU, 4)) == [4, 4, 4, 4]
    assert counts(Replicated(GPU, 4, devices=Selection(count=3))) == [4, 4, 4, 1]
    assert counts(Replicated("nvidia.com/mig-1g.5gb", 4)) == [1, 1, 1, 1]


def test_every_gpu_can_have_its_own_number_of_replicas() -> None:
    """NVIDIA's device plugin, issues 1786, 1787, 628, 443: one number for all."""
    entries = (
        Replicated(GPU, 2, devices=Selection(refs=("0", "GPU-3"))),
        Replicated(GPU, 8, devices=Selection(refs=("1",))),
    )
    assert counts(*entries) == [2, 8, 1, 2]


def test_renamed_devices_leave_the_others_their_name() -> None:
    entry = Replicated(GPU, 2, "nvidia.com/gpu.shared", Selection(refs=("0",)))
    plan = replicate(Sharing(SharingStrategy.TIME_SLICING, (entry,)), GPU, GPUS)
    assert [plan[gpu.uuid].resource for gpu in GPUS] == ["nvidia.com/gpu.shared", GPU, GPU, GPU]


def test_ids_name_their_device() -> None:
    assert Replicas(GPU, 3).ids("GPU-a") == ("GPU-a::0", "GPU-a::1", "GPU-a::2")
    assert Replicas(GPU).ids("GPU-a") == ("GPU-a",)
    assert [device_of(one) for one in ("GPU-a::11", "GPU-a")] == ["GPU-a", "GPU-a"]


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([Selection(refs=("7",))], "'7' is no device of nvidia.com/gpu on this node; it has 0, 1, 2, 3"),
        ([Selection(count=5)], "5 devices of nvidia.com/gpu are to be shared, but this node has 4"),
        (
            [Selection(refs=("1",)), Selection(refs=("GPU-1",))],
            "device 1 of nvidia.com/gpu is selected twice",
        ),
    ],
)
def test_a_selection_that_the_node_does_not_have_is_refused(entries: list[Selection], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        counts(*(Replicated(GPU, 2, devices=selection) for selection in entries))
