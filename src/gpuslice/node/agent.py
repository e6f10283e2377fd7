"""The node agent: puts the device plugin service, its servers and the reporters together.

Nothing is stored on disk except the files that containers read: after a restart the ledger is rebuilt from
pod-resources and the API server. The plugins register with kubelet before that, since pods fail while a
plugin is away; kubelet's calls are answered once the ledger is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import structlog

from gpuslice.clock import Clock, happened
from gpuslice.devices.found import Found
from gpuslice.devices.inventory import NodeGpus
from gpuslice.errors import InputError
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.gate import Gate
from gpuslice.kube.quarantine import Quarantine
from gpuslice.kube.reflector import Reflector
from gpuslice.kube.wire import Node, ObjectMeta, Pod
from gpuslice.node.discovery.devices import DeviceBackend
from gpuslice.node.grants.deviceids import check_unit
from gpuslice.node.grants.held import holders
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.node.inject.injector import PLAIN, Injector
from gpuslice.node.inject.slicefiles import SliceFolders
from gpuslice.node.kubelet.pluginserver import PluginServer, ResourcePlugin
from gpuslice.node.kubelet.podfolders import PodFolders
from gpuslice.node.kubelet.rpc import PodResourcesClient, RpcError
from gpuslice.node.mig.manager import MigManager, MigTools
from gpuslice.node.mig.users import users
from gpuslice.node.report.featuredaemon import FeatureDaemon
from gpuslice.node.report.healthreporter import HealthReporter
from gpuslice.node.report.metrics import render
from gpuslice.node.report.publishing import NodePublisher
from gpuslice.node.service.deviceplugin import DevicePluginService
from gpuslice.requests.kinds import kinds_of
from gpuslice.units import MemoryUnit

RECONCILE_SECONDS: Final = 30.0
LINGER: Final = Backoff(base=0.5, cap=RECONCILE_SECONDS)
"""How soon to look again at devices that kubelet still lists although their pod is over: a pod that was
deleted by force is gone from the API server before its containers have ended."""
QUIET_SECONDS: Final = 0.25
"""Background calls of pod-resources wait until the kubelet has called nothing for this many seconds: a call
in the middle of an Allocate makes the kubelet forget what it gives out in it."""
FIRST_SECONDS: Final = 1.0
"""How long the API server is not asked at the start, so that kubelet knows the plugins before all else."""
REBUILD: Final = Backoff(base=0.05, cap=1.0)

_log = structlog.get_logger(__name__)


class Agent:
    """One node's agent.

    `kubelet_dir` is /var/lib/kubelet; `unit` is what one gpu-mem is on this node; `labels` gives the labels
    that describe its GPUs, None if they are not ours to write; `injector` gives containers their devices;
    `simulated` describes the machine if its GPUs are simulated: containers then get a fake nvidia-smi; `mig`
    partitions the GPUs as the node's label says; `on_node` is called with every change of the node.
    """

    def __init__(
        self,
        client: Client,
        node_name: str,
        backend: DeviceBackend,
        *,
        kubelet_dir: Path,
        unit: MemoryUnit,
        labels: Callable[[], Mapping[str, str]] | None = None,
        injector: Injector = PLAIN,
        simulated: Callable[[], Found] | None = None,
        mig: MigTools | None = None,
        on_node: Callable[[Node], None] = lambda _node: None,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self._client = client
        self._node = node_name
        self._backend = backend
        self._folder = kubelet_dir / "device-plugins"
        self._lister = kubelet_dir / "pod-resources" / "kubelet.sock"
        self._slices = SliceFolders(kubelet_dir / "gpuslice" / "slices")
        self._pod_folders = PodFolders(kubelet_dir / "pods", clock)
        self._unit = unit
        self._labels = labels
        self._injector = injector
        self._simulated = simulated
        self._mig = mig
        self._on_node = on_node
        self._clock = clock
        self._random = random
        self._servers: tuple[PluginServer, ...] = ()
        self._ledger: Ledger | None = None
        self._lacks = "starting"
        self.changed = asyncio.Event()
        """Set when `waits_for` may say something else, and when what is over has been released."""
        self._quarantine = Quarantine()

    def waits_for(self) -> str:
        """Why the agent is not ready; "" once kubelet has the plugins and the ledger is complete."""
        missing = [server.resource for server in self._servers if not server.known.is_set()]
        return f"kubelet has not taken the plugin of {' and '.join(missing)}" if missing else self._lacks

    async def metrics(self) -> bytes:
        """The text for Prometheus."""
        if self._ledger is None:
            return b""
        held, refused = self._ledger.held(), self._ledger.refused
        return render(self._ledger.gpus, held, refused, self._quarantine.counts())

    async def run(self) -> None:
        """Run for ever. Raises InputError if the unit is too fine or a socket is taken, and what
        `Injector.publish` raises.
        """
        gpus = NodeGpus(self._backend.gpus(), self._unit)
        check_unit(gpus)
        self._folder.mkdir(parents=True, exist_ok=True)
        kubelet = PodResourcesClient(self._lister)
        try:
            self._injector.publish()
            await self._serve(gpus, kubelet)
        except BaseExceptionGroup as problems:
            # Not `except*`: what that raises Python 3.11.2, Debian 12's, puts into a group of its own.
            if bad_input := problems.subgroup(InputError):
                raise _first(bad_input) from None
            raise
        finally:
            self._injector.withdraw()
            await kubelet.aclose()

    async def _serve(self, gpus: NodeGpus, kubelet: PodResourcesClient) -> None:
        ledger = self._ledger = Ledger(gpus)
        ledger.set_gpus(gpus, self._backend.plain())
        ledger.machine = self._backend.found().gpus
        node = NodePublisher(
            self._client,
            self._node,
            lambda: ledger.gpus,
            labels=self._labels,
            discovered=lambda: daemon.runs or not pods.synced.is_set(),
            clock=self._clock,
            random=self._random,
        )
        daemon = FeatureDaemon(node.check)
        recorder = self._recorder()
        self._quarantine.record_by(recorder)

        def record_event(pod: NodePod, sentence: str) -> None:
            meta = ObjectMeta(name=pod.name, namespace=pod.namespace, uid=pod.uid)
            recorder.record(Pod(metadata=meta), "Warning", "AnnotationsFull", sentence)

        service = DevicePluginService(
            self._client,
            self._node,
            ledger,
            kubelet,
            self._slices,
            self._pod_folders,
            isolation_disabled=lambda: node.isolation_disabled,
            differs=self._backend.differs,
            complete=lambda: pods.whole,
            injector=self._injector,
            simulated=self._simulated,
            record_event=record_event,
            clock=self._clock,
            random=self._random,
        )

        def set_pod(pod: Pod) -> None:
            service.set_pod(pod)
            daemon.set_pod(pod)

        def drop_pod(pod: Pod) -> None:
            service.drop_pod(pod)
            daemon.drop_pod(pod)

        pods = Reflector(
            self._client,
            Pod,
            on_set=set_pod,
            on_drop=drop_pod,
            field_selector=f"spec.nodeName={self._node}",
            quarantine=self._quarantine,
            salvage=lambda _pod: True,  # it is on this node, and what it holds is not free
            clock=self._clock,
            random=self._random,
        )
        mig = self._manager(service, Gate(pods))
        health = self._health_reporter(service, recorder)

        def set_node(seen: Node) -> None:
            self._on_node(seen)
            node.set_node(seen)
            if mig is not None:
                mig.set_node(seen)
            health.set_node(seen)

        def drop_node(seen: Node) -> None:
            node.drop_node(seen)
            health.drop_node(seen)

        nodes = Reflector(
            self._client,
            Node,
            on_set=set_node,
            on_drop=drop_node,
            field_selector=f"metadata.name={self._node}",
            quarantine=self._quarantine,
            clock=self._clock,
            random=self._random,
        )
        async with asyncio.TaskGroup() as group:
            self._serve_plugins(service, group)
            group.create_task(self._follow_devices(service, node, health, group))
            await self._introduced()
            group.create_task(pods.run())
            group.create_task(nodes.run())
            group.create_task(node.run())
            group.create_task(_once(pods.synced, node.check))
            await self._rebuild(service, pods)
            group.create_task(service.publisher.run())
            group.create_task(self._follow_modes(service, node))
            group.create_task(self._reconcile(service, pods, health))
            group.create_task(recorder.run())
            group.create_task(health.run())
            if mig is not None:
                group.create_task(mig.run())

    def _manager(self, service: DevicePluginService, gate: Gate) -> MigManager | None:
        """What partitions the node's GPUs as its label says; None if they cannot be partitioned."""
        tools, ledger = self._mig, service.ledger
        if tools is None:
            return None

        def using() -> Mapping[str, str]:
            return users(ledger.held(), service.pods, ledger.gpus.gpus)

        def close(uuids: Collection[str]) -> bool:
            tools.backend.close(uuids)
            return not any(gpu.available and gpu.device in uuids for gpu in ledger.gpus.gpus)

        return MigManager(
            self._client,
            self._node,
            tools,
            users=using,
            close=close,
            unknown=gate.incomplete,
            clock=self._clock,
        )

    def _recorder(self) -> EventRecorder:
        return EventRecorder(
            self._client,
            "gpuslice-agent",
            clock=self._clock,
            new_id=lambda: f"{int(self._random() * 2**32):08x}",
            random=self._random,
        )

    def _health_reporter(self, service: DevicePluginService, recorder: EventRecorder) -> HealthReporter:
        """What reports the GPUs' health."""
        return HealthReporter(
            self._client,
            self._node,
            self._backend.found,
            recorder,
            holders=lambda: holders(service.ledger.held(), service.pods),
            pods=lambda: frozenset(pod.key for pod in service.pods.values() if pod.alive),
            clock=self._clock,
            random=self._random,
        )

    def _serve_plugins(self, service: DevicePluginService, group: asyncio.TaskGroup) -> None:
        """Serve each resource that the node has. A resource that it no longer has stays, and offers nothing.

        Memory is served even where there is none yet: its ids come with the first GPU that is free to share.
        """
        served = {server.resource for server in self._servers}
        for kind in kinds_of(service.ledger.gpus):
            if kind.resource not in served:
                plugin = ResourcePlugin(kind, service)
                server = PluginServer(
                    plugin,
                    self._folder,
                    on_change=self.changed.set,
                    clock=self._clock,
                    random=self._random,
                )
                self._servers = (*self._servers, server)
                group.create_task(server.run())

    async def _introduced(self) -> None:
        """Wait until the plugins are registered with kubelet, if there is a kubelet."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS):
                for server in self._servers:
                    await server.known.wait()

    async def _rebuild(self, service: DevicePluginService, pods: Reflector[Pod]) -> None:
        """Learn what is given out already. Until then kubelet's calls wait."""

        def lacks(what: str) -> None:
            self._lacks = service.lacks = what
            self.changed.set()

        lacks("the API server has not said yet which pods this node has")
        await pods.synced.wait()
        failures = 0
        while True:
            try:
                await service.reconcile()
                break
            except RpcError as error:
                lacks(f"kubelet does not say yet who holds what: {error}")
            failures += 1
            await self._clock.sleep(REBUILD.delay(failures, self._random))
        service.sweep()
        lacks("")
        service.rebuilt.set()
        if not self._pod_folders.mounted:
            _log.warning(
                "kubelet's folder of pods is not mounted: what runs on after a pod was deleted by force is "
                "not seen, and its GPU can be given to the next pod a moment too early",
                folder=str(self._pod_folders.root),
            )

    async def _follow_devices(
        self,
        service: DevicePluginService,
        node: NodePublisher,
        health: HealthReporter,
        group: asyncio.TaskGroup,
    ) -> None:
        while True:
            await self._backend.changed()
            health.check()
            try:
                gpus = NodeGpus(self._backend.gpus(), self._unit)
                check_unit(gpus)
                service.set_gpus(gpus, self._backend.plain())
                service.ledger.machine = self._backend.found().gpus
            except InputError as error:
                _log.warning(
                    "the GPUs have changed to what cannot be; they stay as they were", error=str(error)
                )
                continue
            try:
                self._injector.publish()
            except InputError as error:
                _log.warning("the devices' CDI specification stays as it was", error=str(error))
            self._tell_devices(node)
            self._serve_plugins(service, group)

    async def _follow_modes(self, service: DevicePluginService, node: NodePublisher) -> None:
        """Follow the modes of GPUs: they change when a GPU is free, which only the ledger knows."""
        while True:
            await service.settled.wait()
            service.settled.clear()
            self._tell_devices(node)

    def _tell_devices(self, node: NodePublisher) -> None:
        """The list of devices has changed."""
        node.check()
        for server in self._servers:
            server.plugin.changed()

    async def _reconcile(
        self, service: DevicePluginService, pods: Reflector[Pod], health: HealthReporter
    ) -> None:
        """Release what is over: soon after a pod has ended, and every RECONCILE_SECONDS."""
        lingering = 0
        while True:
            pause = LINGER.delay(lingering, self._random) if lingering else RECONCILE_SECONDS
            if await happened(service.ended, self._clock, pause):
                lingering = 0
            service.ended.clear()
            while (quiet := self._clock.monotonic() - service.last_call) < QUIET_SECONDS:
                await self._clock.sleep(QUIET_SECONDS - quiet)
            with contextlib.suppress(RpcError):
                await service.release()
            service.sweep()
            self.changed.set()
            health.check()
            lingering = lingering + 1 if service.ledger.lingers(service.pods) else 0


async def _once(event: asyncio.Event, act: Callable[[], None]) -> None:
    await event.wait()
    act()


def _first(problems: BaseExceptionGroup[InputError]) -> InputError:
    first = problems.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
