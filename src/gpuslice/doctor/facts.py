"""The facts that `gpuslice doctor` judges by: one reading of a cluster, as a value. `look` makes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from gpuslice import names
from gpuslice.cluster.reading import cluster_of
from gpuslice.cluster.records import NodeView
from gpuslice.cluster.state import Cluster
from gpuslice.doctor.objects import (
    DaemonSet,
    Deployment,
    EndpointSlice,
    Node,
    Pod,
    RuntimeClass,
    Secret,
    Service,
    Webhook,
    WebhookConfiguration,
)
from gpuslice.doctor.ours import Agents, Scheduler, find_agents, find_schedulers
from gpuslice.errors import InputError
from gpuslice.kube.decoding import Broken
from gpuslice.kube.leading import Lease
from gpuslice.kube.wire import ConfigMap, Event
from gpuslice.requests.pod import PodRequest

WEBHOOK: Final = "pods.gpuslice.io"
"""The name of our webhook in its configuration, whatever that is called."""
NOTHING: Final = PodRequest()
LOCAL_RUNTIME: Final = "gpuslice://"
"""The container runtime of `gpuslice up`: there scheduler and agents are no pods."""


@dataclass(frozen=True, slots=True)
class Served:
    """What answered at an address: its certificate (DER), or why there is none."""

    certificate: bytes = b""
    problem: str = ""


@dataclass(frozen=True)
class Facts:
    """One look at a cluster."""

    version: str = ""
    """The API server's, such as v1.36.0."""
    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    daemonsets: tuple[DaemonSet, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    services: tuple[Service, ...] = ()
    slices: tuple[EndpointSlice, ...] = ()
    webhooks: tuple[WebhookConfiguration, ...] = ()
    runtime_classes: tuple[RuntimeClass, ...] = ()
    marks: tuple[ConfigMap, ...] = ()
    """The ConfigMaps of kube-system: unhealthy-gpu-<node> are among them."""
    events: tuple[Event, ...] = ()
    """About our workloads themselves."""
    leases: Mapping[str, Lease] = field(default_factory=dict)
    """namespace/name -> a Lease that our schedulers name, if it exists."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    configs: Mapping[str, ConfigMap] = field(default_factory=dict)
    served: Mapping[str, Served] = field(default_factory=dict)
    """URL -> what answers there."""
    last_words: Mapping[str, str] = field(default_factory=dict)
    """namespace/name of a pod of ours that fails -> the last line of its log."""
    broken: tuple[Broken[Any], ...] = ()
    """Objects that do not decode."""
    blind: Mapping[str, str] = field(default_factory=dict)
    """Plural of a kind that could not be read -> the API server's sentence."""

    @cached_property
    def cluster(self) -> Cluster:
        """The scheduler's own accounting of these nodes and pods."""
        return cluster_of(self.nodes, self.pods, self.marks, self.broken)

    @cached_property
    def views(self) -> Mapping[str, NodeView]:
        """Every node as `inspect` shows it."""
        return {view.name: view for view in self.cluster.snapshots()}

    @cached_property
    def agents(self) -> Agents:
        """Our agents."""
        return find_agents(self.daemonsets, self.pods)

    @cached_property
    def schedulers(self) -> tuple[Scheduler, ...]:
        """Our schedulers and extenders."""
        return find_schedulers(self.deployments, self.pods)

    @cached_property
    def hooks(self) -> tuple[tuple[WebhookConfiguration, Webhook], ...]:
        """Our webhooks with the configurations that they are in."""
        return tuple(
            (configuration, one)
            for configuration in self.webhooks
            for one in configuration.webhooks or ()
            if one.name == WEBHOOK
        )

    @property
    def in_one_process(self) -> bool:
        """True for a cluster of `gpuslice up`."""
        return any(
            node.status.node_info.container_runtime_version.startswith(LOCAL_RUNTIME) for node in self.nodes
        )

    @property
    def installed(self) -> bool:
        """True if there is anything of ours."""
        return (
            self.in_one_process
            or bool(self.agents.workloads or self.schedulers or self.hooks)
            or any(names.NODE_GPUS in node.annotations for node in self.nodes)
        )

    @cached_property
    def pool(self) -> tuple[Node, ...]:
        """The nodes that are meant to share their GPUs."""
        return tuple(
            node
            for node in self.nodes
            if node.labels.get(names.LABEL_GPUSHARE) == "true" or self.agents.wanted_on(node)
        )

    @cached_property
    def pool_names(self) -> frozenset[str]:
        """Their names."""
        return frozenset(node.name for node in self.pool)

    @cached_property
    def _requests(self) -> Mapping[str, PodRequest]:
        found: dict[str, PodRequest] = {}
        for pod in self.pods:
            record = self.cluster.pod(pod.uid)
            try:
                found[pod.uid] = record.request if record else self.cluster.request_of(pod)
            except InputError:
                continue  # nobody runs or places it
        return found

    def request(self, pod: Pod) -> PodRequest:
        """What a pod asks for, by the scheduler's rules; nothing if that cannot be read."""
        return self._requests.get(pod.uid, NOTHING)

    def units(self, node: Node) -> int:
        """Units of GPU memory that kubelet offers on a node now."""
        view = self.views.get(node.name)
        return view.allocatable_units if view else 0

    def lacks(self, node: Node) -> str:
        """A resource that kubelet should offer by what the agent has published, and does not; "" if none."""
        view = self.views.get(node.name)
        available = [one for one in view.gpus if one.gpu.availability.ok] if view else []
        if view is None or not available:
            return ""
        if not view.allocatable_units and any(one.gpu.shareable for one in available):
            return names.GPU_MEM
        return "" if view.allocatable_devices else available[0].gpu.resource

    def serves(self, node: Node) -> bool:
        """True if kubelet offers what the agent has published."""
        view = self.views.get(node.name)
        return view is not None and any(one.gpu.availability.ok for one in view.gpus) and not self.lacks(node)

    @cached_property
    def _alive(self) -> Mapping[str, list[Pod]]:
        found: dict[str, list[Pod]] = {}
        for pod in self.pods:
            if pod.alive:
                found.setdefault(pod.spec.node_name, []).append(pod)
        return found

    def pods_on(self, node: str) -> Iterable[Pod]:
        """The pods of a node that have not ended."""
        return self._alive.get(node, ())
