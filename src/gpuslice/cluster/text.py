"""Reads JSON in annotations, which anybody may have written: bounded, of one shape, each key once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from gpuslice.errors import InputError

T = TypeVar("T")

RECORD_LIMIT: Final = 32 * 1024
"""Characters of a pod's record: more than 500 shares. An annotation can have 262,144, in many pods."""


def decode(decoder: msgspec.json.Decoder[T], text: str) -> T:
    """The value that a JSON text stands for. Raises InputError saying what is wrong with it."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InputError(str(error)) from error
    except RecursionError as error:
        raise InputError("nested too deeply") from error


def decode_once(decoder: msgspec.json.Decoder[T], text: str) -> T:
    """The same, for a text in which no key appears twice: readers differ in which of two values they
    believe.
    """
    if len(text) > RECORD_LIMIT:
        raise InputError(f"longer than {RECORD_LIMIT} characters")
    value = decode(decoder, text)
    # A text that we wrote ourselves equals its own re-encoding; only other texts need the second check.
    if msgspec.json.encode(value) != text.encode():
        json.loads(text, object_pairs_hook=_once)
    return value


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InputError("a key appears twice")
    return found
