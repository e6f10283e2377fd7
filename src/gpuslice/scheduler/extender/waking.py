"""Wakes pods that were refused just before we learnt of the room that had become free.

When a pod ends, kube-scheduler and we learn it at the same time, and kube-scheduler tries a waiting pod again
at once. If kube-scheduler is faster than we are, that pod is refused for the last time: no other event comes,
and the pod waits for the periodic flush, 5 minutes (AliyunContainerService/gpushare-scheduler-extender#187).
An annotation of the pod's own is an event, so such a pod gets one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import structlog

from gpuslice import names
from gpuslice.clock import Clock, rfc3339_micro
from gpuslice.cluster.state import Change, Cluster
from gpuslice.cluster.trimming import trimmed
from gpuslice.errors import GpuSliceError
from gpuslice.kube.client import Client
from gpuslice.kube.gate import GatedClient
from gpuslice.kube.wire import Pod
from gpuslice.placement.fleet import Codes
from gpuslice.requests.pod import PodRequest

WINDOW_SECONDS: Final = 5.0
"""How much later than kube-scheduler we may learn of a change (a watch that had to be opened anew)."""
PAUSE_SECONDS: Final = 0.2
"""Changes within this time are handled together."""
REMEMBERED: Final = 32
"""Number of refused pods looked at after a change; each costs 0.1 ms at 5,000 nodes."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Refused:
    pod: Pod
    request: PodRequest
    nodes: list[str]
    codes: Codes
    at: float


class Waker:
    """Remembers which pods were refused lately, and by which nodes."""

    def __init__(self, client: Client, cluster: Cluster, *, clock: Clock) -> None:
        self._client = GatedClient(client, cluster.gate)
        self._cluster = cluster
        self._clock = clock
        self._refused: OrderedDict[str, _Refused] = OrderedDict()
        self._changed = asyncio.Event()
        cluster.subscribe(self._on_change)

    def refused(self, pod: Pod, request: PodRequest, nodes: list[str], codes: Codes) -> None:
        """Remember a pod that no node can take, with the engine's answer for each node."""
        self._refused.pop(pod.uid, None)
        self._refused[pod.uid] = _Refused(trimmed(pod), request, nodes, codes, self._clock.monotonic())
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)

    async def run(self) -> None:
        """Wake pods until cancelled."""
        while True:
            await self._changed.wait()
            await self._clock.sleep(PAUSE_SECONDS)
            await self._cluster.gate.opened(self._clock)
            self._changed.clear()
            for uid, refused in list(self._refused.items()):
                if self._refused.get(uid) is refused and self._is_late(uid, refused):
                    await self._wake(refused.pod)
                # One pod may take all the steps of the search: other tasks run in between.
                await asyncio.sleep(0)

    def _is_late(self, uid: str, refused: _Refused) -> bool:
        """True if the pod's answer would be another one now. Each pod is woken once per refusal."""
        oldest = self._clock.monotonic() - WINDOW_SECONDS
        if refused.at < oldest or self._cluster.pod(uid) is not None:
            del self._refused[uid]
            return False
        fleet = self._cluster.fleet
        now = fleet.codes(refused.request)[fleet.rows(refused.nodes)]
        late = bool(((refused.codes != 0) & (now == 0)).any())
        if late:
            del self._refused[uid]
        return late

    async def _wake(self, pod: Pod) -> None:
        annotations = {names.WOKEN: rfc3339_micro(self._clock.now_ns())}
        try:
            await self._client.patch(
                Pod, pod.name, {"metadata": {"uid": pod.uid, "annotations": annotations}}, pod.namespace
            )
        except GpuSliceError as error:
            # The pod is gone, or has to wait for kube-scheduler's own flush.
            _log.info("pod not woken", pod=pod.key, error=str(error))

    def _on_change(self, _change: Change) -> None:
        if self._refused:
            self._changed.set()
