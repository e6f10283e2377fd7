"""Assembles a running extender: cluster, feed, binder, server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpuslice.clock import Clock
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.state import Cluster
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.leading import Alone, Leadership, campaigning
from gpuslice.names import SCHEDULER_NAME
from gpuslice.observe.metrics import Metrics
from gpuslice.observe.serving import Tls, serving
from gpuslice.scheduler.binder import Binder
from gpuslice.scheduler.extender.app import LIMITS, Asgi, ExtenderApp
from gpuslice.scheduler.extender.handlers import Extender
from gpuslice.scheduler.extender.waking import Waker
from gpuslice.scheduler.migdemand_controller import IDLE_SECONDS, MigDemandController
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
    metrics: Callable[[], Awaitable[bytes]]
    """The text for Prometheus."""


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
    webhook: Asgi | None = None,
    leadership: Leadership | None = None,
    serves: Callable[[str], bool] = SCHEDULER_NAME.__ne__,
    mig_idle_seconds: float = IDLE_SECONDS,
) -> AsyncIterator[Listening]:
    """Run an extender while the block runs. It listens at once and is ready once its cache is complete.

    Of several replicas only the one that leads decides; the others keep their caches complete. It evicts pods
    to make room for pods of schedulers that it `serves`, and has GPUs cut on demand; what was cut may be idle
    `mig_idle_seconds`.

    Leaving the block turns /readyz to 503, finishes binds in flight, then stops. Raises InputError if the
    address is taken or the TLS files cannot be used; what goes wrong later comes as an ExceptionGroup.
    """
    metrics = Metrics()
    feed = ClusterFeed(client, cluster, clock=clock, random=random, leadership=leadership)
    binder = Binder(cluster, client, clock=clock, random=random)
    recorder = EventRecorder(client, COMPONENT, clock=clock, new_id=new_id)
    cluster.quarantine.record_by(recorder)
    # kube-scheduler never asks its extender to make room on a single GPU; this watches for such pods.
    preemption = PreemptionController(client, cluster, serves=serves, clock=clock, recorder=recorder)
    cutting = MigDemandController(
        client,
        cluster,
        clock=clock,
        recorder=recorder,
        idle_seconds=mig_idle_seconds,
    )
    waker = Waker(client, cluster, clock=clock)
    stopping = False
    answering = Extender(cluster, client, binder, metrics, kept=preemption.kept, refused=waker.refused)
    app = ExtenderApp(
        answering,
        metrics,
        clock=clock,
        ready=lambda: feed.synced and not stopping,
        token=token,
        webhook=webhook,
    )
    try:
        # In one group: if a part fails, the process ends instead of answering from a cache that stands still.
        # The server ends after them, once the binds in flight are answered.
        async with (
            campaigning(leadership or Alone()),
            serving(app, host=host, port=port, clock=clock, tls=tls, limits=LIMITS) as (
                bound_host,
                bound_port,
            ),
            asyncio.TaskGroup() as group,
        ):
            parts = [feed.run(), binder.run(), recorder.run(), _settle(feed)]
            parts += [preemption.run(), cutting.run(), waker.run()]
            tasks = [group.create_task(part) for part in parts]
            try:
                yield Listening(bound_host, bound_port, cluster, feed, binder, answering.metrics)
            finally:
                stopping = True
                for task in tasks:
                    task.cancel()
    finally:
        await binder.aclose()


async def _settle(feed: ClusterFeed) -> None:
    """Once the cache is complete, take it out of the garbage collector's sight: its pauses are the tail."""
    await feed.wait_synced()
    gc.collect()
    gc.freeze()
