"""Follows the node's label that says how its agent counts MIG devices; without it the agent's options decide.

The label is followed while the agent runs, so that a pool of nodes can be given another strategy at once.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from gpuslice import names
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import GpuSliceError
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Node
from gpuslice.node.discovery.backend import DiscoveredGpus

READ_SECONDS: Final = 5.0
"""How long an absent API server may hold up the start: running pods fail while plugins are away."""

_log = structlog.get_logger(__name__)


class StrategyLabel:
    """Passes on to `backend` what the label says."""

    def __init__(self, backend: DiscoveredGpus) -> None:
        self._backend = backend
        self._wrong: str | None = None

    async def read(self, client: Client, node: str) -> None:
        """Follow the label from the start: a GPU that is partitioned must not be offered whole, even for a
        moment.
        """
        try:
            async with asyncio.timeout(READ_SECONDS):
                for found in (await client.list(Node, field_selector=f"metadata.name={node}")).items:
                    self.set_node(found)
        except (GpuSliceError, TimeoutError) as error:
            _log.warning("the node's label is not known yet", label=names.MIG_STRATEGY, error=str(error))

    def set_node(self, node: Node) -> None:
        """The node as the API server has it."""
        said = node.labels.get(names.MIG_STRATEGY)
        try:
            self._backend.count_as(MigStrategy(said) if said is not None else None)
        except ValueError:
            if said != self._wrong:
                _log.warning("use none, single or mixed", label=names.MIG_STRATEGY, value=said)
            self._wrong = said
