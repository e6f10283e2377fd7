"""gpuslice without a chart: agent and extender as plain processes, as an administrator would try them by hand.

The agents run in their node's namespaces, the extender on the machine of the control plane, where the cluster's own
kube-scheduler asks it as `gpuslice install scheduler-config` says.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from gpuslice import names

from .cluster import Object, RealCluster
from .images import BUSYBOX
from .node import Node
from .processes import Process

GPUSLICE = Path(sys.executable).with_name("gpuslice")
EXTENDER_PORT = 32766
# A terminal's colours have no place in a log.
ENVIRONMENT = {"NO_COLOR": "1"}

Gpus = Iterable[Mapping[str, Any]]
# Four GPUs of 21 GiB: what 60 pods of 2 and 3 GiB fill on two nodes, if hardly anything is wasted.
FOUR: Gpus = [{"model": "A10", "count": 4, "memoryMiB": 21504}]


class Alone:
    """Agents with simulated GPUs (one list per node), an extender, and kube-scheduler wired to it."""

    def __init__(self, cluster: RealCluster, gpus: Iterable[Gpus], *, unit: str = "GiB") -> None:
        self.cluster = cluster
        self.extender_kubeconfig = cluster.kubeconfig
        """May be changed before the extender's next start."""
        self.extender_address = f"{cluster.plane.address}:{EXTENDER_PORT}"
        self.agents: dict[str, Process] = {}
        logs = cluster.work / "logs"
        for node, list_of_gpus in zip(cluster.nodes, gpus, strict=True):
            self.write_devices(node, list_of_gpus, unit)
            self.agents[node.name] = Process(
                f"agent of {node.name}",
                partial(self._agent, node),
                logs / f"{node.name}-agent.log",
                cluster.plane.slot.cgroup,
                ENVIRONMENT,
            )
        self.extender = Process(
            "extender",
            self._extender,
            logs / "extender.log",
            cluster.plane.slot.cgroup,
            ENVIRONMENT,
        )
        self.processes = [*self.agents.values(), self.extender]

    def start(self) -> None:
        """Everything runs and every node offers its GPUs when this returns."""
        self.cluster.helpers += self.processes
        for process in self.processes:
            process.start()
        self.cluster.configure_scheduler({"extenders": extenders(f"http://{self.extender_address}")})
        self.wait_for_extender()
        self.wait_for_gpus()

    def stop(self) -> None:
        """Our processes end, and kube-scheduler asks nobody."""
        for process in self.processes:
            process.stop()
            self.cluster.helpers.remove(process)
        self.cluster.configure_scheduler({})

    def write_devices(self, node: Node, gpus: Gpus, unit: str = "GiB") -> None:
        spec = {"memoryUnit": unit, "gpus": list(gpus)}
        document = {"apiVersion": "gpuslice.io/v1alpha1", "kind": "Devices", "spec": spec}
        self._devices(node).write_text(json.dumps(document))

    def wait_for_extender(self) -> None:
        """It knows the cluster by now."""
        url = f"http://{self.extender_address}/readyz"

        def ready() -> bool:
            with urllib.request.urlopen(url, timeout=10) as response:
                return bool(response.status == 200)

        self.cluster.wait(ready, 60, "the extender to be ready")

    def wait_for_gpus(self) -> None:
        def offered() -> bool:
            nodes = self.cluster.objects("nodes", None)
            return all(
                int(node["status"]["allocatable"].get(resource, 0))
                for node in nodes
                for resource in (names.GPU_MEM, names.WHOLE_GPU)
            )

        self.cluster.wait(offered, 60, "the nodes to offer their GPUs")

    def _agent(self, node: Node) -> list[str]:
        return node.enter(
            GPUSLICE,
            "agent",
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--node={node.name}",
            f"--devices={self._devices(node)}",
        )

    def _extender(self) -> list[str]:
        options = [f"--kubeconfig={self.extender_kubeconfig}", f"--listen={self.extender_address}", "--open"]
        return self.cluster.plane.namespace.enter(GPUSLICE, "extender", *options)

    def _devices(self, node: Node) -> Path:
        return self.cluster.work / f"{node.name}-devices.json"


def extenders(url: str) -> Any:
    """What `gpuslice install scheduler-config` prints of the extender."""
    command = [str(GPUSLICE), "install", "scheduler-config", "--url", url]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return yaml.safe_load(printed)["extenders"]


def gpu_pod(
    name: str, units: int, resource: str = names.GPU_MEM, *, script: str = "", **spec: object
) -> Object:
    """A pod of one container that asks for that much, and sleeps."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "gpu"}},
        "spec": {
            "containers": [gpu_container("main", units, resource, script=script)],
            # Of 0 the API server makes a deletion by force: the pod is gone before its containers are.
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def gpu_container(
    name: str, units: int, resource: str = names.GPU_MEM, *, script: str = "", **more: object
) -> Object:
    """A container that asks for that much; `script` is a shell's, and `sleep` what it does without one."""
    container: Object = {"name": name, "image": BUSYBOX, "command": ["sleep", "100000"], **more}
    if script:
        container["command"] = ["sh", "-c", script]
    if units:
        container["resources"] = {"limits": {resource: str(units)}}
    return container


def deployment(name: str, replicas: int, pod: Object) -> Object:
    """As many such pods, made anew when one is turned away."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }
