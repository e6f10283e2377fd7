"""Node pools as values, and the protocol of a cloud that has them.

A pool is a number of equal machines whose GPUs are partitioned alike. The words are those of AKS (`az aks
nodepool`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, Protocol

from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import GpuSliceError, InputError, quoted

NAME: Final = re.compile(r"[a-z][a-z0-9]{0,11}")
"""AKS's rule for pools of Linux nodes."""
MAX_NODES: Final = 1000
"""AKS's limit for one pool."""

TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class GpuInstanceProfile(StrEnum):
    """How every GPU of a pool is partitioned: as many instances with this number of compute slices as fit."""

    MIG1G = "MIG1g"
    MIG2G = "MIG2g"
    MIG3G = "MIG3g"
    MIG4G = "MIG4g"
    MIG7G = "MIG7g"

    @property
    def slices(self) -> int:
        """Compute slices of an instance: 1 to 7."""
        return int(self.value[3])


@dataclass(frozen=True, slots=True)
class PoolTaint:
    """A taint that every node of the pool has."""

    key: str
    effect: TaintEffect
    value: str = ""

    def __str__(self) -> str:
        """As kubectl and az write it: sku=gpu:NoSchedule."""
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The desired pool.

    `count` is the number of nodes; with autoscaling (`min_count` and `max_count`, both or neither) the number
    to begin with. `mig_strategy` is how the agents count MIG devices; a cloud need not support it.
    """

    name: str
    node_vm_size: str
    count: int
    gpu_instance_profile: GpuInstanceProfile | None = None
    mig_strategy: MigStrategy = MigStrategy.NONE
    min_count: int | None = None
    max_count: int | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    taints: tuple[PoolTaint, ...] = ()

    @property
    def autoscaling(self) -> bool:
        """True if the number of nodes follows the pods."""
        return self.max_count is not None


@dataclass(frozen=True, slots=True)
class ProvidedPool:
    """A pool as the cloud has it. `spec.count` is the number of nodes now.

    `state` is the cloud's own word ("Creating", "Updating", "Succeeded", "Failed", "Deleting"); `settled` is
    true when nothing is under way any more, whether that went well or not; `reason` is a sentence that says
    why it failed.
    """

    spec: PoolSpec
    state: str
    settled: bool
    reason: str = ""


class PoolNotFound(GpuSliceError):
    """The cloud has no pool of that name."""


class PoolExists(GpuSliceError):
    """The cloud has a pool of that name already."""


class PoolRefused(GpuSliceError):
    """The cloud cannot do what was asked, or does not want to; asking again does not help."""


class PoolProvider(Protocol):
    """A cloud that makes the machines of pools.

    Every method raises `errors.Unavailable` if the cloud cannot be reached or is too busy (ask again later),
    and PoolRefused, with one sentence that says what is not possible and the remedy, for anything else that
    stands in the way (rights, quota, a machine type that the region does not have); nothing has changed then.
    `create`, `update` and `delete` return as soon as the cloud has accepted the request; `get` shows the
    progress.
    """

    async def list(self) -> Sequence[ProvidedPool]:
        """All pools of the cluster, by name; those without GPUs, too."""
        ...

    async def get(self, name: str) -> ProvidedPool:
        """One pool. Raises PoolNotFound."""
        ...

    async def create(self, spec: PoolSpec) -> None:
        """Make the pool. Raises PoolExists."""
        ...

    async def update(self, spec: PoolSpec) -> None:
        """Bring the pool's count, autoscaling, labels, taints and its GPUs' partitioning to what `spec` says.

        GPUs are repartitioned by the nodes' own agents, as the labels say that the cloud gives the nodes.
        Raises PoolNotFound; and PoolRefused for what the cloud never changes: the VM size, a profile that the
        cloud itself applied.
        """
        ...

    async def delete(self, name: str) -> None:
        """Remove the pool and its machines. Raises PoolNotFound."""
        ...


def check_name(name: str, *, field: str = "name") -> str:
    """Returns the name. Raises InputError if AKS would not accept it."""
    if not NAME.fullmatch(name):
        plain = re.sub(r"[^a-z0-9]", "", name.lower()).lstrip("0123456789")[:12]
        raise InputError(
            f"{quoted(name)} is not the name of a node pool; use up to 12 lower-case letters and digits, a "
            f"letter first{f', such as {plain}' if plain else ''}",
            field=field,
        )
    return name
