"""The objects that controllers read: slim wire structs with exactly the fields they act on.

Pod templates stay JSON objects: a controller copies and compares them and never looks inside. Status
structs are written back whole with explicit zeros and nulls (`omit_defaults=False`), because a merge
patch removes only what it names.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from gpuslice.kube.wire import (
    Affinity,
    ContainerStatus,
    KubeObject,
    NodeSpec,
    ObjectMeta,
    Resource,
    Toleration,
    Wire,
)

Json = dict[str, Any]


class Meta(ObjectMeta, frozen=True, gc=False):
    generation: int = 0
    finalizers: tuple[str, ...] = ()


class Condition(Wire, frozen=True, gc=False):
    """Any kind's condition; times are RFC 3339."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_update_time: str | None = None
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None
    observed_generation: int = 0


Conditions = tuple[Condition, ...]


class Requirement(Wire, frozen=True, gc=False):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether the labels satisfy this expression. An unknown operator matches nothing."""
        value, values = labels.get(self.key), self.values or ()
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        return False


class LabelSelector(Wire, frozen=True, gc=False):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether an object with these labels is selected; the empty selector selects everything."""
        for key, value in (self.match_labels or {}).items():
            if labels.get(key) != value:
                return False
        return all(requirement.matches(labels) for requirement in self.match_expressions or ())

    @property
    def empty(self) -> bool:
        """True if nothing is required."""
        return not self.match_labels and not self.match_expressions


class Managed(KubeObject, frozen=True, gc=False):
    """An object with the metadata that controllers need."""

    metadata: Meta = Meta()

    @property
    def deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def controller_uid(self) -> str:
        """The uid of the owner that controls it, or ""."""
        for owner in self.metadata.owner_references:
            if owner.controller:
                return owner.uid
        return ""


class PodTemplate(Wire, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()
    spec: Json = msgspec.field(default_factory=dict)


# --- pods -----------------------------------------------------------------------------------------
class PodSpec(Wire, frozen=True, gc=False):
    node_name: str = ""
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None


class PodStatus(Wire, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    start_time: str | None = None
    conditions: Conditions | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(Managed, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("", "v1", "pods", "Pod")
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# --- workloads ------------------------------------------------------------------------------------
class Workload(Managed, frozen=True, gc=False):
    """What the controllers of pods have in common, for adoption."""

    @property
    def selects(self) -> LabelSelector:
        """Which pods (or ReplicaSets) may be its own."""
        raise NotImplementedError


class ReplicaSetSpec(Wire, frozen=True, gc=False):
    replicas: int = 1
    min_ready_seconds: int = 0
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()


class ReplicaSetStatus(Wire, frozen=True, gc=False, omit_defaults=False):
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    observed_generation: int = 0
    conditions: Conditions | None = None


class ReplicaSet(Workload, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("apps", "v1", "replicasets", "ReplicaSet")
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()

    @property
    def selects(self) -> LabelSelector:
        return self.spec.selector


class RollingUpdate(Wire, frozen=True, gc=False):
    max_surge: int | str | None = None
    max_unavailable: int | str | None = None
    partition: int = 0


class UpdateStrategy(Wire, frozen=True, gc=False):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DeploymentSpec(Wire, frozen=True, gc=False):
    replicas: int = 1
    min_ready_seconds: int = 0
    progress_deadline_seconds: int = 600
    revision_history_limit: int = 10
    paused: bool = False
    selector: LabelSelector = LabelSelector()
    strategy: UpdateStrategy = UpdateStrategy()
    template: PodTemplate = PodTemplate()


class DeploymentStatus(Wire, frozen=True, gc=False, omit_defaults=False):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    collision_count: int | None = None
    conditions: Conditions | None = None


class Deployment(Workload, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("apps", "v1", "deployments", "Deployment")
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def selects(self) -> LabelSelector:
        return self.spec.selector


class Ordinals(Wire, frozen=True, gc=False):
    start: int = 0


class StatefulSetSpec(Wire, frozen=True, gc=False):
    replicas: int = 1
    service_name: str = ""
    pod_management_policy: str = "OrderedReady"
    min_ready_seconds: int = 0
    revision_history_limit: int = 10
    ordinals: Ordinals | None = None
    selector: LabelSelector = LabelSelector()
    update_strategy: UpdateStrategy = UpdateStrategy()
    template: PodTemplate = PodTemplate()
    volume_claim_templates: tuple[Json, ...] | None = None


class StatefulSetStatus(Wire, frozen=True, gc=False, omit_defaults=False):
    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int = 0


class StatefulSet(Workload, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("apps", "v1", "statefulsets", "StatefulSet")
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()

    @property
    def selects(self) -> LabelSelector:
        return self.spec.selector


class DaemonSetSpec(Wire, frozen=True, gc=False):
    min_ready_seconds: int = 0
    revision_history_limit: int = 10
    selector: LabelSelector = LabelSelector()
    update_strategy: UpdateStrategy = UpdateStrategy()
    template: PodTemplate = PodTemplate()


class DaemonSetStatus(Wire, frozen=True, gc=False, omit_defaults=False):
    observed_generation: int = 0
    current_number_scheduled: int = 0
    desired_number_scheduled: int = 0
    number_misscheduled: int = 0
    number_ready: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    updated_number_scheduled: int = 0


class DaemonSet(Workload, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("apps", "v1", "daemonsets", "DaemonSet")
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()

    @property
    def selects(self) -> LabelSelector:
        return self.spec.selector


class ControllerRevision(Managed, frozen=True, gc=False):
    """One remembered template of a StatefulSet or DaemonSet."""

    resource: ClassVar[Resource] = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
    revision: int = 0
    data: Json = msgspec.field(default_factory=dict)


class JobSpec(Wire, frozen=True, gc=False):
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    backoff_limit: int = 6
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    suspend: bool = False
    manual_selector: bool = False
    selector: LabelSelector | None = None
    template: PodTemplate = PodTemplate()
    managed_by: str | None = None


class Uncounted(Wire, frozen=True, gc=False, omit_defaults=False):
    """uids of ended pods that keep their finalizer until status tells of them."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobStatus(Wire, frozen=True, gc=False, omit_defaults=False):
    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str | None = None
    uncounted_terminated_pods: Uncounted | None = None
    conditions: Conditions | None = None


class Job(Workload, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("batch", "v1", "jobs", "Job")
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def selects(self) -> LabelSelector:
        if self.spec.selector is not None and not self.spec.selector.empty:
            return self.spec.selector
        return LabelSelector(match_labels={"batch.kubernetes.io/controller-uid": self.uid})


# --- everything else --------------------------------------------------------------------------------
class BudgetSpec(Wire, frozen=True, gc=False):
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: LabelSelector | None = None


class BudgetStatus(Wire, frozen=True, gc=False, omit_defaults=False):
    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, str] | None = None
    conditions: Conditions | None = None


class DisruptionBudget(Managed, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class NamespaceSpec(Wire, frozen=True, gc=False):
    finalizers: tuple[str, ...] | None = None


class Namespace(Managed, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
    spec: NamespaceSpec = NamespaceSpec()


class ServiceAccount(Managed, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("", "v1", "serviceaccounts", "ServiceAccount")


class ConfigMap(Managed, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("", "v1", "configmaps", "ConfigMap")
    data: dict[str, str] | None = None


class NodeStatus(Wire, frozen=True, gc=False):
    conditions: Conditions | None = None


class Node(Managed, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("", "v1", "nodes", "Node", namespaced=False)
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(Wire, frozen=True, gc=False):
    renew_time: str | None = None
    lease_duration_seconds: int | None = None


class Lease(Managed, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("coordination.k8s.io", "v1", "leases", "Lease")
    spec: LeaseSpec = LeaseSpec()


def status_patch(kind: KubeObject, status: Wire) -> Json:
    """The body that writes a whole status, only onto the incarnation and version it was computed from.

    The version matters: a status computed from an older object must not overwrite a newer one.
    """
    return {
        "metadata": {"uid": kind.uid, "resourceVersion": kind.metadata.resource_version},
        "status": msgspec.to_builtins(status),
    }
