"""A program that is called nvidia-smi in containers with simulated GPUs, where there is no driver. Pure.

It lists the container's devices as the driver's own tool would, so that articles and scripts that look at
them work without a GPU. It is a script for `sh` alone: an image may have nothing else.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Final

from gpuslice.devices.found import Found
from gpuslice.devices.listing import inside, listing

NAME: Final = "nvidia-smi"
IN_CONTAINER: Final = f"/usr/bin/{NAME}"
"""Where the driver's own nvidia-smi is."""


def script(found: Found, uuids: Collection[str]) -> str:
    """The program for a container that holds these devices of a machine."""
    lines = " ".join(map(shlex.quote, listing(inside(found, uuids)).splitlines()))
    return (
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"-L | --list-gpus) printf '%s\\n' {lines} ;;\n"
        "*) echo \"this is gpuslice's stand-in for nvidia-smi, as this container's GPUs are simulated; "
        'it knows only -L" >&2\n'
        "   exit 2 ;;\n"
        "esac\n"
    )
