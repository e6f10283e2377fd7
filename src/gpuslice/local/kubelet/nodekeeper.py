"""Keeps one node object true: registers it, renews its Lease, reports its status when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import structlog

from gpuslice.clock import Clock, happened
from gpuslice.errors import ApiError, Conflict, GpuSliceError, NotFound
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.client import Client
from gpuslice.local.kubelet.devicemanager import DeviceManager
from gpuslice.local.kubelet.node import (
    LEASE_NAMESPACE,
    LEASE_PERIOD,
    STATUS_PERIOD,
    NodeDescription,
    lease_spec,
    node_object,
    node_status,
)
from gpuslice.local.kubelet.podspec import LEASES, NODES, LabelledNode, Lease

BACKOFF: Final = Backoff(base=0.1, cap=10.0)

_log = structlog.get_logger(__name__)


class NodeKeeper:
    """`manager` answers with the current device manager: a restart of the kubelet makes a new one."""

    def __init__(
        self,
        client: Client,
        node: NodeDescription,
        *,
        manager: Callable[[], DeviceManager],
        clock: Clock,
        random: Random,
    ) -> None:
        self._client = client
        self._node = node
        self._manager = manager
        self._clock = clock
        self._random = random
        self._changed = asyncio.Event()
        self._reported: set[str] = set()  # resources that the node object names
        self._ready_since_ns = clock.now_ns()

    def changed(self) -> None:
        """Capacity or allocatable may have changed: report soon."""
        self._changed.set()

    async def register(self) -> None:
        """Create the node, or take over the one that is there; returns once it is Ready."""
        await self._insist(self._register)

    async def run_status(self) -> None:
        """Report for ever: at once after a change, else rarely."""
        while True:
            await happened(self._changed, self._clock, STATUS_PERIOD)
            self._changed.clear()
            await self._insist(self._report)

    async def run_lease(self) -> None:
        """Renew the Lease for ever. An outage is waited out: the next renewal counts."""
        while True:
            try:
                await self._renew()
            except GpuSliceError as error:
                _log.debug("cannot renew the lease", node=self._node.name, error=str(error))
            # Jitter: the kubelets of one process must not all renew in the same moment.
            await self._clock.sleep(LEASE_PERIOD * (0.96 + 0.08 * self._random.random()))

    async def labels(self) -> dict[str, str]:
        """The node's labels as they are now."""
        return (await self._client.get(LabelledNode, self._node.name)).labels

    async def _register(self) -> None:
        try:
            await self._client.create(NODES, node_object(self._node))
        except Conflict:
            labels = {"metadata": {"labels": self._node.all_labels()}}
            await self._client.patch(LabelledNode, self._node.name, labels)
        await self._report()

    async def _report(self) -> None:
        manager = self._manager()
        capacity = manager.capacity()
        status = node_status(
            self._node,
            capacity,
            manager.allocatable(),
            frozenset(self._reported - set(capacity)),
            ready_since_ns=self._ready_since_ns,
            now_ns=self._clock.now_ns(),
        )
        self._reported |= set(capacity)
        # Strategic, as kubelet's own: the conditions that others have set stay.
        await self._client.patch(
            LabelledNode, self._node.name, {"status": status}, patch_type="strategic", subresource="status"
        )

    async def _renew(self) -> None:
        spec = lease_spec(self._node.name, self._clock.now_ns())
        try:
            await self._client.patch(Lease, self._node.name, {"spec": spec}, LEASE_NAMESPACE)
        except NotFound:
            node = await self._client.get(LabelledNode, self._node.name)
            owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
            metadata = {"name": self._node.name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]}
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": metadata,
                "spec": spec,
            }
            await self._client.create(LEASES, body, LEASE_NAMESPACE)

    async def _insist(self, action: Callable[[], Awaitable[None]]) -> None:
        """Repeat until it works, or until the API server says that it never will."""
        failures = 0
        while True:
            try:
                await action()
            except GpuSliceError as error:
                if isinstance(error, ApiError) and not error.retryable:
                    _log.warning("the API server refused", node=self._node.name, error=str(error))
                    return
                failures += 1
                await self._clock.sleep(BACKOFF.delay(failures, self._random.random))
            else:
                return
