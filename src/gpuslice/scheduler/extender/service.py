"""Assembles a running extender: cluster, feed, binder, server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpuslice.clock import Clock
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.state import Cluster
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.names import SCHEDULER_NAME
from gpuslice.observe.metrics import Metrics
from gpuslice.observe.serving import Tls, serving
from gpuslice.scheduler.binder import Binder
from gpuslice.scheduler.extender.app import ExtenderApp
from gpuslice.scheduler.extender.handlers import Extender
from gpuslice.scheduler.preemption_controller import PreemptionController

COMPONENT = "gpuslice-extender"


@dataclass(frozen=True, slots=True)
class Listening:
    """A running extender: where it listens, and what it is made of, to be shared in one process."""

    host: str
    port: int
    cluster: Cluster
    feed: ClusterFeed
    binder: Binder


@asynccontextmanager
async def extender(
    client: Client,
    *,
    host: str,
    port: int,
    clock: Clock,
    random: Callable[[], float],
    new_id: Callable[[], str],
    cluster: Cluster,
    tls: Tls | None = None,
    token: str | None = None,
    admission: Callable[[bytes], bytes] | None = None,
) -> AsyncIterator[Listening]:
    """Run an extender while the block runs. It listens at once and is ready once its cache is complete.

    Leaving the block turns /readyz to 503, finishes binds in flight, then stops. Raises InputError if the
    address is taken or the TLS files cannot be used.
    """
    metrics = Metrics()
    feed = ClusterFeed(client, cluster, clock=clock, random=random)
    binder = Binder(cluster, client, clock=clock, random=random)
    recorder = EventRecorder(client, COMPONENT, clock=clock, new_id=new_id)
    # kube-scheduler never asks its extender to make room on a single GPU; this watches for such pods.
    preemption = PreemptionController(
        client, cluster, feed, skip=(SCHEDULER_NAME,), clock=clock, recorder=recorder
    )
    stopping = False
    app = ExtenderApp(
        Extender(cluster, client, binder, metrics, kept=preemption.kept),
        metrics,
        clock=clock,
        ready=lambda: feed.synced and not stopping,
        token=token,
        admission=admission,
    )
    metrics.watch_totals(lambda: _totals(cluster))
    # The server is the innermost, so that what it needs outlives the last request.
    tasks = [
        asyncio.create_task(feed.run(), name="cluster feed"),
        asyncio.create_task(binder.run(), name="binder audit"),
        asyncio.create_task(recorder.run(), name="events"),
        asyncio.create_task(preemption.run(), name="preemption"),
        asyncio.create_task(_settle(feed), name="freeze"),
    ]
    try:
        async with serving(app, host=host, port=port, clock=clock, tls=tls) as (bound_host, bound_port):
            try:
                yield Listening(bound_host, bound_port, cluster, feed, binder)
            finally:
                stopping = True
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await binder.aclose()


async def _settle(feed: ClusterFeed) -> None:
    """Once the cache is complete, take it out of the garbage collector's sight: its pauses are the tail."""
    await feed.wait_synced()
    gc.collect()
    gc.freeze()


def _totals(cluster: Cluster) -> Iterable[tuple[str, str, int]]:
    total = used = gpus = unhealthy = pending = 0
    for view in cluster.snapshots():
        gpus += len(view.gpus)
        unhealthy += sum(not gpu.healthy for gpu in view.gpus)
        total += sum(gpu.total_mib for gpu in view.gpus)
        used += sum(gpu.used_mib for gpu in view.gpus)
        pending += len(view.pending)
    yield "gpuslice_cluster_gpus", "GPUs in the cluster.", gpus
    yield "gpuslice_cluster_gpus_unhealthy", "GPUs that get no new pod.", unhealthy
    yield "gpuslice_cluster_gpu_memory_mib", "GPU memory in the cluster, MiB.", total
    yield "gpuslice_cluster_gpu_memory_allocated_mib", "GPU memory that pods hold, MiB.", used
    yield "gpuslice_cluster_pods_without_known_gpu", "Pods on a node whose GPU nobody recorded.", pending
