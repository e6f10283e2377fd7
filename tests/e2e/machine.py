"""What a cluster takes of the machine beyond its work folder: a number that its names and addresses are made of.

Each cluster holds a slot, so that clusters can run side by side (one to try things on, and the tests). A slot whose
lock is free but whose cgroup exists is what a crash left: whoever takes the slot next cleans it.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
from pathlib import Path
from typing import IO

from .processes import Cgroup

SLOTS = 10
LOCKS = Path("/run/gpuslice-e2e")
# The folders that were made to mount on, for the last cluster to remove.
MADE = LOCKS / "made"


# A cluster of two nodes has 35 of these open, all of root's together; Linux lets a user have 128.
WATCHERS = Path("/proc/sys/fs/inotify/max_user_instances")
ENOUGH_WATCHERS = 1024


class MachineBusyError(Exception):
    """All slots are taken by clusters that run."""


def run(*command: str | Path, check: bool = True) -> str:
    """Run a program to its end and return its output. RuntimeError with what it said if it failed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"{' '.join(map(str, command))}: status {done.returncode}: {said}")
    return done.stdout


class Slot:
    """One cluster's share of the machine. `take` first, `give_back` last.

    The cluster's network is 10.99.N.0/24: 1 is the control plane's, 254 this machine's, 11 and up the nodes'.
    """

    def __init__(self, number: int, lock: IO[str]) -> None:
        self.number = number
        self._lock = lock
        self.cgroup = Cgroup(f"gpuslice-e2e-{number}")
        self.control_address = f"10.99.{number}.1"
        self.host_address = f"10.99.{number}.254"
        self.service_network = f"10.98.{number}.0/24"
        # kube-proxy's word for "from inside": what comes from elsewhere to a service is masqueraded.
        self.pod_networks = f"10.{100 + number}.0.0/16"
        self.link = f"gse{number}"

    @classmethod
    def take(cls) -> Slot:
        """The first slot that nobody holds, cleaned of what a crashed cluster left in it."""
        LOCKS.mkdir(parents=True, exist_ok=True)
        for number in range(SLOTS):
            lock = (LOCKS / f"slot-{number}.lock").open("a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            slot = cls(number, lock)
            slot.cgroup.destroy()
            slot.cgroup.create()
            if int(WATCHERS.read_text()) < ENOUGH_WATCHERS:
                # Where that is not allowed, three clusters fit.
                with contextlib.suppress(OSError):
                    WATCHERS.write_text(str(ENOUGH_WATCHERS))
            return slot
        raise MachineBusyError(f"{SLOTS} clusters run on this machine; end one first")

    def node_address(self, node: int) -> str:
        return f"10.99.{self.number}.{10 + node}"

    def pod_network(self, node: int) -> str:
        return f"10.{100 + self.number}.{node}.0/24"

    def service_address(self, last: int) -> str:
        return f"10.98.{self.number}.{last}"

    def mount_point(self, path: Path) -> None:
        """See that a folder is there to mount on; what was made goes again with the last cluster."""
        with MADE.open("a") as made:
            fcntl.flock(made, fcntl.LOCK_EX)
            for folder in [*reversed(path.parents), path]:
                if not folder.exists():
                    folder.mkdir()
                    made.write(f"{folder}\n")

    def give_back(self) -> None:
        """Kill what is left, and remove what was made."""
        self.cgroup.destroy()
        with MADE.open("a+") as made:
            fcntl.flock(made, fcntl.LOCK_EX)
            # Removing a folder takes away what another cluster has mounted on it.
            if not self._others():
                made.seek(0)
                for folder in sorted(map(Path, made.read().splitlines()), reverse=True):
                    with contextlib.suppress(OSError):
                        folder.rmdir()
                made.truncate(0)
        self._lock.close()

    def _others(self) -> bool:
        for path in LOCKS.glob("slot-*.lock"):
            if path.name == f"slot-{self.number}.lock":
                continue
            with path.open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    return True
        return False
