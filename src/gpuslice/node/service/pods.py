"""The pods of one node as the API server has them, from its watch and by reading, and as the ledger sees
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gpuslice.cluster.podstatus import has_ended
from gpuslice.cluster.trimming import trimmed
from gpuslice.devices.inventory import NodeGpus
from gpuslice.errors import GpuSliceError, NotFound
from gpuslice.kube.client import Client
from gpuslice.kube.wire import MAX_VERSION, Pod
from gpuslice.node.grants.nodepod import NodePod, read_pod
from gpuslice.units import read_digits

FRESH_SECONDS: Final = 1.0
"""How long reading all pods may hold up an admission."""
POD_SECONDS: Final = 2.0
"""How long a container's start waits for an answer about its pod."""


class NodePods:
    """By uid: `read` is what the ledger sees of them.

    `on_set` is told of every change, and whether the pod was read anew; `on_drop` of a pod that is gone.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        gpus: Callable[[], NodeGpus],
        *,
        on_set: Callable[[NodePod, bool], None],
        on_drop: Callable[[Pod], None],
    ) -> None:
        self.read: dict[str, NodePod] = {}
        self.ended = asyncio.Event()
        """Set when a pod has ended or gone: its ids can probably be released."""
        self._seen: dict[str, Pod] = {}
        self._client = client
        self._selector = f"spec.nodeName={node}"
        self._gpus = gpus
        self._on_set = on_set
        self._on_drop = on_drop

    def seen(self, uid: str) -> Pod | None:
        """A pod as the API server has it."""
        return self._seen.get(uid)

    def set(self, pod: Pod) -> None:
        """Take in a pod of this node as the API server has it; a version older than the one known is
        ignored.
        """
        pod, known = trimmed(pod), self._seen.get(pod.uid)
        if known is not None and _version(pod) < _version(known):
            return
        self._seen[pod.uid] = pod
        before = self.read.get(pod.uid)
        same = known is not None and _says_the_same(known, pod)
        if before is not None and same:
            read = before if before.alive == (not has_ended(pod)) else replace(before, alive=not before.alive)
        else:
            read = read_pod(pod, self._gpus(), before)
        self.read[pod.uid] = read
        if not read.alive:
            self.ended.set()
        self._on_set(read, before is None or not same)

    def drop(self, pod: Pod) -> None:
        """It is gone, for the API server."""
        self._seen.pop(pod.uid, None)
        if self.read.pop(pod.uid, None) is not None:
            self.ended.set()
        self._on_drop(pod)

    def read_anew(self) -> None:
        """Read all pods again: which GPUs a pod's annotations mean depends on the node's GPUs."""
        gpus = self._gpus()
        for uid, pod in self._seen.items():
            self.read[uid] = read_pod(pod, gpus, self.read.get(uid))

    async def fetch(self, key: str) -> bool:
        """Read one pod anew; True if the API server answered."""
        namespace, _, name = key.partition("/")
        try:
            async with asyncio.timeout(POD_SECONDS):
                pod = await self._client.get(Pod, name, namespace)
        except NotFound:
            self._supersede(key, None)
            return True
        except (GpuSliceError, TimeoutError):
            return False
        self._supersede(key, pod.uid)
        self.set(pod)
        return True

    def _supersede(self, key: str, uid: str | None) -> None:
        for pod in [p for p in self._seen.values() if p.key == key and p.uid != uid]:
            self.drop(pod)

    async def fetch_all(self) -> bool:
        """Read the node's pods anew; True if the API server answered."""
        before = set(self._seen)
        try:
            async with asyncio.timeout(FRESH_SECONDS):
                listing = await self._client.list(Pod, field_selector=self._selector)
        except (GpuSliceError, TimeoutError):
            return False
        present = {pod.uid for pod in listing.items}
        for uid in before - present:
            if uid in self._seen:
                self.drop(self._seen[uid])
        for pod in listing.items:
            self.set(pod)
        return True


def _says_the_same(old: Pod, new: Pod) -> bool:
    """True if at most the status differs: what a pod asks for cannot be changed."""
    return (
        old.annotations == new.annotations
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
    )


def _version(pod: Pod) -> int:
    return read_digits(pod.metadata.resource_version, MAX_VERSION) or 0
