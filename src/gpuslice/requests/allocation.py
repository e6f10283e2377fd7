"""Which container of a pod holds how much of which GPU."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.requests.pod import PodRequest, Role, peak


@dataclass(frozen=True, slots=True)
class Grant:
    """`mib` of the GPU with that UUID, for one container; `whole` means the GPU for itself."""

    container: str
    gpu: str
    mib: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Charge:
    """What a pod takes from one GPU at its peak."""

    gpu: str
    mib: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Allocation:
    """All grants of one pod, in the order of its containers."""

    grants: tuple[Grant, ...]

    def of(self, container: str) -> tuple[Grant, ...]:
        """The grants of one container."""
        return tuple(grant for grant in self.grants if grant.container == container)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs in use, each once, in order of first use."""
        return tuple(dict.fromkeys(grant.gpu for grant in self.grants))

    def charges(self, request: PodRequest) -> tuple[Charge, ...]:
        """What the pod takes from each GPU: init containers lend their share to those that follow."""
        roles = {c.name: c.role for c in request.containers}
        taken: list[Charge] = []
        for gpu in self.gpus:
            here = [grant for grant in self.grants if grant.gpu == gpu]
            # A whole GPU is all of it, once, whoever of the pod's containers uses it.
            whole = [grant.mib for grant in here if grant.whole]
            shares = peak((roles.get(g.container, Role.APP), g.mib) for g in here if not g.whole)
            taken.append(Charge(gpu, max(whole) if whole else shares, bool(whole)))
        return tuple(taken)
