"""What a contract test may use of a cluster, whichever it is: a kubeconfig, a kubectl, and nodes that run pods.

Two things satisfy it: `gpuslice up`'s cluster in this process, and the real programs of tests/e2e.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Protocol

import pytest
from foreign import program

from gpuslice.config.cluster import ClusterFile
from gpuslice.local.up import LocalCluster, Settings, local_cluster

NODES = ("node-1", "node-2")
SPEED = 10
CLUSTER = f"""
apiVersion: gpuslice.io/v1alpha1
kind: Cluster
spec: {{nodes: [{", ".join(f"{{name: {name}}}" for name in NODES)}]}}
"""


class Backend(Protocol):
    """A running cluster with the nodes `NODES`."""

    @property
    def real(self) -> bool:
        """Whether these are Kubernetes' own programs. Only for differences listed in docs/embedded-differences.md."""

    @property
    def kubeconfig(self) -> Path: ...

    @property
    def kubectl(self) -> Path:
        """The program."""

    @property
    def host(self) -> str:
        """The address at which API server and nodes reach this process."""

    def kubelet_folder(self, node: str) -> Path:
        """Where this machine sees the node's /var/lib/kubelet."""

    def path_on(self, node: str, folder: Path) -> str:
        """What kubelet calls a folder below its own."""

    async def restart_kubelet(self, node: str) -> None:
        """End the process and start it again; containers run on. It may not be ready when this returns."""

    def report(self) -> str:
        """What helps to understand a failure."""


class FastClock:
    """Timers run `SPEED` times as fast; the date is the true one. Kubelet's pauses are seconds, not ours."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return time.monotonic() * SPEED

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / SPEED)


class Embedded:
    """The cluster in one process. Containers with a command are processes of this machine."""

    real = False
    host = "127.0.0.1"

    def __init__(self, cluster: LocalCluster, kubeconfig: Path) -> None:
        self._cluster = cluster
        self.kubeconfig = kubeconfig

    @property
    def kubectl(self) -> Path:
        return Path(program("kubectl"))

    def kubelet_folder(self, node: str) -> Path:
        return self._cluster.folders[node]

    def path_on(self, node: str, folder: Path) -> str:
        return str(folder)

    async def restart_kubelet(self, node: str) -> None:
        await self._cluster.kubelets[node].restart()

    def report(self) -> str:
        return ""


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Embedded]:
    """A cluster in this process while the block runs."""
    settings = Settings(kubeconfig=folder / "kubeconfig", run_processes=True)
    plan = ClusterFile.parse(CLUSTER).plan()
    async with local_cluster(plan, settings, clock=FastClock(), random=Random(7)) as cluster:
        async with asyncio.timeout(30):
            for kubelet in cluster.kubelets.values():
                await kubelet.ready.wait()
        yield Embedded(cluster, folder / "kubeconfig")


@contextmanager
def real(folder: Path) -> Iterator[Backend]:
    """etcd, API server, kubelets and all the rest while the block runs; skips where they cannot run."""
    from e2e.cluster import RealCluster
    from e2e.packages import MissingError

    class Real:
        real = True

        def __init__(self, cluster: RealCluster) -> None:
            self._cluster = cluster
            self.kubeconfig = cluster.kubeconfig
            self.kubectl = cluster.programs / "kubectl"
            self.host = cluster.plane.slot.host_address

        def kubelet_folder(self, node: str) -> Path:
            return self._cluster.node(node).path("/var/lib/kubelet")

        def path_on(self, node: str, folder: Path) -> str:
            return f"/var/lib/kubelet/{folder.relative_to(self.kubelet_folder(node))}"

        async def restart_kubelet(self, node: str) -> None:
            await asyncio.to_thread(self._cluster.node(node).kubelet.restart)

        def report(self) -> str:
            return self._cluster.report()

    try:
        cluster = RealCluster(folder)
    except MissingError as missing:
        pytest.skip(str(missing))
    with cluster:
        made: Backend = Real(cluster)
        yield made
