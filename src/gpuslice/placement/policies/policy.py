"""The protocol of a scoring policy: which GPU of a node, which of many nodes, and why."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # an agent, which places on one node, starts without numpy
    from gpuslice.placement.policies.nodes import Nodes, Scores


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


class Policy(ABC):
    """One way to choose among what fits; stateless, or a value that is replaced as a whole.

    A policy never decides whether a pod fits. The same input must give the same answer: the extender, our
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
        """The rank of a free MIG device, by how many other devices of its GPU are in use; the smallest is
        taken.
        """

    @abstractmethod
    def score(self, nodes: Nodes) -> Scores:
        """0..1000 for each node, higher is better. Called with thousands of nodes at once."""

    @abstractmethod
    def reason(self, free: str) -> str:
        """Why a GPU was chosen, for people; `free`: what the GPUs would have free without the pod."""
