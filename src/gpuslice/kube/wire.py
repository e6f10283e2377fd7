"""Slim projections of Kubernetes objects: only the fields that we read.

They are frozen and `gc=False`: tens of thousands live in caches, and the tail latency of a Python
server is its garbage collector. Unknown fields are skipped on decode, so these structs must never be
written back whole; writes are patches.
"""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import quote

import msgspec

from gpuslice.errors import InputError

NAME_LENGTH: Final = 253
"""Of an object's name, in characters."""
MAX_VERSION = 2**127
"""A resourceVersion is decimal and only grows (KEP-5504); a larger one is none."""


class Wire(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of all wire structs: camelCase keys on the wire, defaults left out."""


class Resource(msgspec.Struct, frozen=True):
    """Where a kind lives in the API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`v1` or `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The URL path of the collection, of one object, or of its subresource.

        A name never leads to anything else: not to another object, and an empty one not to the collection.
        Raises InputError for one that no object can have.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", _segment("Namespace", namespace)]
        parts.append(self.plural)
        if name is not None:
            if self.namespaced and not namespace:
                raise InputError(f"the {self.kind} {name[:NAME_LENGTH]!r} is named without its namespace")
            parts.append(_segment(self.kind, name))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


def name_problem(name: str) -> str:
    """Why no object can be called so, "" if one can (apimachinery `path.IsValidPathSegmentName`)."""
    if not name:
        return "it is empty"
    if len(name) > NAME_LENGTH:
        return f"it is longer than {NAME_LENGTH} characters"
    if name in (".", ".."):
        return "it is a way through folders"
    bad = next((char for char in name if char in "/%\\?#" or not char.isprintable()), "")
    return f"it has the character {bad!r} in it" if bad else ""


def _segment(kind: str, name: str) -> str:
    problem = name_problem(name)
    if problem:
        raise InputError(f"{name[:NAME_LENGTH]!r} is no name of a {kind}: {problem}")
    return quote(name, safe=":@!$&'()*+,;=")


class OwnerReference(Wire, frozen=True, gc=False):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Wire, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class KubeObject(Wire, frozen=True, gc=False):
    """Anything with metadata."""

    resource: ClassVar[Resource]
    metadata: ObjectMeta = ObjectMeta()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> str:
        """`namespace/name`, or the bare name of a cluster-scoped object."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}


# --- pods -----------------------------------------------------------------------------------------
class ResourceRequirements(Wire, frozen=True, gc=False):
    # Quantities stay as written; `units.parse_*` reads them.
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None
    claims: tuple[dict[str, str], ...] | None = None


class ContainerPort(Wire, frozen=True, gc=False):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(Wire, frozen=True, gc=False):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None
    ports: tuple[ContainerPort, ...] | None = None


class NodeSelectorRequirement(Wire, frozen=True, gc=False):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(Wire, frozen=True, gc=False):
    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None


class NodeSelector(Wire, frozen=True, gc=False):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Wire, frozen=True, gc=False):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True, gc=False):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] | None = None


class PodAffinity(Wire, frozen=True, gc=False):
    """Inter-pod affinity: only whether it is asked for."""

    required_during_scheduling_ignored_during_execution: tuple[dict[str, object], ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[dict[str, object], ...] | None = None


class Affinity(Wire, frozen=True, gc=False):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Wire, frozen=True, gc=False):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class TopologySpreadConstraint(Wire, frozen=True, gc=False):
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"


class VolumeClaim(Wire, frozen=True, gc=False):
    claim_name: str = ""


class Volume(Wire, frozen=True, gc=False):
    name: str = ""
    persistent_volume_claim: VolumeClaim | None = None
    ephemeral: dict[str, object] | None = None


class NamedReference(Wire, frozen=True, gc=False):
    name: str = ""


class PodSpec(Wire, frozen=True, gc=False):
    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    resource_claims: tuple[NamedReference, ...] | None = None
    scheduling_gates: tuple[NamedReference, ...] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: ResourceRequirements | None = None
    priority: int = 0
    preemption_policy: str = "PreemptLowerPriority"
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30


class ContainerStateTerminated(Wire, frozen=True, gc=False):
    exit_code: int = 0
    finished_at: str | None = None
    reason: str = ""


class ContainerState(Wire, frozen=True, gc=False):
    terminated: ContainerStateTerminated | None = None
    running: dict[str, str | None] | None = None
    waiting: dict[str, str | None] | None = None


class ContainerStatus(Wire, frozen=True, gc=False):
    name: str = ""
    state: ContainerState = ContainerState()
    ready: bool = False
    restart_count: int = 0


class PodCondition(Wire, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(Wire, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    conditions: tuple[PodCondition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(KubeObject, frozen=True, gc=False):
    resource = Resource("", "v1", "pods", "Pod")
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# --- nodes ----------------------------------------------------------------------------------------
class Taint(Wire, frozen=True, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Wire, frozen=True, gc=False):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeAddress(Wire, frozen=True, gc=False):
    type: str = ""
    address: str = ""


class NodeCondition(Wire, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class NodeStatus(Wire, frozen=True, gc=False):
    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    addresses: tuple[NodeAddress, ...] | None = None
    conditions: tuple[NodeCondition, ...] | None = None


class Node(KubeObject, frozen=True, gc=False):
    resource = Resource("", "v1", "nodes", "Node", namespaced=False)
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ConfigMap(KubeObject, frozen=True, gc=False):
    resource = Resource("", "v1", "configmaps", "ConfigMap")
    data: dict[str, str] | None = None


class ObjectReference(Wire, frozen=True, gc=False):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Event(KubeObject, frozen=True, gc=False):
    resource = Resource("", "v1", "events", "Event")
    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
