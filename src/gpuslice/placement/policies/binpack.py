"""The tightest fit, so that the largest rooms stay whole: gpushare's rule, here also among nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuslice.placement.policies.policy import Gpus, Policy

if TYPE_CHECKING:
    from gpuslice.placement.policies.nodes import Nodes, Scores


class Binpack(Policy):
    """Four fifths: how tightly the pod fills the GPU that it would get. One fifth: how full the node is."""

    name = "binpack"
    summary = "fill the fullest node and GPU that fits"

    def order(self, gpus: Gpus) -> Sequence[int]:
        return range(gpus.first, gpus.count)

    def device(self, siblings_in_use: int) -> int:
        return -siblings_in_use

    def score(self, nodes: Nodes) -> Scores:
        if nodes.request.whole:
            leftover = (nodes.untouched - nodes.request.whole) * 1000 // nodes.devices
        else:
            leftover = nodes.leftover()
        tightness = 1000 - leftover.clip(0, 1000)
        scores: Scores = (4 * tightness + (1000 - nodes.stays_free())) // 5
        return scores

    def reason(self, free: str) -> str:
        return f"the tightest fit ({free} without this pod), so that larger rooms stay whole"


BINPACK = Binpack()
