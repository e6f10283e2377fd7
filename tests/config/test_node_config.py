"""Which device plugin file counts on a node."""

from __future__ import annotations

import pytest

from gpuslice.config.nodeconfig import Fallback, choose, fingerprint
from gpuslice.errors import InputError

LABEL = "nvidia.com/device-plugin.config"
NAMED, SINGLE, EMPTY = Fallback


@pytest.mark.parametrize(
    ("label", "available", "default", "fallbacks", "chosen"),
    [
        ("a100", ["a100", "t4", "default"], "t4", (NAMED,), "a100"),
        ("", ["a100", "t4", "default"], "t4", (NAMED,), "t4"),
        ("", ["a100", "default"], "", (NAMED, SINGLE, EMPTY), "default"),
        ("", ["a100"], "", (NAMED, SINGLE, EMPTY), "a100"),
        ("", ["a100", "t4"], "", (NAMED, SINGLE, EMPTY), None),
        ("", [], "", (EMPTY,), None),
    ],
)
def test_the_label_beats_the_default_beats_the_fallbacks(
    label: str, available: list[str], default: str, fallbacks: tuple[Fallback, ...], chosen: str | None
) -> None:
    assert choose({LABEL: label}, available, default=default, fallbacks=fallbacks) == chosen
    if not label:
        assert choose({}, available, default=default, fallbacks=fallbacks) == chosen


@pytest.mark.parametrize(
    ("label", "default", "sentence"),
    [
        ("x", "", f"label {LABEL}: specified config x does not exist; there are a, b"),
        ("", "y", "the default: specified config y does not exist; there are a, b"),
        ("", "", "the node has no label"),
    ],
)
def test_what_names_no_file_is_told(label: str, default: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        choose({LABEL: label} if label else {}, ["b", "a"], default=default, fallbacks=(NAMED, SINGLE))


def test_an_edit_under_the_same_name_is_noticed() -> None:
    """gpu-operator, issues 412, 615, 1144: only another name is."""
    assert fingerprint("replicas: 2") != fingerprint("replicas: 3")
