"""The resource GPUNodePool: its fields as they are written, and what they mean.

The fields are those of an agent pool in Azure's API (vmSize, count, gpuInstanceProfile, minCount and so on),
so that a request body written for AKS reads the same here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from gpuslice import names
from gpuslice.capacity.pools import (
    MAX_NODES,
    GpuInstanceProfile,
    PoolSpec,
    PoolTaint,
    TaintEffect,
    check_name,
)
from gpuslice.capacity.vmsizes import Partitioning, VmSize, find_size, partitioning_of
from gpuslice.cluster.migrecords import MigPolicy
from gpuslice.config.reader import load_yaml
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError, quoted
from gpuslice.kube.wire import KubeObject, ObjectMeta, Resource, Wire

POOLS: Final = Resource(names.POOL_GROUP, "v1alpha1", "gpunodepools", "GPUNodePool", namespaced=False)
DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
DEFINITION: Final = Path(__file__).parent / "gpunodepools.yaml"
"""The CustomResourceDefinition; deploy/helm/gpuslice/crds has the same."""
IDLE_SECONDS: Final = 60
DEFAULT_COUNT: Final = 3
"""The default of az."""
READY: Final = "Ready"
SCALING: Final = "Scaling"
"""Types of conditions: everything is as the spec says; the controller chooses the number of nodes."""

_LABEL_NAME: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY: Final = re.compile(rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}")
_LABEL_VALUE: Final = re.compile(rf"(?:{_LABEL_NAME})?")
_OURS: Final = frozenset(
    (names.POOL, names.AKS_POOL, names.INSTANCE_TYPE, names.MIG_CONFIG, names.MIG_STRATEGY)
)
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class PoolFields(Wire, frozen=True, gc=False):
    """`spec` as it is written."""

    vm_size: str = ""
    count: int | None = None
    min_count: int | None = None
    max_count: int | None = None
    idle_seconds: int = IDLE_SECONDS
    gpu_instance_profile: str | None = None
    mig_strategy: str | None = None
    mig_policy: str | None = None
    node_labels: dict[str, str] | None = None
    node_taints: tuple[str, ...] = ()
    selector: dict[str, str] | None = None


class Condition(Wire, frozen=True, gc=False):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class PoolStatus(Wire, frozen=True, gc=False, omit_defaults=False):
    """`partitioned_nodes`: the number of nodes whose GPUs are partitioned as the profile says."""

    observed_generation: int = 0
    nodes: int = 0
    ready_nodes: int = 0
    partitioned_nodes: int = 0
    conditions: tuple[Condition, ...] = ()


class PoolMeta(ObjectMeta, frozen=True, gc=False):
    generation: int = 0


class GPUNodePool(KubeObject, frozen=True, gc=False):
    resource = POOLS
    metadata: PoolMeta = PoolMeta()
    spec: PoolFields = PoolFields()
    status: PoolStatus = PoolStatus()

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type."""
        return next((one for one in self.status.conditions if one.type == kind), None)


@dataclass(frozen=True, slots=True)
class DesiredPool:
    """What a resource means. `size` and `partitioning` are None if the resource does not give them.

    `selector`: the pool is the nodes with these labels; None: machines are made for it, where that can be.
    """

    spec: PoolSpec
    size: VmSize | None
    partitioning: Partitioning | None
    selector: Mapping[str, str] | None
    idle_seconds: int = IDLE_SECONDS
    uid: str = ""


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition as an object."""
    return cast("dict[str, Any]", load_yaml(DEFINITION.read_text()))


def pool_object(name: str, fields: PoolFields) -> dict[str, Any]:
    """The object to create."""
    return {
        "apiVersion": POOLS.api_version,
        "kind": POOLS.kind,
        "metadata": {"name": name},
        "spec": fields,
    }


def read_pool(pool: GPUNodePool) -> DesiredPool:
    """What the resource means. Raises InputError naming the field; nothing is done for such a pool."""
    return dataclasses.replace(read_fields(check_name(pool.name), pool.spec), uid=pool.uid)


def read_fields(name: str, fields: PoolFields) -> DesiredPool:
    """The same from a spec alone. Raises InputError naming the field."""
    if not fields.vm_size and not fields.selector:
        raise InputError("say which machines: a VM size, or a selector of existing nodes", field="vmSize")
    size = find_size(fields.vm_size) if fields.vm_size else None
    profile = _profile(fields.gpu_instance_profile)
    labels = _labels(fields.node_labels or {}, "nodeLabels")
    policy = _policy(fields.mig_policy, labels)
    if policy is not MigPolicy.STATIC:
        if profile is not None:
            raise InputError(
                "a profile and partitioning on demand exclude each other; leave one out", field="migPolicy"
            )
        labels[names.MIG_POLICY] = policy.value
    partitioning = partitioning_of(size.model, profile) if size is not None and profile is not None else None
    low, high = fields.min_count, fields.max_count
    if (low is None) != (high is None):
        missing = "minCount" if low is None else "maxCount"
        raise InputError("is missing; minCount and maxCount go together", field=missing)
    for field, number in (("count", fields.count), ("minCount", low), ("maxCount", high)):
        if number is not None and not 0 <= number <= MAX_NODES:
            raise InputError(f"{quoted(number)} is not a number of nodes; use 0 to {MAX_NODES}", field=field)
    count = fields.count
    if low is not None and high is not None:
        if not 1 <= high >= low:
            raise InputError(f"{high} is less than minCount {low}, or 0", field="maxCount")
        if low == 0 and policy is not MigPolicy.STATIC:
            raise InputError(
                "0 would stay 0: the number of nodes does not follow pods that wait for MIG devices which "
                "could be partitioned on a new node; use 1 or more, or a profile in the place of migPolicy",
                field="minCount",
            )
        count = low if count is None else count
        if not low <= count <= high:
            raise InputError(f"{count} is not between minCount {low} and maxCount {high}", field="count")
    spec = PoolSpec(
        name,
        size.name if size is not None else "",
        DEFAULT_COUNT if count is None else count,
        profile,
        _strategy(fields.mig_strategy, profile, policy),
        low,
        high,
        MappingProxyType(labels),
        tuple(read_taint(text, f"nodeTaints[{n}]") for n, text in enumerate(fields.node_taints)),
    )
    selector = None if fields.selector is None else MappingProxyType(_pairs(fields.selector, "selector"))
    return DesiredPool(spec, size, partitioning, selector, fields.idle_seconds)


def read_taint(text: str, field: str) -> PoolTaint:
    """Read sku=gpu:NoSchedule, or gpu:NoSchedule. Raises InputError."""
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if effect not in _EFFECTS or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
        raise InputError(f"{quoted(text)} is not a taint; write one as sku=gpu:NoSchedule", field=field)
    return PoolTaint(key, cast("TaintEffect", effect), value)


def read_pairs(words: Sequence[str], field: str) -> dict[str, str]:
    """Read key=value words; one word may hold several, separated by commas or spaces. Raises InputError."""
    found: dict[str, str] = {}
    for word in (part for text in words for part in re.split(r"[,\s]+", text) if part):
        key, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"{quoted(word)} is not a label; write key=value", field=field)
        found[key] = value
    return _pairs(found, field)


def _profile(text: str | None) -> GpuInstanceProfile | None:
    if text is None:
        return None
    try:
        return GpuInstanceProfile(text)
    except ValueError as error:
        known = ", ".join(GpuInstanceProfile)
        raise InputError(
            f"{quoted(text)} is not a profile; use one of {known}", field="gpuInstanceProfile"
        ) from error


def _policy(text: str | None, labels: Mapping[str, str]) -> MigPolicy:
    """The policy from its own field, or from the label that the pool gives its nodes."""
    try:
        policy = MigPolicy.of({names.MIG_POLICY: text} if text is not None else labels)
    except InputError as error:
        raise InputError(error.detail, field="migPolicy") from error
    if labels.get(names.MIG_POLICY, policy.value) != policy.value:
        raise InputError(
            f"{policy} here and {labels[names.MIG_POLICY]} as a label; give one", field="migPolicy"
        )
    return policy


def _strategy(text: str | None, profile: GpuInstanceProfile | None, policy: MigPolicy) -> MigStrategy:
    if policy is not MigPolicy.STATIC:
        if text not in (None, MigStrategy.MIXED.value):
            raise InputError(
                "what is created on demand is counted by its profile; use mixed", field="migStrategy"
            )
        return MigStrategy.MIXED
    if text is None:
        return MigStrategy.NONE if profile is None else MigStrategy.SINGLE
    try:
        strategy = MigStrategy(text)
    except ValueError as error:
        raise InputError(
            f"{quoted(text)} is not a strategy; use none, single or mixed", field="migStrategy"
        ) from error
    if profile is not None and strategy is MigStrategy.NONE:
        raise InputError(
            "none would count a GPU that is partitioned as a whole one; use single or mixed with a profile",
            field="migStrategy",
        )
    return strategy


def _labels(labels: Mapping[str, str], field: str) -> dict[str, str]:
    for key in labels.keys() & _OURS:
        raise InputError(f"{key} is set by the pool itself; leave it out", field=field)
    return _pairs(labels, field)


def _pairs(labels: Mapping[str, str], field: str) -> dict[str, str]:
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise InputError(f"{quoted(f'{key}={value}')} is not a label as Kubernetes takes it", field=field)
    return dict(labels)
