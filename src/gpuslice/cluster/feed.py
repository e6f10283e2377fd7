"""Keeps a `Cluster` true: reflectors for nodes, pods and gpushare's health ConfigMaps feed it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuslice import names
from gpuslice.clock import Clock
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.trimming import trimmed
from gpuslice.kube.client import Client
from gpuslice.kube.gate import Gate
from gpuslice.kube.leading import Leadership
from gpuslice.kube.reflector import Reflector
from gpuslice.kube.wire import ConfigMap, Node, Pod


class ClusterFeed:
    """Reflectors, to `run` for ever. The cluster's gate says when the state is complete."""

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
        self._nodes = Reflector(
            client,
            Node,
            on_set=cluster.set_node,
            on_drop=lambda node: cluster.drop_node(node.name),
            quarantine=cluster.quarantine,
            clock=clock,
            random=random,
            relists=True,
        )
        self._pods = Reflector(
            client,
            Pod,
            on_set=lambda pod: cluster.set_pod(trimmed(pod)),
            on_drop=lambda pod: cluster.drop_pod(pod.uid, trimmed(pod)),
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
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            # Nodes first, so that most pods find their node; the order does not matter for the outcome.
            await self._nodes.synced.wait()
            group.create_task(self._configs.run())
            group.create_task(self._pods.run())

    def _set_config(self, config: ConfigMap) -> None:
        self._mark(config, (config.data or {}).get(names.UNHEALTHY_KEY))

    def _drop_config(self, config: ConfigMap) -> None:
        self._mark(config, None)

    def _mark(self, config: ConfigMap, text: str | None) -> None:
        node = _node_of(config)
        if node:
            self.cluster.set_unhealthy(node, text)


def _node_of(config: ConfigMap) -> str:
    """The node that a health ConfigMap is about; "" for any other ConfigMap."""
    prefix = names.UNHEALTHY_PREFIX
    return config.name.removeprefix(prefix) if config.name.startswith(prefix) else ""
