"""What the doctor reads of Kubernetes objects beyond what the scheduler needs; never written back.

Pods and nodes are the scheduler's own structs with more fields, so that `Cluster` can account for them.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gpuslice.kube import wire
from gpuslice.kube.wire import KubeObject, Resource, Wire


# --- pods -----------------------------------------------------------------------------------------
class EnvVar(Wire, frozen=True, gc=False):
    name: str = ""
    value: str = ""


class SecurityContext(Wire, frozen=True, gc=False):
    privileged: bool = False


class Container(wire.Container, frozen=True, gc=False):
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    security_context: SecurityContext | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The command line, as far as the spec says it."""
        return (*(self.command or ()), *(self.args or ()))


class HostPath(Wire, frozen=True, gc=False):
    path: str = ""


class SecretVolume(Wire, frozen=True, gc=False):
    secret_name: str = ""


class Volume(wire.Volume, frozen=True, gc=False):
    host_path: HostPath | None = None
    config_map: wire.NamedReference | None = None
    secret: SecretVolume | None = None


class PodSpec(wire.PodSpec, frozen=True, gc=False):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    runtime_class_name: str = ""
    service_account_name: str = ""

    @property
    def all_containers(self) -> tuple[Container, ...]:
        return (*(self.init_containers or ()), *self.containers)


class Terminated(wire.ContainerStateTerminated, frozen=True, gc=False):
    message: str = ""


class State(wire.ContainerState, frozen=True, gc=False):
    terminated: Terminated | None = None


class ContainerStatus(wire.ContainerStatus, frozen=True, gc=False):
    state: State = State()
    last_state: State = State()


class PodStatus(wire.PodStatus, frozen=True, gc=False):
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None

    @property
    def all_statuses(self) -> tuple[ContainerStatus, ...]:
        return (*(self.init_container_statuses or ()), *(self.container_statuses or ()))

    def condition(self, kind: str) -> wire.PodCondition | None:
        """The condition of that type."""
        return next((one for one in self.conditions or () if one.type == kind), None)


class Pod(wire.Pod, frozen=True, gc=False):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def owner(self) -> wire.OwnerReference | None:
        """Its controller."""
        return next((one for one in self.metadata.owner_references if one.controller), None)

    @property
    def controller(self) -> tuple[str, str] | None:
        """Kind and name of what a person would change: the Deployment behind a ReplicaSet."""
        owner = self.owner
        if owner is None:
            return None
        base, _, end = owner.name.rpartition("-")
        if owner.kind == "ReplicaSet" and base and end == self.labels.get("pod-template-hash", end):
            return "Deployment", base
        return owner.kind, owner.name

    @property
    def alive(self) -> bool:
        return self.status.phase not in ("Succeeded", "Failed")


# --- nodes ----------------------------------------------------------------------------------------
class NodeInfo(Wire, frozen=True, gc=False):
    container_runtime_version: str = ""
    kubelet_version: str = ""


class NodeStatus(wire.NodeStatus, frozen=True, gc=False):
    node_info: NodeInfo = NodeInfo()


class Node(wire.Node, frozen=True, gc=False):
    status: NodeStatus = NodeStatus()


class RuntimeClass(KubeObject, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource(
        "node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False
    )
    handler: str = ""


# --- workloads ------------------------------------------------------------------------------------
class Selector(Wire, frozen=True, gc=False):
    match_labels: dict[str, str] | None = None


class PodTemplate(Wire, frozen=True, gc=False):
    metadata: wire.ObjectMeta = wire.ObjectMeta()
    spec: PodSpec = PodSpec()


class WorkloadSpec(Wire, frozen=True, gc=False):
    replicas: int = 1
    selector: Selector = Selector()
    template: PodTemplate = PodTemplate()


class Workload(KubeObject, frozen=True, gc=False):
    """A Deployment or DaemonSet."""

    spec: WorkloadSpec = WorkloadSpec()

    @property
    def where(self) -> str:
        """`Kind/namespace/name`."""
        return f"{self.resource.kind}/{self.key}"

    def owns(self, pod: Pod) -> bool:
        """True if the pod is one of its pods, by namespace and selector."""
        wanted = self.spec.selector.match_labels or {}
        return (
            bool(wanted)
            and pod.namespace == self.namespace
            and all(pod.labels.get(key) == value for key, value in wanted.items())
        )


class DaemonSet(Workload, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("apps", "v1", "daemonsets", "DaemonSet")


class Deployment(Workload, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("apps", "v1", "deployments", "Deployment")


# --- ways to us -----------------------------------------------------------------------------------
class ServiceSpec(Wire, frozen=True, gc=False):
    selector: dict[str, str] | None = None
    cluster_ip: str = msgspec.field(default="", name="clusterIP")


class Service(KubeObject, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("", "v1", "services", "Service")
    spec: ServiceSpec = ServiceSpec()


class EndpointConditions(Wire, frozen=True, gc=False):
    ready: bool | None = None


class Endpoint(Wire, frozen=True, gc=False):
    conditions: EndpointConditions = EndpointConditions()


class EndpointSlice(KubeObject, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
    endpoints: tuple[Endpoint, ...] | None = None

    @property
    def service(self) -> str:
        return self.labels.get("kubernetes.io/service-name", "")

    @property
    def ready(self) -> int:
        """How many of its endpoints are ready; not said means yes."""
        return sum(one.conditions.ready is not False for one in self.endpoints or ())


class ServiceReference(Wire, frozen=True, gc=False):
    namespace: str = ""
    name: str = ""


class ClientConfig(Wire, frozen=True, gc=False):
    url: str = ""
    service: ServiceReference | None = None
    ca_bundle: str = ""


class Webhook(Wire, frozen=True, gc=False):
    name: str = ""
    client_config: ClientConfig = ClientConfig()
    failure_policy: str = "Fail"
    match_conditions: tuple[wire.NamedReference, ...] | None = None


class WebhookConfiguration(KubeObject, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
    )
    webhooks: tuple[Webhook, ...] | None = None


class Secret(KubeObject, frozen=True, gc=False):
    """`data` is base64."""

    resource: ClassVar[Resource] = Resource("", "v1", "secrets", "Secret")
    data: dict[str, str] | None = None
