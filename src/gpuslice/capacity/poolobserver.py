"""Observes a pool's nodes: what the cluster shows of them, and since when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuslice import names
from gpuslice.capacity.nodepatch import read_record
from gpuslice.capacity.nodepool import DesiredPool
from gpuslice.capacity.poolplan import PoolNode
from gpuslice.capacity.vmsizes import DISABLED, partitioning_of
from gpuslice.clock import Clock
from gpuslice.cluster.podstatus import has_ended
from gpuslice.cluster.records import GpuView
from gpuslice.cluster.state import Change, Cluster
from gpuslice.devices.catalogue import MODELS, GpuModel
from gpuslice.devices.migstate import MigState
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node, Pod

ARRIVAL_SECONDS: Final = 10.0
"""A pod that has not started this long after its bind has its devices, and waits for something else."""


class PoolObserver:
    """Remembers since when nodes are empty or cordoned, and pods bound. For one event loop."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.patched: set[str] = set()
        """The nodes on which a pool has written."""
        self._cluster = cluster
        self._clock = clock
        self._busy: dict[str, set[str]] = {}  # node name -> uids of pods that would be lost with it
        self._empty_since: dict[str, float] = {}
        self._cordoned_since: dict[str, float] = {}
        self._bound_at: dict[str, float] = {}  # uid -> when the pod was first seen on its node

    def on_change(self, change: Change) -> None:
        """Remember the time of a change."""
        now = self._clock.monotonic()
        match change.kind, change.object:
            case "node", Node() as node:
                note = self.patched.add if names.POOL_RECORD in node.annotations else self.patched.discard
                note(node.name)
                self._empty_since.setdefault(node.name, now)
                if node.spec.unschedulable:
                    self._cordoned_since.setdefault(node.name, now)
                else:
                    self._cordoned_since.pop(node.name, None)
            case "node-gone", _:
                self.patched.discard(change.node)
                self._empty_since.pop(change.node, None)
                self._cordoned_since.pop(change.node, None)
            case "pod", Pod() as pod if not has_ended(pod):
                if pod.spec.node_name:
                    self._bound_at.setdefault(pod.uid, now)
                    if is_lost_with_node(pod):
                        self._busy.setdefault(pod.spec.node_name, set()).add(pod.uid)
            case "pod" | "pod-gone", Pod() as pod:
                self._bound_at.pop(pod.uid, None)
                if pod.uid in (there := self._busy.get(change.node, set())):
                    there.discard(pod.uid)
                    if not there:
                        del self._busy[change.node]
                        self._empty_since[change.node] = now

    def pods_on(self, node: str) -> list[Pod]:
        """The pods that would be lost with a node's machine."""
        pods = (self._cluster.live_pod(uid) for uid in self._busy.get(node, ()))
        return [pod for pod in pods if pod is not None]

    def _arriving(self, node: str) -> int:
        """Pods that were bound to the node a moment ago, and may not have been given their devices yet."""
        late = self._clock.monotonic() - ARRIVAL_SECONDS
        return sum(
            pod.status.phase in ("", "Pending") and self._bound_at[pod.uid] > late
            for pod in self.pods_on(node)
        )

    def observe(self, node: Node, desired: DesiredPool) -> PoolNode:
        """A node as the plans see it. Raises InputError naming the node if its GPUs cannot be as desired."""
        name, record = node.name, read_record(node)
        view = self._cluster.snapshot(name)
        gpus = () if view is None else view.gpus
        available = sum(one.gpu.availability.ok for one in gpus)
        strategy = node.labels.get(names.MIG_STRATEGY) or node.labels.get(names.NVIDIA_MIG_STRATEGY, "")
        wanted, wanted_strategy = "", desired.spec.mig_strategy.value
        if desired.spec.gpu_instance_profile is not None:
            wanted = self._config(node, desired)
        elif record.config:
            # If the profile was removed the GPUs become whole, and whole GPUs are the same under every
            # strategy.
            wanted, wanted_strategy = DISABLED, strategy or MigStrategy.SINGLE.value
        state, now = node.labels.get(names.MIG_CONFIG_STATE, ""), self._clock.monotonic()
        in_step = view is not None and available <= view.allocatable_devices <= len(gpus)
        is_cut = names.NODE_GPUS not in node.annotations or _is_cut(gpus, wanted)
        reason = node.annotations.get(names.MIG_CONFIG_REASON, "")
        closed = bool(reason) and any(one.gpu.availability.closed for one in gpus)
        renamed = node.labels.get(names.NVIDIA_MIG_STRATEGY, wanted_strategy) == wanted_strategy
        pods = len(self._busy.get(name, ()))
        since = self._empty_since.get(name, now)
        return PoolNode(
            name,
            ready=_is_ready(node) and available > 0 and in_step and is_cut,
            wanted=wanted,
            wanted_strategy=wanted_strategy,
            config=node.labels.get(names.MIG_CONFIG, ""),
            state=state,
            reason=reason,
            strategy=strategy,
            partitioned=any(one.gpu.parent for one in gpus),
            answered=state == MigState.FAILED
            or (in_step and renamed and (closed if state == MigState.PENDING else is_cut)),
            holders=len(self._cluster.pods_on(name)),
            arriving=self._arriving(name),
            pods=pods,
            cordoned=node.spec.unschedulable,
            closed=record.cordoned and node.spec.unschedulable,
            closed_s=now - self._cordoned_since.get(name, now),
            idle_s=0.0 if pods else now - since,
        )

    def _config(self, node: Node, desired: DesiredPool) -> str:
        if desired.partitioning is not None:
            return desired.partitioning.config
        assert desired.spec.gpu_instance_profile is not None
        return partitioning_of(
            _model(node), desired.spec.gpu_instance_profile, field=f"node {node.name}"
        ).config


def members(nodes: Iterable[Node], desired: DesiredPool, *, makes: bool) -> list[Node]:
    """Those of the nodes that belong to a pool. A node is in one pool only.

    `makes`: we make the machines of pools without a selector. Where we do not, the pool consists of the nodes
    that name it in a label, as AKS's do.
    """
    name = desired.spec.name
    found = []
    for node in nodes:
        record = read_record(node)
        if record.pool and (record.pool, record.uid) != (name, desired.uid):
            continue
        if desired.selector is not None:
            suits = all(node.labels.get(key) == value for key, value in desired.selector.items())
        else:
            suits = not makes and name in (node.labels.get(names.POOL), node.labels.get(names.AKS_POOL))
        if suits or (record.made and record.pool == name):
            found.append(node)
    return found


def _model(node: Node) -> GpuModel:
    product = node.labels.get(names.GPU_PRODUCT, "").partition("-MIG-")[0].removesuffix("-SHARED")
    for model in MODELS:
        if model.name.replace(" ", "-") == product:
            return model
    raise InputError(
        f"the model of its GPUs is not known ({product or f'no label {names.GPU_PRODUCT}'}); say the VM size",
        field=f"node {node.name}",
    )


def _is_cut(gpus: Iterable[GpuView], wanted: str) -> bool:
    """True if what our agent offers on the node is what this configuration makes of a GPU."""
    if not wanted:
        return True
    profile = wanted.removeprefix("all-")
    parts = [one for one in gpus if one.gpu.parent]
    return (
        not parts if wanted == DISABLED else bool(parts) and all(g.gpu.model.endswith(profile) for g in parts)
    )


def _is_ready(node: Node) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())


def is_lost_with_node(pod: Pod) -> bool:
    """False for pods that have ended or belong to the node itself: of a DaemonSet, or the kubelet's own."""
    return not has_ended(pod) and all(
        owner.kind not in ("DaemonSet", "Node") for owner in pod.metadata.owner_references
    )
