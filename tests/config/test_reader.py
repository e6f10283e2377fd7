"""What every file that people write has in common: YAML without its traps, keys that are told where they belong."""

from __future__ import annotations

import pytest

from gpuslice.config.devices import DevicesFile
from gpuslice.config.reader import load_yaml, load_yamls
from gpuslice.errors import InputError

BOMB = "a: &a0 {x: 1}\n" + "".join(f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))
DEVICES = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\n"


def test_a_colon_between_digits_makes_no_number_to_the_base_of_sixty() -> None:
    assert load_yaml("[1:1, 10:30, 0:1]") == ["1:1", "10:30", "0:1"]
    assert load_yaml("[7, -1, 0, 0x20B010DE, 0b11, 017, 1_000]") == [7, -1, 0, 0x20B010DE, 3, 15, 1000]


def test_an_alias_is_what_it_stands_for() -> None:
    assert load_yaml("a: &a [1, 2]\nb: *a\nc: {<<: &m {d: 3}}\ne: *m") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"d": 3},
        "e": {"d": 3},
    }


def test_documents_of_a_file_come_one_by_one() -> None:
    assert load_yamls("a: 1\n---\n---\n- b\n") == [{"a": 1}, None, ["b"]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\na: 2", "line 2, column 1: key 'a' appears twice"),
        ("? [a]\n: 1", "line 1, column 3: a key must be text"),
        ("[" * 5000, "nested too deeply"),
        ("a: 2026-13-45", "not YAML: month must be in 1..12"),
        ("a: 'b", "line 1, column 6"),
        (BOMB, "line 6, column 5: aliases (*) stand for more than 100000 values; write out what is meant"),
        (BOMB.replace("[*", "{<<: [*").replace("]", "]}"), "line 6, column 14: aliases (*) stand for more"),
        ("a: &a [*a]", "line 1, column 8: an alias (*) stands for what it is in"),
        ("a: &a {b: [*a]}", "line 1, column 12: an alias (*) stands for what it is in"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text: str, sentence: str) -> None:
    for load in (load_yaml, load_yamls):
        with pytest.raises(InputError) as caught:
            load(text)
        assert str(caught.value).startswith(sentence)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("{gpus: [{modle: T4}]}", "spec.gpus[0]: unknown key 'modle'; write model?"),
        ("{model: T4}", "spec: unknown key 'model': it belongs under spec.gpus[]"),
        ("{gpus: [{memoryUnit: MiB}]}", "spec.gpus[0]: unknown key 'memoryUnit': it belongs under spec"),
        ("{zzz: 1}", "spec: unknown key 'zzz'; remove it or mend its spelling"),
    ],
)
def test_an_unknown_key_is_told_where_it_belongs(spec: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        DevicesFile.parse(DEVICES + f"spec: {spec}")
    assert str(caught.value) == sentence
