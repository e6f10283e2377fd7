"""Node pools on AKS through Azure's own SDK; the only module that uses it.

Needs the extra `gpuslice[azure]`, and takes most of a second to import: import it where it is used. Requests
run in threads (the SDK's transport over requests), waiting in the event loop, so a wait can be cancelled. The
SDK repeats requests that Azure answers with 429 or 5xx, after the time that Azure names.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Final, Self

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.pipeline.transport import AsyncHttpTransport, AsyncioRequestsTransport
from azure.core.polling import AsyncLROPoller
from azure.identity.aio import DefaultAzureCredential
from azure.mgmt.containerservice.aio import ContainerServiceClient
from azure.mgmt.containerservice.models import (
    AgentPool,
    AgentPoolManagedClusterAgentPoolProfileProperties,
)

from gpuslice import __version__
from gpuslice.capacity import aks
from gpuslice.capacity.aks import AksCluster, Doing, Failure
from gpuslice.capacity.nodepool import read_taint
from gpuslice.capacity.pools import GpuInstanceProfile, PoolNotFound, PoolRefused, PoolSpec, ProvidedPool

POLL_SECONDS: Final = 10
"""How often a running operation is asked about where Azure names no time; new machines take minutes."""

REQUEST_SECONDS: Final = 60
"""How long one request may take; with the SDK's own 300 s, a person would wait as long after Ctrl-C, too."""

_Properties = AgentPoolManagedClusterAgentPoolProfileProperties
_Transport = AsyncHttpTransport[Any, Any]


@asynccontextmanager
async def connected(cluster: AksCluster, *, wait: bool = False) -> AsyncIterator[AksPools]:
    """The cluster's pools, with the login that Azure's tools find: environment, identity, `az login`."""
    # Without a handler Python would print every credential that was not found, before our sentence.
    logging.getLogger("azure").addHandler(logging.NullHandler())
    async with (
        DefaultAzureCredential(transport=_transport()) as credential,
        AksPools(cluster, credential, wait=wait) as pools,
    ):
        yield pools


class AksPools:
    """The node pools of one AKS cluster (a `pools.PoolProvider`).

    GPUs are not partitioned by AKS, which would do so once and for all, but by the nodes' agents, according
    to the labels that the pool gives its new nodes: so the profile can change. With `wait`, changes return
    when Azure has finished, and raise PoolRefused if Azure failed; a wait that is cancelled stops nothing in
    Azure. `endpoint`: the Resource Manager's URL, default: that of Azure's public cloud, or of the one in
    $AZURE_SDK_CLOUD_CONF.
    """

    def __init__(
        self,
        cluster: AksCluster,
        credential: AsyncTokenCredential,
        *,
        endpoint: str | None = None,
        transport: _Transport | None = None,
        poll_seconds: int = POLL_SECONDS,
        wait: bool = False,
    ) -> None:
        self._cluster = cluster
        self._wait = wait
        self._client = ContainerServiceClient(
            credential,
            cluster.subscription,
            endpoint,
            transport=transport or _transport(),
            polling_interval=poll_seconds,
            user_agent=f"gpuslice/{__version__}",
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._client.__aexit__(*raised)

    async def list(self) -> Sequence[ProvidedPool]:
        """All pools of the cluster, by name; those without GPUs, too."""
        return sorted(map(_provided, await self._list()), key=lambda pool: pool.spec.name)

    async def get(self, name: str) -> ProvidedPool:
        """One pool. Raises PoolNotFound."""
        return _provided(await self._get(name))

    async def create(self, spec: PoolSpec) -> None:
        """Make the pool, in the subnets of the cluster's system pool if those are not AKS's own.

        Raises PoolExists.
        """
        labels = aks.node_labels(spec)
        system = next(
            (has for pool in await self._list() if (has := pool.properties) and _is_system(has)), None
        )
        wanted = _Properties(
            vm_size=spec.node_vm_size,
            count=spec.count,
            os_type="Linux",
            mode="User",
            enable_auto_scaling=spec.autoscaling,
            min_count=spec.min_count,
            max_count=spec.max_count,
            node_labels=labels,
            node_taints=[str(taint) for taint in spec.taints],
            vnet_subnet_id=system.vnet_subnet_id if system else None,
            pod_subnet_id=system.pod_subnet_id if system else None,
        )
        await self._put("create", spec.name, AgentPool(properties=wanted), {"If-None-Match": "*"})

    async def update(self, spec: PoolSpec) -> None:
        """Bring count, autoscaling, labels, taints and the GPUs' partitioning to what `spec` says.

        Raises PoolNotFound; and PoolRefused for what AKS never changes: the VM size, and a GPU instance
        profile that AKS itself applied.
        """
        pool = await self._get(spec.name)
        now = pool.properties or _Properties()
        if (now.vm_size or "").casefold() != spec.node_vm_size.casefold():
            raise PoolRefused(
                f"pool {spec.name!r} has machines of type {now.vm_size}, which Azure never changes; "
                f"{aks.beside(spec.name)}"
            )
        if now.gpu_instance_profile and now.gpu_instance_profile != spec.gpu_instance_profile:
            raise PoolRefused(
                f"pool {spec.name!r} was made with AKS's own GPU instance profile "
                f"{GpuInstanceProfile(now.gpu_instance_profile)}, which Azure never changes; "
                f"{aks.beside(spec.name)} (the profile of a pool that gpuslice has made can change)"
            )
        before = pool.as_dict()
        now.count = _count(spec, now)
        now.enable_auto_scaling = spec.autoscaling
        now.min_count, now.max_count = spec.min_count, spec.max_count
        now.node_labels = aks.node_labels(
            spec, now.node_labels or {}, partitioned_by_aks=now.gpu_instance_profile is not None
        )
        now.node_taints = [str(taint) for taint in spec.taints]
        pool.properties = now
        if pool.as_dict() != before:
            # Not the SDK's own parameter: it would put quotes around an etag that AKS gives and documents
            # without them.
            await self._put("update", spec.name, pool, {"If-Match": now.e_tag} if now.e_tag else {})

    async def delete(self, name: str) -> None:
        """Remove the pool and its machines. Raises PoolNotFound."""
        await self._get(name)  # Azure accepts to delete a pool that does not exist.
        with self._sentences("delete", name):
            await self._follow(await self._client.agent_pools.begin_delete(*self._where, name))

    @property
    def _where(self) -> tuple[str, str]:
        return self._cluster.resource_group, self._cluster.name

    async def _list(self) -> builtins.list[AgentPool]:
        with self._sentences("read", ""):
            return [pool async for pool in self._client.agent_pools.list(*self._where)]

    async def _get(self, name: str) -> AgentPool:
        try:
            with self._sentences("read", name):
                return await self._client.agent_pools.get(*self._where, name)
        except PoolNotFound:
            # Azure's code is the same whether the pool or its cluster does not exist.
            await self._list()
            raise

    async def _put(self, doing: Doing, name: str, pool: AgentPool, only_if: dict[str, str]) -> None:
        with self._sentences(doing, name):
            pools = self._client.agent_pools
            await self._follow(await pools.begin_create_or_update(*self._where, name, pool, headers=only_if))

    async def _follow(self, operation: AsyncLROPoller[Any]) -> None:
        if self._wait:
            await operation.result()

    @contextmanager
    def _sentences(self, doing: Doing, pool: str) -> Iterator[None]:
        """Turn what the SDK raises into our errors."""
        try:
            yield
        except AzureError as error:
            if isinstance(error, ClientAuthenticationError) and error.response is None:
                raise aks.login_missing(error.message) from error
            raise aks.error_of(_failure(error), doing, pool, self._cluster) from error


def _transport() -> _Transport:
    transport: _Transport = AsyncioRequestsTransport(connection_timeout=REQUEST_SECONDS)
    return transport


def _failure(error: AzureError) -> Failure:
    if not isinstance(error, HttpResponseError) or error.response is None:
        return Failure(0, "", str(error))
    answer = error.response
    # Every response has headers; the type that the exception declares does not say so.
    retry_after: str = getattr(answer, "headers", {}).get("Retry-After", "")
    return aks.read_failure(error.status_code or 0, answer.text(), error.message, retry_after)


def _provided(pool: AgentPool) -> ProvidedPool:
    has = pool.properties or _Properties()
    state = has.provisioning_state or ""
    spec = PoolSpec(
        name=pool.name or "",
        node_vm_size=has.vm_size or "",
        count=has.count or 0,
        min_count=has.min_count if has.enable_auto_scaling else None,
        max_count=has.max_count if has.enable_auto_scaling else None,
        taints=tuple(read_taint(text, "nodeTaints") for text in has.node_taints or ()),
    )
    spec = aks.with_labels(spec, has.node_labels or {})
    if has.gpu_instance_profile:
        spec = replace(spec, gpu_instance_profile=GpuInstanceProfile(has.gpu_instance_profile))
    error = has.status.provisioning_error if has.status else None
    reason = aks.sentence(error.message or error.code or "") if error else ""
    return ProvidedPool(spec, state, aks.is_settled(state), reason if state != "Succeeded" else "")


def _is_system(pool: _Properties) -> bool:
    return pool.mode == "System"


def _count(spec: PoolSpec, now: _Properties) -> int:
    """The number of nodes to ask for: with autoscaling, the present number within the limits."""
    if spec.min_count is None or spec.max_count is None:
        return spec.count
    there = spec.count if now.count is None else now.count
    return max(spec.min_count, min(there, spec.max_count))
