"""A running cluster for a test, and the real kubectl against it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from foreign import program

from gpuslice.clock import SystemClock
from gpuslice.config.cluster import ClusterFile
from gpuslice.local.up import LocalCluster, Settings, local_cluster

T = TypeVar("T")
PATIENCE = 30.0
LONG = 60.0
"""For what takes several steps of several parts."""


def file(nodes: str, spec: str = "") -> str:
    """The text of a cluster file; `nodes` in YAML's flow style."""
    return f"apiVersion: gpuslice.io/v1alpha1\nkind: Cluster\nspec: {{{spec} nodes: [{nodes}]}}\n"


TWO_NODES = file("{namePrefix: gpu, count: 2, gpus: [{model: T4, count: 2}]}")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


class Kubectl:
    """The real kubectl: `KUBECTL`, else the one on the PATH."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        self._program = program("kubectl")
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(home)}

    async def run(self, *words: str, stdin: str = "") -> Ran:
        process = await asyncio.create_subprocess_exec(
            self._program,
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
        )
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(), err.decode())

    async def __call__(self, *words: str, stdin: str = "") -> str:
        """What it prints; it must succeed."""
        ran = await self.run(*words, stdin=stdin)
        assert ran.code == 0, f"kubectl {' '.join(words)}: {ran.err or ran.out}"
        return ran.out

    async def read(self, *words: str) -> Any:
        """`get ... -o json`."""
        return json.loads(await self("get", *words, "-o", "json"))


@asynccontextmanager
async def cluster_of(
    text: str, tmp_path: Path, *, run_processes: bool = False, database: Path | None = None
) -> AsyncIterator[tuple[LocalCluster, Kubectl]]:
    """A ready cluster and a kubectl for it."""
    kubeconfig = tmp_path / "kubeconfig"
    settings = Settings(kubeconfig=kubeconfig, run_processes=run_processes, database=database)
    plan = ClusterFile.parse(text).plan()
    async with local_cluster(plan, settings, clock=SystemClock(), random=Random(7)) as cluster:
        async with asyncio.timeout(PATIENCE):
            await cluster.ready()
        yield cluster, Kubectl(kubeconfig, tmp_path)


def deployment(name: str, replicas: int, units: int, command: str = "sleep infinity", **pod: Any) -> str:
    """A Deployment whose pods ask for that many units, as YAML (which JSON is)."""
    container = {
        "name": "main",
        "image": "cuda",
        "command": command.split() if " " in command else [command],
        "resources": {"limits": {"aliyun.com/gpu-mem": units}} if units else {},
    }
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **pod},
                },
            },
        }
    )


def device_pod(name: str, resource: str, count: int = 1, node: str = "") -> dict[str, Any]:
    """A pod that asks for whole devices of a kind, on that node if it must be there."""
    container = {"name": "main", "image": "cuda", "resources": {"limits": {resource: str(count)}}}
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], **selector},
    }


async def eventually(cluster: LocalCluster, look: Callable[[], Awaitable[T]]) -> T:
    """What `look` answers once it is something true; asked again whenever a node or pod has changed."""
    news = asyncio.Event()

    unsubscribe = cluster.cluster.subscribe(lambda _change: news.set())
    try:
        async with asyncio.timeout(LONG):
            while True:
                news.clear()
                if found := await look():
                    return found
                await news.wait()
    finally:
        unsubscribe()
