"""Resources and ids by MIG strategy, compared with what NVIDIA's device plugin was seen to announce."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.devices.announced import Announcement, announce
from gpuslice.devices.found import Found, FoundGpu, MigDevice, MigMode
from gpuslice.devices.mig import Engines
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.sharing import UNSHARED, MigStrategy, Replicated, Selection, Sharing, SharingStrategy
from gpuslice.errors import InputError

NONE, SINGLE, MIXED = MigStrategy


def gpu(index: int, *profiles: str, mig: bool = False, name: str = "NVIDIA A100-SXM4-40GB") -> FoundGpu:
    mode = MigMode(mig or bool(profiles), mig or bool(profiles))
    devices = tuple(
        MigDevice(f"MIG-{index}-{number}", number, 0, MigProfile.parse(profile), 4864, Engines())
        for number, profile in enumerate(profiles)
    )
    return FoundGpu(index, f"GPU-{index}", name, 40960, 424, mig=mode, mig_devices=devices)


def told(*gpus: FoundGpu, strategy: MigStrategy, sharing: Sharing = UNSHARED) -> Announcement:
    return announce(Found("550.163.01", "12.4", gpus), strategy, sharing)


def ids(announcement: Announcement) -> dict[str, list[str]]:
    return {name: [one.id for one in announced] for name, announced in announcement.resources.items()}


def counts(announcement: Announcement) -> dict[str, int]:
    return {name: len(announced) for name, announced in announcement.resources.items()}


def slicing(*resources: Replicated) -> Sharing:
    return Sharing(SharingStrategy.TIME_SLICING, resources)


@pytest.mark.parametrize("strategy", MigStrategy)
def test_whole_gpus_are_the_same_with_every_strategy(strategy: MigStrategy) -> None:
    announcement = told(gpu(0), gpu(1), strategy=strategy)
    assert ids(announcement) == {"nvidia.com/gpu": ["GPU-0", "GPU-1"]}
    assert announcement.warnings == ()
    assert told(strategy=strategy) == Announcement({})


def test_eight_a100_in_sevenths_are_56() -> None:
    gpus = [gpu(index, *["1g.5gb"] * 7) for index in range(8)]
    assert counts(told(*gpus, strategy=SINGLE)) == {"nvidia.com/gpu": 56}
    assert counts(told(*gpus, strategy=MIXED)) == {"nvidia.com/mig-1g.5gb": 56}
    assert counts(told(*gpus, strategy=NONE)) == {"nvidia.com/gpu": 8}


def test_mixed_names_each_profile_even_a_part_of_an_instance() -> None:
    """NVIDIA's plugin does not start: MIG profile '1c.4g.20gb' does not match any resource patterns."""
    announcement = told(
        gpu(0), gpu(1, "1g.5gb+me", "1c.4g.20gb"), gpu(2, "1g.24gb-me", "4g.96gb+gfx"), strategy=MIXED
    )
    assert ids(announcement) == {
        "nvidia.com/gpu": ["GPU-0"],
        "nvidia.com/mig-1g.5gb.me": ["MIG-1-0"],
        "nvidia.com/mig-1c.4g.20gb": ["MIG-1-1"],
        "nvidia.com/mig-1g.24gb-me": ["MIG-2-0"],
        "nvidia.com/mig-4g.96gb.gfx": ["MIG-2-1"],
    }
    (part,) = announcement.resources["nvidia.com/mig-1c.4g.20gb"]
    assert part.device.index == "1:1"


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        (
            (gpu(0, mig=True), gpu(1, "1g.5gb")),
            "invalid MIG configuration: at least one device with migEnabled=true was not configured correctly: "
            "error visiting device: device 0 has no MIG devices configured",
        ),
        (
            (gpu(0, "1g.5gb", "3g.20gb"),),
            "invalid MIG configuration: more than one MIG device type present on node",
        ),
        (
            (gpu(0, "1g.5gb"), gpu(1)),
            "invalid MIG configuration: all devices on the node must be configured with the same migEnabled value",
        ),
    ],
)
def test_single_that_cannot_be_met_is_an_error_in_nvidias_words(
    gpus: tuple[FoundGpu, ...], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        told(*gpus, strategy=SINGLE)
    assert str(caught.value) == sentence


def test_mixed_goes_on_without_an_empty_gpu() -> None:
    announcement = told(gpu(0, mig=True), gpu(1), strategy=MIXED)
    assert ids(announcement) == {"nvidia.com/gpu": ["GPU-1"]}
    assert announcement.warnings == ("device 0 has no MIG devices configured",)


def test_none_gives_out_a_partitioned_gpu_as_nvidia_does_and_says_so() -> None:
    (warning,) = told(gpu(0, "1g.5gb"), strategy=NONE).warnings
    assert warning.startswith("device 0 is in MIG mode and is given out as a whole")


def test_replicas_have_ids_of_their_own() -> None:
    sharing = slicing(Replicated("nvidia.com/gpu", 2, devices=Selection(refs=("1",))))
    assert ids(told(gpu(0), gpu(1), strategy=NONE, sharing=sharing)) == {
        "nvidia.com/gpu": ["GPU-0", "GPU-1::0", "GPU-1::1"]
    }
    renamed = slicing(Replicated("nvidia.com/mig-1g.5gb", 2, "nvidia.com/mig-1g.5gb.shared"))
    assert ids(told(gpu(0), gpu(1, "1g.5gb"), strategy=MIXED, sharing=renamed)) == {
        "nvidia.com/gpu": ["GPU-0"],
        "nvidia.com/mig-1g.5gb.shared": ["MIG-1-0::0", "MIG-1-0::1"],
    }


def test_a_mig_device_is_shared_by_its_index() -> None:
    sharing = slicing(Replicated("nvidia.com/gpu", 3, devices=Selection(refs=("0:1",))))
    announcement = told(gpu(0, "3g.20gb", "3g.20gb"), strategy=SINGLE, sharing=sharing)
    assert counts(announcement) == {"nvidia.com/gpu": 4}


def test_sharing_of_what_the_node_does_not_have_is_told() -> None:
    sharing = slicing(Replicated("nvidia.com/mig-1g.5gb", 2))
    assert told(gpu(0), strategy=MIXED, sharing=sharing).warnings == (
        "sharing: no device of this node is a nvidia.com/mig-1g.5gb",
    )


def test_what_befalls_a_gpu_befalls_every_mig_device_and_replica_of_it() -> None:
    """NVIDIA's plugin marks one of seven MIG devices, or one of four replicas."""
    sick = replace(gpu(0, *["1g.5gb"] * 7), healthy=False, reason="XID 79")
    sharing = slicing(Replicated("nvidia.com/gpu", 4))
    announced = told(sick, gpu(1, *["1g.5gb"] * 7), strategy=SINGLE, sharing=sharing).resources[
        "nvidia.com/gpu"
    ]
    assert [one.device.healthy for one in announced] == [False] * 28 + [True] * 28
    assert announced[0].device.reason == "XID 79"


def test_one_sick_mig_device_leaves_its_neighbours_alone() -> None:
    whole = gpu(0, "1g.5gb", "1g.5gb")
    sick = replace(
        whole, mig_devices=(replace(whole.mig_devices[0], healthy=False, reason="x"), whole.mig_devices[1])
    )
    announced = told(sick, strategy=SINGLE).resources["nvidia.com/gpu"]
    assert [(one.device.healthy, one.device.reason) for one in announced] == [(False, "x"), (True, "")]


def test_the_screen_adapter_of_a_dgx_station_is_not_announced() -> None:
    assert ids(told(gpu(0), gpu(1, name="DGX Display"), strategy=NONE)) == {"nvidia.com/gpu": ["GPU-0"]}
