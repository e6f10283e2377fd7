"""AKS's node pools as values: the labels that they give their nodes, and errors as one sentence each. Pure.

Codes and wordings: Azure Resource Manager's and AKS's. AKS writes an error with or without a wrapper "error";
the errors in `details` are more exact than the one around them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from gpuslice import names
from gpuslice.capacity.pools import GpuInstanceProfile, PoolExists, PoolNotFound, PoolRefused, PoolSpec
from gpuslice.capacity.vmsizes import DISABLED, find_size, partitioning_of
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import GpuSliceError, InputError, Unavailable
from gpuslice.units import read_digits

Doing = Literal["read", "create", "update", "delete"]

ROLE: Final = "Azure Kubernetes Service Contributor Role"
LOGIN: Final = (
    "run `az login`, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET of a service principal, "
    "or run where a managed or a workload identity is"
)
JOINS: Final = "true"
"""The value of the label `gpushare` by which the agents' DaemonSet selects nodes."""
DAY_SECONDS: Final = 86_400
"""The longest pause in seconds that is believed: a longer one counts as none."""
_GUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SETTLED: Final = frozenset({"Succeeded", "Failed", "Canceled"})
_NO_MACHINES: Final = ("AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest")


@dataclass(frozen=True, slots=True)
class AksCluster:
    """Which cluster, in the words of `az aks nodepool`: --subscription, --resource-group, --cluster-name."""

    subscription: str
    resource_group: str
    name: str


def cluster_of(subscription: str | None, group: str | None, name: str | None) -> AksCluster | None:
    """The cluster that was named; None if neither a resource group nor a cluster was. Raises InputError."""
    if not group and not name:
        return None
    if not group:
        raise InputError(f"say in which resource group cluster {name!r} is", field="--resource-group")
    if not name:
        raise InputError(f"say which cluster of resource group {group!r}", field="--cluster-name")
    if not subscription:
        raise InputError(
            "say which, or set AZURE_SUBSCRIPTION_ID; `az account show --query id` prints your own",
            field="--subscription",
        )
    if not _GUID.fullmatch(subscription):
        raise InputError(
            f"{subscription!r} is not a subscription's id; `az account list` shows names with their ids",
            field="--subscription",
        )
    return AksCluster(subscription, group, name)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure that Azure reported.

    `status` is HTTP's, 0 if Azure was not reached or no login was found, 200 if the operation was accepted
    and failed later. `retry_after` in seconds, if Azure named a time.
    """

    status: int
    code: str
    message: str
    retry_after: int | None = None


class _Error(msgspec.Struct, frozen=True, gc=False):
    """An error in an answer, in any of the shapes that Azure gives it; null stands for absent."""

    code: str | None = None
    message: str | None = None
    details: tuple[_Error, ...] | None = None
    error: _Error | None = None


def read_failure(status: int, body: str, otherwise: str, retry_after: str = "") -> Failure:
    """Read an answer. `otherwise` is the message if it has none, as when a proxy answers."""
    try:
        found = msgspec.json.decode(body, type=_Error)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        found = _Error()
    # {"error": {...}}, or the same without the wrapper; a failed operation has a status beside it.
    while (inner := found.error or next(iter(found.details or ()), None)) is not None:
        found = inner
    return Failure(
        status,
        found.code or "",
        found.message or otherwise,
        read_digits(retry_after, DAY_SECONDS),
    )


def node_labels(
    spec: PoolSpec, now: Mapping[str, str] | None = None, *, partitioned_by_aks: bool = False
) -> dict[str, str]:
    """The labels that the pool gives its nodes at birth: those asked for, how GPUs are partitioned, and who
    does it.

    `now`: the labels that it gave until now, None for a new pool. GPUs that were partitioned are made whole
    if no profile is asked for; `partitioned_by_aks`: AKS decides how they are partitioned, not we. Raises
    InputError if the profile is not possible on these machines.
    """
    labels = dict(spec.labels)
    if now is not None and partitioned_by_aks:
        kept = {key: now[key] for key in (names.LABEL_GPUSHARE, names.MIG_CONFIG) if key in now}
        return kept | labels | _strategy(spec)
    if now is None or spec.gpu_instance_profile is not None or names.LABEL_GPUSHARE in now:
        labels.setdefault(names.LABEL_GPUSHARE, JOINS)
    if spec.gpu_instance_profile is not None:
        partitioning = partitioning_of(find_size(spec.node_vm_size).model, spec.gpu_instance_profile)
        labels[names.MIG_CONFIG] = partitioning.config
    elif now is not None and names.MIG_CONFIG in now:
        labels.setdefault(names.MIG_CONFIG, DISABLED)
    return labels | _strategy(spec)


def _strategy(spec: PoolSpec) -> dict[str, str]:
    return {} if spec.mig_strategy is MigStrategy.NONE else {names.MIG_STRATEGY: str(spec.mig_strategy)}


def with_labels(spec: PoolSpec, labels: Mapping[str, str]) -> PoolSpec:
    """The inverse of `node_labels`: the pool with the profile and the strategy that its labels name.

    A MIG configuration that belongs to no profile stays among the labels.
    """
    rest = dict(labels)
    if rest.get(names.LABEL_GPUSHARE) == JOINS:
        del rest[names.LABEL_GPUSHARE]
    profile = _profile(spec.node_vm_size, rest.get(names.MIG_CONFIG, ""))
    if profile is not None or rest.get(names.MIG_CONFIG) == DISABLED:
        del rest[names.MIG_CONFIG]
    strategy = MigStrategy.NONE
    if rest.get(names.MIG_STRATEGY) in tuple(MigStrategy):
        strategy = MigStrategy(rest.pop(names.MIG_STRATEGY))
    return replace(spec, gpu_instance_profile=profile, mig_strategy=strategy, labels=MappingProxyType(rest))


def _profile(vm_size: str, config: str) -> GpuInstanceProfile | None:
    for profile in GpuInstanceProfile:
        with suppress(InputError):
            if partitioning_of(find_size(vm_size).model, profile).config == config:
                return profile
    return None


def is_settled(state: str) -> bool:
    """True if nothing is under way in a pool with this provisioningState."""
    return state in _SETTLED


def error_of(failure: Failure, doing: Doing, pool: str, cluster: AksCluster) -> GpuSliceError:
    """The exception for a failure: its sentence says what is not possible and the remedy.

    `pool`: "" if the request was about all pools. A 404 then means the cluster; otherwise it means the pool,
    which is right only if the cluster is known to exist.
    """
    code, said = failure.code, sentence(failure.message)
    where, named = f"cluster {cluster.name!r}", f"{code or f'HTTP {failure.status}'}: "
    if failure.status == 404 and not pool:
        return _cluster_not_found(code, cluster)
    if code == "PropertyChangeNotAllowed":
        return PoolRefused(
            f"Azure does not change this of pool {pool!r} once it is made ({said}); {beside(pool)}"
        )
    if "quota" in code.lower() or " quota" in failure.message.lower():
        numbers = _numbers(failure.message)
        return PoolRefused(
            f"Azure's quota does not allow it for pool {pool!r} ({said}{numbers}); "
            "ask Azure for a higher quota, or for fewer nodes, or choose another VM size"
        )
    if code in _NO_MACHINES:
        return Unavailable(
            f"Azure has no free machines for pool {pool!r} now ({said}); "
            "try again later, or choose another VM size or zone"
        )
    if failure.status == 429:
        after = f"; try again in {failure.retry_after} s" if failure.retry_after else "; try again later"
        return Unavailable(f"Azure has been asked too often{after}")
    if failure.status == 0:
        return Unavailable(f"Azure cannot be reached: {said}")
    if failure.status >= 500:
        return Unavailable(f"Azure has a fault of its own ({named}{said}); try again")
    if failure.status == 401:
        return PoolRefused(
            f"Azure does not accept the login ({named}{said}): log in anew with `az login`, and "
            f"look that subscription {cluster.subscription} belongs to that login's tenant"
        )
    if failure.status == 403 and (right := re.search(r"perform action '([^']+)'", failure.message)):
        return PoolRefused(
            f"the login may not do {right[1]} on {where}; whoever may give roles can give it "
            f"{ROLE!r} on that cluster"
        )
    if failure.status == 412:
        if doing == "create":
            return PoolExists(
                f"{where} has a node pool {pool!r} already; choose another name, or change it with update"
            )
        return Unavailable(f"pool {pool!r} was changed by somebody else in the meantime; try again")
    if failure.status == 409:
        return Unavailable(f"Azure is busy with {where} ({said}); try again when that has ended")
    if failure.status == 404:
        return PoolNotFound(
            f"{where} has no node pool {pool!r}; `gpuslice nodepool list` shows those there are"
        )
    return PoolRefused(f"Azure refuses it for {f'pool {pool!r}' if pool else where} ({named}{said})")


def _cluster_not_found(code: str, cluster: AksCluster) -> PoolRefused:
    """The error that the cluster, its resource group or the subscription does not exist, or not for this
    login.
    """
    if code == "SubscriptionNotFound":
        return PoolRefused(
            f"there is no subscription {cluster.subscription} for this login; `az account list` shows its own"
        )
    if code == "ResourceGroupNotFound":
        return PoolRefused(
            f"subscription {cluster.subscription} has no resource group {cluster.resource_group!r}; "
            "`az group list` shows those that it has"
        )
    return PoolRefused(
        f"resource group {cluster.resource_group!r} has no cluster {cluster.name!r}; "
        "`az aks list` shows those that there are"
    )


def login_missing(said: str) -> PoolRefused:
    """The error that there is no token. `said`: the message of Azure's own chain of credentials, many
    lines.
    """
    if refused := re.search(r"AADSTS\d+: [^.\n]+", said):
        return PoolRefused(f"Azure does not accept the login ({refused[0].strip()}); {LOGIN}")
    return PoolRefused(f"no login for Azure was found; {LOGIN}")


def beside(pool: str) -> str:
    """The remedy where Azure never changes a property of a pool."""
    return f"add another pool beside it, drain the nodes of {pool!r}, and delete it"


def sentence(text: str) -> str:
    """The first sentence of what Azure wrote, on one line and without its full stop."""
    line = " ".join(text.split())
    first, *_ = re.split(r"\.? (?:See|Please|For more|If you|Learn|Submit|Visit)\b|\. (?=[A-Z])", line)
    return first.rstrip(".")


def _numbers(message: str) -> str:
    """What compute's quota message has in its second sentence."""
    found = re.findall(r"(Current Limit|Current Usage|Additional Required): (\d+)", message)
    return "".join(f", {name.lower()} {number}" for name, number in found)
