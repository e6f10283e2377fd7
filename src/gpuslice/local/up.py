"""A whole cluster in one process, from a description of its nodes.

Everything that would run on a real cluster runs here as well: the API server is served over HTTPS, the
extender with its admission route too, scheduler and controllers are clients, and on every node a kubelet
and an agent speak gRPC over unix sockets. Only the containers are simulated (or local processes).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from gpuslice.admission.mutate import webhook_configuration
from gpuslice.admission.visibility import RULES
from gpuslice.admission.webhook import webhook_app
from gpuslice.background import background
from gpuslice.capacity.nodepool import DEFINITIONS, definition
from gpuslice.capacity.poolcontroller import NodePoolController
from gpuslice.clock import Clock
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.state import Cluster
from gpuslice.config.cluster import ClusterPlan, NodePlan
from gpuslice.devices.xids import XidPolicy
from gpuslice.errors import Conflict, NotFound
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Resource
from gpuslice.local.apiserver.api import webhookpost
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.certificates import issue
from gpuslice.local.apiserver.api.serve import Endpoint
from gpuslice.local.apiserver.api.serve import serving as serving_api
from gpuslice.local.controllers import run_controllers
from gpuslice.local.machines import SimulatedMachines
from gpuslice.local.nodes import Nodes, new_id
from gpuslice.local.process import private_folder, rare_collections
from gpuslice.names import SCHEDULER_NAME, WEBHOOK_PATH
from gpuslice.observe.serving import Tls
from gpuslice.scheduler.core import SCHEDULER, Core, CoreSettings
from gpuslice.scheduler.estimator import NodeEstimator
from gpuslice.scheduler.extender.service import ExtenderSettings, extender
from gpuslice.scheduler.migdemand_controller import IDLE_SECONDS
from gpuslice.scheduler.service import run_scheduler

SCHEDULERS: Final = ("default-scheduler", SCHEDULER_NAME)
"""Whose pods our own scheduler takes: there is no other in this cluster."""
WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
WEBHOOK: Final = "gpuslice"
"""The name of our MutatingWebhookConfiguration."""
WAVE: Final = 25
"""Nodes that start at once."""
WAVE_SECONDS: Final = 10.0
"""How long a wave may hold up the next."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run. `port` 0 takes a free one. `database`: keep the objects there from run to run.

    `mig_idle_seconds`: how long a MIG instance that was created on demand may be idle. `xids`: which of the
    driver's error numbers make a GPU sick.
    """

    port: int = 0
    kubeconfig: Path | None = None
    database: Path | None = None
    run_processes: bool = False
    mig_idle_seconds: float = IDLE_SECONDS
    xids: XidPolicy = field(default_factory=XidPolicy)


class LocalCluster:
    """A running cluster; made by `local_cluster`."""

    def __init__(
        self,
        plan: ClusterPlan,
        *,
        endpoint: Endpoint,
        extender: str,
        client: Client,
        cluster: Cluster,
        feed: ClusterFeed,
        folder: Path,
        nodes: Nodes,
    ) -> None:
        self.plan = plan
        self.endpoint = endpoint
        self.extender = extender
        """URL of the extender, which asks for the endpoint's token."""
        self.client = client
        self.cluster = cluster
        self.feed = feed
        self.folder = folder
        self.nodes = nodes
        self.folders = nodes.folders
        self.drivers = nodes.drivers
        self.offered = nodes.offered
        self.kubelets = nodes.kubelets
        self.agents = nodes.agents
        """By the node's name; see `Nodes`."""

    async def changed(self, until: Callable[[], bool]) -> None:
        """Wait until something holds, looking again whenever nodes or pods have changed."""
        waker = asyncio.Event()

        unsubscribe = self.cluster.subscribe(lambda _change: waker.set())
        try:
            while not until():
                await waker.wait()
                waker.clear()
        finally:
            unsubscribe()

    async def ready(self, nodes: Sequence[NodePlan] | None = None) -> None:
        """Wait until these nodes (all of them) have offered their GPUs."""
        waiting = list(self.plan.nodes if nodes is None else nodes)

        def none_left() -> bool:
            while waiting and self._offers(waiting[-1]):
                waiting.pop()
            return not waiting

        await self.changed(none_left)

    def _offers(self, node: NodePlan) -> bool:
        view = self.cluster.snapshot(node.name)
        # A GPU that is lost or sick by its description never comes.
        sick = {gpu.uuid for gpu in node.gpus.gpus if not gpu.available}
        gpus = self.offered[node.name]
        available = [gpu for gpu in gpus.gpus if gpu.available and gpu.physical not in sick]
        units = sum(map(gpus.units_of, available))
        count = len(available)
        return view is not None and view.allocatable_units >= units and view.allocatable_devices >= count


@asynccontextmanager
async def local_cluster(
    plan: ClusterPlan, settings: Settings, *, clock: Clock, random: Random
) -> AsyncIterator[LocalCluster]:
    """Run a cluster while the block runs; leaving it ends everything and leaves no file behind.

    The block is entered before the nodes are ready: see `LocalCluster.ready`. Raises InputError if the port
    is taken.
    """
    hook = _OwnWebhook()
    server = ApiServer(
        clock=clock,
        new_uid=lambda: str(uuid.uuid4()),
        random=random.random,
        database=settings.database,
        webhook_post=hook.post,
    )
    client = Client(server.transport())
    with private_folder() as folder, rare_collections():
        await server.start()
        try:
            async with (
                serving_api(
                    server, clock=clock, port=settings.port, kubeconfig=settings.kubeconfig
                ) as endpoint,
                _scheduling(
                    plan, client, folder, settings, endpoint.token, clock=clock, random=random
                ) as scheduling,
                background() as start,
            ):
                core = scheduling.core
                hook.url, hook.review = f"{scheduling.url}{WEBHOOK_PATH}", scheduling.review
                await _register_webhook(client, hook.url, scheduling.authority)
                await _register_pools(client)
                nodes = Nodes(
                    client,
                    folder,
                    plan.plugin_configs,
                    routes=server.kubelets,
                    start=start,
                    run_processes=settings.run_processes,
                    xids=settings.xids,
                    clock=clock,
                    random=random,
                )
                for node in plan.nodes:
                    nodes.add(node)
                running = LocalCluster(
                    plan,
                    endpoint=endpoint,
                    extender=scheduling.url,
                    client=client,
                    cluster=core.cluster,
                    feed=core.feed,
                    folder=folder,
                    nodes=nodes,
                )
                pools = NodePoolController(
                    client,
                    core.cluster,
                    machines=SimulatedMachines(plan, nodes, NodeEstimator(core.cluster, clock)),
                    clock=clock,
                    new_id=core.new_id,
                    random=core.random,
                )
                start("node pools", pools.run())
                start("start of the nodes", _begin(running))
                yield running
        finally:
            await server.stop()


class _OwnWebhook:
    """Calls webhooks; our own, which is in this process, without a connection. The answer is the same."""

    def __init__(self) -> None:
        self.url = ""
        self.review: Callable[[bytes], Awaitable[bytes]] | None = None

    async def post(self, url: str, body: bytes, *, authority: bytes, timeout_s: float) -> bytes:
        """See `webhookpost.post`."""
        if url == self.url and self.review is not None:
            return await self.review(body)
        return await webhookpost.post(url, body, authority=authority, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class _Scheduling:
    url: str
    authority: bytes
    review: Callable[[bytes], Awaitable[bytes]]
    core: Core


@asynccontextmanager
async def _scheduling(
    plan: ClusterPlan,
    client: Client,
    folder: Path,
    settings: Settings,
    token: str,
    *,
    clock: Clock,
    random: Random,
) -> AsyncIterator[_Scheduling]:
    """Extender, admission, scheduler and controllers, around one picture of the cluster and one binder.

    The extender asks for the API server's token: whoever can bind pods can put them anywhere.
    """
    core = Core(
        client,
        CoreSettings(plan.policy, plan.unit, settings.mig_idle_seconds),
        component=SCHEDULER,
        clock=clock,
        random=random.random,
        new_id=lambda: new_id(random),
    )
    certificates = issue(clock)
    listening = ExtenderSettings(
        port=0,
        tls=Tls(
            _secret(folder / "tls.crt", certificates.certificate),
            _secret(folder / "tls.key", certificates.key),
        ),
        token=token,
        serves=lambda name: name not in SCHEDULERS,
        grace_seconds=1,
    )
    webhook = webhook_app(RULES, core.cluster.offered)
    controllers = run_controllers(
        client, clock=clock, new_id=core.new_id, random=core.random, root_ca=certificates.authority.decode()
    )
    async with core.running(), extender(core, listening, webhook=webhook) as served, background() as start:
        start("scheduler", run_scheduler(core, SCHEDULERS))
        start("controllers", controllers)
        url = f"https://{served.host}:{served.port}"
        yield _Scheduling(url, certificates.authority, webhook.review, core)


async def _begin(running: LocalCluster) -> None:
    """Start kubelets and agents, a wave of nodes at a time: hundreds at once would time out on each other."""
    nodes = running.plan.nodes
    for first in range(0, len(nodes), WAVE):
        wave = nodes[first : first + WAVE]
        for node in wave:
            running.nodes.switch_on(node)
        with suppress(TimeoutError):
            async with asyncio.timeout(WAVE_SECONDS):
                await running.ready(wave)


async def _register_webhook(client: Client, url: str, authority: bytes) -> None:
    # A database remembers the one of the last run, whose address and certificate are gone.
    with suppress(NotFound):
        await client.delete(WEBHOOKS, WEBHOOK)
    await client.create(WEBHOOKS, webhook_configuration(url=url, ca=authority))


async def _register_pools(client: Client) -> None:
    body = definition()
    with suppress(Conflict):  # a database remembers it
        await client.create(DEFINITIONS, body)


def _secret(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path
