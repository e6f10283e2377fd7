"""Numbers and texts of others: bounded, in one script, and never more than a sentence when they are wrong."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.errors import QUOTED, InputError, quoted
from gpuslice.units import MemoryUnit, canonical_quantity, parse_count, parse_quantity, read_digits

LONG = "9" * 250_000
OTHER_DIGITS = "\u0661\u0662"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("7", 7),
        ("512", 512),
        ("513", None),
        ("00", None),
        ("07", None),
        ("", None),
        ("-1", None),
        ("+1", None),
        (" 1", None),
        ("1_0", None),
        ("1.0", None),
        (OTHER_DIGITS, None),
        ("\u00b2", None),
        (LONG, None),
    ],
)
def test_a_number_is_read_in_one_way_of_writing_only(text: str, number: int | None) -> None:
    assert read_digits(text, 512) == number


@pytest.mark.parametrize("text", [LONG, OTHER_DIGITS, "1e999999999", "0." + LONG, int("9" * 300), True, None])
def test_no_quantity_costs_more_than_a_sentence(text: object) -> None:
    for read in (
        lambda: parse_quantity(text, field="f"),
        lambda: parse_count(text, field="f"),
        lambda: canonical_quantity(text),
    ):
        with pytest.raises(InputError) as problem:
            read()
        assert len(str(problem.value)) < 300


def test_the_largest_quantities_of_kubernetes_are_still_read() -> None:
    assert parse_quantity("9223372036854775807Ei", field="f") == Fraction(2**63 - 1) * 2**60
    assert parse_quantity("1e999", field="f") == Fraction(10) ** 999


@pytest.mark.parametrize("text", [OTHER_DIGITS + "MiB", LONG + "GiB", "0GiB"])
def test_a_memory_unit_is_ascii_and_short(text: str) -> None:
    with pytest.raises(InputError) as problem:
        MemoryUnit.parse(text)
    assert len(str(problem.value)) < 300


def test_what_is_quoted_is_cut() -> None:
    assert quoted("two") == "'two'"
    assert len(quoted(LONG)) <= QUOTED + 5
    assert len(quoted("\n" * 1000)) <= QUOTED + 5
    assert quoted(10**5000).startswith("a number")
