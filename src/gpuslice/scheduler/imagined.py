"""Would pods that wait fit on nodes that do not exist yet? Asked of the same engine as for nodes that do."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gpuslice.clock import Clock
from gpuslice.cluster.feed import ChangeKind, ClusterFeed
from gpuslice.cluster.nodetable import NodeTable
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.waiting import WaitingPod, read_waiting
from gpuslice.kube.wire import KubeObject, Node, Pod
from gpuslice.placement.verdict import Verdict


class Imagined:
    """Listens to the feed (make it before the feed runs), and knows which pods fit on what there is."""

    def __init__(self, cluster: Cluster, feed: ClusterFeed, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._table = NodeTable()
        feed.listeners.append(self._on_change)

    def needed(self, pods: Sequence[Pod], template: Node, limit: int) -> list[list[Pod]]:
        """New nodes like `template`, at most `limit`, that take as many of the pods as can be: who on each.

        A pod that fits on a node which is there needs none: its scheduler will find out by itself. One that
        does not fit on an empty new node is left out.
        """
        table, cluster = NodeTable(), Cluster(clock=self._clock, policy=self._cluster.policy)
        made: list[list[Pod]] = []
        for pod in pods:
            waiting = read_waiting(pod)
            if waiting.problem or self._fits(waiting):
                continue
            for number in range(min(len(made) + 1, limit)):
                node = _named(template, f"{template.name}-{number}")
                if number == len(made):
                    table.set_node(node)
                    cluster.set_node(node)
                if _takes(table, cluster, waiting, node.name):
                    table.set_pod(pod, node.name)
                    made[number:] = [
                        [*(made[number] if number < len(made) else []), pod],
                        *made[number + 1 :],
                    ]
                    break
        return made

    def _fits(self, waiting: WaitingPod) -> bool:
        table, demand = self._table, waiting.demand
        room = table.alive & (table.answers(demand.rules).refusals == 0) & table.fits(demand.footprint)
        return bool(self._cluster.filter(demand.request, table.names[room].tolist()).fits)

    def _on_change(self, kind: ChangeKind, obj: KubeObject) -> None:
        match kind, obj:
            case "pod", Pod():
                self._table.set_pod(obj)
            case "pod-gone", Pod():
                self._table.drop_pod(obj.uid)
            case "node", Node():
                self._table.set_node(obj)
            case "node-gone", Node():
                self._table.drop_node(obj.name)


def _takes(table: NodeTable, cluster: Cluster, waiting: WaitingPod, node: str) -> bool:
    """Put the pod's GPUs on an imagined node, if it suits."""
    demand, row = waiting.demand, table.row(node)
    if row is None or table.answers(demand.rules).refusals[row] or table.shortages(demand.footprint, row):
        return False
    return not demand.request or not isinstance(cluster.assume(waiting.pod, node), Verdict)


def _named(template: Node, name: str) -> Node:
    labels = {**template.labels, "kubernetes.io/hostname": name}
    return replace(template, metadata=replace(template.metadata, name=name, uid=name, labels=labels))
