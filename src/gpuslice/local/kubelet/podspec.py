"""The pod as a kubelet reads it: the slim projection plus what it takes to run containers."""

from __future__ import annotations

from gpuslice.kube.wire import Affinity, Container, KubeObject, PodCondition, Resource, Wire


class FieldRef(Wire, frozen=True, gc=False):
    field_path: str = ""


class ResourceFieldRef(Wire, frozen=True, gc=False):
    resource: str = ""
    container_name: str = ""
    divisor: str | int | float = ""


class KeyRef(Wire, frozen=True, gc=False):
    """One key of a ConfigMap or Secret."""

    name: str = ""
    key: str = ""
    optional: bool = False


class EnvSource(Wire, frozen=True, gc=False):
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class EnvVar(Wire, frozen=True, gc=False):
    name: str = ""
    value: str = ""
    value_from: EnvSource | None = None


class ObjectRef(Wire, frozen=True, gc=False):
    """A whole ConfigMap or Secret."""

    name: str = ""
    optional: bool = False


class EnvFrom(Wire, frozen=True, gc=False):
    prefix: str = ""
    config_map_ref: ObjectRef | None = None
    secret_ref: ObjectRef | None = None


class RunContainer(Container, frozen=True, gc=False):
    """A container with what it runs."""

    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[EnvFrom, ...] | None = None

    @property
    def sidecar(self) -> bool:
        """True for an init container that stays (restartPolicy Always)."""
        return self.restart_policy == "Always"


class RunSpec(Wire, frozen=True, gc=False):
    node_name: str = ""
    service_account_name: str = ""
    containers: tuple[RunContainer, ...] = ()
    init_containers: tuple[RunContainer, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    overhead: dict[str, str | int | float] | None = None
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30


class StampedCondition(PodCondition, frozen=True, gc=False):
    last_transition_time: str | None = None
    last_probe_time: str | None = None
    observed_generation: int | None = None


class RunStatus(Wire, frozen=True, gc=False):
    phase: str = ""
    conditions: tuple[StampedCondition, ...] | None = None


class RunPod(KubeObject, frozen=True, gc=False):
    """A pod bound to this node."""

    resource = Resource("", "v1", "pods", "Pod")
    spec: RunSpec = RunSpec()
    status: RunStatus = RunStatus()

    @property
    def init_containers(self) -> tuple[RunContainer, ...]:
        return self.spec.init_containers or ()

    @property
    def all_containers(self) -> tuple[RunContainer, ...]:
        """In the order in which a kubelet admits them: init containers first."""
        return (*self.init_containers, *self.spec.containers)

    @property
    def long_lived(self) -> tuple[RunContainer, ...]:
        """App containers and sidecars: those that pod-resources lists."""
        return (*(c for c in self.init_containers if c.sidecar), *self.spec.containers)

    @property
    def ended(self) -> bool:
        """True if the API server holds its final phase."""
        return self.status.phase in ("Succeeded", "Failed")


class Config(KubeObject, frozen=True, gc=False):
    """A ConfigMap's or Secret's values, as far as environment variables need them."""

    resource = Resource("", "v1", "configmaps", "ConfigMap")
    data: dict[str, str] | None = None


class Secret(Config, frozen=True, gc=False):
    """Values are base64."""

    resource = Resource("", "v1", "secrets", "Secret")


class PodKey(KubeObject, frozen=True, gc=False):
    """A pod of which only the metadata matters, so that the answer to a status patch decodes fast."""

    resource = Resource("", "v1", "pods", "Pod")


class LabelledNode(KubeObject, frozen=True, gc=False):
    resource = Resource("", "v1", "nodes", "Node", namespaced=False)


LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
NODES = LabelledNode.resource
PODS = RunPod.resource


class Lease(KubeObject, frozen=True, gc=False):
    resource = LEASES
