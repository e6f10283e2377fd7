"""What every controller is made of: a queue of keys, workers, and writes that are safe to repeat.

A controller is level-triggered: it computes what should be from the informers' state and does the
difference. Nothing is remembered across a restart; what is remembered within one (`Expectations`) only
bridges the moment between a write and the informer telling of it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeVar

import structlog

from gpuslice.clock import Clock, rfc3339
from gpuslice.errors import ApiError, Conflict, GpuSliceError, NotFound
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.wire import Wire
from gpuslice.kube.workqueue import WorkQueue
from gpuslice.local.controllers.informers import Informer, Informers
from gpuslice.local.controllers.objects import Json, Managed, status_patch

WORKERS: Final = 5
"""Keys of one controller worked on at the same time."""
SETTLE_SECONDS: Final = 0.05
"""Objects change in bursts: a change of status waits at most this long for company before its owner is
reconciled. The fewer dependents there are to count, the shorter."""
EXPECTATION_SECONDS: Final = 300.0
"""A write whose outcome never shows is given up after this long (client-go's ExpectationsTimeout)."""

M = TypeVar("M", bound=Managed)

_log = structlog.get_logger(__name__)


class Expectations:
    """Pods that were created or deleted and have not shown as such yet, per owner uid.

    Creations are known by key, because we choose the names, and from before the request is sent: the
    watch may be faster than the answer. Deletions are known by uid.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owner_of: dict[str, str] = {}  # pod key or uid -> owner uid
        self._open: dict[str, set[str]] = {}
        self._since: dict[str, float] = {}

    def expect(self, owner: str, token: str) -> None:
        """From now on the owner waits for this pod (key: to appear, uid: to go)."""
        self._owner_of[token] = owner
        self._open.setdefault(owner, set()).add(token)
        self._since[owner] = self._clock.monotonic()

    def met(self, token: str) -> None:
        """It showed, or the write failed."""
        owner = self._owner_of.pop(token, None)
        if owner is None:
            return
        still = self._open[owner]
        still.discard(token)
        if not still:
            del self._open[owner]
            del self._since[owner]

    def satisfied(self, owner: str) -> bool:
        """False while the informers' picture of the owner's pods is known to be old."""
        since = self._since.get(owner)
        if since is None:
            return True
        if self._clock.monotonic() - since < EXPECTATION_SECONDS:
            return False
        for token in list(self._open.get(owner, ())):
            self.met(token)
        return True


@dataclass(frozen=True, slots=True)
class Shared:
    """What all controllers share."""

    client: Client
    informers: Informers
    recorders: Mapping[str, EventRecorder]
    """By kind of the object that the events are about: the component is that kind's controller."""
    expectations: Expectations
    clock: Clock
    random: Callable[[], float]

    def record(self, item: Managed, type: Literal["Normal", "Warning"], reason: str, message: str) -> None:  # noqa: A002
        """Say something about an object, as its controller."""
        self.recorders[item.resource.kind].record(item, type, reason, message)

    def now(self) -> str:
        """The time as Kubernetes writes it."""
        return rfc3339(self.clock.now_ns())


class Controller(ABC):
    """Keeps objects of one kind as they should be. Subclasses register listeners and reconcile keys."""

    name: ClassVar[str]
    reads: ClassVar[tuple[type[Managed], ...]]
    """Kinds that must be completely known before the first reconciliation."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.client = shared.client
        self.queue: WorkQueue[str] = WorkQueue(clock=shared.clock, random=shared.random)

    @abstractmethod
    async def reconcile(self, key: str) -> None:
        """Bring the object with that key nearer to what it should be. Raises GpuSliceError to be retried."""

    async def run(self) -> None:
        """Work, for ever."""
        await self.shared.informers.wait_synced(self.reads)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WORKERS):
                tasks.create_task(self._work())

    def own(self, informer: Informer[M]) -> None:
        """Reconcile an object whenever it appears, vanishes, or somebody wants something else of it.

        A change of nothing but its status is our own doing, and not to be answered with another one.
        """

        def listen(before: M | None, after: M | None) -> None:
            if before is None or after is None or _wishes(before) != _wishes(after):
                self.queue.add((after or before).key)  # type: ignore[union-attr]

        informer.listeners.append(listen)

    async def write_status(self, informer: Informer[M], item: M, status: Wire) -> M:
        """Write a status if it differs from the object's. Returns the object as it is afterwards."""
        if status == item.status:  # type: ignore[attr-defined]
            return item
        body = status_patch(item, status)
        return await self.patch(informer, item, body, subresource="status")

    async def patch(self, informer: Informer[M], item: M, body: Json, *, subresource: str | None = None) -> M:
        """Merge-patch an object of an informer; the answer is known at once."""
        answer = await self.client.patch(
            informer.kind, item.name, body, item.namespace or None, subresource=subresource
        )
        informer.observe(answer)
        return answer

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self.reconcile(key)
            except (NotFound, Conflict):
                self.queue.retry(key)  # somebody else was faster: look again
            except GpuSliceError as error:
                if _namespace_going(error):
                    self.queue.forget(key)  # nothing can be created there any more
                else:
                    seconds = round(self.queue.retry(key), 2)
                    _log.warning(
                        "will retry", controller=self.name, key=key, error=str(error), seconds=seconds
                    )
            except Exception:  # one object that we cannot handle must not stop all others
                _log.exception("cannot reconcile", controller=self.name, key=key)
                self.queue.retry(key)
            else:
                self.queue.forget(key)
            finally:
                self.queue.done(key)


def settle_seconds(dependents: int) -> float:
    """How long to wait for more changes, when reconciling means to look at so many objects."""
    return min(SETTLE_SECONDS, dependents * SETTLE_SECONDS / 100)


def _wishes(item: Managed) -> tuple[object, ...]:
    """Everything but status: the generation stands for the spec."""
    meta = item.metadata
    own = (meta.uid, meta.generation, meta.deletion_timestamp, meta.finalizers, meta.owner_references)
    return (*own, meta.labels, meta.annotations)


def _namespace_going(error: GpuSliceError) -> bool:
    return isinstance(error, ApiError) and error.status == 403 and "being terminated" in str(error)
