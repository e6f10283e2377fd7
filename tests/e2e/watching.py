"""Looks at every container of a cluster from the outside, all the time: its processes are asked, and nobody else.

The environment that a process started with says which GPUs it was given and how much of each; its cgroup says whose
it is; the slice.json that it sees must say the same. What two processes were given that live at the same moment must
fit onto the GPU. kubelets are asked who holds which ids, as exporters do, which is a burden of its own.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuslice import names
from gpuslice.node.kubelet.rpc import RpcError

from . import truth
from .cluster import RealCluster
from .node import Node
from .processes import first_of

LOOK_SECONDS = 0.2
WHO = "GPUSLICE_TEST_CONTAINER"
"""A variable in which each container of a test says its own name."""
_POD = re.compile(r"/pod([0-9a-f-]{36})/")


@dataclass(frozen=True)
class Seen:
    """A container that runs: its first process, and what this was given. `units` 0: the GPUs are its alone."""

    node: str
    id: str
    pid: int
    since: str
    uid: str
    pod: str
    container: str
    gpus: tuple[str, ...]
    units: int
    slice: str

    @property
    def name(self) -> str:
        return f"{self.pod}/{self.container} ({self.uid[:8]})"


@dataclass
class Watcher:
    """Watches while the block runs. `gib`: what each GPU has; `violations` is what must stay empty."""

    cluster: RealCluster
    gib: int
    violations: list[str] = field(default_factory=list)
    seen: dict[str, Seen] = field(default_factory=dict)
    looks: int = 0

    def __enter__(self) -> Watcher:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            for node in self.cluster.nodes:
                try:
                    self.look(node)
                except Exception as error:  # a watcher that has ended finds nothing
                    self._tell(f"the watcher failed: {error!r}")
            self.looks += 1

    def look(self, node: Node) -> None:
        found = [one for one in self._containers(node) if one is not None]
        living = [one for one in found if _started(one.pid) == one.since]
        for problem in [*self._beside(living), *self._ids(node)]:
            self._tell(f"{node.name}: {problem}")
        for one in living:
            if one.id not in self.seen:
                self.seen[one.id] = one
                for problem in self._alone(one):
                    self._tell(f"{node.name}: {one.name}: {problem}")

    def _tell(self, problem: str) -> None:
        if problem not in self.violations:
            self.violations.append(problem)

    # --- reading
    def _containers(self, node: Node) -> Iterable[Seen | None]:
        for folder, pids in node.cgroup.by_folder().items():
            if (owner := _POD.search(folder)) and (pid := first_of(pids)):
                yield _read(node, folder.rpartition("/")[2], owner[1], pid)

    # --- what must hold
    def _beside(self, living: list[Seen]) -> Iterable[str]:
        by_gpu: dict[str, list[Seen]] = {}
        for one in living:
            for gpu in one.gpus:
                by_gpu.setdefault(gpu, []).append(one)
        for gpu, users in by_gpu.items():
            whole = {one.uid for one in users if not one.units}
            used = sum(one.units // len(one.gpus) for one in users)
            if used > self.gib or (whole and len({one.uid for one in users}) > 1):
                said = ", ".join(f"{one.name} {one.units // len(one.gpus) or 'all'}" for one in users)
                yield f"{gpu} has {self.gib} GiB and is used by {said}"

    def _ids(self, node: Node) -> Iterable[str]:
        try:
            listing = truth.pod_resources(node)
        except RpcError:  # it restarts
            return
        given: Counter[str] = Counter()
        for entry in listing:
            for container in entry.containers:
                for resource in truth.KINDS:
                    given.update(container.ids(resource))
        yield from (f"kubelet lists {one} {times} times" for one, times in given.items() if times > 1)

    def _alone(self, one: Seen) -> Iterable[str]:
        try:
            content: Any = json.loads(one.slice)
        except json.JSONDecodeError:
            yield f"its slice.json is {one.slice!r}"
            return
        said = {word: content.get(word) for word in ("uid", "pod", "container")}
        if said != {"uid": one.uid, "pod": one.pod, "container": one.container}:
            yield f"its slice.json is of {said}"
        parts = content.get("gpus", ())
        if {gpu["uuid"] for gpu in parts} != set(one.gpus):
            yield f"it was given {one.gpus} and reads {parts}"
        if one.units and sum(gpu["mib"] for gpu in parts) != one.units * 1024:
            yield f"it was given {one.units} GiB and reads {parts}"


def _read(node: Node, container: str, uid: str, pid: int) -> Seen | None:
    """None if it has ended, has not become the container's program yet, or asks for no GPU."""
    root = Path(f"/proc/{pid}")
    since = _started(pid)
    try:
        entries = (root / "environ").read_bytes().decode().split("\0")
        environ = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        gpus = tuple(filter(None, environ.get(names.VISIBLE_DEVICES, "").split(",")))
        if WHO not in environ or not gpus or gpus[0] in ("void", "none"):
            return None
        path = root / "root" / names.SLICE_DIR_IN_CONTAINER.lstrip("/") / "slice.json"
        text = path.read_text() if path.exists() else ""
    except OSError:
        return None
    units = int(environ.get(names.MEM_CONTAINER, 0))
    pod, name = environ.get("HOSTNAME", ""), environ[WHO]
    return Seen(node.name, container, pid, since, uid, pod, name, gpus, units, text)


def _started(pid: int) -> str:
    """When a process began; "" for one that has ended, and for what is left of it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
