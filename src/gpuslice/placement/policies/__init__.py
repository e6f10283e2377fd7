"""The scoring policies by name: a new one is a file in this folder and an entry in `KNOWN`.

Command line, cluster files and `explain` look here; `make manifests` writes them into the chart's schema.
"""

from __future__ import annotations

from typing import Final

from gpuslice.errors import InputError, quoted
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.policies.spread import SPREAD

KNOWN: Final[dict[str, Policy]] = {policy.name: policy for policy in (BINPACK, SPREAD)}


def find(name: str, *, field: str = "") -> Policy:
    """The policy of that name. Raises InputError naming those that there are."""
    if name not in KNOWN:
        raise InputError(f"{quoted(name)} is not one of the policies {', '.join(KNOWN)}", field=field)
    return KNOWN[name]
