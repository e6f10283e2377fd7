"""Integers with units: MiB of GPU memory, the size of one gpu-mem unit, Kubernetes quantities.

Memory is always an integer number of MiB inside the program. What one unit of `aliyun.com/gpu-mem`
means is a setting of the node, published by its agent and never guessed from its size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NewType

from gpuslice.errors import InputError, quoted

MiB = NewType("MiB", int)
"""Mebibytes of GPU memory (2**20 bytes)."""

MAX_UNITS = 2**31 - 1
"""A count above this fits no GPU and would overflow the int32 arrays of the placement engine."""


@dataclass(frozen=True, slots=True)
class MemoryUnit:
    """What one unit of gpu-mem is: `mib` mebibytes."""

    mib: int

    @classmethod
    def parse(cls, text: str) -> MemoryUnit:
        """Read "GiB", "MiB", or a chunk such as "256MiB" or "2GiB".

        Raises InputError for anything else.
        """
        match = re.fullmatch(r"([1-9][0-9]{0,5})?(MiB|GiB)", text.strip())
        if match is None:
            raise InputError(
                f"memory unit {quoted(text)} is unknown; use GiB, MiB, or a chunk such as 256MiB"
            )
        return cls(int(match[1] or 1) * (1024 if match[2] == "GiB" else 1))

    def __str__(self) -> str:
        if self.mib % 1024 == 0:
            chunk, name = self.mib // 1024, "GiB"
        else:
            chunk, name = self.mib, "MiB"
        return name if chunk == 1 else f"{chunk}{name}"

    def units_in(self, mib: int) -> int:
        """How many whole units fit into that much memory (gpushare's floor)."""
        return mib // self.mib

    def to_mib(self, units: int) -> int:
        """Memory of that many units, in MiB."""
        return units * self.mib

    def say(self, units: int) -> str:
        """A count of units for humans: "5 GiB", "768 MiB"."""
        mib = self.to_mib(units)
        return f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"


GIB = MemoryUnit(1024)

_SUFFIX: dict[str, Fraction] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
_QUANTITY = re.compile(
    r"([+-]?)(\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:([eE][+-]?\d{1,3})|([a-zA-Z]{0,2}))", re.ASCII
)
_QUANTITY_LIMIT = 90
"""Characters that the pattern can match; longer texts are not even remembered as wrong."""


def read_digits(text: str, most: int) -> int | None:
    """The number from 0 to `most` that the text is; None if it is none. Never raises.

    For what anybody may have written: ASCII digits alone, without leading zeros, and no more of them than
    `most` has. int() takes other scripts' digits, and refuses more than 4,300 with an exception of its own.
    """
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most and text == str(number) else None


def parse_quantity(value: object, *, field: str) -> Fraction:
    """Read a Kubernetes quantity ("500m", "16Gi", "1e3", 5) exactly.

    Source: k8s.io/apimachinery/pkg/api/resource. Raises InputError naming `field`.
    """
    number = None
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        text = _bounded(value)
        number = None if text is None else _exactly(text)
    if number is None:
        raise InputError(f"{quoted(value)} is not a quantity; write a number such as 5", field=field)
    return number


def _bounded(value: str | int) -> str | None:
    if isinstance(value, int):
        return str(value) if abs(value) < 2**127 else None
    return value if len(value) <= _QUANTITY_LIMIT else None


# Ten thousand pods ask for a handful of different amounts.
@lru_cache(1024)
def _exactly(text: str) -> Fraction | None:
    match = _QUANTITY.fullmatch(text)
    if match is None or (match[4] or "") not in _SUFFIX:
        return None
    number = Fraction(match[2] if match[2][-1] != "." else match[2][:-1])
    number *= Fraction(10) ** int(match[3][1:]) if match[3] else _SUFFIX[match[4] or ""]
    return -number if match[1] == "-" else number


def parse_count(value: object, *, field: str) -> int:
    """Read a quantity that must be a whole number from 0 to MAX_UNITS (an extended resource).

    Raises InputError naming `field` for fractions, negative and overflowing numbers.
    """
    number = parse_quantity(value, field=field)
    if number.denominator != 1:
        raise InputError(f"{quoted(value)} is not a whole number; GPU resources are integers", field=field)
    if number < 0:
        raise InputError(f"{quoted(value)} is negative; ask for 0 or more", field=field)
    if number > MAX_UNITS:
        raise InputError(
            f"{quoted(value)} is more than any GPU has; a unit is set by the cluster, write the bare number",
            field=field,
        )
    return int(number)


_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def canonical_quantity(value: object) -> str:
    """A quantity as Kubernetes stores and prints it: "1000m" becomes "1", 0.5 becomes "500m".

    Raises InputError if it is none.
    """
    if isinstance(value, float):
        value = repr(value)
    text = _bounded(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    if text is None:
        raise InputError(f"{quoted(value)} is not a quantity")
    return _canonical(text)


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
