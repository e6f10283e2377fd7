"""Assembles the commands that run for ever from their parts."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from gpuslice.cli.options import Probes
from gpuslice.cli.reading import connected
from gpuslice.cli.webhook import WebhookOptions
from gpuslice.cli.webhookserver import Webhook
from gpuslice.clock import Clock, SystemClock
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.state import Cluster
from gpuslice.errors import InputError, Unavailable
from gpuslice.kube.client import Client
from gpuslice.kube.kubeconfig import own_namespace
from gpuslice.kube.leading import Alone, Candidate, Follower, Leadership, campaigning, label_leader
from gpuslice.kube.wire import Node
from gpuslice.names import LABEL_LEADER, SCHEDULER_NAME
from gpuslice.observe.logging import setup
from gpuslice.observe.probes import LIMITS, ProbesApp
from gpuslice.observe.serving import Tls, is_loopback, parse_listen, serving
from gpuslice.placement.policy import Policy

if TYPE_CHECKING:
    from gpuslice.node.configuring import ConfigFiles

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
    policy: str,
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
    from gpuslice.admission.mutate import review
    from gpuslice.admission.reviewing import Reviews
    from gpuslice.scheduler.extender.service import extender as serving_extender

    setup()
    host, port = parse_listen(listen)
    if not (open_to_all or token_file or (tls and tls.client_ca) or is_loopback(host)):
        raise InputError(
            f"whoever reaches {listen} could bind pods: let in only some with --client-ca or --token-file, "
            "listen on 127.0.0.1, or say --open",
            field="--listen",
        )
    clock = SystemClock()
    token = _read_token(token_file, "--token-file") if token_file else None
    async with connected(kubeconfig) as client, asyncio.TaskGroup() as group:
        # With the webhook's authority as the one that clients are asked for, that has to issue for them, too.
        ours = tls is not None and webhook is not None and tls.client_ca == webhook.folder / "ca.crt"
        hook = Webhook(client, webhook, clock=clock, client_certificate=ours)
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
            cluster=Cluster(clock=clock, policy=Policy(policy)),
            tls=tls,
            token=token,
            admission=Reviews(partial(review, rules=webhook.rules) if webhook else review),
            mig_idle_seconds=mig_idle,
            leadership=leadership,
            serves=(lambda name: name in schedulers) if schedulers else SCHEDULER_NAME.__ne__,
        ) as listening:
            group.create_task(_pools(client, listening.feed, clock=clock))
            await _probes(
                probes,
                waits_for=lambda: _not_synced(listening.feed) or hook.waits_for(),
                metrics=listening.metrics,
                clock=clock,
            )
            await asyncio.Event().wait()


async def scheduler(
    kubeconfig: Path | None,
    *,
    policy: str,
    mig_idle: int,
    lease: tuple[str, str] | None,
    identity: str,
    probes: Probes | None,
    webhook: WebhookOptions | None,
) -> None:
    """Run our own scheduler until cancelled. With a Lease it waits for it, and ends when it is lost.

    A replica that waits keeps its cache complete, so that it can go on at once.
    """
    from gpuslice.observe.metrics import Metrics
    from gpuslice.scheduler.service import run_scheduler
    from gpuslice.scheduler.summary import summed_up

    setup()
    clock = SystemClock()
    cluster = Cluster(clock=clock, policy=Policy(policy))
    metrics = Metrics()
    async with connected(kubeconfig) as client, AsyncExitStack() as stack:
        leadership = Election(lease, identity).leadership(client, clock)
        await stack.enter_async_context(campaigning(leadership))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        feed = ClusterFeed(client, cluster, clock=clock, random=_random.random, leadership=leadership)
        hook = Webhook(client, webhook, clock=clock)
        group.create_task(hook.run())
        group.create_task(feed.run())
        group.create_task(
            _probes(
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
                feed,
                clock=clock,
                new_id=_new_id,
                random=_random.random,
                mig_idle_seconds=mig_idle,
            )
        )
        group.create_task(_pools(client, feed, clock=clock))
        while leadership.leads:
            await clock.sleep(LOOK_SECONDS)
        raise Unavailable(f"this replica does not lead any more: {leadership.why}")


async def agent(
    kubeconfig: Path | None,
    node: str,
    devices: Path | None,
    kubelet_dir: Path,
    *,
    options: Mapping[str, object],
    files: ConfigFiles | None,
    mig_configs: Path | None,
    labels: bool,
    memory_unit: str | None,
    probes: Probes | None,
) -> None:
    """Run a node's agent until cancelled. `options` are those of NVIDIA's device plugin that are given."""
    from gpuslice.cli.discovering import driver_of, keep_up, line_to, unit_of
    from gpuslice.config.nvidiaflags import effective
    from gpuslice.devices.xids import read_policy
    from gpuslice.node.agent import Agent
    from gpuslice.node.configuring import Applying, ConfigFollower
    from gpuslice.node.discovery.backend import DiscoveredGpus
    from gpuslice.node.discovery.simulated import SimulatedDriver
    from gpuslice.node.featurewriter import FeatureWriter
    from gpuslice.node.handing import Handing
    from gpuslice.node.machine import read_machine
    from gpuslice.node.migmanager import MigTools
    from gpuslice.node.migreset import reset_of
    from gpuslice.node.migstrategy import StrategyLabel

    setup()
    clock = SystemClock()
    unit = unit_of(devices, memory_unit)
    driver = driver_of(devices, node)
    policy, line = read_policy(os.environ), line_to(driver, clock=clock)
    on_paper = isinstance(driver, SimulatedDriver)
    # This machine's kernel says nothing of GPUs on paper.
    machine = None if on_paper else read_machine
    flags = effective({}, cli=options, env=os.environ)
    backend = DiscoveredGpus(line, policy, clock, flags.mig_strategy, machine=machine)
    await backend.start()
    strategy = StrategyLabel(backend)
    handing = Handing(flags, backend.found, new_token=lambda: str(uuid4()))
    async with connected(kubeconfig) as client, asyncio.TaskGroup() as group:
        await strategy.read(client, node)
        features = FeatureWriter(client, node, own_namespace(), backend.labels, flags, clock=clock)
        apply = Applying(backend, handing, options, os.environ, features)
        group.create_task(keep_up(driver, devices, node, clock=clock))
        config = ConfigFollower(client, node, files, apply, clock=clock) if files else None
        if config is not None:
            config.start()
            group.create_task(config.run())

        def on_node(seen: Node) -> None:
            strategy.set_node(seen)
            if config is not None:
                config.set_node(seen)

        group.create_task(backend.run())
        group.create_task(features.run())
        running = Agent(
            client,
            node,
            backend,
            kubelet_dir=kubelet_dir,
            unit=unit,
            labels=backend.labels if labels else None,
            handing=handing,
            simulated=backend.found if on_paper else None,
            mig=MigTools(driver, backend, reset_of(driver), mig_configs),
            on_node=on_node,
            clock=clock,
            random=_random.random,
        )
        group.create_task(running.run())
        group.create_task(_probes(probes, waits_for=running.waits_for, metrics=running.metrics, clock=clock))


async def _pools(client: Client, feed: ClusterFeed, *, clock: Clock) -> None:
    """Label and configure the nodes of pools, while this replica leads."""
    from gpuslice.capacity.poolcontroller import NodePoolController

    controller = NodePoolController(
        client,
        feed.cluster,
        feed,
        clock=clock,
        new_id=_new_id,
        random=_random.random,
    )
    await controller.run()


async def _probes(
    where: Probes | None,
    *,
    waits_for: Callable[[], str],
    metrics: Callable[[], Awaitable[bytes]],
    clock: Clock,
) -> None:
    """Answer probes until cancelled, if there is an address to do so at."""
    if where is None:
        return
    host, port = parse_listen(where.listen, field="--probes")
    token = _read_token(where.token_file, "--metrics-token-file") if where.token_file else None
    app = ProbesApp(waits_for=waits_for, metrics=metrics, token=token)
    async with serving(app, host=host, port=port, clock=clock, limits=LIMITS):
        await asyncio.Event().wait()


def _not_synced(feed: ClusterFeed) -> str:
    return "" if feed.synced else "the cache is not synced"


def _read_token(path: Path, field: str) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", field=field) from error
    if not token:
        raise InputError(f"{path} is empty", field=field)
    return token
