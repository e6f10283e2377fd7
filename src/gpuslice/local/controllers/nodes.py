"""Node lifecycle: a node whose kubelet has fallen silent becomes Unknown, and taints say what a node lacks.

Silence is measured on our own clock, from the last change of the node's Lease or heartbeat: the node's
clock may be wrong. Source: kubernetes `pkg/controller/nodelifecycle`.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from gpuslice.errors import NotFound
from gpuslice.kube.wire import Taint
from gpuslice.local.controllers.objects import Condition, Json, Lease, Managed, Node, Pod
from gpuslice.local.controllers.pods import ready
from gpuslice.local.controllers.runtime import Controller, Shared

GRACE_SECONDS: Final = 40.0
"""A node that has not been heard of for so long is Unknown (four lease renewals)."""
LEASE_NAMESPACE: Final = "kube-node-lease"
NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
OURS: Final = (NOT_READY, UNREACHABLE, UNSCHEDULABLE)


class NodeController(Controller):
    """Watches over heartbeats and keeps the lifecycle taints."""

    name: ClassVar[str] = "node"
    reads: ClassVar[tuple[type[Managed], ...]] = (Node, Lease, Pod)

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._nodes = shared.informers.of(Node)
        self._pods = shared.informers.of(Pod)
        self._heard: dict[str, float] = {}  # node name -> monotonic seconds
        self._nodes.listeners.append(self._on_node)
        shared.informers.of(Lease).listeners.append(self._on_lease)

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        if after is None:
            assert before is not None
            self._heard.pop(before.name, None)
            return
        beat = _ready(after).last_heartbeat_time
        if before is None or (
            _ready(before).last_heartbeat_time != beat and _ready(after).status != "Unknown"
        ):
            self._heard[after.name] = self.shared.clock.monotonic()
        self.queue.add(after.name)

    def _on_lease(self, before: Lease | None, after: Lease | None) -> None:
        if after is None or after.namespace != LEASE_NAMESPACE or after.name not in self._heard:
            return
        if before is None or before.spec.renew_time != after.spec.renew_time:
            self._heard[after.name] = self.shared.clock.monotonic()

    async def reconcile(self, key: str) -> None:
        """Judge one node's silence, then make its taints agree with its conditions."""
        node = self._nodes.get(key)
        if node is None or node.deleting:
            return
        left = (
            self._heard.get(key, self.shared.clock.monotonic())
            + GRACE_SECONDS
            - self.shared.clock.monotonic()
        )
        if left > 0:
            self.queue.add_after(key, left)
        elif _ready(node).status != "Unknown":
            node = await self._lost(node)
        await self._taint(node)
        if _ready(node).status == "Unknown":
            await self._pods_not_ready(node)

    async def _lost(self, node: Node) -> Node:
        now, never = self.shared.now(), not _ready(node).status
        reason = "NodeStatusNeverUpdated" if never else "NodeStatusUnknown"
        text = "Kubelet never posted node status." if never else "Kubelet stopped posting node status."
        given = node.status.conditions or (Condition(type="Ready"),)
        kinds = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
        conditions = tuple(
            replace(one, status="Unknown", reason=reason, message=text, last_transition_time=now)
            if one.type in kinds
            else one
            for one in given
        )
        self.shared.record(node, "Normal", "NodeNotReady", f"Node {node.name} status is now: NodeNotReady")
        body: Json = {"metadata": _exactly(node), "status": {"conditions": msgspec.to_builtins(conditions)}}
        return await self.patch(self._nodes, node, body, subresource="status")

    async def _taint(self, node: Node) -> None:
        there = node.spec.taints or ()
        wanted = _taints(node)
        kept = [one for one in there if one.key not in OURS]
        same = {(one.key, one.effect): one for one in there if one.key in OURS}
        if same.keys() == set(wanted):
            return
        now = self.shared.now()
        fresh = [
            same.get((key, effect)) or Taint(key, "", effect, now if effect == "NoExecute" else None)
            for key, effect in wanted
        ]
        taints = msgspec.to_builtins([*kept, *fresh])
        await self.patch(self._nodes, node, {"metadata": _exactly(node), "spec": {"taints": taints or None}})

    async def _pods_not_ready(self, node: Node) -> None:
        """What runs on a node that nobody hears of cannot be counted on."""
        now = self.shared.now()
        for pod in list(self._pods.items.values()):
            if pod.spec.node_name != node.name or not ready(pod):
                continue
            conditions = [
                replace(one, status="False", last_transition_time=now) if one.type == "Ready" else one
                for one in pod.status.conditions or ()
            ]
            body = {"metadata": _exactly(pod), "status": {"conditions": msgspec.to_builtins(conditions)}}
            try:
                await self.patch(self._pods, pod, body, subresource="status")
            except NotFound:
                continue


def _ready(node: Node) -> Condition:
    return next((one for one in node.status.conditions or () if one.type == "Ready"), Condition())


def _taints(node: Node) -> list[tuple[str, str]]:
    """(key, effect) of the lifecycle taints that the node should have."""
    wanted: list[tuple[str, str]] = []
    match _ready(node).status:
        case "True":
            pass
        case "Unknown":
            wanted = [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]
        case "False":
            wanted = [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]
        case _:  # no kubelet has spoken yet
            wanted = [(NOT_READY, "NoSchedule")]
    if node.spec.unschedulable:
        wanted.append((UNSCHEDULABLE, "NoSchedule"))
    return wanted


def _exactly(item: Managed) -> Json:
    return {"uid": item.uid, "resourceVersion": item.metadata.resource_version}
