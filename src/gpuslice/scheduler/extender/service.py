"""Puts an extender together from its parts: the server and the controllers beside it, around a `Core`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from gpuslice.background import background
from gpuslice.names import SCHEDULER_NAME
from gpuslice.observe.metrics import Metrics
from gpuslice.observe.serving import Tls, serving
from gpuslice.scheduler.core import Core
from gpuslice.scheduler.extender.app import LIMITS, Asgi, ExtenderApp
from gpuslice.scheduler.extender.handlers import Extender
from gpuslice.scheduler.extender.waking import Waker
from gpuslice.scheduler.preemption_controller import PreemptionController


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """Where it listens and which clients it accepts. `port` 0 takes a free one.

    `serves`: the schedulers, by name, for whose pods it makes room. `grace_seconds`: how long requests in
    flight may take at the end.
    """

    host: str = "127.0.0.1"
    port: int = 32766
    tls: Tls | None = None
    token: str | None = None
    serves: Callable[[str], bool] = SCHEDULER_NAME.__ne__
    grace_seconds: int = 5


DEFAULTS: Final = ExtenderSettings()


@dataclass(frozen=True, slots=True)
class Listening:
    """A running extender."""

    host: str
    port: int
    metrics: Callable[[], Awaitable[bytes]]
    """The text for Prometheus."""


@asynccontextmanager
async def extender(
    core: Core, settings: ExtenderSettings, *, webhook: Asgi | None = None
) -> AsyncIterator[Listening]:
    """Run an extender while the block runs. It listens at once and is ready once the picture is complete.

    The core is run by the caller, around it. Leaving the block turns /readyz to 503, answers the binds in
    flight, then stops. Raises InputError if the address is taken or the TLS files cannot be used; what goes
    wrong later comes as an ExceptionGroup.
    """
    client, cluster, clock, metrics = core.client, core.cluster, core.clock, Metrics()
    cluster.quarantine.record_by(core.recorder)
    # kube-scheduler never asks its extender to make room on a single GPU; this controller watches for such
    # pods.
    preemption = PreemptionController(
        client, cluster, serves=settings.serves, clock=clock, recorder=core.recorder
    )
    waker = Waker(client, cluster, clock=clock)
    stopping = False
    answering = Extender(cluster, client, core.binder, metrics, kept=preemption.kept, refused=waker.refused)
    app = ExtenderApp(
        answering,
        metrics,
        clock=clock,
        ready=lambda: core.feed.synced and not stopping,
        token=settings.token,
        webhook=webhook,
    )
    # The server ends last, once the binds in flight are answered.
    async with (
        serving(
            app,
            host=settings.host,
            port=settings.port,
            clock=clock,
            tls=settings.tls,
            grace_seconds=settings.grace_seconds,
            limits=LIMITS,
        ) as (host, port),
        background() as start,
    ):
        start("preemption", preemption.run())
        start("waker", waker.run())
        try:
            yield Listening(host, port, answering.metrics)
        finally:
            stopping = True
