"""The registry: every kind the server knows, in one table. CRDs add to it at run time.

A kind is data: where it lives, what kubectl calls it, which subresources it has. What it *does* beyond
that (defaults, validation, printing) is looked up by `Kind.key` in the module whose concern it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from gpuslice.local.apiserver.schema.status import Json, qualified

Generation = Literal["", "spec", "all"]
"""What a change of metadata.generation counts: nothing, the spec, or all but metadata and status."""


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where `scale` finds its numbers and selector, as dotted JSON paths."""

    spec: str = "spec.replicas"
    status: str = "status.replicas"
    selector: str = "spec.selector"


@dataclass(frozen=True, slots=True)
class Column:
    """One additionalPrinterColumn of a CRD."""

    name: str
    type: str
    path: str
    priority: int = 0
    description: str = ""
    format: str = ""


@dataclass(frozen=True, slots=True)
class CustomKind:
    """What only a kind from a CRD has."""

    schema: Json
    columns: tuple[Column, ...] = ()
    selectable: tuple[str, ...] = ()
    storage_version: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource in one API version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    """Has the `status` subresource: the main route ignores status, the subresource everything else."""
    generation: Generation = ""
    scale: ScalePaths | None = None
    subresources: tuple[str, ...] = ()
    """Further subresources, beyond status and scale."""
    custom: CustomKind | None = field(default=None, compare=False)
    stored_as: tuple[str, str] | None = None
    """(group, plural) of the kind whose storage this one is another view of."""

    @property
    def key(self) -> tuple[str, str]:
        """(group, plural): one storage, whatever the version."""
        return (self.group, self.plural)

    @property
    def storage(self) -> tuple[str, str]:
        """The key of the collection that holds the objects."""
        return self.stored_as or (self.group, self.plural)

    @property
    def api_version(self) -> str:
        """`v1` or `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        """What `kubectl get` accepts in the singular."""
        return self.kind.lower()

    @property
    def resource(self) -> str:
        """`pods` or `deployments.apps`, as messages name it."""
        return qualified(self.group, self.plural)


def _table() -> Iterator[Kind]:
    def kind(
        group_version: str, plural: str, name: str, short: str = "", *, all_: bool = False, **more: object
    ) -> Kind:
        group, _, version = group_version.rpartition("/")
        return Kind(
            group,
            version,
            plural,
            name,
            short=tuple(short.split()),
            categories=("all",) if all_ else (),
            **more,  # type: ignore[arg-type]
        )

    scale = ScalePaths()
    of_pods = ("attach", "binding", "eviction", "exec", "log")
    v1, apps, batch = "v1", "apps/v1", "batch/v1"
    yield kind(v1, "configmaps", "ConfigMap", "cm")
    yield kind(v1, "endpoints", "Endpoints", "ep")
    yield kind(v1, "events", "Event", "ev")
    yield kind(v1, "limitranges", "LimitRange", "limits")
    yield kind(v1, "namespaces", "Namespace", "ns", namespaced=False, status=True, subresources=("finalize",))
    yield kind(v1, "nodes", "Node", "no", namespaced=False, status=True)
    yield kind(v1, "persistentvolumeclaims", "PersistentVolumeClaim", "pvc", status=True)
    yield kind(v1, "persistentvolumes", "PersistentVolume", "pv", namespaced=False, status=True)
    yield kind(v1, "pods", "Pod", "po", all_=True, status=True, generation="spec", subresources=of_pods)
    yield kind(v1, "podtemplates", "PodTemplate", generation="all")
    yield kind(
        v1,
        "replicationcontrollers",
        "ReplicationController",
        "rc",
        all_=True,
        status=True,
        generation="spec",
        scale=scale,
    )
    yield kind(v1, "resourcequotas", "ResourceQuota", "quota", status=True)
    yield kind(v1, "secrets", "Secret")
    yield kind(v1, "serviceaccounts", "ServiceAccount", "sa")
    yield kind(v1, "services", "Service", "svc", all_=True, status=True)
    yield kind(apps, "controllerrevisions", "ControllerRevision")
    yield kind(apps, "daemonsets", "DaemonSet", "ds", all_=True, status=True, generation="spec")
    yield kind(
        apps, "deployments", "Deployment", "deploy", all_=True, status=True, generation="spec", scale=scale
    )
    yield kind(
        apps, "replicasets", "ReplicaSet", "rs", all_=True, status=True, generation="spec", scale=scale
    )
    yield kind(
        apps, "statefulsets", "StatefulSet", "sts", all_=True, status=True, generation="spec", scale=scale
    )
    yield kind(batch, "jobs", "Job", all_=True, status=True, generation="spec")
    yield kind(batch, "cronjobs", "CronJob", "cj", all_=True, status=True, generation="spec")
    yield kind(
        "autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "hpa", all_=True, status=True
    )
    yield kind(
        "policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", "pdb", status=True, generation="spec"
    )
    yield kind("coordination.k8s.io/v1", "leases", "Lease")
    yield kind("events.k8s.io/v1", "events", "Event", "ev", stored_as=("", "events"))
    yield kind("discovery.k8s.io/v1", "endpointslices", "EndpointSlice", generation="all")
    net = "networking.k8s.io/v1"
    yield kind(net, "ingresses", "Ingress", "ing", status=True, generation="spec")
    yield kind(net, "ingressclasses", "IngressClass", namespaced=False, generation="spec")
    yield kind(net, "networkpolicies", "NetworkPolicy", "netpol", generation="spec")
    rbac = "rbac.authorization.k8s.io/v1"
    yield kind(rbac, "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
    yield kind(rbac, "clusterroles", "ClusterRole", namespaced=False)
    yield kind(rbac, "rolebindings", "RoleBinding")
    yield kind(rbac, "roles", "Role")
    yield kind(
        "scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", "pc", namespaced=False, generation="all"
    )
    store = "storage.k8s.io/v1"
    yield kind(store, "csidrivers", "CSIDriver", namespaced=False)
    yield kind(store, "csinodes", "CSINode", namespaced=False)
    yield kind(store, "storageclasses", "StorageClass", "sc", namespaced=False)
    yield kind(store, "volumeattachments", "VolumeAttachment", namespaced=False, status=True)
    yield kind("node.k8s.io/v1", "runtimeclasses", "RuntimeClass", namespaced=False)
    hooks = "admissionregistration.k8s.io/v1"
    yield kind(
        hooks,
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
        generation="all",
    )
    yield kind(
        hooks,
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        namespaced=False,
        generation="all",
    )
    # Stored, not obeyed: docs/embedded-differences.md.
    yield kind(
        hooks,
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        namespaced=False,
        status=True,
        generation="spec",
    )
    yield kind(
        hooks, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False
    )
    yield kind(
        "apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "crd crds",
        namespaced=False,
        status=True,
        generation="spec",
    )
    dra = "resource.k8s.io/v1"
    yield kind(dra, "deviceclasses", "DeviceClass", namespaced=False, generation="spec")
    yield kind(dra, "resourceclaims", "ResourceClaim", status=True)
    yield kind(dra, "resourceclaimtemplates", "ResourceClaimTemplate")
    yield kind(dra, "resourceslices", "ResourceSlice", namespaced=False, generation="spec")


BUILT_IN: tuple[Kind, ...] = tuple(_table())

GROUP_ORDER: tuple[str, ...] = (
    "apps",
    "events.k8s.io",
    "batch",
    "autoscaling",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
)
"""Built-in groups in kube-apiserver's own order of preference; groups of CRDs follow."""


class Registry:
    """The kinds served at the moment."""

    def __init__(self, kinds: Iterable[Kind] = BUILT_IN) -> None:
        self._kinds: dict[tuple[str, str, str], Kind] = {}
        self.changes = 0
        """Counts every addition and removal, so that what is derived from the table can be cached."""
        for kind in kinds:
            self.add(kind)

    def add(self, kind: Kind) -> None:
        """Serve a kind, replacing an older definition of the same group, version and plural."""
        self._kinds[kind.group, kind.version, kind.plural] = kind
        self.changes += 1

    def remove(self, kind: Kind) -> None:
        """Stop serving a kind; no effect if it is not served."""
        self._kinds.pop((kind.group, kind.version, kind.plural), None)
        self.changes += 1

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind behind a URL."""
        return self._kinds.get((group, version, plural))

    def of_storage(self, key: tuple[str, str]) -> list[Kind]:
        """All served versions of one storage."""
        return [kind for kind in self._kinds.values() if kind.key == key]

    def is_stored_form(self, kind: Kind) -> bool:
        """Whether stored bytes can be sent as they are."""
        if kind.stored_as is not None:
            return False
        return kind.custom is None or kind.custom.storage_version == kind.version

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._kinds.values()))
