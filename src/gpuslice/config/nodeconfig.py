"""Chooses by a node's label which device plugin file it uses, as NVIDIA's config-manager does. Pure.

A file counts by what is written in it: who remembers `fingerprint` notices an edit under the same name, which
config-manager does not (gpu-operator, issues 412, 615, 1144).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Final

from gpuslice import names
from gpuslice.errors import InputError

NAMED_DEFAULT: Final = "default"


class Fallback(StrEnum):
    """What is used on a node without the label, if no default is set: tried in the order that is given."""

    NAMED = "named"
    SINGLE = "single"
    EMPTY = "empty"


def choose(
    labels: Mapping[str, str],
    available: Sequence[str],
    *,
    default: str = "",
    fallbacks: Sequence[Fallback] = (),
) -> str | None:
    """The name of the file to use; None for no file.

    `named` is the file called "default" if there is one, `single` the only one there is, `empty` no file.
    Raises InputError, in config-manager's words, for a label or default that names no file, and if nothing
    fits.
    """
    for name, where in (
        (labels.get(names.DEVICE_PLUGIN_CONFIG, ""), f"label {names.DEVICE_PLUGIN_CONFIG}"),
        (default, "the default"),
    ):
        if not name:
            continue
        if name not in available:
            known = ", ".join(sorted(available)) or "none"
            raise InputError(f"specified config {name} does not exist; there are {known}", field=where)
        return name
    for fallback in fallbacks:
        if fallback is Fallback.NAMED and NAMED_DEFAULT in available:
            return NAMED_DEFAULT
        if fallback is Fallback.SINGLE and len(available) == 1:
            return available[0]
        if fallback is Fallback.EMPTY:
            return None
    raise InputError(
        f"the node has no label {names.DEVICE_PLUGIN_CONFIG}, and there is no default configuration",
        field=names.DEVICE_PLUGIN_CONFIG,
    )


def fingerprint(text: str) -> str:
    """What a file's content is known by: it differs as soon as a character does."""
    return sha256(text.encode()).hexdigest()
