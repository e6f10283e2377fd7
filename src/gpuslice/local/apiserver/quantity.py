"""Quantities in canonical form, as Kubernetes stores them: "1000m" becomes "1", 0.5 becomes "500m"."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

from gpuslice.errors import InputError
from gpuslice.units import parse_quantity

_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def canonical_quantity(value: Any) -> str:
    """The canonical text of a quantity given as text or number. Raises InputError."""
    if isinstance(value, float):
        value = repr(value)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InputError(f"{value!r} is not a quantity")
    return _canonical(str(value))


@lru_cache(4096)
def _canonical(text: str) -> str:
    number = parse_quantity(text, field="")
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    number = abs(number)
    if text.endswith("i") and number >= 1024:
        power = 0
        while power + 1 < len(_BINARY) and (number / 1024).denominator == 1:
            number /= 1024
            power += 1
        if number.denominator == 1:
            return f"{sign}{number.numerator}{_BINARY[power]}"
        number *= 1024**power
    scaled = number * 10**9
    if scaled.denominator != 1:
        scaled = Fraction(-(-scaled.numerator // scaled.denominator))
    amount, power = scaled.numerator, 0
    while power + 1 < len(_DECIMAL) and amount % 1000 == 0:
        amount //= 1000
        power += 1
    if "e" in text.lower() and not text.endswith("E") and power > 3:
        return f"{sign}{amount}e{(power - 3) * 3}"
    return f"{sign}{amount}{_DECIMAL[power]}"
