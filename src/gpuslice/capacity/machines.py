"""The protocol of what makes the machines of pools where gpuslice itself does so: in a cluster in one
process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from gpuslice.capacity.nodepool import DesiredPool
from gpuslice.kube.wire import Pod


class Machines(Protocol):
    """Machines by the names of their nodes. The Node objects are made and deleted by the caller."""

    def running(self) -> Collection[str]:
        """The nodes whose machines were made here."""
        ...

    async def start(self, name: str, desired: DesiredPool) -> None:
        """Make the machine of a node whose object exists. One that runs already is left as it is."""
        ...

    async def stop(self, name: str) -> None:
        """Remove a machine, whatever runs on it. A machine that is gone already is fine."""
        ...

    def needed(self, pods: Sequence[Pod], desired: DesiredPool, limit: int) -> Sequence[Sequence[Pod]]:
        """The waiting pods that each new machine of the pool, at most `limit` of them, would take."""
        ...
