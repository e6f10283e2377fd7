"""Names of MIG profiles, the tables of all families, and geometries from what a driver says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.devices.catalogue import MODELS
from gpuslice.devices.mig import DriverProfile, Engines, MigGeometry, geometry_from_driver
from gpuslice.devices.migprofile import MigProfile, gb_of_eighths, named_gb, parts_of
from gpuslice.devices.migtables import FAMILIES, geometry_of
from gpuslice.errors import InputError

RESOURCES = {
    "1g.5gb": "nvidia.com/mig-1g.5gb",
    "1g.5gb+me": "nvidia.com/mig-1g.5gb.me",
    "1g.24gb+me.all": "nvidia.com/mig-1g.24gb.me.all",
    "1g.24gb-me": "nvidia.com/mig-1g.24gb-me",
    "4g.96gb+gfx": "nvidia.com/mig-4g.96gb.gfx",
    "1c.4g.20gb": "nvidia.com/mig-1c.4g.20gb",
    "1c.2g.12gb+me": "nvidia.com/mig-1c.2g.12gb.me",
}


@pytest.mark.parametrize(("name", "resource"), RESOURCES.items())
def test_names_and_resources_are_read_and_written(name: str, resource: str) -> None:
    profile = MigProfile.parse(name)
    assert str(profile) == name
    assert profile.resource == resource
    assert MigProfile.of_resource(resource) == profile


@pytest.mark.parametrize(
    "name",
    ["", "foo", "1g", "1g.5", "5gb", "1g.5GB", "01g.5gb", "1g.05gb", "1g.5gb ", "1g.5gb+", "1g.5gb+me+gfx", "1g.5gb.me",
     "0g.5gb", "1g.0gb", "0c.1g.5gb", "-1g.5gb", "1g.5gb+ME", "1g.5gb\n", "1c1g.5gb", "1g.99999gb", "٣g.20gb"],
)  # fmt: skip
def test_what_is_no_profile_is_named(name: str) -> None:
    with pytest.raises(
        InputError, match=r"^mig-devices: .* is not a MIG profile; write one as nvidia-smi does"
    ):
        MigProfile.parse(name, field="mig-devices")


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-", "nvidia.com/mig-1g.5gb+me", "cpu"])
def test_other_resources_are_no_profiles(resource: str) -> None:
    assert MigProfile.of_resource(resource) is None


def test_a_part_that_is_the_whole_is_left_out() -> None:
    assert str(MigProfile.parse("3c.3g.20gb")) == "3g.20gb"
    assert MigProfile.parse("3c.3g.20gb") == MigProfile.parse("3g.20gb")
    assert MigProfile.parse("1c.3g.20gb").gpu_instance == MigProfile.parse("3g.20gb")


def test_parts_are_those_that_the_driver_makes() -> None:
    """4g has 1c, 2c and 4c; 3g 1c and 2c; 7g 1c, 2c, 3c, 4c and 7c."""
    assert {slices: parts_of(slices) for slices in (1, 2, 3, 4, 7)} == {
        1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7),
    }  # fmt: skip
    with pytest.raises(
        InputError, match=r"'3c.4g.20gb': no compute instance of 3 slices .* use 1c, 2c, or leave"
    ):
        MigProfile.parse("3c.4g.20gb")


@given(
    st.text(max_size=12) | st.from_regex(r"([0-9]c\.)?[0-9]g\.[0-9]{1,3}gb([+-][a-z.]{1,4})?", fullmatch=True)
)
def test_what_is_read_is_written_alike(text: str) -> None:
    try:
        profile = MigProfile.parse(text)
    except InputError:
        return
    assert MigProfile.parse(str(profile)) == profile
    assert MigProfile.of_resource(profile.resource) == profile


# 1g, 1g with double memory, 2g, 3g, 4g, 7g: NVIDIA's MIG user guide and published listings.
NAMES = {
    "A100-40": (5, 10, 10, 20, 20, 40),
    "A100-80": (10, 20, 20, 40, 40, 80),
    "H100-64": (8, 16, 16, 32, 32, 64),
    "H100-80": (10, 20, 20, 40, 40, 80),
    "H100-80-PCIE": (10, 20, 20, 40, 40, 80),
    "H100-94": (12, 24, 24, 47, 47, 94),
    "H100-96": (12, 24, 24, 48, 48, 96),
    "H200": (18, 35, 35, 71, 71, 141),
    "GH200-144": (18, 36, 36, 72, 72, 144),
    "B200": (23, 45, 45, 90, 90, 180),
    "GB200": (23, 47, 47, 93, 93, 186),
    "GB200-189": (24, 47, 47, 95, 95, 189),
    "B300": (34, 67, 67, 135, 135, 269),
    "GB300": (35, 70, 70, 139, 139, 278),
}


@pytest.mark.parametrize(("family", "gb"), NAMES.items())
def test_names_on_gpus_of_seven_slices(family: str, gb: tuple[int, ...]) -> None:
    one, double, two, three, four, seven = gb
    assert [str(profile) for profile in geometry_of(family).profiles] == [
        f"1g.{one}gb", f"1g.{one}gb+me", f"1g.{double}gb",
        f"2g.{two}gb", f"3g.{three}gb", f"4g.{four}gb", f"7g.{seven}gb",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("A30", "1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb"),
        (
            "RTX-PRO-6000",
            "1g.24gb, 1g.24gb+me, 1g.24gb+gfx, 1g.24gb-me, 1g.24gb+me.all, "
            "2g.48gb, 2g.48gb+gfx, 2g.48gb-me, 2g.48gb+me.all, 4g.96gb, 4g.96gb+gfx",
        ),
        (
            "RTX-PRO-5000",
            "1g.24gb, 1g.24gb+me, 1g.24gb+gfx, 1g.24gb-me, 1g.24gb+me.all, 2g.48gb, 2g.48gb+gfx",
        ),
        ("RTX-PRO-4500", "1g.16gb, 1g.16gb+gfx, 1g.16gb-me, 1g.16gb+me.all, 2g.32gb, 2g.32gb+gfx"),
    ],
)
def test_names_on_gpus_of_fewer_slices(family: str, names: str) -> None:
    assert geometry_of(family).listing == names


@pytest.mark.parametrize("family", FAMILIES)
def test_names_follow_from_the_memory_that_is_known(family: str) -> None:
    geometry = geometry_of(family)
    total = max(profile.name.memory_gb for profile in geometry.profiles)
    for profile in geometry.profiles:
        assert profile.name.memory_gb == gb_of_eighths(8 * profile.size // geometry.memory_slices, total)
        if profile.memory_mib is not None:
            assert profile.name.memory_gb == named_gb(profile.memory_mib, total * 1024)


@pytest.mark.parametrize(
    ("memory", "total", "gb"),
    [
        (4864, 40536, 5), (4864, 40960, 5), (9856, 40536, 10), (40192, 40536, 40),
        (16384, 143771, 18), (71168, 143771, 71), (22528, 183359, 23), (20992, 183359, 23),
        (22528, 189471, 23), (20480, 192512, 24), (24192, 97887, 24), (23675, 97887, 24), (5836, 24064, 6),
    ],
)  # fmt: skip
def test_names_by_the_drivers_formula(memory: int, total: int, gb: int) -> None:
    """The same board is 1g.23gb with one driver and 1g.24gb with another (mig-parted#227)."""
    assert named_gb(memory, total) == gb


def test_every_model_that_can_be_partitioned_has_a_table() -> None:
    for model in MODELS:
        if model.mig_family is not None:
            total = max(profile.name.memory_gb for profile in geometry_of(model.mig_family).profiles)
            assert total == -(-model.memory_mib // 1024), model.name


def test_an_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'T4'; use one of A100-40, "):
        geometry_of("T4")


def test_published_numbers_of_a100() -> None:
    """NVIDIA's MIG user guide: placements, ids, engines; gpu-feature-discovery's labels for the memory."""
    geometry = geometry_of("A100-40")
    assert [
        (str(p), p.id, p.enum, p.size, p.starts, p.max_count, p.memory_mib) for p in geometry.profiles
    ] == [
        ("1g.5gb", 19, 0, 1, (0, 1, 2, 3, 4, 5, 6), 7, 4864),
        ("1g.5gb+me", 20, 7, 1, (0, 1, 2, 3, 4, 5, 6), 1, 4864),
        ("1g.10gb", 15, 9, 2, (0, 2, 4, 6), 4, 9856),
        ("2g.10gb", 14, 1, 2, (0, 2, 4), 3, 9856),
        ("3g.20gb", 9, 2, 4, (0, 4), 2, 19968),
        ("4g.20gb", 5, 3, 4, (0,), 1, 19968),
        ("7g.40gb", 0, 4, 8, (0,), 1, 40192),
    ]
    assert geometry.profile(MigProfile.parse("7g.40gb")).engines == Engines(98, 7, 5, 0, 1, 1)


def test_what_no_source_says_is_not_invented() -> None:
    geometry = geometry_of("GB200")
    seven = geometry.profile(MigProfile.parse("7g.186gb"))
    assert (seven.memory_mib, seven.engines) == (None, Engines())


@pytest.mark.parametrize(
    ("family", "ids"),
    [
        ("A100-40", {("7g.40gb", 0): 0, ("4g.20gb", 0): 1, ("3g.20gb", 0): 1, ("3g.20gb", 4): 2, ("2g.10gb", 0): 3}
         | {("2g.10gb", 4): 5, ("1g.10gb", 6): 6, ("1g.5gb", 0): 7, ("1g.5gb", 4): 11, ("1g.5gb", 6): 13}),
        ("A30", {("4g.24gb", 0): 0, ("2g.12gb", 0): 1, ("2g.12gb", 2): 2, ("1g.6gb", 0): 3, ("1g.6gb", 3): 6}),
    ],
)  # fmt: skip
def test_ids_of_gpu_instances_are_those_of_the_driver(family: str, ids: dict[tuple[str, int], int]) -> None:
    geometry = geometry_of(family)
    for (name, start), number in ids.items():
        assert geometry.gi_id(geometry.profile(MigProfile.parse(name)), start) == number


def test_compute_instances_of_each_gpu_instance() -> None:
    geometry = geometry_of("A100-40")
    four = geometry.ci_profiles(geometry.profile(MigProfile.parse("4g.20gb")))
    assert [(ci.slices, ci.enum, ci.max_count, ci.sm) for ci in four] == [
        (1, 0, 4, 14),
        (2, 1, 2, 28),
        (4, 3, 1, 56),
    ]
    hopper = geometry_of("H100-80")
    three = hopper.ci_profiles(hopper.profile(MigProfile.parse("3g.40gb")))
    assert [(ci.slices, ci.sm) for ci in three] == [(1, None), (2, None), (3, 60)]


def test_a_profile_of_another_gpu_is_named_with_those_that_exist() -> None:
    """mig-parted says "applied successfully" and leaves the GPU empty."""
    with pytest.raises(
        InputError, match=r"1g.24gb does not exist on A100-40; it has 1g.5gb, 1g.5gb\+me, 1g.10gb"
    ):
        geometry_of("A100-40").profile(MigProfile.parse("1g.24gb"))


def answers_of(geometry: MigGeometry) -> list[DriverProfile]:
    return [
        DriverProfile(p.enum, p.id, p.slices, p.memory_mib or 0, p.max_count, tuple((s, p.size) for s in p.starts), p.engines)
        for p in geometry.profiles
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "total"),
    [("A100-40", 40536), ("A100-80", 81920), ("H100-80", 81559), ("H200", 143771), ("A30", 24576), ("RTX-PRO-6000", 97887)],
)  # fmt: skip
def test_a_driver_that_says_the_table_gives_the_geometry_of_the_table(family: str, total: int) -> None:
    table = geometry_of(family)
    assert geometry_from_driver(family, total, reversed(answers_of(table))) == table


def test_a_profile_newer_than_the_tables_does_not_pass_for_a_plain_one() -> None:
    plain = DriverProfile(0, 19, 1, 4864, 7, tuple((s, 1) for s in range(7)))
    new = DriverProfile(21, 70, 1, 4864, 7, tuple((s, 1) for s in range(7)))
    whole = DriverProfile(4, 0, 7, 40192, 1, ((0, 8),))
    named = DriverProfile(22, 71, 1, 4864, 7, tuple((s, 1) for s in range(7)), name="MIG 1g.5gb+xyz")
    geometry = geometry_from_driver("new GPU", 40536, [plain, new, whole, named])
    assert geometry.listing == "1g.5gb, 1g.5gb+profile21, 1g.5gb+xyz, 7g.40gb"


@pytest.mark.parametrize(
    "answers",
    [
        [DriverProfile(0, 19, 1, 4864, 7, ((0, 1), (2, 2)))],
        [DriverProfile(0, 19, 1, 0, 7, ((0, 1),))],
        [DriverProfile(0, 19, 0, 4864, 7, ((0, 1),))],
        [DriverProfile(0, 19, 1, 4864, 7, ((-1, 1),))],
        [DriverProfile(0, 19, 1, 4864, 7, ((0, 1),)), DriverProfile(9, 15, 1, 4864, 7, ((0, 1),))],
    ],
)
def test_a_driver_that_contradicts_itself_is_not_believed(answers: list[DriverProfile]) -> None:
    with pytest.raises(InputError, match="answers are not sound"):
        geometry_from_driver("GPU", 40536, answers)


def test_profiles_that_can_lie_nowhere_are_left_out() -> None:
    nowhere = [DriverProfile(0, 19, 1, 4864, 7, ()), DriverProfile(4, 0, 7, 40192, 0, ((0, 8),))]
    assert geometry_from_driver("GPU", 40536, nowhere).profiles == ()
