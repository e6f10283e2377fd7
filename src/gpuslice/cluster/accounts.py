"""Accounts for who holds which GPU of the cluster: pods, reservations, and pods whose GPU nobody recorded.

Pods are accounted by uid (a StatefulSet's pod that is recreated under the same name is another pod) and
release their memory when their containers have ended, not when their deletion was asked for.

Nothing here awaits, so choosing a GPU and reserving it is one step for everybody on the event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec.structs import replace as replace_struct

from gpuslice import names
from gpuslice.clock import Clock
from gpuslice.cluster.annotations import (
    decode_allocation,
    encode_allocation,
    encode_record,
    gpushare_allocation,
    recorded_spread,
)
from gpuslice.cluster.nodes import NodeInfo, read_node, read_unhealthy
from gpuslice.cluster.podcode import PodCode
from gpuslice.cluster.podstatus import has_ended
from gpuslice.cluster.records import GpuView, NodeView, PodRecord, PodShare
from gpuslice.cluster.swaps import is_assigned, swap_places
from gpuslice.cluster.text import RECORD_LIMIT
from gpuslice.devices.inventory import NodeGpus
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.fleet import CODES, Fleet
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.node import place
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.preempt import choose_victims, fits_without
from gpuslice.placement.search import Steps
from gpuslice.placement.verdict import FITS, Code, Verdict, refusal
from gpuslice.requests.allocation import Allocation, Charge
from gpuslice.requests.pod import MAX_CONTAINERS, PodRequest, count_spec, peak, read_given, read_request
from gpuslice.units import GIB, MemoryUnit

GUESS_STEPS: Final = 100
"""Steps of the exact search for a pod whose GPU nobody recorded: a node may have a hundred of them."""
_HINTS = (names.ALLOCATION, names.GPUSHARE_ALLOCATION, names.MEM_IDX, names.MEM_ASSIGNED)


@dataclass(frozen=True, slots=True)
class FilterOutcome:
    """The nodes that can take a pod, in the order asked, and why the others cannot."""

    fits: list[str]
    refused: dict[str, Verdict]


class GpuAccounts:
    """The GPUs of all nodes and what pods hold of them. Synchronous; for one event loop."""

    def __init__(self, *, clock: Clock, policy: Policy = BINPACK, default_unit: MemoryUnit = GIB) -> None:
        self.policy = policy
        self.fleet = Fleet()
        self._clock = clock
        self._default_unit = default_unit
        self._infos: dict[str, NodeInfo] = {}
        self._unhealthy: dict[str, frozenset[int]] = {}
        # uid -> pod; node name -> the uids on it (the node itself may be unknown)
        self._pods: dict[str, PodRecord] = {}
        self._on_node: dict[str, set[str]] = {}

    # --- feeds ------------------------------------------------------------------------------------
    def set_node(self, node: Node) -> None:
        """A node was added or changed in any way (labels, capacity, GPUs swapped)."""
        info = read_node(node, self._default_unit, self._unhealthy.get(node.name, ()))
        if info == self._infos.get(node.name):
            return
        self._infos[node.name] = info
        self.fleet.set_node(node.name, info.gpus, units=info.units, whole=info.whole)
        # Pods whose GPU is known are counted first, so that the other pods are put where memory is really
        # free.
        records = [self._pods[uid] for uid in sorted(self._on_node.get(node.name, ()))]
        unknown = []
        for record in records:
            settled = record if record.assumed else self._read(record)
            if settled.allocation is None:
                unknown.append(settled)
            else:
                self._charge(settled)
        for record in unknown:
            self._charge(self._guess(record))

    def drop_node(self, name: str) -> None:
        """A node is gone. Its pods are remembered until they are gone too."""
        self._infos.pop(name, None)
        self.fleet.drop_node(name)

    def mark_unhealthy(self, node: str, text: str | None) -> bool:
        """Take in what ConfigMap unhealthy-gpu-<node> says of a node. True if that is new: the node has then
        changed.
        """
        marked = read_unhealthy(text)
        if marked == self._unhealthy.get(node, frozenset()):
            return False
        self._unhealthy[node] = marked
        return True

    def set_pod(self, pod: Pod) -> None:
        """A pod was added or changed.

        What it was given is fixed when it is bound. Annotations may say on which GPUs that is. If they do not
        say it believably, the pod counts with what its spec asks for, where it counted before or where the
        engine would put it.
        """
        try:
            self._set_pod(pod)
        except Exception:
            # What it holds cannot be known. What was counted before stays; otherwise the spec counts.
            if pod.uid not in self._pods:
                self._set_pod(replace_struct(pod, metadata=replace_struct(pod.metadata, annotations=None)))
            raise

    def _set_pod(self, pod: Pod) -> None:
        old = self._pods.get(pod.uid)
        if not pod.spec.node_name:
            return
        if has_ended(pod):
            self.drop_pod(pod.uid)
            return
        known = old if old is not None and old.node == pod.spec.node_name else None
        request = known.request if known is not None else _given(pod)
        if not request:
            self.drop_pod(pod.uid)
            return
        record = PodRecord(
            pod.uid,
            pod.namespace,
            pod.name,
            pod.spec.node_name,
            pod.spec.priority,
            request,
            None,
            terminating=pod.metadata.deletion_timestamp is not None,
            containers=tuple(container.name for container in pod.spec.containers),
            hints=_hints(pod),
            proven=_proven(known) if known is not None else (),
        )
        if old is not None:
            if record == replace(old, allocation=None, charges=()):
                return
            record = self._succeed(old, self._locate(record))
            self._uncharge(old)
        else:
            record = self._locate(record)
        self._charge(record)

    def drop_pod(self, uid: str) -> None:
        """A pod is gone, or its containers have ended. Unknown uids are fine."""
        record = self._pods.get(uid)
        if record is not None:
            self._uncharge(record)

    # --- questions --------------------------------------------------------------------------------
    def request_of(self, pod: Pod) -> PodRequest:
        """The normalised request of a pod. Raises InputError naming the field."""
        return read_request(pod.spec, pod.annotations)

    def node_names(self) -> list[str]:
        """All nodes, sorted."""
        return self.fleet.names()

    def gpus(self, node: str) -> NodeGpus | None:
        """The GPUs of a node."""
        return self.fleet.gpus(node)

    def pod(self, uid: str) -> PodRecord | None:
        """What a pod holds, if it holds anything."""
        return self._pods.get(uid)

    def pods_on(self, node: str) -> list[PodRecord]:
        """The pods that hold GPUs of a node, by namespace and name."""
        return sorted((self._pods[uid] for uid in self._on_node.get(node, ())), key=lambda r: (r.key, r.uid))

    def check(self, request: PodRequest, node: str) -> Verdict:
        """The verdict of one node on a request."""
        if not request:
            return FITS if node in self.fleet else refusal(Code.NODE_NOT_FOUND, node)
        return self.fleet.verdict(request, node, self.policy)

    def filter(self, request: PodRequest, nodes: Sequence[str]) -> FilterOutcome:
        """Which of these nodes can take the pod: one vectorised check, however many nodes."""
        if not request:
            return FilterOutcome(list(nodes), {})
        fits: list[str] = []
        refused: dict[str, Verdict] = {}
        codes = self.fleet.codes(request)[self.fleet.rows(nodes)].tolist()
        for name, number in zip(nodes, codes, strict=True):
            if number:
                refused[name] = refusal(CODES[number], name)
            else:
                fits.append(name)
        return FilterOutcome(fits, refused)

    def scores(self, request: PodRequest, nodes: Sequence[str]) -> list[int]:
        """0..1000 for each node, higher is better, by the cluster's policy."""
        return self.fleet.scores(request, nodes, self.policy) if request else [0] * len(nodes)

    def victims(self, request: PodRequest, node: str, priority: int) -> tuple[PodRecord, ...] | None:
        """The cheapest pods below `priority` to evict from a node so that the request fits on its GPUs.

        () if it fits already, None if no eviction helps.
        """
        gpus = self.fleet.gpus(node)
        if gpus is None:
            return None
        holders = [record.holder for record in self.pods_on(node)]
        chosen = choose_victims(request, gpus.unit, self.fleet.free_gpus(node), holders, priority)
        return None if chosen is None else tuple(self._pods[holder.uid] for holder in chosen)

    def fits_without(self, request: PodRequest, node: str, uids: Collection[str]) -> bool:
        """Would the request fit on a node's GPUs if these pods had ended?"""
        gpus = self.fleet.gpus(node)
        gone = [record.holder for record in self.pods_on(node) if record.uid in uids]
        return gpus is not None and fits_without(request, gpus.unit, self.fleet.free_gpus(node), gone)

    # --- reservations -----------------------------------------------------------------------------
    def assume(self, pod: Pod, node: str) -> tuple[Allocation, Verdict] | Verdict:
        """Choose the pod's GPUs on a node and reserve them under its uid, in one step.

        A Verdict alone is a refusal. A second call for the same pod and node returns the same.
        """
        known = self._pods.get(pod.uid)
        if known is not None:
            if known.node == node and known.allocation is not None:
                return known.allocation, FITS
            return Verdict(
                PodCode.ALREADY_BOUND, f"pod {known.key} already holds GPU memory on node {known.node}"
            )
        try:
            request = self.request_of(pod)
        except InputError as error:
            return Verdict(Code.BAD_REQUEST, str(error))
        if not request:
            return Verdict(Code.BAD_REQUEST, f"pod {pod.key} asks for no GPU")
        outcome = self.fleet.place(request, node, self.policy)
        if isinstance(outcome, Verdict):
            return outcome
        record = PodRecord(
            pod.uid,
            pod.namespace,
            pod.name,
            node,
            pod.spec.priority,
            request,
            outcome,
            outcome.charges(request),
            assumed=True,
            containers=tuple(container.name for container in pod.spec.containers),
        )
        self._charge(record)
        return outcome, FITS

    def forget(self, uid: str) -> None:
        """Drop an assumption that the API server never confirmed. Anything else is left alone."""
        record = self._pods.get(uid)
        if record is not None and record.assumed:
            self._uncharge(record)

    def annotations_for(self, pod: Pod, node: str, allocation: Allocation) -> dict[str, str]:
        """The annotations that record an allocation at bind: ours and gpushare's, not yet assigned."""
        gpus = self.fleet.gpus(node)
        if gpus is None:
            return {}
        request = self.request_of(pod)
        containers = [container.name for container in pod.spec.containers]
        return encode_allocation(
            request, allocation, gpus, assume_time_ns=self._clock.now_ns(), assigned=False
        ) | gpushare_allocation(containers, allocation, gpus)

    # --- views ------------------------------------------------------------------------------------
    def snapshot(self, node: str) -> NodeView | None:
        """One node as `inspect` shows it; None if it is unknown."""
        info = self._infos.get(node)
        if info is None:
            return None
        shares: dict[str, list[PodShare]] = {gpu.uuid: [] for gpu in info.gpus.gpus}
        pending: list[PodShare] = []
        for record in self.pods_on(node):
            if record.allocation is None:
                mib = info.gpus.unit.to_mib(record.request.units)
                pending.append(PodShare(record.uid, record.namespace, record.name, mib))
                continue
            for charge in record.charges:
                # A reservation may name a GPU that has vanished in the meantime.
                shares.get(charge.gpu, pending).append(
                    PodShare(
                        record.uid, record.namespace, record.name, charge.mib, charge.whole, record.assumed
                    )
                )
        views = tuple(GpuView(gpu, tuple(shares[gpu.uuid])) for gpu in info.gpus.gpus)
        return NodeView(
            node,
            info.address,
            info.gpus.unit,
            views,
            tuple(pending),
            info.units,
            info.problem,
            sum(info.whole.values()),
            info.rest,
        )

    def snapshots(self) -> list[NodeView]:
        """All nodes by name."""
        return [view for name in self.node_names() if (view := self.snapshot(name)) is not None]

    # --- inside -----------------------------------------------------------------------------------
    def _locate(self, record: PodRecord) -> PodRecord:
        """Decide on which GPUs a bound pod counts: by its annotations; if they do not say, where it counted
        before.
        """
        read = self._read(record)
        return read if read.allocation is not None else self._guess(read)

    def _succeed(self, old: PodRecord, new: PodRecord) -> PodRecord:
        """The record of a pod that is counted already; see `swaps`."""
        if old.node != new.node:
            return new
        if old.allocation is None and new.allocation is None and old.charges:
            return replace(new, charges=old.charges)  # nothing was learnt
        if old.allocation is None or new.allocation is None:
            return new
        if new.proven != new.hints:
            # What the annotations say now cannot be believed.
            return replace(new, allocation=old.allocation, charges=old.charges)
        if new.allocation == old.allocation and not is_assigned(new):
            return replace(new, charges=old.charges)
        siblings = self._on_node.get(new.node, ())
        # A reservation gives way to nobody: the writer of this pod's annotations did not know of it.
        others = (self._pods[uid] for uid in siblings if uid != new.uid and not self._pods[uid].assumed)
        giving = swap_places(old, new, others)
        if not giving and not is_assigned(new) and not self._has_room(old, new):
            # This is only a plan, and an impossible one: what it would free would be given to one pod too
            # many.
            return replace(new, charges=old.charges)
        for moved in giving:
            self._uncharge(self._pods[moved.uid])
            self._charge(moved)
        return new

    def _has_room(self, old: PodRecord, new: PodRecord) -> bool:
        """True if there is enough free where a pod would newly be counted."""
        free_gpus = {one.gpu.uuid: one for one in self.fleet.free_gpus(new.node)}
        return all(
            (one := free_gpus.get(charge.gpu)) is not None
            and (one.untouched if charge.whole else one.free_mib >= charge.mib)
            for charge in new.charges
            if charge not in old.charges
        )

    def _read(self, record: PodRecord) -> PodRecord:
        gpus = self.fleet.gpus(record.node)
        if gpus is None:
            return replace(record, allocation=None, charges=())
        for hints in dict.fromkeys((record.hints, record.proven)):
            allocation = decode_allocation(dict(hints), record.request, record.containers, gpus)
            if allocation is not None:
                charges = allocation.charges(record.request)
                return replace(record, allocation=allocation, charges=charges, proven=hints)
        return replace(record, allocation=None, charges=())

    def _guess(self, record: PodRecord) -> PodRecord:
        gpus = self.fleet.gpus(record.node)
        return replace(record, charges=self._likely(record.request, record.node, gpus)) if gpus else record

    def _likely(self, request: PodRequest, node: str, gpus: NodeGpus) -> tuple[Charge, ...]:
        """Where the engine would put a pod whose GPU is unknown; if it fits nowhere, the emptiest GPU."""
        free_gpus: list[FreeGpu] = self.fleet.free_gpus(node)
        if len(request.containers) <= MAX_CONTAINERS:
            outcome = place(request, gpus.unit, free_gpus, self.policy, steps=Steps(GUESS_STEPS))
            if isinstance(outcome, Allocation):
                return outcome.charges(request)
        emptiest = sorted(free_gpus, key=lambda one: (-one.free_mib, one.gpu.index))
        if not emptiest:
            return ()
        shares = gpus.unit.to_mib(peak((c.role, c.units) for c in request.containers))
        whole = tuple(
            Charge(one.gpu.uuid, one.gpu.memory_mib, whole=True)
            for resource, count in request.devices.items()
            for one in [one for one in emptiest if one.gpu.resource == resource][:count]
        )
        return (*whole, Charge(emptiest[0].gpu.uuid, shares, whole=False)) if shares else whole

    def _charge(self, record: PodRecord) -> None:
        self._pods[record.uid] = record
        self._on_node.setdefault(record.node, set()).add(record.uid)
        self.fleet.charge(record.node, record.charges, record.request)

    def _uncharge(self, record: PodRecord) -> None:
        del self._pods[record.uid]
        siblings = self._on_node[record.node]
        siblings.discard(record.uid)
        if not siblings:
            del self._on_node[record.node]
        self.fleet.release(record.node, record.charges, record.request)


def _given(pod: Pod) -> PodRequest:
    """What a pod that has a node was given, as far as the pod itself can tell."""
    containers = [container.name for container in pod.spec.containers]
    try:
        return read_given(pod.spec, pod.annotations, recorded_spread(pod.annotations, containers))
    except InputError:
        return count_spec(pod.spec)


def _hints(pod: Pod) -> tuple[tuple[str, str], ...]:
    return tuple(
        (key, text)
        for key in _HINTS
        if (text := pod.annotations.get(key)) is not None and len(text) <= RECORD_LIMIT
    )


def _proven(known: PodRecord) -> tuple[tuple[str, str], ...]:
    """The annotations that decide where a pod counts; for a reservation, those that it was bound with."""
    if known.assumed and known.allocation is not None:
        return ((names.ALLOCATION, encode_record(known.allocation)),)
    return known.proven
