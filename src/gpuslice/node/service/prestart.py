"""Answers PreStartContainer: whose container is about to start, and whether others still run with its ids.

pod-resources names the owner of the ids by then. It and the API server forget a pod that was deleted by force
while its processes run on: so each container that was allowed to start is remembered until kubelet removes
its pod's folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuslice.clock import Clock
from gpuslice.cluster.podstatus import has_ended
from gpuslice.devices.sharing import device_of
from gpuslice.errors import ApiError, Conflict, NotFound, Unavailable
from gpuslice.kube.wire import Pod
from gpuslice.node.grants.held import Unsure
from gpuslice.node.grants.identity import Identity
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.node.grants.started import Started, StartedContainers
from gpuslice.node.inject.environment import slice_file
from gpuslice.node.inject.slicefiles import SliceFolders
from gpuslice.node.kubelet.lister import PodResourcesLister
from gpuslice.node.kubelet.messages import PodResources
from gpuslice.node.kubelet.podfolders import PodFolders
from gpuslice.node.kubelet.rpc import RpcCode, RpcError
from gpuslice.node.report.publishing import NoRoom, PodPublisher
from gpuslice.node.service.pods import NodePods
from gpuslice.node.service.startorder import StartOrder
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.kinds import Kind

PUBLISH_SECONDS: Final = 2.0
"""How long a container's start waits for its pod's annotations to be corrected."""
ENDED_SECONDS: Final = 25.0
"""How long a container's start waits for a former holder's processes to end; kubelet gives it 30 s."""


class PreStart:
    """One node's."""

    def __init__(
        self,
        ledger: Ledger,
        pods: NodePods,
        listing: PodResourcesLister,
        folders: SliceFolders,
        pod_folders: PodFolders,
        publisher: PodPublisher,
        clock: Clock,
    ) -> None:
        self.started = StartedContainers()
        self._recalled = False
        self._order = StartOrder(pods.seen, pods.fetch, clock)
        self._ledger = ledger
        self._pods = pods
        self._listing = listing
        self._folders = folders
        self._pod_folders = pod_folders
        self._publisher = publisher
        self._clock = clock

    def set_pod(self, pod: NodePod) -> None:
        """Take in a pod as the API server has it."""
        self._order.told()
        if not pod.alive:
            self.started.forget([pod.uid])

    def drop_pod(self, pod: Pod) -> None:
        """Note that the API server no longer has the pod: if it had not ended, its processes may run on."""
        if has_ended(pod):
            self.started.forget([pod.uid])
        self._order.forget(pod.uid)

    def lingering(self) -> frozenset[str]:
        """The pods that the API server no longer has and whose processes may run on."""
        gone = self.started.uids - self._pods.read.keys()
        lingering = frozenset(filter(self._pod_folders.has, gone))
        if gone != lingering:
            self.started.forget(gone - lingering)
        self._ledger.lingering = lingering
        return lingering

    async def __call__(self, kind: Kind, ids: Sequence[str]) -> None:
        """Let a container with these ids start. Raises RpcError if it must not start, or not yet."""
        until = self._clock.monotonic() + ENDED_SECONDS
        retried = False
        while True:
            await self._others_ended(kind, ids, until)
            identity = await self._who_starts(kind, ids)
            if identity is None:
                continue
            if retried or await self._published(identity.pod.uid):
                break
            # The pod that was guessed is gone; one of the same name has taken its place.
            retried = True
            self._ledger.doubt(identity.pod.uid)
            await self._pods.fetch(identity.pod.key)
        self._publisher.check([identity.pod.uid])
        self._publisher.check(self._ledger.take_touched())
        if (pod := self._pods.seen(identity.pod.uid)) is not None:
            sharing = self._ledger.sharing(identity)
            identity = replace(identity, container=await self._order.which(pod, sharing))
        try:
            self._folders.write(ids, slice_file(identity, self._ledger.gpus))
        except OSError as error:
            raise RpcError(RpcCode.INTERNAL, f"cannot write the container's slice.json: {error}") from error

    def recall(self) -> None:
        """Learn from the files, once, what was started before the agent was."""
        if self._recalled:
            return
        self._recalled = True
        held = {self._folders.of(h.ids).name: h for h in self._ledger.held()}
        for name, content in self._folders.written().items():
            pod = self._pods.read.get(content.uid)
            if name not in self.started and (pod is None or pod.alive):
                devices = frozenset(gpu.uuid for gpu in content.gpus)
                known = held.get(name)
                kind, ids = (known.kind, known.ids) if known else (None, frozenset[str]())
                key = f"{content.namespace}/{content.pod}"
                self.started.note(name, Started(content.uid, key, devices, kind, ids))

    def _in_the_way(self, kind: Kind, ids: Sequence[str]) -> dict[str, str]:
        """The pods that have to end before this container starts: namespace/name by uid."""
        gpus = self._ledger.ids.per_gpu(kind, ids)
        return self.started.beside(kind, ids, gpus, self.lingering())

    async def _others_ended(self, kind: Kind, ids: Sequence[str], until: float) -> None:
        """Wait until no pod that was deleted by force runs with these ids. Raises RpcError if that takes too
        long.
        """
        while others := self._in_the_way(kind, ids):
            if not await self._pod_folders.gone(others, until - self._clock.monotonic()):
                uid, key = next(iter(others.items()))
                raise RpcError(
                    RpcCode.FAILED_PRECONDITION,
                    f"pod {key}, which was deleted by force, may still run on the same GPU: its folder "
                    f"{self._pod_folders.root / uid} exists; this container starts when the folder is gone",
                )
            self._pods.ended.set()

    async def _published(self, uid: str) -> bool:
        """Make a pod's annotations true now or, if that fails, soon; False if the pod is gone."""
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await self._publisher.publish(uid)
        except (NotFound, Conflict):
            return False
        except NoRoom as error:
            # Where the pod is must be known before it runs: else the same memory would be promised to others.
            raise RpcError(RpcCode.FAILED_PRECONDITION, str(error)) from error
        except (Unavailable, ApiError, TimeoutError):
            pass  # it is checked again
        return True

    async def _who_starts(self, kind: Kind, ids: Sequence[str]) -> Identity | None:
        """Identify the container and note its start; None if another pod is in the way. Raises RpcError."""
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
        self.started.note(self._folders.of(ids).name, started)
        return identity

    async def _identify(self, kind: Kind, ids: Sequence[str], listing: Sequence[PodResources]) -> Identity:
        outcome = self._ask(kind, ids, listing, fresh=False)
        if isinstance(outcome, Unsure):
            known = await self._pods.fetch(outcome.key) if outcome.key else await self._pods.fetch_all()
            if not known:
                raise RpcError(
                    RpcCode.UNAVAILABLE,
                    f"cannot ask the API server about {outcome.key or 'the pods of this node'}; "
                    "the container starts when it is back",
                )
            outcome = self._ask(kind, ids, listing, fresh=True)
        if isinstance(outcome, Identity):
            return outcome
        sentence = self._ledger.refuse(outcome) if isinstance(outcome, Verdict) else "the pod is not known"
        raise RpcError(RpcCode.FAILED_PRECONDITION, sentence)

    def _ask(
        self, kind: Kind, ids: Sequence[str], listing: Sequence[PodResources], *, fresh: bool
    ) -> Identity | Unsure | Verdict:
        now = self._clock.monotonic()
        return self._ledger.identify(kind, ids, listing, self._pods.read, now, fresh=fresh)
