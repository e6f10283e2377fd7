"""Values of Kubernetes labels: up to 63 letters, digits, '-', '_' and '.', a letter or digit at both ends."""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 63
"""Characters of a value."""


def label_value(text: str, *suffixes: str) -> str:
    """A text as a valid label value: characters that may not be there are left out, spaces become '-'.

    What is too long is cut from the text, so that the suffixes ("MIG", "1g.5gb", "SHARED") stay. NVIDIA's
    rule, but for the length and the ends, about which NVIDIA leaves the API server to complain.
    """
    tail = "".join(f"-{cleaned}" for suffix in suffixes if (cleaned := _clean(suffix)))
    head = _clean(text)[: max(0, LONGEST - len(tail))]
    return (head + tail)[:LONGEST].strip("-_.")


def _clean(text: str) -> str:
    return "-".join(re.sub(r"[^A-Za-z0-9_. -]", "", text).split())
