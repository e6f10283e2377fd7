"""The commands on a cluster's node pools: writes GPUNodePools and follows their status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuslice import names
from gpuslice.capacity.nodepatch import read_record
from gpuslice.capacity.nodepool import (
    POOLS,
    READY,
    GPUNodePool,
    PoolFields,
    pool_object,
    read_fields,
)
from gpuslice.capacity.pools import PoolExists, PoolNotFound, PoolRefused, check_name
from gpuslice.clock import Clock
from gpuslice.errors import Conflict, GpuSliceError, InputError, NotFound, Unavailable
from gpuslice.kube.client import Client
from gpuslice.kube.http import connected
from gpuslice.kube.wire import Node

LOOK_SECONDS: Final = 0.2
SILENCE_SECONDS: Final = 60.0
"""How long a new pool may stay without a status before its command gives up waiting."""
FINAL: Final = frozenset(("Invalid", "PartitioningFailed", "NoNodes"))
"""Reasons of the condition Ready that waiting does not cure."""
ANSWER_SECONDS: Final = 3.0
"""How long to wait for the answer of a cluster that may not be the one that is meant."""
IN_ONE_PROCESS: Final = "+gpuslice"
"""In the API server's version, where it is `gpuslice up`."""

Change = Callable[[GPUNodePool], Mapping[str, Any]]
"""From a pool to the fields of its spec that change, None for those that go."""


class ClusterPools:
    """A cluster's GPUNodePools. `tell` is called with a sentence whenever the reason for waiting has
    changed.
    """

    def __init__(self, client: Client, clock: Clock, tell: Callable[[str], None]) -> None:
        self._client = client
        self._clock = clock
        self._tell = tell

    async def makes_machines(self) -> bool:
        """True if the cluster makes the machines of pools: a cluster in one process."""
        return await _in_one_process(self._client)

    async def list(self) -> list[GPUNodePool]:
        """All pools by name. Raises PoolRefused if the cluster does not know of pools."""
        try:
            pools = (await self._client.list(GPUNodePool)).items
        except NotFound as error:
            raise _unknown() from error
        return sorted(pools, key=lambda pool: pool.name)

    async def get(self, name: str) -> GPUNodePool:
        """One pool. Raises PoolNotFound."""
        found = [pool for pool in await self.list() if pool.name == name]
        if not found:
            raise PoolNotFound(f"there is no node pool {name!r}")
        return found[0]

    async def add(self, name: str, fields: PoolFields, *, wait: bool) -> GPUNodePool:
        """Make a pool. Raises InputError, PoolExists, PoolRefused."""
        read_fields(check_name(name, field="name"), fields)
        if fields.selector is None and not await self.makes_machines():
            raise InputError(
                "this cluster's machines are not made by gpuslice; say which nodes are the pool, such as "
                "--selector pool=gpu, or which AKS cluster this is, with --resource-group and --cluster-name",
                field="selector",
            )
        try:
            await self._client.create(POOLS, pool_object(name, fields))
        except Conflict as error:
            raise PoolExists(
                f"there is a node pool {name!r} already; change it with gpuslice nodepool update {name}"
            ) from error
        except NotFound as error:
            raise _unknown() from error
        return await self._until_ready(name) if wait else await self.get(name)

    async def update(self, name: str, change: Change, *, wait: bool) -> GPUNodePool:
        """Change a pool. Raises PoolNotFound, and InputError, with nothing changed, if the result would not
        be a valid pool.
        """
        pool = await self.get(name)
        changes = change(pool)
        spec = msgspec.to_builtins(pool.spec) | changes
        read_fields(name, msgspec.convert(without_none(spec), PoolFields))
        body = {"metadata": {"resourceVersion": pool.metadata.resource_version}, "spec": changes}
        pool = await self._client.patch(GPUNodePool, name, body)
        return await self._until_ready(name) if wait else pool

    async def delete(self, name: str, *, wait: bool) -> None:
        """Delete a pool; with `wait`, return once no node has the pool's labels and taints any more. Raises
        PoolNotFound.
        """
        pool = await self.get(name)
        await self._client.delete(POOLS, name, uid=pool.uid)
        said = ""
        while wait:
            nodes = [n.name for n in (await self._client.list(Node)).items if read_record(n).uid == pool.uid]
            if not nodes:
                return
            if (saying := f"its pods move and its nodes go: {', '.join(nodes)}") != said:
                said = saying
                self._tell(said)
            await self._clock.sleep(LOOK_SECONDS)

    async def _until_ready(self, name: str) -> GPUNodePool:
        """Wait until all is as the spec says. Raises PoolRefused for problems that waiting does not cure."""
        started, said = self._clock.monotonic(), ""
        while True:
            pool = await self.get(name)
            ready = pool.condition(READY)
            if ready is None or pool.status.observed_generation != pool.metadata.generation:
                if self._clock.monotonic() - started > SILENCE_SECONDS:
                    raise Unavailable(
                        f"node pool {name!r} is written down, but nobody has answered for "
                        f"{SILENCE_SECONDS:.0f} s; look whether gpuslice's scheduler runs (gpuslice doctor)"
                    )
            elif ready.status == "True":
                return pool
            elif ready.reason in FINAL:
                raise PoolRefused(f"node pool {name!r}: {ready.message}")
            elif ready.message != said:
                said = ready.message
                self._tell(said)
            await self._clock.sleep(LOOK_SECONDS)


def without_none(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object as a merge patch leaves it: keys that are None are removed, at every depth."""
    return {
        key: without_none(one) if isinstance(one, Mapping) else one
        for key, one in value.items()
        if one is not None
    }


async def in_one_process(kubeconfig: Path | None) -> bool:
    """True if the cluster that kubectl speaks to is `gpuslice up`; False if there is none that answers."""
    with suppress(GpuSliceError, TimeoutError):
        async with connected(kubeconfig) as client, asyncio.timeout(ANSWER_SECONDS):
            return await _in_one_process(client)
    return False


async def _in_one_process(client: Client) -> bool:
    version = msgspec.json.decode(await client.read("/version"))
    return str(version.get("gitVersion", "")).endswith(IN_ONE_PROCESS)


def _unknown() -> PoolRefused:
    return PoolRefused(
        f"this cluster does not know of node pools; install gpuslice's chart, which has {POOLS.plural}."
        f"{names.POOL_GROUP} among its crds"
    )
