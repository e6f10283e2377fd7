"""Answers a kubelet's calls: the ledger decides, and this module fetches what the ledger needs to know.

Allocate is answered at once from what is known. A refusal is final for a pod, so before refusing, the API
server and pod-resources are asked whether the reason is still true. GetPreferredAllocation asks them in two
more cases: when no known container waits for that much, since a kubelet's watch can be ahead of ours, and
before a container goes elsewhere than its scheduler counts it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from gpuslice import names
from gpuslice.clock import Clock, happened
from gpuslice.devices.found import Found
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.devices.sharing import device_of
from gpuslice.errors import InputError
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Pod
from gpuslice.node.grants.held import Held
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.node.inject.environment import environment
from gpuslice.node.inject.fakesmi import IN_CONTAINER, NAME, script
from gpuslice.node.inject.injector import PLAIN, Injector
from gpuslice.node.inject.slicefiles import SliceFolders
from gpuslice.node.kubelet.lister import PodResourcesLister
from gpuslice.node.kubelet.messages import ContainerAllocation, Device, Mount, PreferredRequest
from gpuslice.node.kubelet.podfolders import PodFolders
from gpuslice.node.kubelet.rpc import PodResourcesClient, RpcCode, RpcError
from gpuslice.node.report.publishing import PodPublisher
from gpuslice.node.service.pods import FRESH_SECONDS, NodePods
from gpuslice.node.service.prestart import PreStart
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.kinds import Kind

LIST_SECONDS: Final = 5.0
DRIVER_SECONDS: Final = 5.0
"""How long the driver may take to confirm that a device is still as it was announced."""
REBUILT_SECONDS: Final = 10.0
"""How long a call waits until an agent that has just started knows everything; kubelet's other pods
wait too."""

_log = structlog.get_logger(__name__)


class DevicePluginService:
    """Answers the kubelet's calls from the node's pods and ledger.

    `differs` asks the driver whether devices are still as they were announced (`DeviceBackend.differs`).
    `simulated` gives the simulated machine; None on real GPUs, whose driver brings its own nvidia-smi.
    `complete` says whether all pods of the node are known now.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        ledger: Ledger,
        kubelet: PodResourcesClient,
        folders: SliceFolders,
        pod_folders: PodFolders,
        *,
        isolation_disabled: Callable[[], bool],
        differs: Callable[[Collection[str]], Awaitable[str]],
        injector: Injector = PLAIN,
        simulated: Callable[[], Found] | None = None,
        complete: Callable[[], bool] = lambda: True,
        record_event: Callable[[NodePod, str], None] = lambda _pod, _sentence: None,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self.ledger = ledger
        self._pods = NodePods(
            client,
            node,
            lambda: ledger.gpus,
            on_set=self._on_set,
            on_drop=self._on_drop,
        )
        self.pods: Mapping[str, NodePod] = self._pods.read
        self.publisher = PodPublisher(
            client,
            find=self.pods.get,
            ledger=ledger,
            on_pod=self._pods.set,
            record_event=record_event,
            clock=clock,
            random=random,
        )
        listing = PodResourcesLister(lambda: kubelet.list(timeout=LIST_SECONDS))
        self._prestart = PreStart(ledger, self._pods, listing, folders, pod_folders, self.publisher, clock)
        self.rebuilt = asyncio.Event()
        """Set once it is known what is given out, and which pods the node has."""
        self.lacks = ""
        """What is missing until then, as a sentence."""
        self.ended = self._pods.ended
        """Set when a pod has ended or gone: its ids can probably be released."""
        self.settled = asyncio.Event()
        """Set when GPUs have changed their mode because they became free, or were found in use."""
        self.last_call = clock.monotonic()
        self._kubelet = kubelet
        self._folders = folders
        self._isolation_disabled = isolation_disabled
        self._differs = differs
        self._injector = injector
        self._simulated = simulated
        self._complete = complete
        self._clock = clock

    # --- what is known ----------------------------------------------------------------------------
    def set_pod(self, pod: Pod) -> None:
        """A pod of this node as the API server has it."""
        self._pods.set(pod)

    def drop_pod(self, pod: Pod) -> None:
        self._pods.drop(pod)

    def _on_set(self, pod: NodePod, anew: bool) -> None:
        self._prestart.set_pod(pod)
        if anew:
            self.publisher.check([pod.uid])

    def _on_drop(self, pod: Pod) -> None:
        self._prestart.drop_pod(pod)

    def set_gpus(self, gpus: NodeGpus, plain: Sequence[Gpu] | None = None) -> None:
        """The node's GPUs have changed, or how they are announced; `plain` as `Ledger.set_gpus` has it."""
        self.ledger.set_gpus(gpus, plain)
        self._read_pods()

    def _read_pods(self) -> None:
        self._pods.read_anew()
        self.publisher.check(self.pods)

    # --- the kubelet's calls ----------------------------------------------------------------------
    def devices(self, kind: Kind) -> Sequence[Device]:
        listed = self.ledger.ids.listed(kind)
        if not kind.whole:  # thousands of ids in a message that has a limit
            return [Device(device_id, healthy) for device_id, healthy in listed]
        return [Device(device_id, healthy, self._near(device_id)) for device_id, healthy in listed]

    def _near(self, device_id: str) -> tuple[int, ...]:
        """The NUMA node of a device, by which a kubelet aligns it with a container's processors."""
        gpu = self.ledger.gpus.find(device_id)
        return () if gpu is None or gpu.numa_node is None else (gpu.numa_node,)

    async def prefer(self, kind: Kind, request: PreferredRequest) -> Sequence[str]:
        await self._once_rebuilt()
        self.last_call = self._clock.monotonic()
        self._prestart.lingering()
        ask = (kind, request.available, request.must_include, request.size)
        knows = self._complete() and self.ledger.expects(kind, request.size, self.pods)
        if not request.must_include and not knows:
            await self._pods.fetch_all()
        answer = self.ledger.prefer(*ask, self.pods)
        if isinstance(answer, Verdict) or self.ledger.is_doubtful(self.pods):
            # Perhaps the missing ids are held for pods that have ended since we last looked, or that were
            # gone before they started, so that other pods were mistaken for them. To ask pod-resources is
            # harmless here: nothing has been given out to this container yet.
            await self._refresh()
            answer = self.ledger.prefer(*ask, self.pods)
        self.last_call = self._clock.monotonic()
        if isinstance(answer, Verdict):
            raise RpcError(RpcCode.RESOURCE_EXHAUSTED, self.ledger.refuse(answer))
        return answer

    async def allocate(self, kind: Kind, ids: Sequence[str]) -> ContainerAllocation:
        await self._once_rebuilt()
        self.last_call = self._clock.monotonic()
        self._prestart.lingering()
        outcome = self.ledger.allocate(kind, ids, self.pods, self._clock.monotonic())
        if isinstance(outcome, Verdict) and await self._pods.fetch_all():
            # Look again before the pod is refused: a kubelet that gives out all that is left does not ask for
            # a preference, and may know before we do that the former holder has ended or which pod comes.
            outcome = self.ledger.allocate(kind, ids, self.pods, self._clock.monotonic())
        if isinstance(outcome, Verdict):
            # The pod would fail for good, so even this is worth its risk: a kubelet whose pod-resources is
            # called now may forget that it gives out these ids, but we do not.
            await self._refresh()
            outcome = self.ledger.allocate(kind, ids, self.pods, self._clock.monotonic())
        if isinstance(outcome, Verdict):
            raise RpcError(RpcCode.RESOURCE_EXHAUSTED, self.ledger.refuse(outcome))
        # The driver is asked after the ids are taken: from here on the agent does not partition the GPU.
        if problem := await self._is_not_as_announced(outcome):
            self.ledger.withdraw(outcome)
            raise RpcError(RpcCode.FAILED_PRECONDITION, problem)
        try:
            # Shares by index, as annotations have them; devices as asked for, as NVIDIA's plugin does.
            asked = ids if kind.whole else tuple(outcome.gpus)
            given = self._injector.answer(kind.resource, asked)
            mounts = self._mounts(outcome)
        except InputError as error:
            self.ledger.withdraw(outcome)
            raise RpcError(RpcCode.INTERNAL, str(error)) from error
        except OSError as error:
            self.ledger.withdraw(outcome)
            raise RpcError(RpcCode.INTERNAL, f"cannot make the container's folder: {error}") from error
        pod = self.pods.get(outcome.owner.uid) if outcome.owner else None
        envs = {**given.envs, **environment(outcome, pod, self.ledger.gpus)}
        if self._isolation_disabled():
            envs[names.CGPU_DISABLE] = "true"
        return replace(given, envs=envs, mounts=(*mounts, *given.mounts))

    async def pre_start(self, kind: Kind, ids: Sequence[str]) -> None:
        await self._once_rebuilt()
        await self._prestart(kind, ids)

    async def _is_not_as_announced(self, held: Held) -> str:
        """Why these devices, as the driver has them now, are not as announced; "" if they are."""
        try:
            async with asyncio.timeout(DRIVER_SECONDS):
                return await self._differs(frozenset(map(device_of, held.gpus)))
        except TimeoutError:
            return f"the driver has not said within {DRIVER_SECONDS:.0f} s that the GPU is as it was"

    async def _once_rebuilt(self) -> None:
        """Wait until everything that a decision needs is known. Raises RpcError if that takes too long."""
        if not self.rebuilt.is_set() and not await happened(self.rebuilt, self._clock, REBUILT_SECONDS):
            raise RpcError(RpcCode.UNAVAILABLE, f"the agent has just started, and {self.lacks}; try again")

    # --- level-triggered --------------------------------------------------------------------------
    async def release(self) -> None:
        """Release what is over. Raises RpcError if the kubelet is away.

        Ids without a known pod belong to a pod that the watch has not reported yet, or to nobody: the API
        server is asked, since until then nobody else may have them.
        """
        calls = self.ledger.calls
        fresh = self.ledger.has_strangers(self.pods) and await self._pods.fetch_all()
        await self.reconcile(fresh=fresh and self.ledger.calls == calls)

    async def reconcile(self, timeout: float = LIST_SECONDS, *, fresh: bool = False) -> None:
        """Learn who holds what and release what is over. Raises RpcError if the kubelet is away.

        `fresh`: the pods were read from the API server since the kubelet's latest call began.
        """
        calls, before = self.ledger.calls, self.ledger.gpus
        listing = await self._kubelet.list(timeout=timeout)
        self._prestart.lingering()
        released = self.ledger.reconcile(
            listing, self.pods, calls, self._clock.monotonic(), fresh=fresh, complete=self._complete()
        )
        if self.ledger.gpus != before:
            self._read_pods()
            self.settled.set()
        held = self.ledger.held()
        for gone in released:
            if (
                not any(h.ids == gone.ids for h in held)
                and self._folders.of(gone.ids).name not in self._prestart.started
            ):
                self._folders.remove(gone.ids)
        self.publisher.check({h.owner.uid for h in held if h.owner})

    def sweep(self) -> None:
        """Remove folders that belong to nobody any more; call it when all pods are known.

        Before that it learns from the folders which containers were started before the agent.
        """
        self._prestart.recall()
        living = {uid for uid, pod in self.pods.items() if pod.alive}
        self._folders.sweep((h.ids for h in self.ledger.held()), living | self._prestart.lingering())

    # --- inside -----------------------------------------------------------------------------------
    async def _refresh(self) -> None:
        """Ask the API server and pod-resources, within a kubelet's call, what has changed."""
        fresh = await self._pods.fetch_all()
        with contextlib.suppress(RpcError):
            await self.reconcile(FRESH_SECONDS, fresh=fresh)

    def _mounts(self, held: Held) -> tuple[Mount, ...]:
        """Make what the container sees of the host. Raises OSError."""
        mounts = (Mount(names.SLICE_DIR_IN_CONTAINER, str(self._folders.make(held.ids))),)
        if self._simulated is None:
            return mounts
        program = script(self._simulated(), frozenset(map(device_of, held.gpus)))
        path = self._folders.add_program(held.ids, NAME, program)
        return (*mounts, Mount(IN_CONTAINER, str(path)))
