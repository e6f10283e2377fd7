"""What the state of the cluster holds of a pod, and shows of a node: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuslice.devices.inventory import Gpu, Mode
from gpuslice.placement.preempt import Holder
from gpuslice.requests.allocation import Allocation, Charge
from gpuslice.requests.pod import PodRequest
from gpuslice.units import MemoryUnit


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod that holds GPU memory on a node (or is about to: `assumed`).

    `allocation` is None if the pod is on the node but no record says which GPU it got; `charges` then say
    where the engine would have put it, so that the memory is counted somewhere.
    """

    uid: str
    namespace: str
    name: str
    node: str
    priority: int
    request: PodRequest
    allocation: Allocation | None
    charges: tuple[Charge, ...] = ()
    assumed: bool = False
    terminating: bool = False
    containers: tuple[str, ...] = ()
    """Names of spec.containers in order: gpushare 2.0 calls them by position."""
    hints: tuple[tuple[str, str], ...] = ()
    """The annotations that may say where the pod is, kept to be read again when the node changes."""
    proven: tuple[tuple[str, str], ...] = ()
    """The latest of them that could be believed: unbelievable ones written later change nothing."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def holder(self) -> Holder:
        """The same as the search for victims needs it."""
        return Holder(self.uid, self.priority, self.charges, self.terminating)


@dataclass(frozen=True, slots=True)
class PodShare:
    """One pod's part of one GPU, in MiB."""

    uid: str
    namespace: str
    name: str
    mib: int
    whole: bool = False
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as `inspect` and `explain` show it, and what pods hold of it."""

    gpu: Gpu
    pods: tuple[PodShare, ...] = ()

    @property
    def used_mib(self) -> int:
        """All that pods hold of it."""
        return sum(share.mib for share in self.pods)

    @property
    def mode(self) -> Mode:
        """How it is used right now."""
        if not self.pods:
            return Mode.FREE
        return Mode.WHOLE if any(share.whole for share in self.pods) else Mode.SHARED


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. `pending` are the pods on it whose GPU is unknown, with all that they ask for."""

    name: str
    address: str
    unit: MemoryUnit
    gpus: tuple[GpuView, ...]
    pending: tuple[PodShare, ...] = ()
    allocatable_units: int = 0
    problem: str = field(default="")
    allocatable_devices: int = 0
    """Whole GPUs and MIG devices that the kubelet has to give out."""
    rest_units: int = 0
    """On gpushare's nodes: units left over when the total is split evenly. No pod can have them."""
