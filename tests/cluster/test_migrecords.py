"""What a node says of its MIG instances and is told to make of them: written and read back, or refused."""

from __future__ import annotations

import json

import pytest

from gpuslice import names
from gpuslice.cluster.migrecords import (
    MigCapableGpu,
    MigPolicy,
    decode_partitions,
    decode_wanted,
    encode_partitions,
    encode_wanted,
    placements,
    target_layout,
)
from gpuslice.devices.miglayout import layout
from gpuslice.devices.migtables import FAMILIES, geometry_of
from gpuslice.errors import InputError

A100 = geometry_of("A100-40")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_familys_gpus_can_be_told_of(family: str) -> None:
    """What is read back partitions alike: the same windows, and the same things that do not go together."""
    geometry = geometry_of(family)
    for profile in geometry.profiles:
        made = layout(geometry, f"{profile}@{profile.starts[-1]}")
        gpu = MigCapableGpu("GPU-1", 3, True, made, devices={(profile.starts[-1], 0): "MIG-1"})
        (read,) = decode_partitions({names.MIG_PARTITIONS: encode_partitions([gpu])})
        assert (read.uuid, read.index, read.enabled, read.healthy) == ("GPU-1", 3, True, True)
        assert placements(read.layout) == placements(made)
        assert [(p.name, p.starts, p.max_count) for p in read.layout.geometry.profiles] == [
            (p.name, p.starts, p.max_count) for p in geometry.profiles
        ]
        assert read.layout.geometry.limits == geometry.limits
        assert read.marked(["MIG-1"]).instances[0].in_use
        assert not read.marked(["MIG-2"]).instances[0].in_use


def test_parts_of_instances_are_written_as_placements() -> None:
    made = layout(A100, "1c.3g.20gb@4", "2c.3g.20gb@4", "1g.5gb@0")
    assert placements(made) == ("1g.5gb@0", "1c.3g.20gb@4", "2c.3g.20gb@4")
    wanted = decode_wanted({names.MIG_WANTED: encode_wanted({"GPU-1": placements(made), "GPU-2": None})})
    assert wanted["GPU-2"] is None
    assert placements(target_layout(A100, wanted["GPU-1"])) == placements(made)


def test_nothing_written_is_nothing_said() -> None:
    assert decode_partitions({}) == ()
    assert decode_wanted({}) == {}
    assert MigPolicy.of({}) is MigPolicy.STATIC


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["gpus"][0].update(kind=7),
        lambda record: record["gpus"][0]["instances"][0].update(profile="9g.9gb"),
        lambda record: record["gpus"][0]["instances"][0].update(start=3),
        lambda record: record.pop("kinds"),
        lambda record: record["kinds"][0].update(memory=10**9),
        lambda record: record["kinds"][0]["profiles"][0].update(starts=[0] * 10_000),
        lambda record: record["gpus"][0].update(kind=-1),
        lambda record: record["gpus"].extend(record["gpus"] * 100),
    ],
)
def test_a_damaged_record_is_one_sentence_that_names_the_annotation(change: object) -> None:
    record = json.loads(encode_partitions([MigCapableGpu("GPU-1", 0, True, layout(A100, "3g.20gb@4"))]))
    change(record)  # type: ignore[operator]
    with pytest.raises(InputError, match=r"gpuslice\.io/mig\].*restart the node's agent") as error:
        decode_partitions({names.MIG_PARTITIONS: json.dumps(record)})
    assert "\n" not in str(error.value)


def test_what_cannot_be_wanted_is_refused() -> None:
    with pytest.raises(InputError, match="mig-wanted"):
        decode_wanted({names.MIG_WANTED: '["1g.5gb@0"]'})
    with pytest.raises(InputError, match="overlaps"):
        target_layout(A100, ("3g.20gb@4", "1g.5gb@5"))
    with pytest.raises(InputError, match=r"'always' is no policy.*on-demand-drain"):
        MigPolicy.of({names.MIG_POLICY: "always"})
