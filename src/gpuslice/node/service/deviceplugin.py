"""Answers a kubelet's calls: the ledger decides, and this fetches what it needs to know.

Allocate is answered at once from what is known. A refusal is final for a pod, so before one the API server
and pod-resources are asked whether it is still true. GetPreferredAllocation may also ask when nobody waits
for what is asked, since a kubelet's watch can be ahead of ours, and before a container goes elsewhere than
its scheduler counts it. PreStartContainer asks pod-resources who is about to start, and waits for those to
end who were deleted by force and had these ids.
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
from gpuslice.cluster.podstatus import has_ended
from gpuslice.cluster.trimming import trimmed
from gpuslice.devices.found import Found
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.devices.sharing import device_of
from gpuslice.errors import ApiError, Conflict, GpuSliceError, InputError, NotFound, Unavailable
from gpuslice.kube.client import Client
from gpuslice.kube.wire import MAX_VERSION, Pod
from gpuslice.node.grants.held import Held, Refusal, Unsure
from gpuslice.node.grants.identity import Identity
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.grants.nodepod import NodePod, read_pod
from gpuslice.node.grants.started import Started, StartedContainers
from gpuslice.node.inject.fakesmi import IN_CONTAINER, NAME, script
from gpuslice.node.inject.injector import PLAIN, Injector
from gpuslice.node.inject.slicefiles import GpuPart, SliceFile, SliceFolders
from gpuslice.node.kubelet.lister import PodResourcesLister
from gpuslice.node.kubelet.messages import ContainerAllocation, Device, Mount, PodResources, PreferredRequest
from gpuslice.node.kubelet.podfolders import PodFolders
from gpuslice.node.kubelet.rpc import PodResourcesClient, RpcCode, RpcError
from gpuslice.node.report.publishing import NoRoom, PodPublisher
from gpuslice.node.service.startorder import StartOrder
from gpuslice.requests.kinds import Kind
from gpuslice.units import read_digits

FRESH_SECONDS: Final = 1.0
"""How long a question to the API server may hold up an admission."""
PUBLISH_SECONDS: Final = 2.0
"""How long a container's start waits for its pod's annotations to be corrected."""
LIST_SECONDS: Final = 5.0
DRIVER_SECONDS: Final = 5.0
"""How long the driver may take to say that a device is still as it was announced."""
REBUILT_SECONDS: Final = 10.0
"""How long a call waits for an agent that has just started to know all; kubelet's other pods wait with it."""
ENDED_SECONDS: Final = 25.0
"""How long a container's start waits for a former holder's processes to end; kubelet gives it 30 s."""

_log = structlog.get_logger(__name__)


class DevicePluginService:
    """The node's pods and ledger, and what the kubelet asks about them.

    `differs` asks the driver whether devices are still as they were announced (`DeviceBackend.differs`).
    `simulated` tells the machine on paper, None on real GPUs: their driver brings an nvidia-smi of its own.
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
        tell: Callable[[NodePod, str], None] = lambda _pod, _sentence: None,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self.ledger = ledger
        self.pods: dict[str, NodePod] = {}
        self.publisher = PodPublisher(
            client,
            find=self.pods.get,
            ledger=ledger,
            on_pod=self.set_pod,
            tell=tell,
            clock=clock,
            random=random,
        )
        self.rebuilt = asyncio.Event()
        """Set once it is known what is given out, and which pods the node has."""
        self.lacks = ""
        """What is missing until then, as a sentence."""
        self.ended = asyncio.Event()
        """Set when a pod has ended or gone: its ids can probably be released."""
        self.settled = asyncio.Event()
        """Set when GPUs have changed their mode because they became free, or were found in use."""
        self.last_call = clock.monotonic()
        self._raw: dict[str, Pod] = {}
        self._client = client
        self._selector = f"spec.nodeName={node}"
        self._kubelet = kubelet
        self._folders = folders
        self._pod_folders = pod_folders
        self._starts = StartedContainers()
        self._recalled = False
        self._isolation_disabled = isolation_disabled
        self._differs = differs
        self._injector = injector
        self._simulated = simulated
        self._complete = complete
        self._clock = clock
        self._start_order = StartOrder(self._raw.get, self._fetch, clock)
        self._listing = PodResourcesLister(lambda: self._kubelet.list(timeout=LIST_SECONDS))

    # --- what is known ----------------------------------------------------------------------------
    def set_pod(self, pod: Pod) -> None:
        """A pod of this node as the API server has it; older news than we have are ignored."""
        pod, known = trimmed(pod), self._raw.get(pod.uid)
        if known is not None and _version(pod) < _version(known):
            return
        self._raw[pod.uid] = pod
        self._start_order.told()
        before = self.pods.get(pod.uid)
        if known is not None and before is not None and _says_the_same(known, pod):
            read = before if before.alive == (not has_ended(pod)) else replace(before, alive=not before.alive)
        else:
            read = read_pod(pod, self.ledger.gpus, before)
            self.publisher.check([pod.uid])
        self.pods[pod.uid] = read
        if not read.alive:
            self._starts.forget([pod.uid])
            self.ended.set()

    def drop_pod(self, pod: Pod) -> None:
        if has_ended(pod):
            self._starts.forget([pod.uid])
        self._raw.pop(pod.uid, None)
        self._start_order.forget(pod.uid)
        if self.pods.pop(pod.uid, None) is not None:
            self.ended.set()

    def _lingering(self) -> frozenset[str]:
        """The pods that the API server has no more and whose processes may run on."""
        gone = self._starts.uids - self.pods.keys()
        lingering = frozenset(filter(self._pod_folders.has, gone))
        if gone != lingering:
            self._starts.forget(gone - lingering)
        self.ledger.lingering = lingering
        return lingering

    def set_gpus(self, gpus: NodeGpus, plain: Sequence[Gpu] | None = None) -> None:
        """The node's GPUs have changed, or how they are announced; `plain` as `Ledger.set_gpus` has it."""
        self.ledger.set_gpus(gpus, plain)
        self._read_pods()

    def _read_pods(self) -> None:
        """Of which GPUs a pod's annotations speak follows from those that there are."""
        gpus = self.ledger.gpus
        for uid, pod in self._raw.items():
            self.pods[uid] = read_pod(pod, gpus, self.pods.get(uid))
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
        self._lingering()
        ask = (kind, request.available, request.must_include, request.size)
        knows = self._complete() and self.ledger.expects(kind, request.size, self.pods)
        if not request.must_include and not knows:
            await self._fetch_all()
        answer = self.ledger.prefer(*ask, self.pods)
        if isinstance(answer, Refusal) or self.ledger.is_doubtful(self.pods):
            # Perhaps what it lacks is held for pods that have ended since we last looked, or that were gone
            # before they started, so that others were taken for them. To ask pod-resources is harmless
            # here: nothing of this container is given out yet.
            await self._look()
            answer = self.ledger.prefer(*ask, self.pods)
        self.last_call = self._clock.monotonic()
        if isinstance(answer, Refusal):
            raise RpcError(RpcCode.RESOURCE_EXHAUSTED, answer.sentence)
        return answer

    async def allocate(self, kind: Kind, ids: Sequence[str]) -> ContainerAllocation:
        await self._once_rebuilt()
        self.last_call = self._clock.monotonic()
        self._lingering()
        outcome = self.ledger.allocate(kind, ids, self.pods, self._clock.monotonic())
        if isinstance(outcome, Refusal) and await self._fetch_all():
            # Before a pod is turned away: a kubelet that gives out all that is left has not asked us, and
            # may know before we do that the former holder has ended or who comes.
            outcome = self.ledger.allocate(kind, ids, self.pods, self._clock.monotonic())
        if isinstance(outcome, Refusal):
            # The pod would fail for good, so even this is worth it: a kubelet that is asked now may forget
            # that it gives out these ids, but we do not.
            await self._look()
            outcome = self.ledger.allocate(kind, ids, self.pods, self._clock.monotonic())
        if isinstance(outcome, Refusal):
            raise RpcError(RpcCode.RESOURCE_EXHAUSTED, outcome.sentence)
        # Asked once the ids are taken: from here on nobody of ours cuts the GPU.
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
        envs = {**given.envs, **self._environment(outcome)}
        return replace(given, envs=envs, mounts=(*mounts, *given.mounts))

    async def pre_start(self, kind: Kind, ids: Sequence[str]) -> None:
        until = self._clock.monotonic() + ENDED_SECONDS
        await self._once_rebuilt()
        told = False
        while True:
            await self._others_ended(kind, ids, until)
            identity = await self._who_starts(kind, ids)
            if identity is None:
                continue
            if told or await self._told(identity.pod.uid):
                break
            # The pod that we took it for is gone; one of the same name has taken its place.
            told = True
            self.ledger.doubt(identity.pod.uid)
            await self._fetch(identity.pod.key)
        self.publisher.check([identity.pod.uid])
        self.publisher.check(self.ledger.take_touched())
        if (pod := self._raw.get(identity.pod.uid)) is not None:
            sharing = self.ledger.sharing(identity)
            identity = replace(identity, container=await self._start_order.which(pod, sharing))
        try:
            self._folders.write(ids, self._content(identity))
        except OSError as error:
            raise RpcError(RpcCode.INTERNAL, f"cannot write the container's slice.json: {error}") from error

    async def _is_not_as_announced(self, held: Held) -> str:
        """Why these devices are not what was announced, as the driver has it now; "" if they are."""
        try:
            async with asyncio.timeout(DRIVER_SECONDS):
                return await self._differs(frozenset(map(device_of, held.gpus)))
        except TimeoutError:
            return f"the driver has not said within {DRIVER_SECONDS:.0f} s that the GPU is as it was"

    async def _once_rebuilt(self) -> None:
        """Wait until nothing that a decision needs is missing. Raises RpcError if that takes too long."""
        if not self.rebuilt.is_set() and not await happened(self.rebuilt, self._clock, REBUILT_SECONDS):
            raise RpcError(RpcCode.UNAVAILABLE, f"the agent has just started, and {self.lacks}; try again")

    # --- level-triggered --------------------------------------------------------------------------
    async def release(self) -> None:
        """Release what is over. Raises RpcError if the kubelet is away.

        Ids of which no pod is known are those of a pod that the watch has not told of yet, or nobody's:
        the API server is asked, since nobody else may have them meanwhile.
        """
        calls = self.ledger.calls
        fresh = self.ledger.has_strangers(self.pods) and await self._fetch_all()
        await self.reconcile(fresh=fresh and self.ledger.calls == calls)

    async def reconcile(self, timeout: float = LIST_SECONDS, *, fresh: bool = False) -> None:
        """Learn who holds what and release what is over. Raises RpcError if the kubelet is away.

        `fresh`: the pods were read from the API server since the kubelet's latest call began.
        """
        calls, before = self.ledger.calls, self.ledger.gpus
        listing = await self._kubelet.list(timeout=timeout)
        self._lingering()
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
                and self._folders.of(gone.ids).name not in self._starts
            ):
                self._folders.remove(gone.ids)
        self.publisher.check({h.owner.uid for h in held if h.owner})

    def sweep(self) -> None:
        """Remove folders that nobody has any more; call it when all pods are known.

        First it learns from them what was started before the agent was.
        """
        if not self._recalled:
            self._recalled = True
            self._recall()
        living = {uid for uid, pod in self.pods.items() if pod.alive}
        self._folders.sweep((h.ids for h in self.ledger.held()), living | self._lingering())

    # --- inside -----------------------------------------------------------------------------------
    async def _look(self) -> None:
        """In a kubelet's call: ask the API server and pod-resources what has changed."""
        fresh = await self._fetch_all()
        with contextlib.suppress(RpcError):
            await self.reconcile(FRESH_SECONDS, fresh=fresh)

    def _recall(self) -> None:
        held = {self._folders.of(h.ids).name: h for h in self.ledger.held()}
        for name, content in self._folders.written().items():
            pod = self.pods.get(content.uid)
            if name not in self._starts and (pod is None or pod.alive):
                devices = frozenset(gpu.uuid for gpu in content.gpus)
                known = held.get(name)
                kind, ids = (known.kind, known.ids) if known else (None, frozenset[str]())
                key = f"{content.namespace}/{content.pod}"
                self._starts.note(name, Started(content.uid, key, devices, kind, ids))

    def _in_the_way(self, kind: Kind, ids: Sequence[str]) -> dict[str, str]:
        """The pods that have to end before this container starts: namespace/name by uid."""
        gpus = self.ledger.ids.per_gpu(kind, ids)
        return self._starts.beside(kind, ids, gpus, self._lingering())

    async def _others_ended(self, kind: Kind, ids: Sequence[str], until: float) -> None:
        """Wait until nobody runs with these ids who was deleted by force. Raises RpcError if that lasts."""
        while others := self._in_the_way(kind, ids):
            if not await self._pod_folders.gone(others, until - self._clock.monotonic()):
                uid, key = next(iter(others.items()))
                raise RpcError(
                    RpcCode.FAILED_PRECONDITION,
                    f"pod {key} had the same GPU, was deleted by force and may run still: its folder "
                    f"{self._pod_folders.root / uid} is there; this container starts when it is gone",
                )
            self.ended.set()

    async def _told(self, uid: str) -> bool:
        """Make a pod's annotations true, now or, if that cannot be, soon; False if the pod is gone."""
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await self.publisher.publish(uid)
        except (NotFound, Conflict):
            return False
        except NoRoom as error:
            # Where it is must be known before it runs: others would be promised that room.
            raise RpcError(RpcCode.FAILED_PRECONDITION, str(error)) from error
        except (Unavailable, ApiError, TimeoutError):
            pass  # it is checked again
        return True

    async def _who_starts(self, kind: Kind, ids: Sequence[str]) -> Identity | None:
        """Who it is, noted down; None if somebody is in the way. Raises RpcError."""
        try:
            listing = await self._listing.get()
        except RpcError as error:
            raise RpcError(
                RpcCode.UNAVAILABLE, f"kubelet's pod-resources do not say whose container starts: {error}"
            ) from error
        identity = await self._identify(kind, ids, listing)
        if self._in_the_way(kind, ids):
            return None
        pod, devices = identity.pod, frozenset(map(device_of, identity.held.gpus))
        started = Started(pod.uid, pod.key, devices, kind, frozenset(ids))
        self._starts.note(self._folders.of(ids).name, started)
        return identity

    async def _identify(self, kind: Kind, ids: Sequence[str], listing: Sequence[PodResources]) -> Identity:
        outcome = self._ask(kind, ids, listing, fresh=False)
        if isinstance(outcome, Unsure):
            known = await self._fetch(outcome.key) if outcome.key else await self._fetch_all()
            if not known:
                raise RpcError(
                    RpcCode.UNAVAILABLE,
                    f"cannot ask the API server about {outcome.key or 'the pods of this node'}; "
                    "the container starts when it is back",
                )
            outcome = self._ask(kind, ids, listing, fresh=True)
        if isinstance(outcome, Identity):
            return outcome
        sentence = outcome.sentence if isinstance(outcome, Refusal) else "the pod is not known"
        raise RpcError(RpcCode.FAILED_PRECONDITION, sentence)

    def _ask(
        self, kind: Kind, ids: Sequence[str], listing: Sequence[PodResources], *, fresh: bool
    ) -> Identity | Unsure | Refusal:
        now = self._clock.monotonic()
        return self.ledger.identify(kind, ids, listing, self.pods, now, fresh=fresh)

    async def _fetch(self, key: str) -> bool:
        """Read one pod anew; True if the API server answered."""
        namespace, _, name = key.partition("/")
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                pod = await self._client.get(Pod, name, namespace)
        except NotFound:
            self._supersede(key, None)
            return True
        except (GpuSliceError, TimeoutError):
            return False
        self._supersede(key, pod.uid)
        self.set_pod(pod)
        return True

    def _supersede(self, key: str, uid: str | None) -> None:
        for pod in [p for p in self._raw.values() if p.key == key and p.uid != uid]:
            self.drop_pod(pod)

    async def _fetch_all(self) -> bool:
        """Read the node's pods anew; True if the API server answered."""
        before = set(self._raw)
        try:
            async with asyncio.timeout(FRESH_SECONDS):
                listing = await self._client.list(Pod, field_selector=self._selector)
        except (GpuSliceError, TimeoutError):
            return False
        present = {pod.uid for pod in listing.items}
        for uid in before - present:
            if uid in self._raw:
                self.drop_pod(self._raw[uid])
        for pod in listing.items:
            self.set_pod(pod)
        return True

    def _environment(self, held: Held) -> Mapping[str, str]:
        """What a container is told besides its devices."""
        envs: dict[str, str] = {}
        if not held.kind.whole:
            gpus = [gpu for uuid in held.gpus if (gpu := self.ledger.gpus.find(uuid)) is not None]
            pod = self.pods.get(held.owner.uid) if held.owner else None
            envs |= {
                names.MEM_IDX: ",".join(str(gpu.index) for gpu in gpus),
                # The one value that no id tells: right unless a pod of another total waits for as much, too.
                names.MEM_POD: str(pod.request.units if pod else len(held.ids)),
                names.MEM_CONTAINER: str(len(held.ids)),
                names.MEM_DEV: str(self.ledger.gpus.units_of(gpus[0])),
            }
        if self._isolation_disabled():
            envs[names.CGPU_DISABLE] = "true"
        return envs

    def _mounts(self, held: Held) -> tuple[Mount, ...]:
        """Make what the container sees of the host. Raises OSError."""
        mounts = (Mount(names.SLICE_DIR_IN_CONTAINER, str(self._folders.make(held.ids))),)
        if self._simulated is None:
            return mounts
        program = script(self._simulated(), frozenset(map(device_of, held.gpus)))
        path = self._folders.add_program(held.ids, NAME, program)
        return (*mounts, Mount(IN_CONTAINER, str(path)))

    def _content(self, identity: Identity) -> SliceFile:
        kind, gpus = identity.held.kind, self.ledger.gpus
        parts = tuple(
            GpuPart(
                gpu.index,
                gpu.device,
                gpu.model,
                kind.mib(gpus, uuid, count),
                kind.whole and uuid == gpu.device,
            )
            for uuid, count in identity.held.gpus.items()
            if (gpu := gpus.find(uuid)) is not None
        )
        pod = identity.pod
        return SliceFile(pod.namespace, pod.name, pod.uid, identity.container, parts)


def _says_the_same(old: Pod, new: Pod) -> bool:
    """True if only the status may differ: what a pod asks for cannot be changed."""
    return (
        old.annotations == new.annotations
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
    )


def _version(pod: Pod) -> int:
    return read_digits(pod.metadata.resource_version, MAX_VERSION) or 0
