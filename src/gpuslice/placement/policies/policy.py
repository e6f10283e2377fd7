"""What a scoring policy is asked: which GPU of a node, which of many nodes, and why."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gpuslice.requests.pod import PodRequest

Scores = npt.NDArray[np.int64]
_NEVER = 2**40


class Gpus(ABC):
    """The GPUs of one node whose memory can be shared, by what they have free: the fullest first.

    The last `count - first` of the `count` GPUs have room for the share; it needs `need` MiB on each.
    """

    __slots__ = ("count", "first", "need")

    def __init__(self, first: int, count: int, need: int) -> None:
        self.first, self.count, self.need = first, count, need

    @property
    @abstractmethod
    def free(self) -> Sequence[int]:
        """MiB free of every one of them, ascending; worked out when it is asked for."""


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


class Policy(ABC):
    """One way to choose among what fits; stateless, or a value that is replaced as a whole.

    Whether a pod fits is never a policy's to say. Asked the same it answers the same: the extender, our
    scheduler and `explain` ask it one after the other.
    """

    name: ClassVar[str]
    """As the chart, `--policy` and a cluster's file write it."""
    summary: ClassVar[str]
    """What it does, for help texts: "fill the fullest node and GPU that fits"."""

    @abstractmethod
    def order(self, gpus: Gpus) -> Sequence[int]:
        """All GPUs with room for a share, by position, the best first.

        GPUs with equally much free are interchangeable: of those the lowest index is taken.
        """

    @abstractmethod
    def device(self, siblings_in_use: int) -> int:
        """The smaller, the rather a free MIG device is taken; so many others of its GPU are in use."""

    @abstractmethod
    def score(self, nodes: Nodes) -> Scores:
        """0..1000 for each node, higher is better. Called with thousands of nodes at once."""

    @abstractmethod
    def reason(self, free: str) -> str:
        """Why a GPU was chosen, for people; `free`: what the GPUs would have free without the pod."""
