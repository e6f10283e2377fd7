"""The commands on node pools of an AKS cluster: the same ones as `clusterpools` has, through Azure's
own API.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol

import msgspec

from gpuslice import names
from gpuslice.capacity.clusterpools import Change, without_none
from gpuslice.capacity.nodepool import (
    READY,
    Condition,
    GPUNodePool,
    PoolFields,
    PoolMeta,
    PoolStatus,
    read_fields,
)
from gpuslice.capacity.pools import PoolProvider, PoolSpec, ProvidedPool, check_name
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError


class Connect(Protocol):
    """Connects to a cloud's pools; with `wait`, changes return only when they are complete."""

    def __call__(self, *, wait: bool) -> AbstractAsyncContextManager[PoolProvider]: ...


class AksPools:
    """An AKS cluster's pools, shown as GPUNodePools. `tell` is given a sentence before a long wait."""

    def __init__(self, connect: Connect, tell: Callable[[str], None]) -> None:
        self._connect = connect
        self._tell = tell

    async def list(self) -> builtins.list[GPUNodePool]:
        """All pools by name; those without GPUs, too."""
        async with self._connect(wait=False) as pools:
            return [shown(pool) for pool in await pools.list()]

    async def get(self, name: str) -> GPUNodePool:
        """One pool. Raises PoolNotFound."""
        async with self._connect(wait=False) as pools:
            return shown(await pools.get(name))

    async def add(self, name: str, fields: PoolFields, *, wait: bool) -> GPUNodePool:
        """Make a pool. Raises InputError, PoolExists, PoolRefused."""
        wish = read_fields(check_name(name, field="name"), fields)
        if wish.selector is not None:
            raise InputError("on AKS a pool is machines that are made for it; leave it out", field="selector")
        async with self._connect(wait=wait) as pools:
            self._say(wait, f"make node pool {name!r}")
            await pools.create(wish.spec)
            return shown(await pools.get(name))

    async def update(self, name: str, change: Change, *, wait: bool) -> GPUNodePool:
        """Change a pool. Raises PoolNotFound, PoolRefused, and InputError with nothing changed."""
        async with self._connect(wait=wait) as pools:
            pool = shown(await pools.get(name))
            changes = change(pool)
            fields = msgspec.to_builtins(pool.spec)
            # A configuration that belongs to no profile may stay, although none can be asked for here.
            own = (fields.get("nodeLabels") or {}).pop(names.MIG_CONFIG, None)
            spec = read_fields(name, msgspec.convert(without_none(fields | changes), PoolFields)).spec
            if own is not None and "gpuInstanceProfile" not in changes:
                spec = replace(spec, labels={**spec.labels, names.MIG_CONFIG: own})
            if pool.spec.mig_strategy is None and not changes.keys() & {"gpuInstanceProfile", "migStrategy"}:
                spec = replace(spec, mig_strategy=MigStrategy.NONE)  # nobody asked for the default
            self._say(wait, f"change node pool {name!r}")
            await pools.update(spec)
            return shown(await pools.get(name))

    async def delete(self, name: str, *, wait: bool) -> None:
        """Delete a pool. Raises PoolNotFound."""
        async with self._connect(wait=wait) as pools:
            self._say(wait, f"delete node pool {name!r} and its machines")
            await pools.delete(name)

    def _say(self, wait: bool, what: str) -> None:
        if wait:
            self._tell(f"Azure is asked to {what}; it takes minutes, and goes on if you stop waiting")


def shown(pool: ProvidedPool) -> GPUNodePool:
    """The pool as a GPUNodePool. Azure does not count ready nodes: all count as ready when no operation is
    under way.
    """
    spec, well = pool.spec, pool.state == "Succeeded"
    return GPUNodePool(
        metadata=PoolMeta(name=spec.name),
        spec=_fields(spec),
        status=PoolStatus(
            nodes=spec.count,
            ready_nodes=spec.count if well else 0,
            conditions=(Condition(READY, str(well), pool.state, pool.reason),),
        ),
    )


def _fields(spec: PoolSpec) -> PoolFields:
    return PoolFields(
        vm_size=spec.node_vm_size,
        count=spec.count,
        min_count=spec.min_count,
        max_count=spec.max_count,
        gpu_instance_profile=spec.gpu_instance_profile,
        mig_strategy=None if spec.mig_strategy is MigStrategy.NONE else spec.mig_strategy,
        node_labels=dict(spec.labels) or None,
        node_taints=tuple(map(str, spec.taints)),
    )
