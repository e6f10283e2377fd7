"""Estimates whether waiting pods would fit on nodes that do not exist yet, with the engine that decides for
existing nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gpuslice.clock import Clock
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.waiting import WaitingPod, read_waiting
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.verdict import Verdict


class NodeEstimator:
    """Says how many new nodes the waiting pods need."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    def needed(self, pods: Sequence[Pod], template: Node, limit: int) -> list[list[Pod]]:
        """The pods on each of the new nodes like `template`, at most `limit`, that take as many of the pods
        as possible.

        A pod that fits on an existing node needs none: its scheduler will find that node by itself. A pod
        that does not fit on an empty new node is left out.
        """
        new = Cluster(clock=self._clock, policy=self._cluster.policy)
        made: list[list[Pod]] = []
        for pod in pods:
            waiting = read_waiting(pod)
            if waiting.problem or self._cluster.suitable(waiting.demand):
                continue
            for number in range(min(len(made) + 1, limit)):
                node = _named(template, f"{template.name}-{number}")
                if number == len(made):
                    new.set_node(node)
                if _takes(new, waiting, node.name):
                    new.table.set_pod(pod, node.name)
                    made[number:] = [
                        [*(made[number] if number < len(made) else []), pod],
                        *made[number + 1 :],
                    ]
                    break
        return made


def _takes(cluster: Cluster, waiting: WaitingPod, node: str) -> bool:
    """Reserve the pod's GPUs on a node that may be added, if the node suits."""
    demand, table, row = waiting.demand, cluster.table, cluster.table.row(node)
    if row is None or table.answers(demand.rules).refusals[row] or table.shortages(demand.footprint, row):
        return False
    return not demand.request or not isinstance(cluster.assume(waiting.pod, node), Verdict)


def _named(template: Node, name: str) -> Node:
    labels = {**template.labels, "kubernetes.io/hostname": name}
    return replace(template, metadata=replace(template.metadata, name=name, uid=name, labels=labels))
