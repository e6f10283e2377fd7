"""Pods whose node has gone or drives them out: deleted, so that their owners can replace them.

Source: kubernetes `pkg/controller/podgc` and `pkg/controller/tainteviction`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from gpuslice.cluster.predicates import tolerated
from gpuslice.errors import Conflict, NotFound
from gpuslice.local.controllers.objects import Managed, Node, Pod
from gpuslice.local.controllers.pods import seconds
from gpuslice.local.controllers.runtime import Controller, Shared

QUARANTINE_SECONDS: Final = 5.0
"""A node that is missing this long has not just been registered anew."""


class StrandedPods(Controller):
    """Deletes pods of vanished nodes at once, and pods that do not tolerate a NoExecute taint in time."""

    name: ClassVar[str] = "stranded"
    reads: ClassVar[tuple[type[Managed], ...]] = (Node, Pod)

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._nodes = shared.informers.of(Node)
        self._pods = shared.informers.of(Pod)
        self._nodes.listeners.append(self._on_node)
        self._pods.listeners.append(self._on_pod)

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        if after is not None and (before is None or before.spec.taints == after.spec.taints):
            return
        name = (after or before).name  # type: ignore[union-attr]
        wait = QUARANTINE_SECONDS if after is None else 0.0
        for key, pod in self._pods.items.items():
            if pod.spec.node_name == name:
                self.queue.add_after(key, wait)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        if after is None or not after.spec.node_name or (before is not None and before.spec.node_name):
            return
        node = self._nodes.items.get(after.spec.node_name)
        if node is None:
            self.queue.add_after(after.key, QUARANTINE_SECONDS)
        elif node.spec.taints:
            self.queue.add(after.key)

    async def reconcile(self, key: str) -> None:
        """Look whether the pod may stay where it is."""
        pod = self._pods.get(key)
        if pod is None or not pod.spec.node_name:
            return
        node = self._nodes.get(pod.spec.node_name)
        if node is None:
            if await self._gone(pod.spec.node_name):
                await self._delete(pod, grace=0)
            return
        if pod.deleting:
            return
        left = self._stay(pod, node)
        if left is None:
            return
        if left > 0:
            self.queue.add_after(key, left)
            return
        self.shared.record(pod, "Normal", "TaintManagerEviction", f"Marking for deletion Pod {pod.key}")
        await self._delete(pod, grace=None)

    def _stay(self, pod: Pod, node: Node) -> float | None:
        """Seconds that the pod may stay; None is for ever."""
        stays: list[float] = []
        tolerations = pod.spec.tolerations or ()
        for taint in node.spec.taints or ():
            if taint.effect != "NoExecute":
                continue
            using = [one for one in tolerations if tolerated(taint, (one,))]
            if not using:
                return 0.0
            limits = [one.toleration_seconds for one in using if one.toleration_seconds is not None]
            if limits:
                now = self.shared.clock.now_ns() / 1e9
                since = seconds(taint.time_added) if taint.time_added else now
                stays.append(max(0.0, since + min(limits) - now))
        return min(stays, default=None)

    async def _gone(self, name: str) -> bool:
        """Ask the server itself: what the informer misses may only be late."""
        try:
            await self.client.get(Node, name)
        except NotFound:
            return True
        return False

    async def _delete(self, pod: Pod, grace: int | None) -> None:
        try:
            await self.client.delete(Pod.resource, pod.name, pod.namespace, uid=pod.uid, grace_seconds=grace)
        except (NotFound, Conflict):
            return
