"""Layouts: which are legal, how many there are, what is wrong with the others, and where the driver puts things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, product

import pytest

from gpuslice.devices.mig import MigGeometry
from gpuslice.devices.miglayout import ComputeInstance, GpuInstance, MigLayout, instance, layout
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migspace import fewest_bins, space_of
from gpuslice.devices.migtables import FAMILIES, geometry_of
from gpuslice.errors import InputError

A100 = geometry_of("A100-40")
A30 = geometry_of("A30")


def only(family: str, *names: str) -> MigGeometry:
    geometry = geometry_of(family)
    return replace(geometry, profiles=tuple(p for p in geometry.profiles if str(p) in names))


BASIC = only("A100-40", "1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")

# NVIDIA's MIG user guide, "Supported MIG Profiles": the nineteen layouts of A100, compute slices at memory slices.
PUBLISHED = """
7@0 | 4@0+3@4 | 4@0+2@4+1@6 | 4@0+1@4+1@5+1@6 | 3@0+3@4 | 3@0+2@4+1@6 | 3@0+1@4+1@5+1@6 | 2@0+2@2+3@4 |
2@0+1@2+1@3+3@4 | 1@0+1@1+2@2+3@4 | 1@0+1@1+1@2+1@3+3@4 | 2@0+2@2+2@4+1@6 | 2@0+2@2+1@4+1@5+1@6 |
2@0+1@2+1@3+2@4+1@6 | 1@0+1@1+2@2+2@4+1@6 | 2@0+1@2+1@3+1@4+1@5+1@6 | 1@0+1@1+2@2+1@4+1@5+1@6 |
1@0+1@1+1@2+1@3+2@4+1@6 | 1@0+1@1+1@2+1@3+1@4+1@5+1@6
"""


def maximal(geometry: MigGeometry) -> list[frozenset[tuple[int, int]]]:
    found = space_of(geometry).layouts(only_maximal=True)
    return [frozenset((profile.slices, start) for profile, start in one) for one in found]


def test_the_nineteen_layouts_that_nvidia_published() -> None:
    published = {
        frozenset((int(part[0]), int(part[2])) for part in one.strip().split("+"))
        for one in PUBLISHED.split("|")
    }
    assert len(published) == 19
    assert sorted(map(sorted, maximal(BASIC))) == sorted(map(sorted, published))


def multisets(geometry: MigGeometry, *, only_maximal: bool = False) -> set[tuple[str, ...]]:
    found = space_of(geometry).layouts(only_maximal=only_maximal)
    return {tuple(sorted(str(profile) for profile, _ in one)) for one in found}


@pytest.mark.parametrize(
    ("geometry", "legal", "ends"),
    [
        (BASIC, 298, 19),
        (replace(A100, profiles=tuple(p for p in A100.profiles if p.enum != 7)), 723, 78),
        (replace(A100, profiles=tuple(p for p in A100.profiles if p.enum != 9)), 1089, 67),
        (A100, 2319, 239),
        (only("A30", "1g.6gb", "2g.12gb", "4g.24gb"), 26, 5),
        (A30, 76, 17),
    ],
    ids=["basic", "double", "media", "all", "A30 basic", "A30"],
)
def test_how_many_layouts_there_are(geometry: MigGeometry, legal: int, ends: int) -> None:
    every = list(space_of(geometry).layouts())
    assert len(every) == len(set(every)) == legal
    assert len(maximal(geometry)) == ends


def test_how_many_layouts_there_are_when_positions_do_not_count() -> None:
    assert len(multisets(BASIC) - {()}) == 37
    ends = [Counter(one) for one in multisets(BASIC, only_maximal=True)]
    assert len(ends) == 14
    # 3g at 0 takes the fourth compute slice's place with it.
    blocked = [sorted(one.elements()) for one in ends if any(one < other for other in ends)]
    assert sorted(blocked, key=len) == [
        ["1g.5gb", "2g.10gb", "3g.20gb"],
        ["1g.5gb", "1g.5gb", "1g.5gb", "3g.20gb"],
    ]
    assert len(multisets(only("A30", "1g.6gb", "2g.12gb", "4g.24gb"), only_maximal=True)) == 4


def obvious(geometry: MigGeometry) -> Iterator[MigLayout]:
    """Every choice of windows for every profile, however absurd."""
    slots = [(profile, start) for profile in geometry.profiles for start in profile.starts]
    for chosen in product((False, True), repeat=len(slots)):
        taken = [slot for slot, is_in in zip(slots, chosen, strict=True) if is_in]
        yield MigLayout(
            geometry,
            tuple(GpuInstance(profile, start, number) for number, (profile, start) in enumerate(taken)),
        )


@pytest.mark.parametrize("geometry", [BASIC, A30], ids=["A100 basic", "A30"])
def test_the_search_finds_exactly_the_layouts_without_a_fault(geometry: MigGeometry) -> None:
    legal = {
        frozenset((gi.profile, gi.start) for gi in one.instances)
        for one in obvious(geometry)
        if one.fault is None
    }
    assert set(space_of(geometry).layouts()) == legal


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layout_of_every_family_is_legal(family: str) -> None:
    geometry = geometry_of(family)
    ids: set[tuple[int, ...]] = set()
    for one in space_of(geometry).layouts(only_maximal=True):
        made = MigLayout(geometry, tuple(instance(geometry, profile.name, start) for profile, start in one))
        assert made.fault is None
        ids.add(tuple(sorted(gi.id for gi in made.instances)))
        assert len({gi.id for gi in made.instances}) == len(made.instances)
    assert ids


def gi(name: str, start: int, *compute: int, geometry: MigGeometry = A100) -> GpuInstance:
    return instance(geometry, name, start, *compute)


@pytest.mark.parametrize(
    ("geometry", "instances", "words"),
    [
        (
            A100,
            [gi("1g.6gb", 0, geometry=A30)],
            "1g.6gb does not exist on A100-40; it has 1g.5gb, 1g.5gb+me, 1g.10gb",
        ),
        (A100, [gi("3g.20gb", 2)], "3g.20gb cannot begin at memory slice 2 of A100-40; it can at 0 or 4"),
        (A100, [gi("3g.20gb", 0), gi("2g.10gb", 2)], "2g.10gb at 2:2 overlaps with 3g.20gb at 0:4"),
        (
            A100,
            [gi("1g.5gb+me", 0), gi("1g.5gb+me", 1)],
            "2 x 1g.5gb+me are too many: A100-40 takes at most 1",
        ),
        (
            A30,
            [gi("1g.6gb+me", 0, geometry=A30), gi("2g.12gb+me", 2, geometry=A30)],
            "1 x 1g.6gb+me and 1 x 2g.12gb+me take 2 sets of media extensions; A30 has 1",
        ),
        (A100, [gi("4g.20gb", 0, 2, 2, 1)], "4g.20gb at 0:4: its compute instances take 5 slices; it has 4"),
        (A100, [gi("4g.20gb", 0, 3)], "4g.20gb at 0:4: a compute instance of 3 slices cannot be made in it"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    geometry: MigGeometry, instances: list[GpuInstance], words: str
) -> None:
    fault = MigLayout(geometry, tuple(instances)).fault
    assert fault is not None
    assert fault.startswith(words)


def test_two_compute_instances_of_one_id_are_a_fault() -> None:
    twins = replace(gi("2g.10gb", 0), compute=(ComputeInstance(1, 0), ComputeInstance(1, 0)))
    assert MigLayout(A100, (twins,)).fault == "2g.10gb at 0:2: two of its compute instances have the same id"


def test_all_media_engines_leave_room_only_for_instances_without() -> None:
    geometry = geometry_of("RTX-PRO-6000")
    layout(geometry, "1g.24gb+me.all@0", "1g.24gb-me@1", "2g.48gb-me@2")
    with pytest.raises(InputError, match="take 5 shares of the media engines; RTX-PRO-6000 has 4"):
        layout(geometry, "1g.24gb+me.all@0", "1g.24gb+gfx@1")


@pytest.mark.parametrize("family", ["RTX-PRO-6000", "RTX-PRO-5000", "RTX-PRO-4500"])
def test_instances_are_refused_together_just_when_the_media_engines_do_not_suffice(family: str) -> None:
    """By NVIDIA's tables: what the largest profile has of each engine is all that the GPU has."""
    geometry = geometry_of(family)
    kinds = ("decoder", "encoder", "jpeg", "ofa")
    there = {kind: max(getattr(p.engines, kind) for p in geometry.profiles) for kind in kinds}
    refused = 0
    for count in range(1, geometry.memory_slices + 1):
        for chosen in combinations_with_replacement(geometry.profiles, count):
            if sum(p.size for p in chosen) > geometry.memory_slices:
                continue
            if any(chosen.count(p) > p.max_count for p in chosen):
                continue
            enough = all(sum(getattr(p.engines, kind) for p in chosen) <= there[kind] for kind in kinds)
            names = Counter(p.name for p in chosen)
            assert (space_of(geometry).why_impossible(names) is None) is enough, names
            refused += not enough
    assert refused


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"1g.24gb": 1}, "1g.24gb does not exist on A100-40; it has "),
        ({"1g.5gb": 8}, "8 x 1g.5gb are too many: A100-40 takes at most 7"),
        ({"4g.20gb": 1, "3g.20gb": 1, "1g.5gb": 1}, "take 8 compute slices; A100-40 has 7"),
        ({"2g.10gb": 2, "1g.10gb": 3}, "take 10 memory slices; A100-40 has 8"),
        ({"3g.20gb": 2, "1g.5gb": 1}, "take 9 memory slices; A100-40 has 8"),
        ({"4g.20gb": 1, "1g.10gb": 1, "1g.5gb": 2}, None),
        ({"1c.4g.20gb": 5}, "the compute instances of 4g.20gb take 5 compute slices; A100-40 can have 4"),
        ({"2c.4g.20gb": 1, "1c.4g.20gb": 2, "3g.20gb": 1}, None),
        ({"2c.3g.20gb": 2, "2g.10gb": 1}, "2 x 3g.20gb and 1 x 2g.10gb take 8 compute slices; A100-40 has 7"),
        ({"1c.2g.10gb": 6, "1g.5gb": 1}, None),
        ({"1g.5gb": 7}, None),
        ({}, None),
    ],
)
def test_why_an_empty_gpu_cannot_have_what_is_wanted(wanted: dict[str, int], words: str | None) -> None:
    """mig-parted's --valid-config accepts all of the impossible ones."""
    why = space_of(A100).why_impossible({MigProfile.parse(name): count for name, count in wanted.items()})
    assert why is None if words is None else why is not None and words in why


def test_windows_can_be_in_the_way_although_the_slices_would_do() -> None:
    """No GPU that we know, but a driver may say so."""
    one_sided = replace(A100, profiles=tuple(replace(p, starts=p.starts[:1]) for p in A100.profiles))
    wanted = {MigProfile.parse("4g.20gb"): 1, MigProfile.parse("3g.20gb"): 1}
    assert space_of(one_sided).why_impossible(wanted) == (
        "1 x 4g.20gb and 1 x 3g.20gb cannot lie on A100-40 together: "
        "their windows of memory slices overlap in every arrangement"
    )


def test_compute_instances_share_as_few_gpu_instances_as_they_fit_in() -> None:
    assert fewest_bins((3, 3, 2, 2, 2, 2), 7) == 2
    assert fewest_bins((2, 1), 3) == 1
    assert fewest_bins((2, 2), 3) == 2
    assert fewest_bins((), 3) == 0


# NVIDIA's MIG user guide and published listings: (profile ids in the order of creation, starts).
DRIVER = [
    ([19, 19, 14, 9], [6, 4, 0, None]),
    ([14, 19, 19, 19, 19, 19], [4, 6, 0, 1, 2, 3]),
    ([9, 19, 14, 19], [4, 0, 2, 1]),
    ([9, 14, 19, 19], [4, 0, 2, 3]),
    ([0], [0]),
    ([5, 9], [0, 4]),
    ([0, 19], [0, None]),
]


@pytest.mark.parametrize(("ids", "starts"), DRIVER)
def test_where_the_driver_puts_instances_by_itself(ids: list[int], starts: list[int | None]) -> None:
    now = MigLayout(A100)
    for profile_id, start in zip(ids, starts, strict=True):
        profile = A100.by_id(profile_id)
        assert profile is not None
        assert space_of(A100).drivers_start(now, profile) == start
        if start is not None:
            now = MigLayout(A100, (*now.instances, instance(A100, profile.name, start)))
    assert now.fault is None


def test_devices_of_a_layout() -> None:
    made = layout(A100, "1c.4g.20gb@0", "2c.4g.20gb@0", "2g.10gb@4", "1g.5gb@6")
    assert {str(name): count for name, count in made.devices.items()} == {
        "1c.4g.20gb": 1, "2c.4g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1,
    }  # fmt: skip
    assert made.instances[0].spare == 1
    assert str(made) == "4g.20gb at 0:4, 2g.10gb at 4:2, 1g.5gb at 6:1"
