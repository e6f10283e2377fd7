"""Keeps a `Cluster` true: reflectors for nodes, pods and gpushare's health ConfigMaps feed it.

Whoever wants to be woken by changes (the scheduler, a page) adds a listener; it is called after the
cluster knows the change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Literal

from gpuslice import names
from gpuslice.clock import Clock
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.trimming import trimmed
from gpuslice.kube.client import Client
from gpuslice.kube.gate import Gate
from gpuslice.kube.leading import Leadership
from gpuslice.kube.reflector import Reflector
from gpuslice.kube.wire import ConfigMap, KubeObject, Node, Pod

ChangeKind = Literal["node", "node-gone", "pod", "pod-gone", "unhealthy"]
Listener = Callable[[ChangeKind, KubeObject], None]


class ClusterFeed:
    """Reflectors and a list of listeners, to `run` for ever. The cluster's gate says when it is true."""

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        *,
        clock: Clock,
        random: Callable[[], float],
        leadership: Leadership | None = None,
    ) -> None:
        self.cluster = cluster
        self.listeners: list[Listener] = []
        self.begun = False
        """True once changes may have been told: who listens before that misses nothing."""
        self._nodes = Reflector(
            client,
            Node,
            on_set=self._set_node,
            on_drop=self._drop_node,
            quarantine=cluster.quarantine,
            clock=clock,
            random=random,
            relists=True,
        )
        self._pods = Reflector(
            client,
            Pod,
            on_set=self._set_pod,
            on_drop=self._drop_pod,
            quarantine=cluster.quarantine,
            salvage=lambda pod: bool(pod.spec.node_name),  # what it holds there is not free
            clock=clock,
            random=random,
            relists=True,
        )
        self._configs = Reflector(
            client,
            ConfigMap,
            on_set=self._set_config,
            on_drop=self._drop_config,
            namespace=names.UNHEALTHY_NAMESPACE,
            quarantine=cluster.quarantine,
            clock=clock,
            random=random,
            relists=True,
        )
        cluster.gate = Gate(self._nodes, self._pods, self._configs, leadership=leadership)

    @property
    def synced(self) -> bool:
        """True once everything that existed at the start is known. What /readyz answers."""
        return self._nodes.synced.is_set() and self._pods.synced.is_set() and self._configs.synced.is_set()

    async def wait_synced(self) -> None:
        """Wait for the first complete lists."""
        for reflector in (self._nodes, self._pods, self._configs):
            await reflector.synced.wait()

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        self.begun = True
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            # Nodes first, so that most pods find theirs; the order does not matter for the outcome.
            await self._nodes.synced.wait()
            group.create_task(self._configs.run())
            group.create_task(self._pods.run())

    def _tell(self, change: Callable[[], None], kind: ChangeKind, obj: KubeObject) -> None:
        """Make the change in the cluster and tell every listener, whatever one of them makes of the object.

        Raises what the first of them raised.
        """
        problems: list[Exception] = []
        told: list[Callable[[], None]] = [partial(listener, kind, obj) for listener in self.listeners]
        for step in (change, *told):
            try:
                step()
            except Exception as error:
                problems.append(error)
        if problems:
            raise problems[0]

    def _set_node(self, node: Node) -> None:
        self._tell(lambda: self.cluster.set_node(node), "node", node)

    def _drop_node(self, node: Node) -> None:
        self._tell(lambda: self.cluster.drop_node(node.name), "node-gone", node)

    def _set_pod(self, pod: Pod) -> None:
        pod = trimmed(pod)
        self._tell(lambda: self.cluster.set_pod(pod), "pod", pod)

    def _drop_pod(self, pod: Pod) -> None:
        self._tell(lambda: self.cluster.drop_pod(pod.uid), "pod-gone", pod)

    def _set_config(self, config: ConfigMap) -> None:
        self._mark(config, (config.data or {}).get(names.UNHEALTHY_KEY))

    def _drop_config(self, config: ConfigMap) -> None:
        self._mark(config, None)

    def _mark(self, config: ConfigMap, text: str | None) -> None:
        node = _node_of(config)
        if node:
            self._tell(lambda: self.cluster.set_unhealthy(node, text), "unhealthy", config)


def _node_of(config: ConfigMap) -> str:
    """The node a health map speaks of; "" for any other ConfigMap."""
    prefix = names.UNHEALTHY_PREFIX
    return config.name.removeprefix(prefix) if config.name.startswith(prefix) else ""
