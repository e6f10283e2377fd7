"""gpuslice on a real cluster, installed from the chart with its real image, as docs/install.md says.

    with installed(cluster, values={"scheduler": {"mode": "own"}}) as gpus:
        cluster.apply(gpus.pod("one", 5))
        gpus.wait_for_pods(1)
        assert environment(cluster, "one")["NVIDIA_VISIBLE_DEVICES"] in allocation(cluster.get("pods", "one"))["main"]

The session fixture `gpus` is one with the chart's defaults. See sides.py for looking at what pods hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuslice import names
from gpuslice.cluster.annotations import decode_gpus
from gpuslice.requests.kinds import kind_of

from .cluster import Object, RealCluster, condition
from .images import BUSYBOX
from .images_of_ours import REPOSITORY, ROOT, TAG, load_gpuslice, load_kube_scheduler
from .sides import inspected

CHART = ROOT / "deploy" / "helm" / "gpuslice"
NAMESPACE, RELEASE = "gpuslice-system", "gpuslice"
MIXED = """\
apiVersion: gpuslice.io/v1alpha1
kind: Devices
spec:
  memoryUnit: GiB
  gpus:
    - model: Tesla T4   # 15 GiB
    - model: V100-32    # 31 GiB
"""
"""The GPUs of each node: 46 GiB in all, but no more than 31 on one."""
CONTROLLERS = "deployments,statefulsets,daemonsets,jobs,replicasets"


@dataclass
class Installation:
    """A release of the chart, and pods for it."""

    cluster: RealCluster
    namespace: str = NAMESPACE
    release: str = RELEASE
    values: Object = field(default_factory=dict)
    nodes: Sequence[str] = ()

    @property
    def full(self) -> str:
        """What the names of our objects begin with."""
        return self.release if "gpuslice" in self.release else f"{self.release}-gpuslice"

    @property
    def mode(self) -> str:
        mode: str = self.values.get("scheduler", {}).get("mode", "bundled")
        return mode

    @property
    def scheduler_name(self) -> str:
        """What pods must say to be scheduled by us; in mode extender, what they say anyway."""
        if self.mode == "extender":
            return "default-scheduler"
        chosen: str = self.values.get("scheduler", {}).get("schedulerName", "gpuslice")
        return chosen

    # --- life

    def install(self) -> None:
        """`helm install`, with the nodes in the pool; everything is ready when this returns."""
        load_gpuslice(self.cluster)
        if self.mode == "bundled":
            load_kube_scheduler(self.cluster)
        self.cluster.log_namespaces.add(self.namespace)
        self.label(*self.nodes)
        self._helm("install", "--create-namespace")
        self.wait_until_ready()

    def upgrade(self, values: Mapping[str, Any]) -> None:
        """`helm upgrade` with these values more, until everything is ready again."""
        self.upgrade_only(values)
        self.wait_until_ready()

    def upgrade_only(self, values: Mapping[str, Any]) -> None:
        """The same, without waiting for anything."""
        self.values = merged(self.values, values)
        self._helm("upgrade")

    def uninstall(self) -> None:
        """As docs/install.md says, and the namespace, too."""
        self.cluster.helm(
            "uninstall", self.release, f"--namespace={self.namespace}", "--wait", "--timeout=120s"
        )
        self.cluster.kubectl("label", "node", "--all", f"{names.LABEL_GPUSHARE}-")
        self.cluster.kubectl("delete", "namespace", self.namespace, "--timeout=60s")

    def is_installed(self) -> bool:
        selector = f"owner=helm,name={self.release}"
        return bool(self.cluster.objects("secrets", self.namespace, labelSelector=selector))

    def label(self, *nodes: str) -> None:
        self.cluster.kubectl("label", "node", *nodes, f"{names.LABEL_GPUSHARE}=true", "--overwrite")

    def unlabel(self, *nodes: str) -> None:
        self.cluster.kubectl("label", "node", *nodes, f"{names.LABEL_GPUSHARE}-")

    def _helm(self, verb: str, *more: str) -> None:
        path = self.cluster.work / f"{self.release}-values.json"
        path.write_text(json.dumps(self.values, indent=1))
        self.cluster.helm(
            verb, self.release, str(CHART), f"--namespace={self.namespace}", f"--values={path}", *more
        )

    # --- state

    def object(self, group: str, plural: str, name: str) -> Object:
        """One of our objects in our namespace, of a group such as apps/v1."""
        found: Object = self.cluster.request(
            "GET", f"/apis/{group}/namespaces/{self.namespace}/{plural}/{name}"
        )
        return found

    def pods(self, component: str) -> list[Object]:
        """Our own pods of a component (agent, scheduler) that have not been told to go."""
        selector = f"app.kubernetes.io/instance={self.release},app.kubernetes.io/component={component}"
        found = self.cluster.objects("pods", self.namespace, labelSelector=selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def wait_until_ready(self, timeout: float = 180) -> None:
        """Scheduler and agents are what the chart says, and the nodes of the pool offer their memory."""
        self.cluster.wait(self._scheduler_ready, timeout, "the scheduler's pods to be ready")
        self.cluster.wait(self._agents_ready, timeout, "the agents to be ready")
        self.cluster.wait(
            lambda: all(map(self.offered, self.pool())), 60, f"the nodes to offer {names.GPU_MEM}"
        )
        if self.values.get("webhook", {}).get("enabled", True):
            self.cluster.wait(self._webhook_trusted, 60, "the webhook's caBundle")
            self.cluster.wait(self._webhook_answers, 60, "the webhook to answer")

    def pool(self) -> list[str]:
        selector = f"{names.LABEL_GPUSHARE}=true"
        return [n["metadata"]["name"] for n in self.cluster.objects("nodes", None, labelSelector=selector)]

    def offered(self, node: str) -> int:
        """What pods can ask for on a node, of all our resources; 0 while kubelet or agent do not say it of each.

        A plugin each serves them, and kubelet may tell of one of them before it knows of the other.
        """
        found = self.cluster.get("nodes", node, None)
        gpus = decode_gpus(found["metadata"].get("annotations") or {})
        amounts, known = (found["status"].get(key, {}) for key in ("allocatable", "capacity"))
        if gpus is None or not all(int(known.get(gpu.resource, 0)) for gpu in gpus.gpus):
            return 0
        return sum(int(amount) for name, amount in amounts.items() if kind_of(name) is not None)

    def _scheduler_ready(self) -> bool:
        found = self.object("apps/v1", "deployments", f"{self.full}-scheduler")
        wanted, status = found["spec"]["replicas"], found["status"]
        counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        # No pod of before is left, not even one that is going.
        return current and counts == [wanted] * 3 and len(self.pods("scheduler")) == wanted

    def _agents_ready(self) -> bool:
        found = self.object("apps/v1", "daemonsets", f"{self.full}-agent")
        status, wanted = found["status"], len(self.pool())
        keys = ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady")
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return current and [status.get(key, 0) for key in keys] == [wanted] * 3

    def _webhook_trusted(self) -> bool:
        path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{self.full}"
        return all(
            hook["clientConfig"].get("caBundle") for hook in self.cluster.request("GET", path)["webhooks"]
        )

    def _webhook_answers(self) -> bool:
        """The API server asks it over its Service, which kube-proxy knows a moment after its pods are ready."""
        asked = self.pod("asked", 1, env={names.VISIBLE_DEVICES: "all"})
        made = self.cluster.request("POST", "/api/v1/namespaces/default/pods", asked, dryRun="All")
        return not made["spec"]["containers"][0].get("env")

    # --- pods

    def pod(self, name: str, *units: int, env: Mapping[str, str] | None = None, **spec: Any) -> Object:
        """A pod that sleeps, with a container (`main`, `second`, ...) for each number of units."""
        labels = ["main", "second", "third"]
        containers = [
            {
                "name": label,
                "image": BUSYBOX,
                "command": ["sleep", "100000"],
                "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
                "resources": {"limits": {names.GPU_MEM: str(count)}},
            }
            for label, count in zip(labels, units, strict=False)
        ]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "containers": containers,
                "schedulerName": self.scheduler_name,
                "terminationGracePeriodSeconds": 0,
                **spec,
            },
        }

    def wait_for_pods(self, count: int, timeout: float = 120, namespace: str = "default") -> list[Object]:
        """Wait until `count` pods run with what they hold written down as given; by name."""

        def assigned() -> Sequence[Object]:
            pods = [
                pod
                for pod in self.cluster.objects("pods", namespace)
                if condition(pod, "Ready") == "True"
                and pod["metadata"].get("annotations", {}).get(names.MEM_ASSIGNED) == "true"
            ]
            return sorted(pods, key=lambda pod: str(pod["metadata"]["name"])) if len(pods) == count else []

        return [*self.cluster.wait(assigned, timeout, f"{count} pods to run with their GPUs")]

    def events(self, pod: str, reason: str, namespace: str = "default") -> list[str]:
        """The messages of a pod's events of that reason."""
        selector = f"involvedObject.kind=Pod,involvedObject.name={pod},reason={reason}"
        found = self.cluster.objects("events", namespace, fieldSelector=selector)
        return [event.get("message", "") for event in found]

    def clear(self, namespace: str = "default") -> None:
        """Delete every workload of a namespace, and wait until nothing of it is counted any more."""
        clear(self.cluster, namespace)
        self.cluster.wait(
            lambda: not any(space == namespace for space, _ in inspected(self.cluster)),
            60,
            "nothing to be counted",
        )


def clear(cluster: RealCluster, namespace: str = "default") -> None:
    """Delete every workload of a namespace, and wait for its end."""
    everything = ("--all", f"--namespace={namespace}", "--timeout=90s")
    # Pods that go with their controller take the half minute that their manifests give them.
    cluster.kubectl("delete", CONTROLLERS, "--cascade=orphan", *everything)
    cluster.kubectl("delete", "pods", "--grace-period=1", *everything)
    cluster.wait(lambda: not cluster.objects("pods", namespace), 60, f"the pods of {namespace} to be gone")


@contextmanager
def installed(
    cluster: RealCluster,
    *,
    values: Mapping[str, Any] | None = None,
    namespace: str = NAMESPACE,
    release: str = RELEASE,
    devices: str = MIXED,
    nodes: Iterable[str] = (),
) -> Iterator[Installation]:
    """The chart with these values on top of its defaults; at the end it is uninstalled again.

    `devices` is a document of kind Devices, the GPUs of each node; `nodes` are those that join the pool, all if none
    are named.
    """
    ours: Object = {
        "image": {"repository": REPOSITORY, "tag": TAG},
        "agent": {"devices": {"simulated": devices}},
    }
    wanted = list(nodes) or [node.name for node in cluster.nodes]
    installation = Installation(cluster, namespace, release, merged(ours, values or {}), wanted)
    try:
        installation.install()
        yield installation
    finally:
        if installation.is_installed():
            installation.uninstall()


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> Object:
    """Values as helm merges them: maps key by key, anything else is replaced."""
    result = dict(base)
    for key, value in more.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result


def restarts(pods: Iterable[Object]) -> dict[str, tuple[str, int, str]]:
    """Name -> (uid, restarts, when it started) of every container: equal before and after if nothing was touched."""
    found = {}
    for pod in pods:
        for status in pod["status"].get("containerStatuses", []):
            started = status.get("state", {}).get("running", {}).get("startedAt", "")
            key = f"{pod['metadata']['name']}/{status['name']}"
            found[key] = (status.get("containerID", ""), status["restartCount"], started)
    return found


def manifest_path(mode: str) -> Path:
    """The plain manifests of a mode."""
    return ROOT / "deploy" / "manifests" / f"{mode}.yaml"
