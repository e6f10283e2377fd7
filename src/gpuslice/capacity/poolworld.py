"""The nodes and pods of the cluster as pools look at them, kept up to date by a feed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuslice import names
from gpuslice.capacity.dressing import PENDING, read_record
from gpuslice.capacity.nodepool import PoolWish
from gpuslice.capacity.poolplan import FAILED, PoolNode
from gpuslice.capacity.vmsizes import DISABLED, cut_of
from gpuslice.clock import Clock
from gpuslice.cluster.feed import ChangeKind
from gpuslice.cluster.podstatus import has_ended
from gpuslice.cluster.records import GpuView
from gpuslice.cluster.state import Cluster
from gpuslice.devices.catalogue import MODELS, GpuModel
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError
from gpuslice.kube.wire import KubeObject, Node, Pod

PRODUCT: Final = "nvidia.com/gpu.product"
ARRIVAL_SECONDS: Final = 10.0
"""A pod that still waits so long after it was bound has its devices, and waits for something else."""
AGENTS_STRATEGY: Final = "nvidia.com/mig.strategy"
"""Labels of GPU feature discovery: the GPUs' model, and how the agent counts MIG devices."""


class PoolWorld:
    """Synchronous, for one event loop. `cluster` says what the GPUs are and who holds them."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.nodes: dict[str, Node] = {}
        self.dressed: set[str] = set()
        """The nodes on which a pool has written."""
        self._cluster = cluster
        self._clock = clock
        self._pods: dict[str, Pod] = {}
        self._on: dict[str, set[str]] = {}  # node name -> uids of pods that would be lost with it
        self._empty_since: dict[str, float] = {}
        self._cordoned_since: dict[str, float] = {}
        self._bound_at: dict[str, float] = {}  # uid -> when the pod was first seen on its node

    def set(self, kind: ChangeKind, obj: KubeObject) -> None:
        """A feed's change."""
        match kind, obj:
            case "node", Node():
                self.nodes[obj.name] = obj
                (self.dressed.add if names.POOL_RECORD in obj.annotations else self.dressed.discard)(obj.name)
                self._empty_since.setdefault(obj.name, self._clock.monotonic())
                if obj.spec.unschedulable:
                    self._cordoned_since.setdefault(obj.name, self._clock.monotonic())
                else:
                    self._cordoned_since.pop(obj.name, None)
            case "node-gone", Node():
                self.drop(obj.name)
            case "pod", Pod():
                self._drop(obj.uid)
                if has_ended(obj):
                    self._bound_at.pop(obj.uid, None)
                else:
                    self._pods[obj.uid] = obj
                    if obj.spec.node_name:
                        self._bound_at.setdefault(obj.uid, self._clock.monotonic())
                    if obj.spec.node_name and not _stays(obj):
                        self._on.setdefault(obj.spec.node_name, set()).add(obj.uid)
            case "pod-gone", Pod():
                self._drop(obj.uid)
                self._bound_at.pop(obj.uid, None)

    def drop(self, node: str) -> None:
        """A node is gone."""
        self.nodes.pop(node, None)
        self.dressed.discard(node)
        self._empty_since.pop(node, None)
        self._cordoned_since.pop(node, None)

    def _drop(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        node = pod.spec.node_name if pod is not None else ""
        if node and uid in self._on.get(node, ()):
            self._on[node].discard(uid)
            if not self._on[node]:
                del self._on[node]
                self._empty_since[node] = self._clock.monotonic()

    def waiting(self) -> list[Pod]:
        """The pods for which their scheduler found no node, by name."""
        return sorted(
            (
                pod
                for pod in self._pods.values()
                if not pod.spec.node_name
                and pod.metadata.deletion_timestamp is None
                and any(
                    c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
                    for c in pod.status.conditions or ()
                )
            ),
            key=lambda pod: pod.key,
        )

    def pods_on(self, node: str) -> list[Pod]:
        """The pods that would be lost with a node's machine."""
        return [self._pods[uid] for uid in self._on.get(node, ())]

    def _arriving(self, node: str) -> int:
        """Pods that were bound to the node just now, and may not have been given their devices yet."""
        late = self._clock.monotonic() - ARRIVAL_SECONDS
        return sum(
            pod.status.phase in ("", "Pending") and self._bound_at[pod.uid] > late
            for pod in self.pods_on(node)
        )

    def look(self, name: str, wish: PoolWish) -> PoolNode:
        """A node as the plans see it. Raises InputError naming the node if its GPUs cannot be as wished."""
        node, record = self.nodes[name], read_record(self.nodes[name])
        view = self._cluster.snapshot(name)
        gpus = () if view is None else view.gpus
        available = sum(gpu.availability.ok for gpu in gpus)
        strategy = node.labels.get(names.MIG_STRATEGY) or node.labels.get(AGENTS_STRATEGY, "")
        wanted, wanted_strategy = "", wish.spec.mig_strategy.value
        if wish.spec.gpu_instance_profile is not None:
            wanted = self._config(node, wish)
        elif record.config:
            # With no profile any more the GPUs become whole; of whole ones every strategy says the same.
            wanted, wanted_strategy = DISABLED, strategy or MigStrategy.SINGLE.value
        state, now = node.labels.get(names.MIG_CONFIG_STATE, ""), self._clock.monotonic()
        in_step = view is not None and available <= view.allocatable_devices <= len(gpus)
        is_cut = names.NODE_GPUS not in node.annotations or _is_cut(gpus, wanted)
        reason = node.annotations.get(names.MIG_CONFIG_REASON, "")
        closed = bool(reason) and any(gpu.availability.closed for gpu in gpus)
        renamed = node.labels.get(AGENTS_STRATEGY, wanted_strategy) == wanted_strategy
        pods = len(self._on.get(name, ()))
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
            cut=any(gpu.parent for gpu in gpus),
            answered=state == FAILED or (in_step and renamed and (closed if state == PENDING else is_cut)),
            holders=len(self._cluster.pods_on(name)),
            arriving=self._arriving(name),
            pods=pods,
            cordoned=node.spec.unschedulable,
            closed=record.cordoned and node.spec.unschedulable,
            closed_s=now - self._cordoned_since.get(name, now),
            idle_s=0.0 if pods else now - since,
        )

    def _config(self, node: Node, wish: PoolWish) -> str:
        if wish.cut is not None:
            return wish.cut.config
        assert wish.spec.gpu_instance_profile is not None
        return cut_of(_model(node), wish.spec.gpu_instance_profile, field=f"node {node.name}").config


def members(nodes: Iterable[Node], wish: PoolWish, *, makes: bool) -> list[str]:
    """The names of a pool's nodes, sorted. A node is in one pool only.

    `makes`: the machines of pools without a selector are ours to make. Where they are not, the pool is the
    nodes that say so, as AKS's do.
    """
    name = wish.spec.name
    found = []
    for node in nodes:
        record = read_record(node)
        if record.pool and (record.pool, record.uid) != (name, wish.uid):
            continue
        if wish.selector is not None:
            suits = all(node.labels.get(key) == value for key, value in wish.selector.items())
        else:
            suits = not makes and name in (node.labels.get(names.POOL), node.labels.get(names.AKS_POOL))
        if suits or (record.made and record.pool == name):
            found.append(node.name)
    return sorted(found)


def _model(node: Node) -> GpuModel:
    product = node.labels.get(PRODUCT, "").partition("-MIG-")[0].removesuffix("-SHARED")
    for model in MODELS:
        if model.name.replace(" ", "-") == product:
            return model
    raise InputError(
        f"the model of its GPUs is not known ({product or f'no label {PRODUCT}'}); say the VM size",
        field=f"node {node.name}",
    )


def _is_cut(gpus: Iterable[GpuView], wanted: str) -> bool:
    """True if what an agent of ours offers is what this configuration makes of a GPU."""
    if not wanted:
        return True
    profile = wanted.removeprefix("all-")
    parts = [gpu for gpu in gpus if gpu.parent]
    return not parts if wanted == DISABLED else bool(parts) and all(g.model.endswith(profile) for g in parts)


def _is_ready(node: Node) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())


def _stays(pod: Pod) -> bool:
    """True for pods that belong to the node itself: of a DaemonSet, or the kubelet's own."""
    return any(owner.kind in ("DaemonSet", "Node") for owner in pod.metadata.owner_references)
