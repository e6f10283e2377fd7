"""The emptiest node and GPU, so that neighbours disturb each other least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuslice.placement.policies.policy import Gpus, Policy

if TYPE_CHECKING:
    from gpuslice.placement.policies.nodes import Nodes, Scores


class Spread(Policy):
    """How much of a node would stay free, and of its GPUs the one with the most room."""

    name = "spread"
    summary = "take the emptiest"

    def order(self, gpus: Gpus) -> Sequence[int]:
        return range(gpus.count - 1, gpus.first - 1, -1)

    def device(self, siblings_in_use: int) -> int:
        return siblings_in_use

    def score(self, nodes: Nodes) -> Scores:
        return nodes.stays_free()

    def reason(self, free: str) -> str:
        return f"the emptiest GPU ({free} without this pod)"


SPREAD = Spread()
