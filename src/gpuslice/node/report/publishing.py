"""Writes to the API server: the node's GPUs, and where each pod's containers really are.

Both are level-triggered: the desired annotations are computed from what is known and compared with the
present ones; only the difference is sent, again and again until there is none. Failures are not remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from gpuslice import names
from gpuslice.clock import Clock
from gpuslice.cluster.annotations import encode_allocation, encode_gpus, gpushare_allocation
from gpuslice.devices.inventory import NodeGpus
from gpuslice.devices.labels import stale
from gpuslice.errors import ApiError, Conflict, NotFound, Unavailable
from gpuslice.kube.client import Client
from gpuslice.kube.quarantine import reason
from gpuslice.kube.wire import Node, Pod
from gpuslice.node.grants.held import Held
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.node.report.writing import BACKOFF, keep_written
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.pod import Role

OTHERS: Final = frozenset({*names.GPUSHARE_ANNOTATIONS, names.GPUSHARE_ALLOCATION})
"""Annotations of ours that repeat what `gpuslice.io/allocation` says, for gpushare's clients."""
NO_ROOM: Final = (
    "the pod's annotations leave no room for the record of the GPUs that it was given; shorten some of them "
    "({error})"
)

_log = structlog.get_logger(__name__)


def allocation_of(pod: NodePod, ledger: Ledger) -> Allocation:
    """Where a pod's containers are, or are meant to be; without containers of which nothing is known."""
    gpus, plan = ledger.gpus, ledger.planned(pod)
    mine = _mine(pod, ledger)
    shared = {uuid for h in mine.values() if not h.kind.whole for uuid in h.gpus}
    grants: list[Grant] = []
    for container in pod.request.containers:
        holding = mine.get(container.name)
        if holding is not None:
            kind = holding.kind
            grants += [
                Grant(container.name, uuid, kind.mib(gpus, uuid, count), kind.whole)
                for uuid, count in holding.gpus.items()
            ]
        elif container.role is Role.INIT and container.units and len(shared) == 1:
            # pod-resources does not list ordinary init containers; theirs is the GPU of the others.
            grants.append(Grant(container.name, next(iter(shared)), gpus.unit.to_mib(container.units)))
        elif plan is not None:
            grants += plan.of(container.name)
    return Allocation(tuple(grants))


def _mine(pod: NodePod, ledger: Ledger) -> dict[str, Held]:
    """The grants that certainly are this pod's, by container.

    Ids of another plugin (gpushare's, before us) name no GPU of ours: for those the pod's annotations stay as
    they are.
    """
    return {h.owner.container: h for h in ledger.held_by(pod.uid) if h.certain and h.owner and h.gpus}


def corrections(pod: NodePod, ledger: Ledger, *, now_ns: int) -> Mapping[str, str | None]:
    """The annotations of a pod that are not as they should be; None = to be removed.

    Nothing is written about a pod of which nothing is certain, unless its plan was swapped with another's.
    """
    known = bool(_mine(pod, ledger))
    if not known and not ledger.is_swapped(pod.uid):
        return {}
    allocation, gpus = allocation_of(pod, ledger), ledger.gpus
    wanted = encode_allocation(
        pod.request, allocation, gpus, assume_time_ns=pod.since or now_ns, assigned=known
    ) | gpushare_allocation(pod.containers, allocation, gpus)
    changes: dict[str, str | None] = {
        key: value for key, value in wanted.items() if pod.annotations.get(key) != value
    }
    stale = {names.MEM_IDX, names.GPUSHARE_ALLOCATION} & pod.annotations.keys() - wanted.keys()
    return changes | dict.fromkeys(sorted(stale))


class NoRoom(ApiError):
    """Where a pod is cannot be written into its annotations: others fill them up."""


def _is_too_long(error: ApiError) -> bool:
    """True for the API server's limit of 262,144 bytes of annotations."""
    return error.status == 422 and "annotations" in str(error) and "Too long" in str(error)


class PodPublisher:
    """Keeps the annotations of this node's pods true. `tell` records for the pod's owner what prevents
    that.
    """

    def __init__(
        self,
        client: Client,
        *,
        find: Callable[[str], NodePod | None],
        ledger: Ledger,
        on_pod: Callable[[Pod], None],
        record_event: Callable[[NodePod, str], None] = lambda _pod, _sentence: None,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self._client = client
        self._find = find
        self._ledger = ledger
        self._on_pod = on_pod
        self._record_event = record_event
        self._clock = clock
        self._random = random
        self._dirty: dict[str, None] = {}
        self._wake = asyncio.Event()

    def check(self, uids: Iterable[str]) -> None:
        """Publish these pods again: something about them has changed."""
        self._dirty |= dict.fromkeys(uids)
        self._wake.set()

    async def publish(self, uid: str) -> None:
        """Make one pod's annotations true.

        Raises Unavailable, or ApiError: Conflict if it is another pod, NoRoom if its annotations are full.
        """
        pod = self._find(uid)
        if pod is None or not pod.alive:
            return
        changes = corrections(pod, self._ledger, now_ns=self._clock.now_ns())
        if not changes:
            return
        try:
            await self._write(pod, changes)
        except ApiError as error:
            if not _is_too_long(error):
                raise
        else:
            return
        # The pod's annotations are full. Only the authoritative one of ours has to be there.
        lean: dict[str, str | None] = dict.fromkeys(sorted(OTHERS & pod.annotations.keys()))
        if names.ALLOCATION in changes:
            lean[names.ALLOCATION] = changes[names.ALLOCATION]
        if not lean:
            return
        try:
            await self._write(pod, lean)
        except ApiError as error:
            if not _is_too_long(error):
                raise
            sentence = NO_ROOM.format(error=str(error)[:200])
            self._record_event(pod, sentence)
            raise NoRoom(error.status, sentence, reason=error.reason) from error

    async def _write(self, pod: NodePod, changes: Mapping[str, str | None]) -> None:
        body = {"metadata": {"uid": pod.uid, "annotations": changes}}
        self._on_pod(await self._client.patch(Pod, pod.name, body, pod.namespace))

    async def run(self) -> None:
        """Publish the pods that were passed to `check`, for ever."""
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            todo, self._dirty = self._dirty, {}
            failed: dict[str, str] = {}
            for uid in todo:
                try:
                    await self.publish(uid)
                except (NotFound, Conflict):
                    continue  # it is gone: the watch will report that
                except (Unavailable, ApiError) as error:
                    failed[uid] = str(error)
                except Exception as error:  # one pod must not keep the others' records from being true
                    _log.error("a pod's annotations cannot be corrected", uid=uid, error=reason(error))
            if not failed:
                failures = 0
                continue
            self._dirty |= dict.fromkeys(failed)
            if not failures:
                problem = next(iter(failed.values()))
                _log.warning("cannot correct the annotations of pods yet", pods=len(failed), error=problem)
            failures += 1
            await self._clock.sleep(BACKOFF.delay(failures, self._random))
            self._wake.set()


class NodePublisher:
    """Keeps the node's annotations and its gpu-count true."""

    def __init__(
        self,
        client: Client,
        name: str,
        gpus: Callable[[], NodeGpus],
        *,
        labels: Callable[[], Mapping[str, str]] | None = None,
        discovered: Callable[[], bool] = lambda: False,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        """`discovered`: NVIDIA's own feature discovery runs here, or it is not known yet that it does not."""
        self._client = client
        self._name = name
        self._discovered = discovered
        self._gpus = gpus
        self._labels = labels
        self._clock = clock
        self._random = random
        self._node: Node | None = None
        self._wake = asyncio.Event()

    @property
    def isolation_disabled(self) -> bool:
        """True if the node's label asks for containers without cGPU's isolation."""
        labels = self._node.metadata.labels if self._node else None
        return (labels or {}).get(names.LABEL_DISABLE_ISOLATION) == "true"

    def set_node(self, node: Node) -> None:
        """The node as the API server has it."""
        self._node = node
        self._wake.set()

    def drop_node(self, _: Node) -> None:
        self._node = None

    def check(self) -> None:
        """Publish again: the GPUs have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Publish whatever is missing, for ever."""
        await keep_written(
            f"the GPUs of node {self._name}",
            self._publish,
            self._wake,
            clock=self._clock,
            random=self._random,
        )

    async def _publish(self) -> None:
        node = self._node
        if node is None:
            return
        gpus = self._gpus()
        present = node.metadata.annotations or {}
        changes = {key: value for key, value in encode_gpus(gpus).items() if present.get(key) != value}
        labels = self._label_changes(node)
        if changes or labels:
            metadata = {key: what for key, what in (("annotations", changes), ("labels", labels)) if what}
            body: dict[str, object] = {"metadata": metadata}
            self._keep(await self._client.patch(Node, self._name, body))
        count = str(len({gpu.physical for gpu in gpus.gpus}))
        amounts = {"capacity": node.status.capacity or {}, "allocatable": node.status.allocatable or {}}
        wrong = {kind for kind, have in amounts.items() if str(have.get(names.GPU_COUNT)) != count}
        if wrong:
            body = {"status": {kind: {names.GPU_COUNT: count} for kind in sorted(wrong)}}
            self._keep(await self._client.patch(Node, self._name, body, subresource="status"))

    def _label_changes(self, node: Node) -> dict[str, str | None]:
        """The labels that are not as they should be; None = to be removed."""
        if self._labels is None:
            return {}
        present, wanted = node.metadata.labels or {}, dict(self._labels())
        if names.GFD_TIMESTAMP in present and self._discovered():
            # While feature discovery runs it rewrites its labels again and again. Once it is gone, the labels
            # that it left are ours to correct.
            wanted = {key: value for key, value in wanted.items() if not key.startswith("nvidia.com/")}
            present = {key: value for key, value in present.items() if not key.startswith("nvidia.com/")}
        changes: dict[str, str | None] = {
            key: value for key, value in wanted.items() if present.get(key) != value
        }
        return changes | dict.fromkeys(stale(present, wanted))

    def _keep(self, node: Node) -> None:
        if self._node is not None and self._node.uid == node.uid:
            self._node = node
