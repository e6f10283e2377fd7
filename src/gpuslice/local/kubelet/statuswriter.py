"""Sends pod statuses to the API server: the latest of each pod, one PATCH however often it changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from gpuslice.clock import Clock
from gpuslice.errors import ApiError, Conflict, GpuSliceError, NotFound
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.client import Client
from gpuslice.local.kubelet.podspec import PodKey, RunPod

BACKOFF: Final = Backoff(base=0.2, cap=10.0)

_log = structlog.get_logger(__name__)


class HasStatus(Protocol):
    """Something that knows one pod's status at any moment."""

    pod: RunPod

    def status(self) -> Mapping[str, object]:
        """As a merge patch."""


class StatusWriter:
    """One per node. Survives outages: what could not be sent is sent later, in its then latest form."""

    def __init__(self, client: Client, *, clock: Clock, random: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._random = random
        self._dirty: dict[str, HasStatus] = {}
        self._some = asyncio.Event()

    def mark(self, worker: HasStatus) -> None:
        """The pod's status changed."""
        self._dirty[worker.pod.uid] = worker
        self._some.set()

    def forget(self, uid: str) -> None:
        """The pod object is going away: nothing more to say."""
        self._dirty.pop(uid, None)

    async def run(self) -> None:
        """Send for ever."""
        failures = 0
        while True:
            await self._some.wait()
            while self._dirty:
                uid = next(iter(self._dirty))
                worker = self._dirty.pop(uid)
                if await self.send(worker):
                    failures = 0
                else:
                    self._dirty.setdefault(uid, worker)
                    failures += 1
                    await self._clock.sleep(BACKOFF.delay(failures, self._random))
            self._some.clear()

    async def send(self, worker: HasStatus) -> bool:
        """Send one status now; False if it is worth another try."""
        pod = worker.pod
        body = {"metadata": {"uid": pod.uid}, "status": worker.status()}
        try:
            await self._client.patch(PodKey, pod.name, body, pod.namespace, subresource="status")
        except (NotFound, Conflict):
            return True  # gone, or another pod of that name
        except GpuSliceError as error:
            if isinstance(error, ApiError) and not error.retryable:
                _log.warning("the API server refused a pod's status", pod=pod.key, error=str(error))
                return True
            return False
        return True
