"""Puts together what a process's extender and scheduler share: the state of the cluster and the reflectors
that keep it true, the binder, MIG on demand, and the event recorder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from gpuslice.background import background
from gpuslice.clock import Clock
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.state import Cluster
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.leading import Alone, Leadership, campaigning
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.scheduler.binder import Binder
from gpuslice.scheduler.migdemand_controller import IDLE_SECONDS, MigDemandController
from gpuslice.units import GIB, MemoryUnit

EXTENDER: Final = "gpuslice-extender"
SCHEDULER: Final = "gpuslice-scheduler"
"""The component that events name as their source."""


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """`unit`: what one gpu-mem is on nodes that do not publish it.

    `mig_idle_seconds`: how long a MIG instance that was created on demand may be idle.
    """

    policy: Policy = BINPACK
    unit: MemoryUnit = GIB
    mig_idle_seconds: float = IDLE_SECONDS


DEFAULTS: Final = CoreSettings()


class Core:
    """The shared parts. Of several replicas only the leader decides; the other replicas keep their state
    complete.
    """

    def __init__(
        self,
        client: Client,
        settings: CoreSettings = DEFAULTS,
        *,
        component: str,
        leadership: Leadership | None = None,
        clock: Clock,
        random: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self.client = client
        self.clock = clock
        self.random = random
        self.new_id = new_id
        self.leadership = leadership or Alone()
        self.cluster = Cluster(clock=clock, policy=settings.policy, default_unit=settings.unit)
        self.feed = ClusterFeed(client, self.cluster, clock=clock, random=random, leadership=leadership)
        self.binder = Binder(self.cluster, client, clock=clock, random=random)
        self.recorder = EventRecorder(client, component, clock=clock, new_id=new_id, random=random)
        self._cutting = MigDemandController(
            client,
            self.cluster,
            clock=clock,
            recorder=self.recorder,
            idle_seconds=settings.mig_idle_seconds,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the parts while the block runs; at the end, binds in flight are finished.

        If a part fails, so does the block (in an exception group), since decisions must not be made from a
        state that is no longer updated.
        """
        try:
            async with campaigning(self.leadership), background() as start:
                start("cluster feed", self.feed.run())
                start("binder's audit", self.binder.run())
                start("events", self.recorder.run())
                start("MIG on demand", self._cutting.run())
                yield
        finally:
            await self.binder.aclose()
