"""What a cluster takes of the machine beyond its work folder: a number, addresses, cgroup, mount points, bridges.

Each cluster holds a slot, a number that all its names and addresses are made of; so clusters can run side by side
(a `play` cluster and the tests), and a slot whose lock is free but whose cgroup exists is what a crash left: whoever
takes the slot next cleans it.
"""

from __future__ import annotations

import fcntl
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from .processes import Cgroup
from .waiting import wait

SLOTS = 10
LOCKS = Path("/run/gpuslice-e2e")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


class MachineBusyError(Exception):
    """All slots are taken by clusters that run."""


def run(*command: str | Path, check: bool = True, stdin: str | None = None) -> str:
    """Run a program to its end and return its output. RuntimeError with what it said if it failed."""
    done = subprocess.run(
        [str(part) for part in command], input=stdin, capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"{' '.join(map(str, command))}: status {done.returncode}: {said}")
    return done.stdout


def free_port() -> int:
    """A port that nobody listens on now. Only for programs that cannot choose one themselves."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Slot:
    """One cluster's share of the machine. `take` first, `give_back` last."""

    def __init__(self, number: int, lock: IO[str]) -> None:
        self.number = number
        self._lock = lock
        self.cgroup = Cgroup(f"gpuslice-e2e-{number}")
        self._made: list[Path] = []

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
            slot.clean()
            slot.cgroup.create()
            # The bridges' pods reach the API server, and each other across nodes, only through this machine.
            FORWARDING.write_text("1")
            return slot
        raise MachineBusyError(f"{SLOTS} clusters run on this machine; end one first")

    def address(self, node: int) -> str:
        """The address of a node: kubelet wants one that an interface carries and that is not loopback's."""
        return f"10.99.{self.number}.{node}"

    def pod_network(self, node: int) -> str:
        return f"10.{100 + self.number}.{node}.0/24"

    @property
    def service_network(self) -> str:
        return f"10.98.{self.number}.0/24"

    def service_address(self, last: int) -> str:
        return f"10.98.{self.number}.{last}"

    def bridge(self, node: int) -> str:
        return f"gse{self.number}n{node}"

    def add_address(self, node: int) -> str:
        address = self.address(node)
        if f" {address}/" not in run("ip", "-o", "-4", "address", "show", "dev", "lo"):
            run("ip", "address", "add", f"{address}/32", "dev", "lo")
        return address

    def mount_point(self, path: Path) -> None:
        """See that a folder is there to mount on; what was made goes again with the slot."""
        for folder in [*reversed(path.parents), path]:
            if not folder.exists():
                folder.mkdir()
                self._made.append(folder)

    def clean(self) -> None:
        """Kill and remove whatever carries this slot's number."""
        self.cgroup.destroy()
        for line in run("ip", "-o", "-4", "address", "show", "dev", "lo").splitlines():
            address = line.split()[3]
            if address.startswith(f"10.99.{self.number}."):
                run("ip", "address", "del", address, "dev", "lo", check=False)
        for line in run("ip", "-o", "link", "show", "type", "bridge").splitlines():
            name = line.split(": ")[1]
            if name.startswith(f"gse{self.number}n"):
                run("ip", "link", "del", name, check=False)

    def give_back(self) -> None:
        self.clean()
        if not self._others():
            for folder in reversed(self._made):
                if not any(folder.iterdir()):
                    folder.rmdir()
        self._made = []
        self._lock.close()

    def _others(self) -> bool:
        """Does another cluster run? Removing a folder takes away what is mounted on it in other namespaces."""
        for number in range(SLOTS):
            path = LOCKS / f"slot-{number}.lock"
            if number == self.number or not path.exists():
                continue
            with path.open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    return True
        return False


class MountNamespace:
    """A view of the file system of one node: its own folder behind each of the paths that a node owns.

    So two kubelets and two containerds live on one machine with all their usual paths (kubelet's device-plugin
    socket cannot be moved), hostPath volumes of pods resolve as they do on a true node, and every mount that is left
    over vanishes with the last process inside.
    """

    def __init__(self, slot: Slot, folder: Path, paths: Iterable[str]) -> None:
        self._slot = slot
        self._folder = folder
        self._paths = list(paths)
        self._holder: subprocess.Popen[bytes] | None = None

    def on_host(self, path: str) -> Path:
        """Where the machine sees `path` of the node."""
        for root in sorted(self._paths, key=len, reverse=True):
            if path == root or path.startswith(root + "/"):
                return self._folder / path.lstrip("/")
        return Path(path)

    def enter(self, *command: str | Path) -> list[str]:
        """The command line that runs `command` inside."""
        assert self._holder is not None
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--", *map(str, command)]

    def open(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sleep", "infinity"],
            start_new_session=True,
            preexec_fn=self._slot.cgroup.add_self,
        )
        ours = Path("/proc/self/ns/mnt").readlink()
        theirs = Path(f"/proc/{self._holder.pid}/ns/mnt")
        wait(lambda: theirs.readlink() != ours and Path(f"/proc/{self._holder_pid}/comm").read_text() == "sleep\n",
             10, "a mount namespace", pause=0.01)  # fmt: skip
        for path in self._paths:
            self._slot.mount_point(Path(path))
            self.on_host(path).mkdir(parents=True, exist_ok=True)
            run(*self.enter("mount", "--bind", self.on_host(path), path))
        # Pods whose mounts propagate ask for a shared root, as systemd leaves it. Made only now and inside, so that
        # nothing above reaches the machine's own view.
        run(*self.enter("mount", "--make-rshared", "/"))

    @property
    def _holder_pid(self) -> int:
        assert self._holder is not None
        return self._holder.pid

    def close(self) -> None:
        """Let go. The mounts end with the last process inside."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
            self._holder = None
