"""One program of the cluster that can be started, stopped, killed and frozen; and the cgroup that holds them all.

Everything a cluster starts, down to the containers and their shims, lives in one cgroup. So clean-up needs no list of
pids that could be stale: what is in the cgroup belongs to the cluster, whoever started it, even after a crash.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .waiting import wait

CGROUPS = Path("/sys/fs/cgroup")
# kubelet's pods need these; enabled by hand only where cgroups are version 2.
CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")


class Cgroup:
    """A cgroup in every hierarchy of version 1, or the one of version 2."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._unified = (CGROUPS / "cgroup.controllers").exists()

    def _folders(self) -> list[Path]:
        if self._unified:
            return [CGROUPS / self.path]
        return [
            hierarchy / self.path for hierarchy in CGROUPS.iterdir() if (hierarchy / "cgroup.procs").exists()
        ]

    @property
    def _members(self) -> Path:
        return CGROUPS / ("" if self._unified else "pids") / self.path

    def create(self) -> None:
        """Make the folders; a kubelet refuses a cgroup root that lacks a controller."""
        for folder in self._folders():
            folder.mkdir(parents=True, exist_ok=True)
            if self._unified:
                for above in reversed(folder.parents[: len(Path(self.path).parts)]):
                    (above / "cgroup.subtree_control").write_text(
                        " ".join(f"+{name}" for name in CONTROLLERS)
                    )
            if (folder / "cpuset.cpus").exists() and not self._unified:
                for above in [*reversed(folder.parents[: len(Path(self.path).parts) - 1]), folder]:
                    for name in ("cpuset.cpus", "cpuset.mems"):
                        (above / name).write_text((above.parent / name).read_text())

    def enter(self, *command: str) -> list[str]:
        """The command, in here from its first moment. By a shell: Python between fork and exec may crash where there
        are threads.
        """
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self._members / "cgroup.procs"), *command]

    def processes(self) -> list[int]:
        return [pid for pids in self.by_folder().values() for pid in pids]

    def by_folder(self) -> dict[str, list[int]]:
        """The processes inside, by the path of their cgroup; the last part of a container's is its id."""
        found: dict[str, list[int]] = {}
        # Containers end meanwhile: os.walk passes over a folder that is gone, where rglob of Python 3.11 raises.
        for folder, _, files in os.walk(self._members):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found[folder] = [int(line) for line in Path(folder, "cgroup.procs").read_text().split()]
        return found

    def destroy(self) -> None:
        """Kill everything inside, then remove the folders. Nothing to do is fine."""

        def emptied() -> bool:
            inside = self.processes()
            for pid in inside:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not inside

        wait(emptied, 30, f"the processes of cgroup {self.path} to die")
        wait(self._removed, 10, f"the folders of cgroup {self.path} to go")

    def _removed(self) -> bool:
        for top in self._folders():
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(FileNotFoundError):
                    Path(folder).rmdir()
        return True


def first_of(pids: Iterable[int]) -> int | None:
    """The process that a container began with, of those in its cgroup; None if it has ended.

    It is number 1 in the container. Here it need not have the least number: Linux counts to 32,768, and begins anew.
    """
    for pid in pids:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            if re.search(r"^NSpid:.*\t1$", status, re.MULTILINE):
                return pid
    return None


@dataclass
class Process:
    """A component and its log. `command` is asked at each start, so that a test can change what it answers."""

    name: str
    command: Callable[[], Sequence[str]]
    log: Path
    cgroup: Cgroup
    environment: Mapping[str, str] = field(default_factory=dict)
    _popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.running:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self.cgroup.enter(*self.command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                # A session of its own: Ctrl-C reaches the tests, and these decide in which order things end.
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def failed(self) -> str:
        """A sentence if it ended without being asked to, else ""."""
        if self._popen is None or self._popen.poll() is None:
            return ""
        return f"{self.name} ended by itself with status {self._popen.returncode}"

    @property
    def pid(self) -> int:
        assert self._popen is not None, f"{self.name} is not running"
        return self._popen.pid

    def stop(self, timeout: float = 15) -> None:
        """End it in order (SIGTERM); what takes longer than `timeout` seconds is killed."""
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(signal.SIGKILL, 15)

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Let it hang: connections are accepted by the kernel and never answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def tail(self, lines: int = 40) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _end(self, sign: signal.Signals, timeout: float) -> None:
        popen, self._popen = self._popen, None
        if popen is None or popen.poll() is not None:
            return
        popen.send_signal(sign)
        if sign is signal.SIGTERM:
            popen.send_signal(signal.SIGCONT)
        try:
            popen.wait(timeout)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait(15)
