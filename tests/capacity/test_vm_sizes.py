"""VM sizes as machines, and AKS's profiles as partitions."""

from __future__ import annotations

import pytest

from gpuslice.capacity.pools import GpuInstanceProfile
from gpuslice.capacity.vmsizes import VM_SIZES, find_size, partitioning_of
from gpuslice.devices.catalogue import find_model
from gpuslice.errors import InputError

MIG = GpuInstanceProfile


def test_the_articles_machine() -> None:
    size = find_size("standard_nd96ASR_v4")
    assert (size.name, size.gpus, size.vcpus, size.memory_gib) == ("Standard_ND96asr_v4", 8, 96, 900)
    assert size.model.name == "NVIDIA A100-SXM4-40GB"


def test_every_size_has_a_known_gpu_and_a_name_of_its_own() -> None:
    assert len({size.name.casefold() for size in VM_SIZES}) == len(VM_SIZES)
    assert all(size.model.memory_mib for size in VM_SIZES)


@pytest.mark.parametrize(
    ("profile", "config", "instances"),
    [  # the article's table
        (MIG.MIG1G, "all-1g.5gb", 7),
        (MIG.MIG2G, "all-2g.10gb", 3),
        (MIG.MIG3G, "all-3g.20gb", 2),
        (MIG.MIG4G, "all-4g.20gb", 1),
        (MIG.MIG7G, "all-7g.40gb", 1),
    ],
)
def test_the_articles_table_of_profiles(profile: MIG, config: str, instances: int) -> None:
    partitioned = partitioning_of(find_model("A100-40"), profile)
    assert (partitioned.config, len(partitioned.instances)) == (config, instances)
    assert set(partitioned.instances) == {config.removeprefix("all-")}


def test_other_gpus_have_other_instances() -> None:
    assert partitioning_of(find_model("H200"), MIG.MIG2G).config == "all-2g.35gb"
    assert partitioning_of(find_model("A30"), MIG.MIG4G).config == "all-4g.24gb"


@pytest.mark.parametrize(
    ("model", "profile", "words"),
    [
        ("T4", MIG.MIG1G, "MIG1g is not possible: Tesla T4 cannot be partitioned; leave the profile out"),
        ("A30", MIG.MIG3G, "MIG3g is not possible on NVIDIA A30; use MIG1g, MIG2g, MIG4g"),
    ],
)
def test_what_a_gpu_cannot_be_cut_into(model: str, profile: MIG, words: str) -> None:
    with pytest.raises(InputError, match=f"gpuInstanceProfile: {words}"):
        partitioning_of(find_model(model), profile)


def test_unknown_sizes_name_the_nearest_one() -> None:
    with pytest.raises(InputError, match="did you mean Standard_ND96asr_v4"):
        find_size("Standard_ND96asr_v5")
    with pytest.raises(InputError, match="use one with NVIDIA GPUs, such as"):
        find_size("Standard_D2s_v3")
