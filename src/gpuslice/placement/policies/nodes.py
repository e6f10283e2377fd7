"""The view of many nodes at once that a policy gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuslice.requests.pod import PodRequest

Scores = npt.NDArray[np.int64]
_NEVER = 2**40


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes that fit a request, as columns: a row per GPU slot where there are two dimensions. MiB.

    `usable`: available devices of the kind asked for. `unit`: MiB in one unit. `untouched`: how many
    devices could be given whole of what the request asks for whole; zeros where it asks for shares alone.
    """

    request: PodRequest
    usable: npt.NDArray[np.bool_]
    total: npt.NDArray[np.int32]
    free: npt.NDArray[np.int32]
    unit: npt.NDArray[np.int64]
    untouched: npt.NDArray[np.int64]

    @property
    def devices(self) -> npt.NDArray[np.int64]:
        """How many usable devices each node has, at least 1."""
        devices: npt.NDArray[np.int64] = np.maximum(self.usable.sum(axis=0), 1)
        return devices

    def stays_free(self) -> Scores:
        """0..1000: how much of the node's memory would be free with the pod there."""
        total = np.maximum((self.total * self.usable).sum(axis=0, dtype=np.int64), 1)
        free = (self.free * self.usable).sum(axis=0, dtype=np.int64)
        taken = self.unit * self.request.units
        if self.request.whole:
            taken = taken + self.request.whole * total // self.devices
        stays: Scores = np.clip((free - taken) * 1000 // total, 0, 1000)
        return stays

    def leftover(self) -> Scores:
        """0..1000 and more: how much would be free of the tightest GPU that the pod's shares fit on."""
        request = self.request
        units = request.units
        if any(container.across > 1 for container in request.shares):
            units = max(container.units_per_gpu for container in request.shares)
        need = self.unit * units
        left = np.where(self.usable & (self.free >= need), self.free - need, _NEVER)
        tightest, column = left.argmin(axis=0), np.arange(len(need))
        scores: Scores = left[tightest, column] * 1000 // np.maximum(self.total[tightest, column], 1)
        return scores
