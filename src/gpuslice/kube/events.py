"""Events: the sentences that `kubectl describe` shows under an object.

They are best effort by nature: recording never blocks and never fails the work it reports on. Equal
events on one object are counted, not repeated, as client-go's correlator does.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import structlog

from gpuslice.clock import Clock, rfc3339
from gpuslice.errors import GpuSliceError, NotFound
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Event, KubeObject

QUEUE_LIMIT: Final = 2000
"""Events waiting to be sent; beyond it the oldest is dropped."""
LAST_REMEMBERED: Final = 65_536
"""Objects of which the last state told is remembered; beyond it the one longest untold is told again."""
REMEMBERED: Final = 4096
"""Events whose repetition is counted; beyond it the one longest unseen is forgotten."""
MESSAGE_LIMIT: Final = 1024
"""Characters of a message: the API server refuses longer ones."""
TRIES: Final = 5
BACKOFF: Final = Backoff(base=0.5, cap=10.0)

_log = structlog.get_logger(__name__)


class _Key(NamedTuple):
    """What makes two events the same."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    type: str
    reason: str
    message: str
    field_path: str


@dataclass(slots=True)
class _Waiting:
    """Occurrences that have not been sent yet."""

    count: int
    first_ns: int
    last_ns: int


@dataclass(slots=True)
class _Sent:
    """The Event object that stands for a key on the API server."""

    name: str
    count: int


class EventRecorder:
    """Queues events and sends them from `run`; one recorder per component."""

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        clock: Clock,
        new_id: Callable[[], str],
        random: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._new_id = new_id
        self._random = random
        self._waiting: OrderedDict[_Key, _Waiting] = OrderedDict()
        self._sent: OrderedDict[_Key, _Sent] = OrderedDict()
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def record(
        self,
        obj: KubeObject,
        type: Literal["Normal", "Warning"],  # noqa: A002
        reason: str,
        message: str,
        *,
        field_path: str = "",
    ) -> None:
        """Say something about an object: `reason` in CamelCase for programs, `message` for people.

        `field_path` is the part that it is about, such as spec.containers{main}.
        """
        resource, now = obj.resource, self._clock.now_ns()
        if len(message) > MESSAGE_LIMIT:
            message = message[: MESSAGE_LIMIT - 3] + "..."
        key = _Key(
            resource.api_version,
            resource.kind,
            obj.namespace,
            obj.name,
            obj.uid,
            type,
            reason,
            message,
            field_path,
        )
        if waiting := self._waiting.get(key):
            waiting.count += 1
            waiting.last_ns = now
            return
        if len(self._waiting) >= QUEUE_LIMIT:
            self._waiting.popitem(last=False)
        self._waiting[key] = _Waiting(1, now, now)
        self._some.set()
        self._idle.clear()

    async def run(self) -> None:
        """Send what is recorded, for ever. What cannot be sent is logged and dropped."""
        while True:
            await self._some.wait()
            while self._waiting:
                key, waiting = self._waiting.popitem(last=False)
                await self._send(key, waiting)
            self._some.clear()
            self._idle.set()

    async def flushed(self) -> None:
        """Wait until everything recorded so far has been sent or given up."""
        await self._idle.wait()

    async def _send(self, key: _Key, waiting: _Waiting) -> None:
        for failures in range(1, TRIES + 1):
            try:
                await self._send_once(key, waiting)
            except GpuSliceError as error:
                if not error.retryable or failures == TRIES:
                    _log.info("event dropped", reason=key.reason, object=key.name, error=str(error))
                    return
                await self._clock.sleep(BACKOFF.delay(failures, self._random))
            else:
                return

    async def _send_once(self, key: _Key, waiting: _Waiting) -> None:
        namespace = key.namespace or "default"
        if sent := self._sent.get(key):
            change = {"count": sent.count + waiting.count, "lastTimestamp": rfc3339(waiting.last_ns)}
            try:
                await self._client.patch(Event, sent.name, change, namespace)
            except NotFound:
                del self._sent[key]  # expired on the server: it becomes a new one
            else:
                sent.count += waiting.count
                self._sent.move_to_end(key)
                return
        # The time first: the events of an object list in the order in which they happened.
        name = f"{key.name[:190]}.{waiting.first_ns:x}-{self._new_id()}"
        await self._client.create(Event.resource, self._body(key, waiting, namespace, name), namespace)
        self._sent[key] = _Sent(name, waiting.count)
        if len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)

    def _body(self, key: _Key, waiting: _Waiting, namespace: str, name: str) -> dict[str, object]:
        part = {"fieldPath": key.field_path} if key.field_path else {}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": key.api_version,
                "kind": key.kind,
                "namespace": key.namespace,
                "name": key.name,
                "uid": key.uid,
                **part,
            },
            "type": key.type,
            "reason": key.reason,
            "message": key.message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": "",
            "firstTimestamp": rfc3339(waiting.first_ns),
            "lastTimestamp": rfc3339(waiting.last_ns),
            "count": waiting.count,
        }


class ChangeRecorder:
    """Records how objects are, not what happens: only what differs from the last event about the object.

    For who looks again and again, and finds the same. Each has one of its own.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._last: OrderedDict[str, str] = OrderedDict()  # uid -> the last message

    def record(self, obj: KubeObject, type: Literal["Normal", "Warning"], reason: str, message: str) -> bool:  # noqa: A002
        """Record an event if it is news. Returns whether it is."""
        if self._last.get(obj.uid) == message:
            return False
        self._last[obj.uid] = message
        self._last.move_to_end(obj.uid)
        if len(self._last) > LAST_REMEMBERED:
            self._last.popitem(last=False)
        self._recorder.record(obj, type, reason, message)
        return True
