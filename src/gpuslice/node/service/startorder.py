"""Says which of a pod's containers starts where several have the same ids, since init containers leave
theirs.

PreStartContainer names ids only. A pod's containers start one after the other, so it is the first that has
not completed, by `initContainerStatuses`. The statuses can be older than the call; then newer ones are waited
for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gpuslice.clock import Clock, happened
from gpuslice.kube.wire import ContainerStatus, Pod

NEWS_SECONDS: Final = 2.0
"""How long a start waits for the API server to know how the container before it ended."""
_BEFORE_START: Final = ("", "PodInitializing", "ContainerCreating")


class StartOrder:
    """Remembers who started last. `find`: a pod as last seen, by uid; `fetch` reads it anew, by its key."""

    def __init__(
        self, find: Callable[[str], Pod | None], fetch: Callable[[str], Awaitable[bool]], clock: Clock
    ) -> None:
        self._find = find
        self._fetch = fetch
        self._clock = clock
        self._last: dict[tuple[str, Sequence[str]], str] = {}  # by uid and the containers with the same ids
        self._news = asyncio.Event()

    def told(self) -> None:
        """Note that a pod has changed."""
        self._news.set()

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._last = {key: last for key, last in self._last.items() if key[0] != uid}

    async def which(self, pod: Pod, candidates: Sequence[str]) -> str:
        """Who starts, of the containers of a pod that have these ids, in the order of their start."""
        if len(candidates) == 1:
            return candidates[0]
        until, asked, key = self._clock.monotonic() + NEWS_SECONDS, False, (pod.uid, tuple(candidates))
        last = self._last.get(key, "")
        while True:
            self._news.clear()
            found = first_to_start(self._find(pod.uid) or pod, candidates, last, sure=asked)
            if found:
                break
            if not asked:
                asked = True
                await self._fetch(pod.key)
            elif not await happened(self._news, self._clock, until - self._clock.monotonic()):
                # Mostly the container that started before has completed.
                after = candidates.index(last) + 1 if last else 0
                found = candidates[min(after, len(candidates) - 1)]
                break
        self._last[key] = found
        return found


def first_to_start(pod: Pod, candidates: Sequence[str], last: str, *, sure: bool) -> str:
    """The first that has not completed; "" if the pod's status does not show it yet. Pure.

    `last`: which of them started last, "" if that is not known. `sure`: the status is not older than the
    call.
    """
    ordinary = {c.name for c in pod.spec.init_containers or () if c.restart_policy != "Always"}
    statuses = {status.name: status for status in pod.status.init_container_statuses or ()}
    for name in candidates:
        status = statuses.get(name, ContainerStatus())
        ended = status.state.terminated
        if name in ordinary and ended is not None and ended.exit_code == 0:
            continue
        if name not in ordinary:
            return name
        if name != last and (last or status.state.running is None):
            return name
        waiting = status.state.waiting
        failed = ended is not None or (
            waiting is not None and (waiting.get("reason") or "") not in _BEFORE_START
        )
        return name if failed and sure else ""
    return candidates[-1]
