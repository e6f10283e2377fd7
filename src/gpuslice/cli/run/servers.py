"""Assembles the commands that run for ever from their parts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Final

from gpuslice.admission.visibility import RULES
from gpuslice.admission.webhook import webhook_app
from gpuslice.capacity.poolcontroller import NodePoolController
from gpuslice.cli.options import Probes
from gpuslice.cli.run.probing import answer_probes, read_token
from gpuslice.cli.run.webhook import WebhookOptions
from gpuslice.cli.run.webhookserver import Webhook
from gpuslice.clock import Clock, SystemClock
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.state import Cluster
from gpuslice.errors import InputError, Unavailable
from gpuslice.kube.client import Client
from gpuslice.kube.http import connected
from gpuslice.kube.leading import Alone, Candidate, Follower, Leadership, campaigning, label_leader
from gpuslice.names import LABEL_LEADER, SCHEDULER_NAME
from gpuslice.observe.addresses import is_loopback, parse_listen
from gpuslice.observe.logging import setup
from gpuslice.observe.metrics import Metrics
from gpuslice.observe.serving import Tls
from gpuslice.placement.policies.policy import Policy
from gpuslice.scheduler.extender.service import extender as serving_extender
from gpuslice.scheduler.service import run_scheduler
from gpuslice.scheduler.summary import summed_up

LOOK_SECONDS: Final = 0.25
"""How soon a change of the leader is noticed."""

_random = SystemRandom()


def _new_id() -> str:
    return f"{_random.getrandbits(64):016x}"


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


async def extender(
    kubeconfig: Path | None,
    listen: str,
    *,
    policy: Policy,
    mig_idle: int,
    tls: Tls | None,
    token_file: Path | None,
    open_to_all: bool,
    election: Election,
    schedulers: Collection[str],
    probes: Probes | None,
    webhook: WebhookOptions | None,
) -> None:
    """Run the extender until cancelled."""
    setup()
    host, port = parse_listen(listen)
    if not (open_to_all or token_file or (tls and tls.client_ca) or is_loopback(host)):
        raise InputError(
            f"whoever reaches {listen} could bind pods: let in only some with --client-ca or --token-file, "
            "listen on 127.0.0.1, or say --open",
            field="--listen",
        )
    clock = SystemClock()
    token = read_token(token_file, "--token-file") if token_file else None
    cluster = Cluster(clock=clock, policy=policy)
    async with connected(kubeconfig) as client, asyncio.TaskGroup() as group:
        # With the webhook's authority as the one that clients are asked for, that has to issue for them, too.
        ours = tls is not None and webhook is not None and tls.client_ca == webhook.folder / "ca.crt"
        hook = Webhook(client, webhook, clock=clock, offered=cluster.offered, client_certificate=ours)
        group.create_task(hook.run())
        if tls is not None:
            await hook.certified()  # the files may be the same
        leadership = election.leadership(client, clock)
        async with serving_extender(
            client,
            host=host,
            port=port,
            clock=clock,
            random=_random.random,
            new_id=_new_id,
            cluster=cluster,
            tls=tls,
            token=token,
            webhook=webhook_app(webhook.rules if webhook else RULES, cluster.offered),
            mig_idle_seconds=mig_idle,
            leadership=leadership,
            serves=(lambda name: name in schedulers) if schedulers else SCHEDULER_NAME.__ne__,
        ) as listening:
            group.create_task(_pools(client, listening.cluster, clock=clock))
            await answer_probes(
                probes,
                waits_for=lambda: _not_synced(listening.feed) or hook.waits_for(),
                metrics=listening.metrics,
                clock=clock,
            )
            await asyncio.Event().wait()


async def scheduler(
    kubeconfig: Path | None,
    *,
    policy: Policy,
    mig_idle: int,
    lease: tuple[str, str] | None,
    identity: str,
    probes: Probes | None,
    webhook: WebhookOptions | None,
) -> None:
    """Run our own scheduler until cancelled. With a Lease it waits for it, and ends when it is lost.

    A replica that waits keeps its cache complete, so that it can go on at once.
    """
    setup()
    clock = SystemClock()
    cluster = Cluster(clock=clock, policy=policy)
    metrics = Metrics()
    async with connected(kubeconfig) as client, AsyncExitStack() as stack:
        leadership = Election(lease, identity).leadership(client, clock)
        await stack.enter_async_context(campaigning(leadership))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        feed = ClusterFeed(client, cluster, clock=clock, random=_random.random, leadership=leadership)
        hook = Webhook(client, webhook, clock=clock, offered=cluster.offered)
        group.create_task(hook.run())
        group.create_task(feed.run())
        group.create_task(
            answer_probes(
                probes,
                waits_for=lambda: _not_synced(feed) or hook.waits_for(),
                metrics=lambda: summed_up(cluster, metrics),
                clock=clock,
            )
        )
        while not leadership.leads:
            await clock.sleep(LOOK_SECONDS)
        group.create_task(
            run_scheduler(
                client,
                cluster,
                clock=clock,
                new_id=_new_id,
                random=_random.random,
                mig_idle_seconds=mig_idle,
            )
        )
        group.create_task(_pools(client, cluster, clock=clock))
        while leadership.leads:
            await clock.sleep(LOOK_SECONDS)
        raise Unavailable(f"this replica does not lead any more: {leadership.why}")


async def _pools(client: Client, cluster: Cluster, *, clock: Clock) -> None:
    """Label and configure the nodes of pools, while this replica leads."""
    controller = NodePoolController(
        client,
        cluster,
        clock=clock,
        new_id=_new_id,
        random=_random.random,
    )
    await controller.run()


def _not_synced(feed: ClusterFeed) -> str:
    return "" if feed.synced else "the cache is not synced"
