"""Makes the nodes of every GPUNodePool as it says: their number, labels, taints, and how their GPUs are
partitioned.

Level-triggered: each round looks at what is there, plans (`poolactions`) and takes the next steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from gpuslice import names
from gpuslice.capacity.machines import Machines
from gpuslice.capacity.nodepatch import read_record
from gpuslice.capacity.nodepool import DesiredPool, GPUNodePool, read_pool
from gpuslice.capacity.poolactions import (
    PoolPicture,
    StartMachine,
    Steps,
    StopMachine,
    WriteStatus,
    has_begun,
    plan_leaving,
    plan_pool,
    refuse,
)
from gpuslice.capacity.poolobserver import PoolObserver, is_lost_with_node, members
from gpuslice.capacity.poolplan import PoolNode
from gpuslice.clock import Clock, happened, rfc3339
from gpuslice.cluster.executor import Executor
from gpuslice.cluster.state import Change, Cluster
from gpuslice.errors import Conflict, InputError
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.gate import Gate
from gpuslice.kube.quarantine import reason
from gpuslice.kube.reflector import Reflector
from gpuslice.kube.wire import Pod

COMPONENT: Final = "gpuslice-node-pools"
PAUSE_SECONDS: Final = 0.1
"""Changes within this time are handled together."""
LOOK_SECONDS: Final = 1.0
"""How often to look without a change: cordons age, nodes become idle, disruption budgets begin to allow
evictions. A round that finds nothing to do sends no request to the API server."""


class NodePoolController:
    """`machines` makes machines; None where a cloud or people do."""

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        *,
        machines: Machines | None = None,
        clock: Clock,
        new_id: Callable[[], str],
        random: Callable[[], float],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._machines = machines
        self._clock = clock
        self._observer = PoolObserver(cluster, clock)
        self._pools: dict[str, GPUNodePool] = {}
        self._changed = asyncio.Event()
        self._recorder = EventRecorder(client, COMPONENT, clock=clock, new_id=new_id, random=random)
        self._reflector = Reflector(
            client,
            GPUNodePool,
            on_set=self._set_pool,
            on_drop=self._drop_pool,
            quarantine=cluster.quarantine,
            clock=clock,
            random=random,
            relists=True,
        )
        self._gate = Gate(self._reflector, beside=cluster.gate)
        self._executor = Executor(
            client,
            cluster,
            self._recorder,
            clock=clock,
            gate=self._gate,
            more={StartMachine: self._start, StopMachine: self._stop, WriteStatus: self._write_status},
        )
        cluster.subscribe(self._on_change)

    async def run(self) -> None:
        """For ever. The feed is run by the caller."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._recorder.run())
            await self._cluster.replay(self._on_change)
            await self._reflector.synced.wait()
            while True:
                if not self._gate.closed() and self._executor.sees_its_writes():
                    await self._round()
                await happened(self._changed, self._clock, LOOK_SECONDS)
                await self._clock.sleep(PAUSE_SECONDS)
                self._changed.clear()

    # --- one round --------------------------------------------------------------------------------
    async def _round(self) -> None:
        running = list(self._machines.running()) if self._machines is not None else []
        orphans: Steps = [[StopMachine(name)] for name in running if self._cluster.node(name) is None]
        waiting = [one.pod for one in self._cluster.unschedulable()] if self._machines is not None else []
        waiting.sort(key=lambda pod: pod.key)
        for name in sorted(self._pools):
            if (pool := self._pools.get(name)) is not None:  # it may have gone meanwhile
                await self._run(self._plan(pool, waiting))
        for name in sorted(self._observer.patched):
            await self._run(self._plan_if_leaving(name))
        await self._run(orphans)  # somebody deleted their Nodes; new ones have other names

    async def _run(self, steps: Steps) -> None:
        for step in steps:
            result = await self._executor.run(step)
            if isinstance(result.failed, Conflict):
                self._changed.set()  # somebody was faster: look again

    def _plan(self, pool: GPUNodePool, waiting: list[Pod]) -> Steps:
        """Plan one pool. The waiting pods that its new nodes would take are removed from those left for other
        pools.
        """
        now = rfc3339(self._clock.now_ns())
        try:
            return plan_pool(self._look(pool, waiting, now))
        except Exception as error:  # an unforeseen error with one pool must not hold up the other pools
            return refuse(pool, reason(error), now)

    def _look(self, pool: GPUNodePool, waiting: list[Pod], now: str) -> PoolPicture:
        """The pool as it is. Raises InputError if its spec cannot be followed."""
        desired = read_pool(pool)
        nodes = self._observe(desired)
        running = None if self._machines is None else self._machines.running()
        return PoolPicture(
            pool,
            desired,
            nodes,
            {one.name: node for one in nodes if (node := self._cluster.node(one.name)) is not None},
            {one.name: self._observer.pods_on(one.name) for one in nodes},
            self._needed(pool, desired, nodes, waiting),
            {*self._cluster.node_names(), *(running or ())},
            running,
            now,
        )

    def _observe(self, desired: DesiredPool) -> list[PoolNode]:
        """The pool's nodes. Raises InputError for an impossible spec: for these GPUs, or for machines of
        another size.
        """
        own = members(self._cluster.nodes(), desired, makes=self._machines is not None)
        for node in own:
            there = node.labels.get(names.INSTANCE_TYPE, "")
            if read_record(node).made and there != desired.spec.node_vm_size:
                raise InputError(
                    f"the VM size of a pool cannot be changed, and its nodes are {there}; make another pool",
                    field="vmSize",
                )
        return [self._observer.observe(node, desired) for node in own]

    def _needed(
        self, pool: GPUNodePool, desired: DesiredPool, nodes: list[PoolNode], waiting: list[Pod]
    ) -> int:
        """New nodes of the pool that would take waiting pods; other pools then need not take the same
        pods.
        """
        high = desired.spec.max_count
        if self._machines is None or high is None or desired.selector is not None:
            return 0
        if not nodes and not has_begun(pool):
            return 0
        new = self._machines.needed(waiting, desired, high - sum(node.ready for node in nodes))
        taken = {pod.uid for pods in new for pod in pods}
        waiting[:] = [pod for pod in waiting if pod.uid not in taken]
        return len(new)

    def _plan_if_leaving(self, name: str) -> Steps:
        node = self._cluster.node(name)
        if node is None:
            return []  # gone meanwhile
        record, makes = read_record(node), self._machines is not None
        pool = self._pools.get(record.pool)
        if pool is not None and pool.uid == record.uid:
            try:
                if members([node], read_pool(pool), makes=makes):
                    return []
            except Exception:
                return []  # its spec cannot be read: its nodes stay as they are
        return plan_leaving(node, self._observer.pods_on(name), makes=makes)

    # --- actions of our own -----------------------------------------------------------------------
    async def _start(self, action: StartMachine) -> None:
        if self._machines is not None:
            await self._machines.start(action.name, action.pool)

    async def _stop(self, action: StopMachine) -> None:
        if self._machines is None:
            return
        if action.drained:
            listed = await self._client.list(Pod, field_selector=f"spec.nodeName={action.name}")
            if self._observer.pods_on(action.name) or any(map(is_lost_with_node, listed.items)):
                raise Conflict(409, f"node {action.name} has pods after all")
        await self._machines.stop(action.name)

    async def _write_status(self, action: WriteStatus) -> None:
        pool, body = action.pool, {"status": msgspec.to_builtins(action.status, str_keys=True)}
        told = await self._client.patch(GPUNodePool, pool.name, body, subresource="status")
        if pool.name in self._pools and self._pools[pool.name].uid == told.uid:
            self._pools[pool.name] = told

    # --- what is heard ----------------------------------------------------------------------------
    def _on_change(self, change: Change) -> None:
        self._observer.on_change(change)
        if self._pools or self._observer.patched:
            self._changed.set()

    def _set_pool(self, pool: GPUNodePool) -> None:
        self._pools[pool.name] = pool
        self._changed.set()

    def _drop_pool(self, pool: GPUNodePool) -> None:
        self._pools.pop(pool.name, None)
        self._changed.set()
