"""JSON in annotations, as anybody may have written it: bounded, of one shape, each key once."""

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
    """The same, of a text in which no key appears twice: of two values each reader believes another one."""
    if len(text) > RECORD_LIMIT:
        raise InputError(f"longer than {RECORD_LIMIT} characters")
    value = decode(decoder, text)
    # What we wrote ourselves is just as we would write it again; only others' need the second look.
    if msgspec.json.encode(value) != text.encode():
        json.loads(text, object_pairs_hook=_once)
    return value


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InputError("a key appears twice")
    return found
