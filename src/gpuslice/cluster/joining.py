"""Listening to a feed that may be running already: nothing is missed, nothing old overrides the new."""

from __future__ import annotations

from typing import Final

from gpuslice.clock import Clock
from gpuslice.cluster.feed import ChangeKind, ClusterFeed, Listener
from gpuslice.cluster.trimming import trimmed
from gpuslice.errors import GpuSliceError
from gpuslice.kube.client import Client
from gpuslice.kube.wire import KubeObject, Node, Pod

RETRY_SECONDS: Final = 1.0


class Joining:
    """Passes a feed's changes on, and once, what the feed had told before there was anyone to listen."""

    def __init__(self, client: Client, feed: ClusterFeed, listener: Listener, *, clock: Clock) -> None:
        self._client = client
        self._feed = feed
        self._listener = listener
        self._clock = clock
        self._heard: set[str] | None = set() if feed.begun else None
        feed.listeners.append(self._on_change)

    async def catch_up(self) -> None:
        """Wait until the feed is complete and the listener knows all that the feed knows."""
        await self._feed.wait_synced()
        while self._heard is not None:
            try:
                nodes, pods = await self._client.list(Node), await self._client.list(Pod)
            except GpuSliceError:
                await self._clock.sleep(RETRY_SECONDS)
                continue
            # What the feed has spoken of since, it knows better than these lists.
            heard, self._heard = self._heard, None
            for node in nodes.items:
                if node.uid not in heard:
                    self._tell("node", node)
            for pod in (*pods.items, *(one.object for one in pods.broken if one.object.spec.node_name)):
                if pod.uid not in heard:
                    self._tell("pod", trimmed(pod))

    def _tell(self, kind: ChangeKind, obj: KubeObject) -> None:
        try:
            self._listener(kind, obj)
        except Exception as error:  # one object must not keep the listener from the others
            self._feed.cluster.quarantine.hold(obj, error)

    def _on_change(self, kind: ChangeKind, obj: KubeObject) -> None:
        if self._heard is not None:
            self._heard.add(obj.uid)
        self._listener(kind, obj)
