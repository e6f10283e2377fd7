"""Brings GPUs that are partitioned on demand to what `migdemand` plans, round by round.

The state is the cluster's; all that is remembered is since when devices are idle, and which nodes could not
make the desired layouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from gpuslice import names
from gpuslice.clock import Clock, happened
from gpuslice.cluster.executor import Executor
from gpuslice.cluster.migrecords import MigCapableGpu, MigPolicy, decode_partitions
from gpuslice.cluster.state import Change, Cluster
from gpuslice.devices.migstate import MigState
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.quarantine import reason
from gpuslice.kube.wire import Node
from gpuslice.observe.repeats import Repeats
from gpuslice.placement.migdemand import DemandGpu
from gpuslice.scheduler.migdemand import MigNode, MigPicture, demands, plan
from gpuslice.scheduler.migview import demand_gpus

IDLE_SECONDS: Final = 60.0
"""How long an instance may be idle before it is removed."""
PAUSE_SECONDS: Final = 0.2
"""Changes within this time are handled together."""
REST: Final = 3
"""The pause after a round, as a multiple of the round's own time: the scheduler runs in the same event
loop."""
LOOK_SECONDS: Final = 5.0
"""How often to look without a change."""
RETRY_SECONDS: Final = 60.0
"""How long a node that could not make the desired layouts gets no new ones."""


class MigDemandController:
    """One per cluster acts: the leader's. The feed and the recorder are run by the caller."""

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        *,
        clock: Clock,
        recorder: EventRecorder,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._executor = Executor(client, cluster, recorder, clock=clock)
        self._warnings = Repeats(clock.monotonic)
        self._idle_seconds = idle_seconds
        self._nodes: set[str] = set()  # those of the policy
        self._idle_since: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        self._partitions: dict[str, tuple[str, tuple[MigCapableGpu, ...]]] = {}
        self._changed = asyncio.Event()
        cluster.subscribe(self._on_change)

    async def run(self) -> None:
        """Until cancelled."""
        await self._cluster.replay(self._on_change)
        took = 0.0
        while True:
            if self._nodes:
                await happened(self._changed, self._clock, self._patience())
            else:
                await self._changed.wait()
            await self._clock.sleep(max(PAUSE_SECONDS, REST * took))
            self._changed.clear()
            began = self._clock.monotonic()
            if self._nodes and not self._cluster.gate.closed() and self._executor.sees_its_writes():
                await self._round()
            took = self._clock.monotonic() - began

    def _patience(self) -> float:
        """Seconds until something will have been idle for long."""
        now = self._clock.monotonic()
        left = (since + self._idle_seconds - now for since in self._idle_since.values())
        return min((wait for wait in left if wait > 0), default=LOOK_SECONDS)

    # --- one round --------------------------------------------------------------------------------
    async def _round(self) -> None:
        picture = await self._look()
        for actions in await asyncio.to_thread(plan, picture):
            await self._executor.run(actions)

    async def _look(self) -> MigPicture:
        """The nodes of the policy and the pods that wait, as they are now."""
        now = self._clock.monotonic()
        idle: dict[str, float] = {}
        found: list[MigNode] = []
        # With a thousand nodes this takes long enough to hold up the scheduler, which runs in the same loop.
        for name in sorted(self._nodes):
            node = self._cluster.node(name)
            if node is not None:
                alone = self._refrains(node, now)
                found.append(MigNode(node, self._gpus(node, now, idle, alone=alone), alone))
            await asyncio.sleep(0)
        self._idle_since = idle
        return MigPicture(tuple(found), *demands(self._cluster, self._nodes))

    def _refrains(self, node: Node, now: float) -> bool:
        """True if the node could not make the desired layouts, and is to be left alone for a time."""
        if node.labels.get(names.MIG_CONFIG_STATE) != MigState.FAILED:
            self._failed.pop(node.name, None)
            return False
        if now - self._failed.setdefault(node.name, now) < RETRY_SECONDS:
            return True
        self._failed[node.name] = now
        return False

    def _gpus(self, node: Node, now: float, idle: dict[str, float], *, alone: bool) -> tuple[DemandGpu, ...]:
        """A node's GPUs, as they are or will be. `idle`: since when devices are idle, filled here."""

        def idle_long(gpu: MigCapableGpu, used: Collection[str]) -> Collection[int]:
            return self._idle_long(gpu, used, now, idle)

        free_gpus = self._cluster.fleet.free_gpus(node.name)
        try:
            return tuple(demand_gpus(node, self._read(node), free_gpus, idle_long=idle_long, alone=alone))
        except Exception as error:  # one node's annotations must not end the work for other nodes
            what = "a node is left as it is"
            self._warnings.warning(what, key=f"{what}: {node.name}", node=node.name, error=reason(error))
            return ()

    def _read(self, node: Node) -> tuple[MigCapableGpu, ...]:
        """What the node's agent published; each text is decoded once."""
        text = node.annotations.get(names.MIG_PARTITIONS, "")
        known = self._partitions.get(node.name)
        if known is None or known[0] != text:
            known = self._partitions[node.name] = text, decode_partitions(node.annotations)
        return known[1]

    def _idle_long(
        self, gpu: MigCapableGpu, used: Collection[str], now: float, idle: dict[str, float]
    ) -> list[int]:
        """Starts of the instances whose devices have all been idle for long."""
        found = []
        for gi in gpu.layout.instances:
            devices = [gpu.devices[gi.start, ci.id] for ci in gi.compute] or [f"{gpu.uuid}@{gi.start}"]
            idle |= {uuid: self._idle_since.get(uuid, now) for uuid in devices if uuid not in used}
            if all(uuid in idle and now - idle[uuid] >= self._idle_seconds for uuid in devices):
                found.append(gi.start)
        return found

    # --- what changes -----------------------------------------------------------------------------
    def _on_change(self, change: Change) -> None:
        match change.object:
            case Node() as node if change.kind == "node-gone" or _is_static(node):
                self._nodes.discard(node.name)
                self._partitions.pop(node.name, None)
                self._failed.pop(node.name, None)
            case Node() as node:
                self._nodes.add(node.name)
        if change.node in self._nodes or (self._nodes and self._cluster.has_unschedulable):
            self._changed.set()


def _is_static(node: Node) -> bool:
    return node.labels.get(names.MIG_POLICY, MigPolicy.STATIC) == MigPolicy.STATIC
