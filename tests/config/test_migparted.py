"""mig-parted's file: its grammar and words, what it lets through and we do not, export, standard names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuslice.config.migexport import MigState, export, text_of
from gpuslice.config.migparted import MigPartedFile, MigSpec, MigTarget, PciId, unmet
from gpuslice.config.migstandard import standard_configs
from gpuslice.devices.found import FoundGpu
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migspace import space_of
from gpuslice.devices.migtables import FAMILIES, geometry_of
from gpuslice.errors import InputError

A100, A30, T4 = PciId(0x20B010DE), PciId(0x20B710DE), PciId(0x1EB810DE)
CUSTOM = """
version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  all-enabled:  [{devices: all, mig-enabled: true, mig-devices: {}}]
  all-1g.5gb:   [{devices: all, mig-enabled: true, mig-devices: {"1g.5gb": 7}}]
  custom:
  - device-filter: ["0x20B010DE", "0x20B210DE"]
    devices: [0, 1]
    mig-enabled: true
    mig-devices: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
  - devices: [2]
    mig-enabled: false
"""

NVIDIA = 0x10DE
BOARDS: dict[str, tuple[int, ...]] = {
    "A100-40": (0x20B0, 0x20B1, 0x20F1, 0x20F6),
    "A100-80": (0x20B2, 0x20B5, 0x20F3, 0x20F5),
    "A30": (0x20B7,),
    "H100-80": (0x2330, 0x2331, 0x2322, 0x2324),
    "H100-94": (0x2321, 0x233A),
    "H100-96": (0x2342, 0x233D, 0x20B6, 0x2329),
    "H200": (0x2335, 0x233B),
    "GH200-144": (0x2348,),
    "B200": (0x2901,),
    "GB200": (0x2941,),
    "B300": (0x3182,),
    "GB300": (0x31C2,),
    "RTX-PRO-6000": (0x2BB5,),
}
"""PCI device numbers by MIG family, as in NVIDIA's own configuration."""


def boards_of(family: str) -> tuple[PciId, ...]:
    """The boards of a MIG family; none for one that NVIDIA's file does not have."""
    return tuple(PciId(device << 16 | NVIDIA) for device in BOARDS.get(family, ()))


def a100(index: int) -> MigTarget:
    return MigTarget(index, "NVIDIA A100-SXM4-40GB", A100, geometry_of("A100-40"))


def counts(devices: object) -> dict[str, int]:
    assert isinstance(devices, dict) or hasattr(devices, "items")
    return {str(profile): count for profile, count in devices.items()}  # type: ignore[union-attr]


def one(entry: str) -> str:
    return "version: v1\nmig-configs: {x: [{" + entry + "}]}"


def specs(entry: str, *gpus: MigTarget) -> dict[int, MigSpec]:
    return MigPartedFile.parse(one(entry)).specs("x", gpus or (a100(0), a100(1)))


def test_the_documented_file_means_what_it_says() -> None:
    file = MigPartedFile.parse(CUSTOM)
    assert list(file.configs) == ["all-disabled", "all-enabled", "all-1g.5gb", "custom"]
    gpus = [a100(index) for index in range(4)]
    assert {i: w.enabled for i, w in file.specs("all-disabled", gpus).items()} == dict.fromkeys(
        range(4), False
    )
    enabled = file.specs("all-enabled", gpus)[0]
    assert (enabled.enabled, counts(enabled.devices)) == (True, {})
    assert [counts(w.devices) for w in file.specs("all-1g.5gb", gpus).values()] == [{"1g.5gb": 7}] * 4
    custom = file.specs("custom", gpus)
    assert sorted(custom) == [0, 1, 2], "GPU 3 is in no entry and stays as it is"
    assert counts(custom[0].devices) == {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
    assert not custom[2].enabled


def test_compute_instances_of_one_profile_share_its_instances() -> None:
    """mig-parted makes of 1c.4g.20gb x2 and 2c.4g.20gb x1 one 4g instance with three compute instances."""
    devices = specs("devices: [0], mig-enabled: true, mig-devices: {1c.4g.20gb: 2, 2c.4g.20gb: 1}")[0].devices
    assert counts(devices) == {"1c.4g.20gb": 2, "2c.4g.20gb": 1}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected a mapping with version and mig-configs"),
        ("mig-configs: {}", "unable to parse with missing 'version' field"),
        ("version: v2", "version: unknown version: v2"),
        ("version: v1\nconfigs: {}", "unexpected field: configs"),
        ("version: v1", "at least one entry in 'mig-configs' is required"),
        ("version: v1\nmig-configs: {x: []}", "mig-configs.x: at least one entry in 'x' is required"),
        ("version: v1\nmig-configs: {1: []}", "mig-configs: 1 is no name; put it in quotes"),
        (one("mig-enabled: false"), "mig-configs.x[0]: missing required field: devices"),
        (one("devices: all"), "mig-configs.x[0]: missing required field: mig-enabled"),
        (one("devices: all, mig-enabled: false, filter: x"), "mig-configs.x[0]: unexpected field: filter"),
        (one("devices: some, mig-enabled: false"), "invalid string input for 'devices': some"),
        (
            one("devices: [], mig-enabled: false"),
            "mig-configs.x[0].devices: expected all, or a list of indexes",
        ),
        (one("devices: ['0'], mig-enabled: false"), "mig-configs.x[0].devices[0]: '0' is no index of a GPU"),
        (one("devices: [0, 0], mig-enabled: false"), "mig-configs.x[0].devices[1]: 0 is there twice"),
        (one("devices: all, mig-enabled: 1"), "mig-configs.x[0].mig-enabled: expected true or false, not 1"),
        (
            one("devices: all, mig-enabled: true"),
            "missing required field 'mig-devices' when 'mig-enabled' is true",
        ),
        (
            one("devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"),
            "MIG devices included when 'mig-enabled' is false",
        ),
        (
            one("devices: all, mig-enabled: true, mig-devices: {foo: 1}"),
            "error validating values in 'mig-devices' field: invalid format for 'foo': ",
        ),
        (
            one("devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}"),
            "error validating values in 'mig-devices' field: invalid count for '-1'",
        ),
        (
            one("devices: all, mig-enabled: true, mig-devices: {1g.5gb: 0}"),
            "error validating values in 'mig-devices' field: all counts for all MigProfiles are 0",
        ),
        (
            one("devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1, 1c.1g.5gb: 1}"),
            "error validating values in 'mig-devices' field: 1g.5gb is there twice",
        ),
        (
            one("devices: all, mig-enabled: true, mig-devices: []"),
            "expected a mapping from profiles to counts",
        ),
        (one("devices: all, mig-enabled: false, device-filter: A100"), "device-filter: 'A100' is no PCI id"),
    ],
)
def test_a_wrong_file_is_one_sentence_in_mig_parteds_words(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        for error in MigPartedFile.parse(text).refused.values():
            raise error
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_configuration_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(
        InputError, match="selected mig-config not present: nosuch; there are all-disabled, all-en"
    ):
        MigPartedFile.parse(CUSTOM).select("nosuch")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (
            "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 8}",
            "GPU 0 (NVIDIA A100-SXM4-40GB) cannot be made so: 8 x 1g.5gb are too many: A100-40 takes at most 7",
        ),
        (
            "devices: all, mig-enabled: true, mig-devices: {4g.20gb: 1, 3g.20gb: 1, 1g.5gb: 1}",
            "take 8 compute slices; A100-40 has 7",
        ),
        (
            "devices: all, mig-enabled: true, mig-devices: {1g.24gb: 1}",
            "1g.24gb does not exist on A100-40; it has 1g.5gb",
        ),
        (
            "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1, 1g.10gb+gfx: 1}",
            "1g.10gb+gfx does not exist on A100-40",
        ),
        ("devices: [7], mig-enabled: false", "mig-configs.x[0].devices: GPU 7 does not exist: the node has 2, numbered 0, 1"),
        (
            "device-filter: '0x233010DE', devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}",
            "it matches no GPU of this node, so it would change nothing; the node has 0x20B010DE NVIDIA A100",
        ),
        (
            "devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2, 1g.5gb: 1}",
            "take 9 memory slices; A100-40 has 8",
        ),
    ],
)  # fmt: skip
def test_what_mig_parted_lets_through_is_refused_before_anything_is_touched(
    entry: str, sentence: str
) -> None:
    """mig-parted 0.15.0: `assert --valid-config` calls each of these valid; applying them empties GPUs."""
    with pytest.raises(InputError) as caught:
        specs(entry)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("mig-configs.x")


def test_gpus_that_cannot_be_partitioned_are_passed_over_by_all_and_refused_by_name() -> None:
    t4 = MigTarget(1, "Tesla T4", T4, None)
    assert list(specs("devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}", a100(0), t4)) == [0]
    with pytest.raises(InputError, match=r"GPU 1 \(Tesla T4\) cannot be made so: it does not support MIG"):
        specs("devices: [1], mig-enabled: true, mig-devices: {1g.5gb: 7}", a100(0), t4)
    with pytest.raises(InputError, match="it matches no GPU of this node"):
        specs("devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}", t4)


def test_of_several_entries_about_a_gpu_the_last_counts() -> None:
    """As with mig-parted, which carries them out one after the other. Only what counts has to be possible."""
    entries = (
        "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 9}}",
        "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}",
        "{devices: [1], mig-enabled: false}",
    )
    text = f"version: v1\nmig-configs: {{x: [{', '.join(entries)}]}}"
    found = MigPartedFile.parse(text).specs("x", [a100(0), a100(1)])
    assert {index: spec.enabled for index, spec in found.items()} == {0: True, 1: False}


def test_a_configuration_that_cannot_be_read_is_refused_alone() -> None:
    """A file for newer GPUs has a profile that is not known yet: the others go on to be used."""
    text = (
        "version: v1\nmig-configs: {good: [{devices: all, mig-enabled: false}], "
        "bad: [{devices: all, mig-enabled: true, mig-devices: {9x.5gb: 1}}]}"
    )
    file = MigPartedFile.parse(text)
    assert file.specs("good", [a100(0)])[0].enabled is False
    with pytest.raises(InputError, match=r"mig-configs.bad\[0\].mig-devices: .*invalid format for '9x.5gb'"):
        file.select("bad")
    with pytest.raises(InputError, match=r"not present: none; there are good$"):
        file.select("none")


@pytest.mark.parametrize("text", ["548409566", "0x20B010DE", "0X20b010de", "548409566:0x134F10DE"])
def test_a_filter_may_be_a_decimal_number(text: str) -> None:
    assert PciId.parse(text).device == 0x20B010DE


@pytest.mark.parametrize("text", ["", ":", "0x", "1:2:3", "4294967296", "9" * 5000, "0x20B010DE:", "²"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no PCI id"):
        PciId.parse(text)


@pytest.mark.parametrize(
    ("board", "matches"),
    [("0x20B010DE:0x134F10DE", True), ("0x20B010DE:0x000010DE", False), ("0x20b710de", False)],
)
def test_a_filter_can_name_the_boards_maker(board: str, matches: bool) -> None:
    wanted = PciId.parse("0x20B010DE:0x134F10DE")
    assert PciId.parse(board).matches(wanted) is matches
    assert PciId.parse("0x20b010de").matches(wanted)
    assert str(wanted) == "0x20B010DE:0x134F10DE"


def test_a_filter_without_quotes_is_what_was_meant() -> None:
    entry = "device-filter: 0x20B010DE, devices: all, mig-enabled: false"
    assert list(specs(entry)) == [0, 1]


def mig(index: int, board: PciId, devices: dict[str, int], *, enabled: bool = True) -> MigState:
    return MigState(
        index, board, MigSpec(enabled, {MigProfile.parse(name): n for name, n in devices.items()})
    )


def test_equal_gpus_are_exported_as_all() -> None:
    gpus = [mig(index, A100, {"3g.20gb": 1, "1g.5gb": 4}) for index in range(8)]
    assert export(gpus) == (
        "version: v1\n"
        "mig-configs:\n"
        "  current:\n"
        "  - devices: all\n"
        "    mig-enabled: true\n"
        "    mig-devices:\n"
        "      1g.5gb: 4\n"
        "      3g.20gb: 1\n"
    )


def test_different_gpus_are_exported_by_index() -> None:
    gpus = [mig(0, A100, {"1g.5gb": 7}), mig(1, A100, {}, enabled=False), mig(2, A100, {"1g.5gb": 7})]
    assert export(gpus, label="mine") == (
        "version: v1\n"
        "mig-configs:\n"
        "  mine:\n"
        "  - devices: [0, 2]\n"
        "    mig-enabled: true\n"
        "    mig-devices:\n"
        "      1g.5gb: 7\n"
        "  - devices: [1]\n"
        "    mig-enabled: false\n"
        "    mig-devices: {}\n"
    )


def test_several_kinds_of_gpus_are_exported_with_their_filter() -> None:
    gpus = [mig(0, A100, {"1g.5gb": 7}), mig(1, A30, {"1g.6gb": 4}), mig(2, A100, {"1g.5gb": 7})]
    text = export(gpus, form="json")
    assert text.startswith('{\n  "version": "v1",\n'), "indented, as by mig-parted"
    document = json.loads(text)
    assert document["mig-configs"]["current"] == [
        {"device-filter": "0x20B010DE", "devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}},
        {"device-filter": "0x20B710DE", "devices": "all", "mig-enabled": True, "mig-devices": {"1g.6gb": 4}},
    ]


def test_what_is_exported_can_be_read_again() -> None:
    gpus = [mig(0, A100, {"1g.5gb": 7}), mig(1, A30, {"1g.6gb": 4}), mig(2, A100, {"3g.20gb": 2})]
    targets = [
        a100(0),
        MigTarget(1, "NVIDIA A30", A30, geometry_of("A30")),
        a100(2),
    ]
    for form in ("yaml", "json"):
        again = MigPartedFile.parse(export(gpus, form=form)).specs("current", targets)
        assert {index: counts(spec.devices) for index, spec in again.items()} == {
            0: {"1g.5gb": 7},
            1: {"1g.6gb": 4},
            2: {"3g.20gb": 2},
        }


def test_the_standard_names_of_an_a100() -> None:
    file = standard_configs([(boards_of("A100-40"), geometry_of("A100-40"))])
    assert {
        name: [(e.enabled, counts(e.devices)) for e in entries] for name, entries in file.configs.items()
    } == {
        "all-disabled": [(False, {})],
        "all-enabled": [(True, {})],
        "all-1g.5gb": [(True, {"1g.5gb": 7})],
        "all-1g.5gb.me": [(True, {"1g.5gb+me": 1})],
        "all-1g.10gb": [(True, {"1g.10gb": 4})],
        "all-2g.10gb": [(True, {"2g.10gb": 3})],
        "all-3g.20gb": [(True, {"3g.20gb": 2})],
        "all-4g.20gb": [(True, {"4g.20gb": 1})],
        "all-7g.40gb": [(True, {"7g.40gb": 1})],
        "all-balanced": [(True, {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1})],
    }
    assert all(not entry.boards for entries in file.configs.values() for entry in entries)


def test_the_standard_file_of_all_families_is_right_for_each_of_them() -> None:
    file = standard_configs([(boards_of(family), geometry_of(family)) for family in BOARDS])
    again = MigPartedFile.parse(text_of(file))
    assert again.configs.keys() == file.configs.keys()
    for family in BOARDS:
        (board, *_) = boards_of(family)
        gpu = MigTarget(0, family, board, FAMILIES[family])
        spec = again.specs("all-balanced", [gpu])[0]
        assert sum(spec.devices.values()) == (4 if FAMILIES[family].compute_slices == 7 else 3)
        smallest = next(profile.name for profile in FAMILIES[family].profiles)
        assert again.specs(f"all-{smallest.label}", [gpu])[0].devices == {
            smallest: FAMILIES[family].compute_slices
        }
        assert space_of(FAMILIES[family]).why_impossible(dict(spec.devices)) is None


def test_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mig.yaml"
    path.write_text("version: v1")
    with pytest.raises(
        InputError, match=r"mig\.yaml: mig-configs: at least one entry in 'mig-configs' is required"
    ):
        MigPartedFile.load(path)


def test_a_gpu_of_the_driver_is_selected_by_its_pci_ids() -> None:
    gpu = FoundGpu(
        0, "A100", "NVIDIA A100", 40960, 424, pci_device_id=0x20B010DE, pci_subsystem_id=0x134F10DE
    )
    target = MigTarget.of(gpu, geometry_of("A100-40"))
    assert PciId.parse("0x20B010DE:0x134F10DE").matches(target.board)
    assert PciId.parse("0x20B010DE").matches(target.board)


def test_only_gpus_that_a_configuration_is_about_are_compared_with_it() -> None:
    """mig-parted's `assert` says that a configuration for one of two GPUs is not applied when it is."""
    wanted = specs("devices: [0], mig-enabled: true, mig-devices: {3g.20gb: 1, 1g.5gb: 2}")
    right = mig(0, A100, {"1g.5gb": 2, "3g.20gb": 1}).state
    assert unmet(wanted, {0: right, 1: mig(1, A100, {}, enabled=False).state}) == []
    assert unmet(wanted, {0: mig(0, A100, {"1g.5gb": 7}).state}) == [
        "GPU 0 has 7 x 1g.5gb; it is to have 2 x 1g.5gb and 1 x 3g.20gb"
    ]
    assert unmet(wanted, {0: mig(0, A100, {}, enabled=False).state}) == ["GPU 0: MIG is off, it is to be on"]
    assert unmet(wanted, {0: mig(0, A100, {}).state}) == [
        "GPU 0 has nothing; it is to have 2 x 1g.5gb and 1 x 3g.20gb"
    ]
    assert unmet(wanted, {}) == ["GPU 0 has gone"]
