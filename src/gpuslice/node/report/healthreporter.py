"""Writes a node's condition `GPUUnhealthy`, and records events about GPUs that become unhealthy and recover.

True means trouble, as it does for all conditions of a node but Ready and for those of the node problem
detector, so that what watches these (Draino, machine health checks, alerts on
kube_node_status_condition) watches this one by its name alone. Its message names each sick GPU, why, and
the pods that hold a part of it; there is an event on the node, and one on each such pod.

Level-triggered: each event comes from a difference to what was reported last, which after a restart is read
from the condition. Events are recorded before the condition is written: an agent that is killed in between
records an event twice, never not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpuslice import names
from gpuslice.clock import Clock, rfc3339
from gpuslice.devices.found import Found
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.wire import MAX_VERSION, Node, NodeCondition, ObjectMeta, Pod
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.node.report.healthproblems import HealthProblem, problems, read, recovered, say
from gpuslice.node.report.writing import keep_written
from gpuslice.units import read_digits

SICK, WELL, NONE = names.UNHEALTHY_CONDITION, "GPUsAreHealthy", "NoGPUs"
"""Reasons of the condition: True, False, Unknown."""
RECOVERED: Final = "GPUHealthy"
HEARTBEAT_SECONDS: Final = 300.0
"""How often the condition is written although nothing has changed, as kubelet and the problem detector do: an
old heartbeat means that nobody watches the GPUs any more."""

Holders = Callable[[], Mapping[str, Sequence[NodePod]]]
"""The pods that certainly hold a GPU, a MIG device or a part of one, by its UUID."""


class HealthReporter:
    """One node's. `pods`: namespace/name of all pods that are here."""

    def __init__(
        self,
        client: Client,
        name: str,
        found: Callable[[], Found],
        recorder: EventRecorder,
        *,
        holders: Holders,
        pods: Callable[[], frozenset[str]],
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self._client = client
        self._name = name
        self._found = found
        self._recorder = recorder
        self._holders = holders
        self._pods = pods
        self._clock = clock
        self._random = random
        self._node: Node | None = None
        self._written = float("-inf")
        self._told: tuple[HealthProblem, ...] | None = None
        self._wake = asyncio.Event()

    def set_node(self, node: Node) -> None:
        """Take in the node as the API server has it; a version older than the one known is ignored."""
        known = self._node
        if known is None or known.uid != node.uid or _version(node) >= _version(known):
            self._node = node
            self._wake.set()

    def drop_node(self, _: Node) -> None:
        self._node = None

    def check(self) -> None:
        """Look again soon: the GPUs or their holders may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Report what has changed, for ever."""
        await keep_written(
            f"the condition of node {self._name}",
            self._publish,
            self._wake,
            every=HEARTBEAT_SECONDS,
            clock=self._clock,
            random=self._random,
        )

    async def _publish(self) -> None:
        node = self._node
        if node is None:
            return
        found, holders = self._found(), self._holders()
        present = next(
            (one for one in node.status.conditions or () if one.type == names.UNHEALTHY_CONDITION), None
        )
        told = self._told
        if told is None:
            told = read(present.message) if present is not None and present.status == "True" else ()
        by_name = {uuid: [pod.key for pod in pods] for uuid, pods in holders.items()}
        sick = problems(found, by_name, told, self._pods())
        self._record_events(node, sick, told, holders)
        for one in recovered(found, told):
            message = f"{one.device} is well again; it was unhealthy: {one.reason}"
            self._recorder.record(node, "Normal", RECOVERED, message)
        self._told = sick
        wanted = _condition(found, sick)
        now = self._clock.monotonic()
        if wanted == present and now - self._written < HEARTBEAT_SECONDS:
            return
        stamp = rfc3339(self._clock.now_ns())
        condition = {
            "type": wanted.type,
            "status": wanted.status,
            "reason": wanted.reason,
            "message": wanted.message,
            "lastHeartbeatTime": stamp,
        }
        if present is None or present.status != wanted.status:
            condition["lastTransitionTime"] = stamp
        # Strategic: the list is merged by type, and the conditions of others stay.
        body = {"status": {"conditions": [condition]}}
        self.set_node(
            await self._client.patch(Node, self._name, body, patch_type="strategic", subresource="status")
        )
        self._written = now

    def _record_events(
        self,
        node: Node,
        sick: Sequence[HealthProblem],
        told: Sequence[HealthProblem],
        holders: Mapping[str, Sequence[NodePod]],
    ) -> None:
        said = {(one.uuid, one.reason): one.pods for one in told}
        pods = {pod.key: pod for group in holders.values() for pod in group}
        for one in sick:
            knows = said.get((one.uuid, one.reason))
            if knows is None:
                self._recorder.record(node, "Warning", names.UNHEALTHY_CONDITION, str(one))
            for key in one.pods:
                if key in pods and key not in (knows or ()):
                    message = f"{one.device}, which this pod holds or shares, is unhealthy: {one.reason}"
                    self._recorder.record(_object(pods[key]), "Warning", names.UNHEALTHY_CONDITION, message)


def _condition(found: Found, sick: Sequence[HealthProblem]) -> NodeCondition:
    if sick:
        return NodeCondition(names.UNHEALTHY_CONDITION, "True", SICK, say(sick))
    count = len(found.gpus)
    if not count:
        return NodeCondition(names.UNHEALTHY_CONDITION, "Unknown", NONE, "the driver lists no GPU")
    return NodeCondition(
        names.UNHEALTHY_CONDITION, "False", WELL, f"{count} GPU{'s' * (count > 1)}, none is sick"
    )


def _object(pod: NodePod) -> Pod:
    """The fields of a pod that an event refers to."""
    return Pod(metadata=ObjectMeta(name=pod.name, namespace=pod.namespace, uid=pod.uid))


def _version(node: Node) -> int:
    return read_digits(node.metadata.resource_version, MAX_VERSION) or 0
