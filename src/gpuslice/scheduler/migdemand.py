"""MIG on demand: GPUs are cut for the pods that wait, and what has been idle for long is undone.

Whoever schedules finds no node for a pod that asks for a MIG device which does not exist. This controller
looks at such pods and says to nodes of the policy (the label gpuslice.io/mig-policy) how their GPUs are to
be; their agents cut them, and the new devices wake the scheduler. A pod is never placed before its device is
there. Nothing is remembered but since when devices are idle: every round compares the pods with what the
nodes say and were told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Final, Literal

import structlog

from gpuslice import names
from gpuslice.clock import Clock, happened
from gpuslice.cluster.migrecords import (
    CutGpu,
    MigPolicy,
    Target,
    decode_cuts,
    decode_wanted,
    encode_wanted,
    placements,
)
from gpuslice.cluster.state import Change, Cluster
from gpuslice.cluster.waiting import WaitingPod
from gpuslice.devices.miglayout import MigLayout, say_counts
from gpuslice.devices.migprofile import MigProfile
from gpuslice.errors import GpuSliceError, InputError
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.gate import GatedClient
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.migcluster import MigDemand, MigPlacement
from gpuslice.placement.migdemand import DemandGpu, DemandPlan, UncutDemand, plan_demand
from gpuslice.scheduler.migview import demand_gpus, profiles_of

IDLE_SECONDS: Final = 60.0
"""How long an instance may be idle before it is undone."""
PAUSE_SECONDS: Final = 0.2
"""Changes within this time are looked at together."""
REST: Final = 3
"""How many times as long as a round took it rests at least: the scheduler decides in the same loop."""
LOOK_SECONDS: Final = 5.0
"""How often to look without news."""
RETRY_SECONDS: Final = 60.0
"""How long nothing new is asked of a node that could not do what it was told."""
FAILED: Final = "failed"

_log = structlog.get_logger(__name__)


class MigDemandController:
    """One per cluster acts: the one that leads. The feed and the recorder are run by the caller."""

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        *,
        clock: Clock,
        recorder: EventRecorder,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._client = GatedClient(client, cluster.gate)
        self._cluster = cluster
        self._clock = clock
        self._recorder = recorder
        self._idle_seconds = idle_seconds
        self._nodes: dict[str, Node] = {}
        self._idle_since: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        self._said: dict[str, str] = {}
        self._cuts: dict[str, tuple[str, tuple[CutGpu, ...]]] = {}
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
            if self._nodes and not self._cluster.gate.closed():
                try:
                    await self._round()
                except GpuSliceError as error:
                    _log.warning("cannot say to nodes how their GPUs are to be", error=str(error))
            took = self._clock.monotonic() - began

    def _patience(self) -> float:
        """Seconds until something will have been idle for long."""
        now = self._clock.monotonic()
        left = (since + self._idle_seconds - now for since in self._idle_since.values())
        return min((wait for wait in left if wait > 0), default=LOOK_SECONDS)

    # --- one round --------------------------------------------------------------------------------
    async def _round(self) -> None:
        now = self._clock.monotonic()
        idle: dict[str, float] = {}
        alone = {name for name, node in self._nodes.items() if self._refrains(node, now)}
        gpus: dict[str, list[DemandGpu]] = {}
        # With a thousand nodes all this is long enough to hold up the scheduler, in whose loop it runs.
        for name, node in list(self._nodes.items()):
            gpus[name] = self._gpus(node, now, idle, alone=name in alone)
            await asyncio.sleep(0)
        self._idle_since = idle
        plan = await asyncio.to_thread(
            plan_demand, tuple(chain.from_iterable(gpus.values())), *self._demands()
        )
        for name, found in gpus.items():
            there = self._nodes.get(name)  # it may have gone meanwhile
            if there is not None and found and name not in alone:
                await self._tell(there, found, plan.targets)
        self._explain(plan)

    def _refrains(self, node: Node, now: float) -> bool:
        """True if the node could not do what it was told, and is to be left alone for a time."""
        if node.labels.get(names.MIG_CONFIG_STATE) != FAILED:
            self._failed.pop(node.name, None)
            return False
        if now - self._failed.setdefault(node.name, now) < RETRY_SECONDS:
            return True
        self._failed[node.name] = now
        return False

    def _gpus(self, node: Node, now: float, idle: dict[str, float], *, alone: bool) -> list[DemandGpu]:
        """A node's, as they are or will be. `idle`: since when devices are idle, filled here."""

        def idle_long(cut: CutGpu, used: Collection[str]) -> Collection[int]:
            return self._idle_long(cut, used, now, idle)

        rooms = self._cluster.fleet.rooms(node.name)
        try:
            found = demand_gpus(node, self._read(node), rooms, idle_long=idle_long, alone=alone)
        except Exception as error:  # one node's annotations must not end what is done for the others
            if self._problems.get(node.name) != str(error):
                self._problems[node.name] = str(error)
                _log.warning("a node is left as it is", node=node.name, error=str(error))
            return []
        self._problems.pop(node.name, None)
        return found

    def _read(self, node: Node) -> tuple[CutGpu, ...]:
        """What the node's agent says; read once per text."""
        text = node.annotations.get(names.MIG_CUTS, "")
        known = self._cuts.get(node.name)
        if known is None or known[0] != text:
            known = self._cuts[node.name] = text, decode_cuts(node.annotations)
        return known[1]

    def _idle_long(self, cut: CutGpu, used: Collection[str], now: float, idle: dict[str, float]) -> list[int]:
        """Starts of the instances all of whose devices have been idle for long."""
        found = []
        for gi in cut.layout.instances:
            devices = [cut.devices[gi.start, ci.id] for ci in gi.compute] or [f"{cut.uuid}@{gi.start}"]
            idle |= {uuid: self._idle_since.get(uuid, now) for uuid in devices if uuid not in used}
            if all(uuid in idle and now - idle[uuid] >= self._idle_seconds for uuid in devices):
                found.append(gi.start)
        return found

    def _demands(self) -> tuple[list[MigDemand], list[UncutDemand]]:
        """What pods wait for: devices, and GPUs that are not cut."""
        devices, uncut = [], []
        for waiting in self._cluster.unschedulable():
            request = waiting.demand.request
            nodes = self._suitable(waiting) if request and not waiting.problem else frozenset()
            if nodes and (wanted := profiles_of(request)):
                devices.append(MigDemand(waiting.uid, wanted, nodes))
            if nodes and (gpus := request.devices.get(names.WHOLE_GPU, 0) or min(request.units, 1)):
                uncut.append(UncutDemand(waiting.uid, gpus, nodes))
        return devices, uncut

    def _suitable(self, waiting: WaitingPod) -> frozenset[str]:
        """Nodes of the policy on which the pod could run but for its GPUs."""
        return frozenset(self._nodes.keys() & self._cluster.suitable(waiting.demand, but_for_gpus=True))

    async def _tell(
        self, node: Node, gpus: Sequence[DemandGpu], targets: Mapping[str, MigLayout | None]
    ) -> None:
        """Say to a node how its GPUs are to be, if that is not what was said."""
        try:
            said = decode_wanted(node.annotations)
        except InputError:
            said = {}
        wanted: dict[str, Target] = {}
        for gpu in gpus:
            if gpu.uuid in targets:
                layout = targets[gpu.uuid]
                wanted[gpu.uuid] = None if layout is None else placements(layout)
            elif gpu.uuid in said:
                wanted[gpu.uuid] = placements(gpu.layout) if gpu.enabled else None
        if not wanted and not said:
            return
        text = encode_wanted(wanted)
        if node.annotations.get(names.MIG_WANTED) != text:
            await self._client.patch(Node, node.name, {"metadata": {"annotations": {names.MIG_WANTED: text}}})

    def _explain(self, plan: DemandPlan) -> None:
        for placement in plan.placed:
            if any(uuid in plan.targets for _, uuid in placement.devices):
                self._say(placement.pod, "Normal", "CuttingGPU", self._cutting(placement))
        for uid, verdict in plan.refused.items():
            self._say(uid, "Warning", "NoRoomToCut", verdict.message)

    def _cutting(self, placement: MigPlacement) -> str:
        counts: dict[str, list[MigProfile]] = {}
        for profile, uuid in placement.devices:
            counts.setdefault(uuid, []).append(profile)
        index = {gpu.uuid: gpu.index for gpu in self._cuts.get(placement.node, ("", ()))[1]}
        where = " and ".join(
            f"{say_counts([(p, ps.count(p)) for p in dict.fromkeys(ps)])} from GPU {index.get(uuid, uuid)}"
            for uuid, ps in sorted(counts.items(), key=lambda item: index.get(item[0], 0))
        )
        return f"node {placement.node} is told to cut {where}"

    def _say(self, uid: str, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        waiting = self._cluster.waiting(uid)
        if waiting is not None and self._said.get(uid) != message:
            self._said[uid] = message
            self._recorder.record(waiting.pod, kind, reason, message)

    # --- what changes -----------------------------------------------------------------------------
    def _on_change(self, change: Change) -> None:
        match change.object:
            case Node() as node if change.kind == "node-gone" or _is_static(node):
                self._drop(node.name)
            case Node() as node:
                self._nodes[node.name] = node
            case Pod() as pod if change.kind == "pod-gone" or pod.spec.node_name:
                self._said.pop(pod.uid, None)
        if change.node in self._nodes or (self._nodes and self._cluster.has_unschedulable):
            self._changed.set()

    def _drop(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._cuts.pop(name, None)
        self._failed.pop(name, None)
        self._problems.pop(name, None)


def _is_static(node: Node) -> bool:
    return node.labels.get(names.MIG_POLICY, MigPolicy.STATIC) == MigPolicy.STATIC
