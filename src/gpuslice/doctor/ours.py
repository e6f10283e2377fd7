"""Which workloads of a cluster are ours, by what they run, and what their command lines say. Pure.

Names and labels can be changed in the chart's values; that a container of our image runs `agent`, `extender`
or `scheduler` cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from gpuslice.cluster.predicates import node_refusal, rules_of
from gpuslice.doctor.objects import Container, DaemonSet, Deployment, Node, Pod, Workload
from gpuslice.kube.wire import Toleration

COMPONENTS: Final = frozenset({"agent", "extender", "scheduler"})
KUBE_SCHEDULER: Final = "kube-scheduler"
ANY_TAINT: Final = Toleration(operator="Exists")
_NAMESPACE: Final = "$(POD_NAMESPACE)"


@dataclass(frozen=True)
class Agents:
    """Our agents: the DaemonSets (one, if all is well) and their pods that are to stay."""

    workloads: tuple[DaemonSet, ...] = ()
    pods: tuple[Pod, ...] = ()

    @cached_property
    def by_node(self) -> Mapping[str, list[Pod]]:
        """The agents of each node: one, if all is well."""
        found: dict[str, list[Pod]] = {}
        for pod in self.pods:
            found.setdefault(pod.spec.node_name, []).append(pod)
        return found

    @cached_property
    def uids(self) -> frozenset[str]:
        return frozenset(pod.uid for pod in self.pods)

    def on(self, node: str) -> list[Pod]:
        """The agents of one node."""
        return self.by_node.get(node, [])

    def wanted_on(self, node: Node) -> bool:
        """True if a DaemonSet selects the node by its labels, whatever the node's taints."""
        return any(
            rules.selector and not node_refusal(replace(rules, tolerations=(ANY_TAINT,)), node)
            for rules in (rules_of(one.spec.template.spec) for one in self.workloads)
        )


@dataclass(frozen=True, slots=True)
class Scheduler:
    """One of our schedulers: the Deployment, its pods, and its parts."""

    workload: Deployment
    pods: tuple[Pod, ...]
    own: Container
    """The container of our image."""
    kube_scheduler: Container | None
    """The kube-scheduler in the same pod."""

    @property
    def mode(self) -> str:
        """The chart's scheduler.mode."""
        if self.own_component == "scheduler":
            return "own"
        return "bundled" if self.kube_scheduler else "extender"

    @property
    def own_component(self) -> str:
        return component(self.own)

    @property
    def leases(self) -> tuple[str, ...]:
        """namespace/name of the Lease whose holder acts."""
        return self._named("--lease=", "--follow-lease=")

    @property
    def secrets(self) -> tuple[str, ...]:
        """namespace/name of the Secret with the certificates."""
        named = self._named("--certificate-secret=")
        if named:
            return named
        volumes = self.workload.spec.template.spec.volumes or ()
        return tuple(
            f"{self.workload.namespace}/{volume.secret.secret_name}"
            for volume in volumes
            if volume.name == "tls" and volume.secret
        )

    @property
    def configs(self) -> tuple[str, ...]:
        """namespace/name of the ConfigMap with kube-scheduler's configuration."""
        volumes = self.workload.spec.template.spec.volumes or ()
        return tuple(
            f"{self.workload.namespace}/{volume.config_map.name}"
            for volume in volumes
            if self.kube_scheduler and volume.config_map
        )

    def option(self, name: str) -> str:
        """The value of `--name=value` on our container's command line; "" if it is not there."""
        return option(self.own, name)

    def _named(self, *options: str) -> tuple[str, ...]:
        return tuple(
            word.removeprefix(start).replace(_NAMESPACE, self.workload.namespace)
            for word in self.own.words
            for start in options
            if word.startswith(start)
        )


def component(container: Container) -> str:
    """`agent`, `extender` or `scheduler` if that is what a container runs, else ""."""
    words = [word for word in container.words if not word.startswith("-")]
    while words and words[0].rpartition("/")[2] in ("gpuslice", "python3", "python", "gpuslice.cli.main"):
        words.pop(0)
    return words[0] if words and words[0] in COMPONENTS else ""


def option(container: Container, name: str) -> str:
    """The value of `--name=value` or `--name value` on a command line; "" if it is not there."""
    words = container.words
    for position, word in enumerate(words):
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
        if word == f"--{name}" and position + 1 < len(words):
            return words[position + 1]
    return ""


def find_agents(daemonsets: Iterable[DaemonSet], pods: Sequence[Pod]) -> Agents:
    """Our agents among all workloads."""
    found = tuple(one for one in daemonsets if _our_container(one, {"agent"}))
    return Agents(found, tuple(pod for pod in pods if _stays(pod) and any(one.owns(pod) for one in found)))


def find_schedulers(deployments: Iterable[Deployment], pods: Sequence[Pod]) -> tuple[Scheduler, ...]:
    """Our schedulers among all workloads."""
    return tuple(
        Scheduler(
            one,
            tuple(pod for pod in pods if _stays(pod) and one.owns(pod)),
            own,
            next((c for c in one.spec.template.spec.containers if runs_kube_scheduler(c)), None),
        )
        for one in deployments
        if (own := _our_container(one, {"extender", "scheduler"}))
    )


def _stays(pod: Pod) -> bool:
    """False for pods that were evicted or are being replaced."""
    return pod.alive and not pod.metadata.deletion_timestamp


def runs_kube_scheduler(container: Container) -> bool:
    """True for a kube-scheduler, whoever has started it."""
    return any(word.rpartition("/")[2] == KUBE_SCHEDULER for word in container.words[:1])


def _our_container(workload: Workload, components: Collection[str]) -> Container | None:
    labels = workload.labels
    says = (labels.get("app.kubernetes.io/name", ""), labels.get("helm.sh/chart", ""), workload.name)
    for container in workload.spec.template.spec.containers:
        if component(container) in components and any("gpuslice" in one for one in (*says, container.image)):
            return container
    return None


def failure(pod: Pod) -> str:
    """Why a pod is not ready, in the words of its status; "" if it is ready."""
    ready = pod.status.condition("Ready")
    if ready is not None and ready.status == "True":
        return ""
    scheduled = pod.status.condition("PodScheduled")
    if not pod.spec.node_name and scheduled is not None and scheduled.message:
        return f"cannot be scheduled: {scheduled.message}"
    for status in pod.status.all_statuses:
        if status.ready:
            continue
        waiting, last = status.state.waiting or {}, status.state.terminated or status.last_state.terminated
        parts = [waiting.get("reason") or "", waiting.get("message") or ""]
        if last is not None and (status.restart_count or not waiting):
            parts.append(last.message.strip() or f"exit code {last.exit_code}")
        said = ": ".join(part for part in parts if part)
        if said:
            return f"container {status.name}: {said}"
    return pod.status.message or (ready.message if ready and ready.message else "is not ready")
