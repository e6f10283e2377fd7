"""Remembers which pods' containers were allowed to start with which ids, and so may still run. Pure.

kubelet and the API server forget a pod that is deleted by force while its processes run on; so before another
container starts with the same ids, their former holder is looked up here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gpuslice.devices.sharing import device_of
from gpuslice.requests.kinds import Kind


@dataclass(frozen=True, slots=True)
class Started:
    """A container's start. `devices`: UUIDs. `ids` are unknown if only a file of a former run is there."""

    uid: str
    pod: str
    devices: frozenset[str]
    kind: Kind | None = None
    ids: frozenset[str] = frozenset()

    def is_beside(self, kind: Kind, ids: frozenset[str], devices: frozenset[str]) -> bool:
        """True if no container with these ids may run at the same time."""
        if self.kind == kind:
            return bool(self.ids & ids)
        return bool(self.devices & devices)


class StartedContainers:
    """All of a node, by the name of the folder that is made from their ids."""

    def __init__(self) -> None:
        self._all: dict[str, Started] = {}

    def note(self, folder: str, started: Started) -> None:
        """The container may run from now on, as the only one with these ids."""
        self._all[folder] = started

    def __contains__(self, folder: str) -> bool:
        return folder in self._all

    def forget(self, uids: Collection[str]) -> None:
        """These pods' processes have ended."""
        self._all = {folder: one for folder, one in self._all.items() if one.uid not in uids}

    @property
    def uids(self) -> frozenset[str]:
        """The pods that have started something."""
        return frozenset(one.uid for one in self._all.values())

    def beside(
        self, kind: Kind, ids: Collection[str], gpus: Iterable[str], uids: Collection[str]
    ) -> dict[str, str]:
        """Those of the pods `uids` that have to end before a container starts: namespace/name by uid.

        `gpus`: the GPUs on which the ids are.
        """
        wanted, devices = frozenset(ids), frozenset(map(device_of, gpus))
        return {
            one.uid: one.pod
            for one in self._all.values()
            if one.uid in uids and one.is_beside(kind, wanted, devices)
        }
