"""Holds the one state of the cluster in a process: nodes, their pods, waiting pods, and who holds which GPU.

It is fed with API objects and can be thrown away at any time: after a restart the same objects give the same
state. Decisions are made from it once its gate is open; components that have to act on changes subscribe.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from gpuslice.clock import Clock
from gpuslice.cluster.accounts import GpuAccounts
from gpuslice.cluster.nodetable import Mask, NodeTable
from gpuslice.cluster.nominations import Nominations
from gpuslice.cluster.podstatus import has_ended, is_unschedulable
from gpuslice.cluster.waiting import Demand, WaitingPod, read_waiting
from gpuslice.errors import Unavailable
from gpuslice.kube.gate import Gate
from gpuslice.kube.quarantine import Quarantine
from gpuslice.kube.wire import Node, ObjectMeta, Pod
from gpuslice.placement.fleet import Codes
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.requests.pod import PodRequest
from gpuslice.units import GIB, MemoryUnit

REPLAY: Final = 250
"""Number of objects passed to a new subscriber between two yields to the event loop."""

ChangeKind = Literal["node", "node-gone", "pod", "pod-gone", "unhealthy"]


@dataclass(frozen=True, slots=True)
class Change:
    """What has changed: the object as it is now (one that is gone: as it was last), and as it was known
    before.

    `node`: the node whose rules or free resources may have changed, "" if none: for a pod, its node or the
    one that it was to be on. `not_kept`: the node where room was kept for the pod, which no longer needs it.
    """

    kind: ChangeKind
    node: str
    object: Node | Pod | None = None
    before: Node | Pod | None = None
    not_kept: str = ""


Listener = Callable[[Change], None]


class Cluster(GpuAccounts):
    """The whole state. Synchronous; for one event loop."""

    def __init__(self, *, clock: Clock, policy: Policy = BINPACK, default_unit: MemoryUnit = GIB) -> None:
        super().__init__(clock=clock, policy=policy, default_unit=default_unit)
        self.gate = Gate()
        """Asked before anything is decided. Whoever feeds the cluster sets it; fed by hand it is whole."""
        self.quarantine = Quarantine()
        """Objects that could not be read, by whoever in this process reads them."""
        self.failed_actions: Counter[str] = Counter()
        """How often an action of a controller failed, by its kind."""
        self.table = NodeTable()
        """What nodes answer to pods, but for their GPUs."""
        self.nominations = Nominations(self.table, self)
        """For whom room is kept, and where."""
        self._listeners: list[Listener] = []
        self._live: dict[str, Pod] = {}  # uid -> every pod that has not ended
        self._waiting: dict[str, Pod] = {}  # those of them that have no node
        self._unschedulable: dict[str, Pod] = {}
        self._demands: dict[str, WaitingPod] = {}  # what they ask for, read when somebody wants to know
        self._fleet_rows: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._fleet_rows_of = (-1, -1)

    # --- feeds ------------------------------------------------------------------------------------
    def set_node(self, node: Node) -> None:
        """A node was added or changed in any way (labels, capacity, GPUs swapped)."""
        change = Change("node", node.name, node, self.table.node(node.name))
        self._apply(change, partial(self.table.set_node, node), partial(super().set_node, node))

    def drop_node(self, name: str) -> None:
        """A node is gone. Its pods are remembered until they are gone too."""
        before = self.table.node(name)
        change = Change("node-gone", name, before, before)
        self._apply(change, partial(self.table.drop_node, name), partial(super().drop_node, name))

    def set_unhealthy(self, node: str, text: str | None) -> None:
        """The `gpus` key of ConfigMap unhealthy-gpu-<node>; None if there is no such map."""
        if self.mark_unhealthy(node, text) and (there := self.table.node(node)) is not None:
            self._apply(Change("unhealthy", node), partial(super().set_node, there))

    def set_pod(self, pod: Pod) -> None:
        """A pod was added or changed. What it was given is fixed when it is bound; see `GpuAccounts`."""
        placed = pod.spec.node_name or has_ended(pod)
        not_kept = (self.nominations.withdraw(pod.uid) or "") if placed else ""
        change = Change("pod", self._node_of(pod), pod, self._live.get(pod.uid), not_kept)
        self._apply(change, partial(super().set_pod, pod), partial(self._note, pod))

    def drop_pod(self, uid: str, last: Pod | None = None) -> None:
        """A pod is gone. Unknown uids are fine. `last`: the pod as it was last, used if it was not known."""
        before = self._live.get(uid)
        pod = before or last or Pod(metadata=ObjectMeta(uid=uid))
        not_kept = self.nominations.withdraw(uid) or ""
        change = Change("pod-gone", self._node_of(pod), pod, before, not_kept)
        self._apply(change, partial(super().drop_pod, uid), partial(self._lose, uid))

    def _node_of(self, pod: Pod) -> str:
        assigned = self.table.pod(pod.uid)
        return pod.spec.node_name or (assigned.node if assigned is not None else "")

    def _note(self, pod: Pod) -> None:
        if has_ended(pod):
            self._lose(pod.uid)
            return
        self._live[pod.uid] = pod
        self._unschedulable.pop(pod.uid, None)
        if pod.spec.node_name:
            self._waiting.pop(pod.uid, None)
            self._demands.pop(pod.uid, None)
            self.table.set_pod(pod)
            return
        self._waiting[pod.uid] = pod
        if is_unschedulable(pod):
            self._unschedulable[pod.uid] = pod

    def _lose(self, uid: str) -> None:
        self._live.pop(uid, None)
        self._waiting.pop(uid, None)
        self._demands.pop(uid, None)
        self._unschedulable.pop(uid, None)
        self.table.drop_pod(uid)

    # --- who listens ------------------------------------------------------------------------------
    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call the listener for every change from now on, after the cluster has taken it in. Returns a
        function that ends that.

        A late subscriber that needs what is there already calls `replay` as well.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def replay(self, listener: Listener) -> None:
        """Call a listener for everything that is there, as if it had just been added.

        Other tasks run in between, and changes are passed on as they come: the listener may get an object
        twice, but never in an older version. An exception of the listener puts the object into quarantine.
        """
        known: list[tuple[ChangeKind, str]] = [("node", name) for name in self.node_names()]
        known += [("pod", uid) for uid in self._live]
        for number, (kind, key) in enumerate(known, 1):
            there = self.table.node(key) if kind == "node" else self._live.get(key)
            if there is None:
                continue
            try:
                listener(Change(kind, self._node_of(there) if isinstance(there, Pod) else key, there))
            except Exception as error:
                self.quarantine.hold(there, error)
            if number % REPLAY == 0:
                await asyncio.sleep(0)

    def _apply(self, change: Change, *steps: Callable[[], object]) -> None:
        """Take the steps and call every listener, even if one of them raises.

        Raises the first of their exceptions.
        """
        problems: list[Exception] = []
        told: list[Callable[[], object]] = [partial(listener, change) for listener in self._listeners]
        for step in (*steps, *told):
            try:
                step()
            except Exception as error:
                problems.append(error)
        if problems:
            raise problems[0]

    # --- questions --------------------------------------------------------------------------------
    def node(self, name: str) -> Node | None:
        """The node object as last seen."""
        return self.table.node(name)

    def offered(self, node: str) -> Collection[str]:
        """The resources that any node has, in whatever amount. Can be called from any thread.

        Raises Unavailable if that is not known.
        """
        if why := self.gate.incomplete():
            raise Unavailable(why)
        known = self.table.node(node)
        if known is None:
            raise Unavailable("there is no such node")
        return known.status.allocatable or {}

    def nodes(self) -> list[Node]:
        """All nodes as last seen, by name."""
        return [node for name in self.node_names() if (node := self.table.node(name)) is not None]

    def live_pod(self, uid: str) -> Pod | None:
        """A pod that has not ended, as last seen."""
        return self._live.get(uid)

    def waiting(self, uid: str) -> WaitingPod | None:
        """A pod that has no node and has not ended; None also for a pod that cannot be read."""
        pod, known = self._waiting.get(uid), self._demands.get(uid)
        if pod is None or (known is not None and known.pod is pod):
            return known
        try:
            known = self._demands[uid] = read_waiting(pod)
        except Exception as error:  # one pod must not keep other pods from their nodes
            self.quarantine.hold(pod, error)
            return None
        return known

    def unschedulable(self) -> list[WaitingPod]:
        """The pods for which their scheduler found no node, those known longest first.

        Pods that could not be handled are left out until they are changed.
        """
        there = (
            self.waiting(uid) for uid, pod in self._unschedulable.items() if not self.quarantine.holds(pod)
        )
        return [waiting for waiting in there if waiting is not None]

    @property
    def has_unschedulable(self) -> bool:
        """True if there may be such pods."""
        return bool(self._unschedulable)

    def is_unschedulable(self, uid: str) -> bool:
        """True while a pod's scheduler finds no node for it."""
        return uid in self._unschedulable

    def suitable(self, demand: Demand, *, but_for_gpus: bool = False) -> list[str]:
        """The nodes on which such a pod could run now, GPU by GPU; nominations are not looked at.

        `but_for_gpus`: the nodes on which it could run if the GPUs were as it needs them.
        """
        table = self.table
        suits: Mask = table.suits(table.answers(demand.rules)) & table.fits(demand.footprint)
        if demand.request and not but_for_gpus:
            suits = suits & (self.gpu_codes(demand.request) == 0)
        return [str(name) for name in table.names[suits]]

    def gpu_codes(self, request: PodRequest) -> Codes:
        """The answer of each row's GPUs to a request, as indexes into CODES."""
        return self.fleet.codes(request)[self.fleet_rows()]

    def fleet_rows(self) -> npt.NDArray[np.int32]:
        """The fleet's row of each row of the table."""
        if self._fleet_rows_of != (self.fleet.version, self.table.version):
            self._fleet_rows = self.fleet.rows(self.table.names.tolist())
            self._fleet_rows_of = (self.fleet.version, self.table.version)
        return self._fleet_rows
