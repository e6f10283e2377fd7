"""Brings the nodes of every GPUNodePool to what it says: their number, labels, taints, and how GPUs are cut.

Level-triggered: each turn looks at what is there, plans (`poolplan`) and takes the next steps; nothing is
remembered but since when a node has been idle. A pod is ended only where the number of nodes was lowered or
the pool deleted, and then by eviction, which disruption budgets can delay; never for cutting a GPU anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import structlog

from gpuslice import names
from gpuslice.capacity.dressing import dress, new_node, read_record, undress
from gpuslice.capacity.machines import Machines
from gpuslice.capacity.nodepool import READY, SCALING, GPUNodePool, PoolWish, read_pool
from gpuslice.capacity.poolplan import PoolNode, Size, next_names, plan_count, plan_range, plan_recut
from gpuslice.capacity.poolstatus import Said, readiness, scaling, status_of
from gpuslice.capacity.poolworld import PoolWorld, is_lost_with_node, members
from gpuslice.clock import Clock, happened, rfc3339
from gpuslice.cluster.state import Change, Cluster
from gpuslice.errors import ApiError, Conflict, InputError, NotFound
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.gate import Gate, GatedClient
from gpuslice.kube.quarantine import reason
from gpuslice.kube.reflector import Reflector, is_before
from gpuslice.kube.wire import Node, Pod

COMPONENT: Final = "gpuslice-node-pools"
PAUSE_SECONDS: Final = 0.1
"""Changes within this time are looked at together."""
LOOK_SECONDS: Final = 1.0
"""How often to look without a change: cordons age, nodes become idle, disruption budgets allow what they did
not. A look that finds nothing to do asks the API server nothing."""

UNSEEN_SECONDS: Final = 5.0
"""How long to wait at most until the cluster shows what we wrote."""

_log = structlog.get_logger(__name__)


class NodePoolController:
    """`machines`: who makes machines; None where that is not ours (a cloud does, or people)."""

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
        self._cluster = cluster
        self._machines = machines
        self._clock = clock
        self._world = PoolWorld(cluster, clock)
        self._pools: dict[str, GPUNodePool] = {}
        self._said: dict[str, str] = {}  # pool -> the last problem that was recorded as an event
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
        self._client = GatedClient(client, self._gate)
        self._unseen: dict[str, tuple[str, float]] = {}
        """Nodes that we wrote and the cluster does not show so yet: the version ("": deleted), and when."""
        cluster.subscribe(self._on_change)

    async def run(self) -> None:
        """For ever. The feed is run by the caller."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._recorder.run())
            await self._cluster.replay(self._on_change)
            await self._reflector.synced.wait()
            while True:
                if not self._gate.closed() and self._sees_its_writes():
                    await self._turn()
                await happened(self._changed, self._clock, LOOK_SECONDS)
                await self._clock.sleep(PAUSE_SECONDS)
                self._changed.clear()

    def _sees_its_writes(self) -> bool:
        """True once the cluster shows what we wrote: what was begun is not to be begun again."""
        late = self._clock.monotonic() - UNSEEN_SECONDS
        for name, (version, at) in list(self._unseen.items()):
            node = self._cluster.node(name)
            there = node.metadata.resource_version if node is not None else ""
            if at < late or (not is_before(there, version) if there and version else there == version):
                del self._unseen[name]
        return not self._unseen

    def _wrote(self, name: str, node: Node | None) -> None:
        version = node.metadata.resource_version if node is not None else ""
        self._unseen[name] = version, self._clock.monotonic()

    # --- one look ---------------------------------------------------------------------------------
    async def _turn(self) -> None:
        wishes: dict[str, PoolWish] = {}
        for name, pool in sorted(self._pools.items()):
            try:
                wishes[name] = read_pool(pool)
            except Exception as error:
                await self._guarded(pool, self._refuse(pool, reason(error)))
        waiting = [w.pod for w in self._cluster.unschedulable()] if self._machines is not None else []
        waiting.sort(key=lambda pod: pod.key)
        for name, wish in wishes.items():
            there = self._pools.get(name)
            if there is not None:  # it may have gone meanwhile
                await self._guarded(there, self._follow(there, wish, waiting))
        for name in sorted(self._world.patched):
            node = self._cluster.node(name)
            if node is None:
                continue  # gone meanwhile
            record = read_record(node)
            of = self._pools.get(record.pool)
            gone = of is None or of.uid != record.uid
            if gone or (record.pool in wishes and not self._belongs(node, wishes[record.pool])):
                await self._guarded(None, self._leave(node))
        if self._machines is not None:
            for name in list(self._machines.running()):
                if self._cluster.node(name) is None and name not in self._unseen:
                    await self._machines.stop(name)  # somebody deleted the Node

    async def _guarded(self, pool: GPUNodePool | None, work: Awaitable[None]) -> None:
        """One pool that cannot be brought on now must not hold up the others."""
        try:
            await work
        except Conflict:
            self._changed.set()  # somebody was faster: look again
        except Exception as error:
            _log.warning("cannot follow a node pool now", pool=pool.name if pool else "", error=reason(error))

    def _belongs(self, node: Node, wish: PoolWish) -> bool:
        return bool(members([node], wish, makes=self._machines is not None))

    async def _refuse(self, pool: GPUNodePool, why: str) -> None:
        self._say(pool, "Warning", "Invalid", why)
        await self._tell(pool, None, {READY: Said(False, "Invalid", why)})

    async def _follow(self, pool: GPUNodePool, wish: PoolWish, waiting: list[Pod]) -> None:
        world, machines = self._world, self._machines
        own = members(self._cluster.nodes(), wish, makes=machines is not None)
        try:
            nodes = [world.look(name, wish) for name in own]
            self._same_size(own, wish)
        except InputError as error:
            await self._refuse(pool, str(error))
            return
        size = Size()
        if machines is not None and wish.selector is None:
            size = self._size(wish, nodes, waiting)
            await self._make(pool, wish, nodes, size, machines)
            nodes = [node for node in nodes if self._unseen.get(node.name, "there")[0]]
        staying = [node for node in nodes if node.name not in size.retire]
        recut = plan_recut(staying)
        cordoned = {*size.retire, *recut.close}
        for node in nodes:
            if (there := self._cluster.node(node.name)) is None:
                continue  # gone meanwhile
            tell = (node.wanted, node.wanted_strategy) if node.name in recut.tell else None
            patch = dress(there, wish, cordon=node.name in cordoned, tell=tell)
            if patch is not None:
                self._wrote(node.name, await self._client.patch(Node, node.name, patch))
            if tell is not None:
                self._say(pool, "Normal", "Cutting", f"node {node.name}: {tell[0]}, {tell[1]}")
        said = {
            READY: readiness(wish, nodes, size, recut),
            SCALING: scaling(wish, makes=machines is not None),
        }
        if recut.failed:
            self._say(pool, "Warning", "CutFailed", recut.waits)
        await self._tell(pool, nodes, said)

    def _same_size(self, own: Sequence[str], wish: PoolWish) -> None:
        """Raises InputError if machines were made of another size: they cannot be changed into this one."""
        for name in own:
            node = self._cluster.node(name) or Node()
            there = node.labels.get(names.INSTANCE_TYPE, "")
            if read_record(node).made and there != wish.spec.node_vm_size:
                raise InputError(
                    f"the VM size of a pool cannot be changed, and its nodes are {there}; make another pool",
                    field="vmSize",
                )

    def _size(self, wish: PoolWish, nodes: Sequence[PoolNode], waiting: list[Pod]) -> Size:
        low, high = wish.spec.min_count, wish.spec.max_count
        if low is None or high is None:
            return plan_count(nodes, wish.spec.count)
        if not nodes and not self._begun(wish):
            return Size(add=wish.spec.count)
        assert self._machines is not None
        ready = sum(node.ready for node in nodes)
        new = self._machines.needed(waiting, wish, high - ready)
        taken = {pod.uid for pods in new for pod in pods}
        waiting[:] = [pod for pod in waiting if pod.uid not in taken]  # other pools need not take them, too
        return plan_range(nodes, low, high, needed=len(new), idle_s=wish.idle_seconds)

    def _begun(self, wish: PoolWish) -> bool:
        """True once the pool had its first nodes: it then may have none any more."""
        return self._pools[wish.spec.name].condition(SCALING) is not None

    async def _make(
        self, pool: GPUNodePool, wish: PoolWish, nodes: Sequence[PoolNode], size: Size, machines: Machines
    ) -> None:
        taken = {*self._cluster.node_names(), *self._unseen, *machines.running()}
        for name in next_names(pool.name, size.add, taken):
            body = new_node(name, wish)
            created = await self._client.create(Node.resource, body)
            self._wrote(name, msgspec.json.decode(created, type=Node))
            await machines.start(name, wish)
            self._say(pool, "Normal", "NodeMade", f"made node {name} ({wish.spec.node_vm_size})")
        for node in nodes:
            if self._cluster.node(node.name) is not None and node.name not in machines.running():
                await machines.start(node.name, wish)
        for name in size.evict:
            there = self._cluster.node(name)
            if there is not None and there.spec.unschedulable:
                await self._evict(name)
        for name in size.remove:
            if await self._remove(name):
                self._say(pool, "Normal", "NodeRemoved", f"removed node {name}")

    async def _evict(self, name: str) -> None:
        for pod in self._world.pods_on(name):
            if pod.metadata.deletion_timestamp is None:
                try:
                    await self._client.evict(pod.namespace, pod.name, pod.uid)
                except NotFound:
                    continue
                except ApiError as error:
                    if error.status != 429:
                        raise
                    # A disruption budget: again later.

    async def _remove(self, name: str) -> bool:
        """Remove a machine of ours that has no pods, and its Node. False if there are some after all."""
        listed = await self._client.list(Pod, field_selector=f"spec.nodeName={name}")
        if self._world.pods_on(name) or any(map(is_lost_with_node, listed.items)):
            self._changed.set()
            return False
        assert self._machines is not None
        await self._machines.stop(name)
        with suppress(NotFound):
            await self._client.delete(Node.resource, name)
        self._wrote(name, None)
        return True

    async def _leave(self, node: Node) -> None:
        """A node whose pool is gone, or that has left it: take off what the pool put on; a made one goes."""
        if not read_record(node).made or self._machines is None:
            self._wrote(node.name, await self._client.patch(Node, node.name, undress(node)))
            return
        if not node.spec.unschedulable:
            body = {"spec": {"unschedulable": True}}
            self._wrote(node.name, await self._client.patch(Node, node.name, body))
            self._changed.set()
        elif self._world.pods_on(node.name):
            await self._evict(node.name)
        else:
            await self._remove(node.name)

    # --- what is told -----------------------------------------------------------------------------
    async def _tell(self, pool: GPUNodePool, nodes: Sequence[PoolNode] | None, said: dict[str, Said]) -> None:
        status = status_of(pool, nodes, said, now=rfc3339(self._clock.now_ns()))
        if status is None:
            return
        body = {"status": msgspec.to_builtins(status, str_keys=True)}
        told = await self._client.patch(GPUNodePool, pool.name, body, subresource="status")
        if pool.name in self._pools and self._pools[pool.name].uid == told.uid:
            self._pools[pool.name] = told

    def _say(self, pool: GPUNodePool, kind: str, reason: str, message: str) -> None:
        if self._said.get(pool.uid) != message:
            self._said[pool.uid] = message
            self._recorder.record(pool, "Warning" if kind == "Warning" else "Normal", reason, message)

    # --- what is heard ----------------------------------------------------------------------------
    def _on_change(self, change: Change) -> None:
        self._world.heed(change)
        if self._pools or self._world.patched:
            self._changed.set()

    def _set_pool(self, pool: GPUNodePool) -> None:
        self._pools[pool.name] = pool
        self._changed.set()

    def _drop_pool(self, pool: GPUNodePool) -> None:
        self._pools.pop(pool.name, None)
        self._said.pop(pool.uid, None)
        self._changed.set()
