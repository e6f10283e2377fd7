"""Runs extender and scheduler with what a process of their own needs: who leads, the webhook, probes."""

from __future__ import annotations

import asyncio
import gc
import socket
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Final

from gpuslice.admission.visibility import RULES
from gpuslice.admission.webhook import webhook_app
from gpuslice.capacity.poolcontroller import NodePoolController
from gpuslice.cli.options import Probes
from gpuslice.cli.run.probing import answer_probes
from gpuslice.cli.run.webhook import WebhookOptions
from gpuslice.cli.run.webhookserver import Webhook
from gpuslice.clock import Clock, SystemClock
from gpuslice.errors import Unavailable
from gpuslice.kube.client import Client
from gpuslice.kube.http import connected
from gpuslice.kube.leading import Alone, Candidate, Follower, Leadership, label_leader
from gpuslice.names import LABEL_LEADER
from gpuslice.observe.logging import setup
from gpuslice.observe.metrics import Metrics
from gpuslice.scheduler.core import EXTENDER, SCHEDULER, Core, CoreSettings
from gpuslice.scheduler.extender.service import ExtenderSettings, extender
from gpuslice.scheduler.service import run_scheduler
from gpuslice.scheduler.summary import summed_up

LOOK_SECONDS: Final = 0.25
"""How soon a change of the leader is noticed."""

_random = SystemRandom()


@dataclass(frozen=True, slots=True)
class Election:
    """How it is found who of several replicas acts. Leases as (namespace, name); None: it is alone."""

    lease: tuple[str, str] | None
    identity: str
    label: bool = False
    follow: tuple[str, str] | None = None

    def leadership(self, client: Client, clock: Clock) -> Leadership:
        if self.follow is not None:
            namespace, name = self.follow
            hostname = socket.gethostname()
            return Follower(client, namespace=namespace, name=name, hostname=hostname, clock=clock)
        if self.lease is None:
            return Alone()
        namespace, name = self.lease
        tell = label_leader(client, namespace, self.identity, LABEL_LEADER) if self.label else None
        return Candidate(
            client, namespace=namespace, name=name, identity=self.identity, clock=clock, on_change=tell
        )


async def run_extender(
    kubeconfig: Path | None,
    settings: CoreSettings,
    listen: ExtenderSettings,
    *,
    election: Election,
    probes: Probes | None,
    webhook: WebhookOptions | None,
) -> None:
    """Run the extender until cancelled."""
    setup()
    clock = SystemClock()
    async with connected(kubeconfig) as client, asyncio.TaskGroup() as group:
        core = _core(client, settings, EXTENDER, election, clock)
        # With the webhook's authority as the one that clients are asked for, that has to issue for them, too.
        tls = listen.tls
        ours = tls is not None and webhook is not None and tls.client_ca == webhook.folder / "ca.crt"
        hook = Webhook(client, webhook, clock=clock, offered=core.cluster.offered, client_certificate=ours)
        group.create_task(hook.run())
        if tls is not None:
            await hook.certified()  # the files may be the same
        app = webhook_app(webhook.rules if webhook else RULES, core.cluster.offered)
        async with core.running(), extender(core, listen, webhook=app) as listening:
            group.create_task(_settle(core))
            group.create_task(_pools(core).run())
            await answer_probes(
                probes,
                waits_for=lambda: _not_synced(core) or hook.waits_for(),
                metrics=listening.metrics,
                clock=clock,
            )
            await asyncio.Event().wait()


async def run_own_scheduler(
    kubeconfig: Path | None,
    settings: CoreSettings,
    *,
    election: Election,
    probes: Probes | None,
    webhook: WebhookOptions | None,
) -> None:
    """Run our own scheduler until cancelled. With a Lease it waits for it, and ends when it is lost.

    A replica that waits keeps its cache complete, so that it can go on at once.
    """
    setup()
    clock, metrics = SystemClock(), Metrics()
    async with connected(kubeconfig) as client:
        core = _core(client, settings, SCHEDULER, election, clock)
        hook = Webhook(client, webhook, clock=clock, offered=core.cluster.offered)
        async with core.running(), asyncio.TaskGroup() as group:
            group.create_task(hook.run())
            group.create_task(
                answer_probes(
                    probes,
                    waits_for=lambda: _not_synced(core) or hook.waits_for(),
                    metrics=lambda: summed_up(core.cluster, metrics),
                    clock=clock,
                )
            )
            while not core.leadership.leads:
                await clock.sleep(LOOK_SECONDS)
            group.create_task(run_scheduler(core))
            group.create_task(_pools(core).run())
            while core.leadership.leads:
                await clock.sleep(LOOK_SECONDS)
            raise Unavailable(f"this replica does not lead any more: {core.leadership.why}")


def _core(client: Client, settings: CoreSettings, component: str, election: Election, clock: Clock) -> Core:
    return Core(
        client,
        settings,
        component=component,
        leadership=election.leadership(client, clock),
        clock=clock,
        random=_random.random,
        new_id=lambda: f"{_random.getrandbits(64):016x}",
    )


def _pools(core: Core) -> NodePoolController:
    """Labels and configures the nodes of pools, while this replica leads."""
    return NodePoolController(
        core.client, core.cluster, clock=core.clock, new_id=core.new_id, random=core.random
    )


async def _settle(core: Core) -> None:
    """Once the picture is complete, take it out of the garbage collector's sight: its pauses are the tail."""
    await core.feed.wait_synced()
    gc.collect()
    gc.freeze()


def _not_synced(core: Core) -> str:
    return "" if core.feed.synced else "the cache is not synced"
