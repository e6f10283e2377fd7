"""The node that a kubelet registers and keeps alive: its object, its Lease, its status."""

from __future__ import annotations

import ipaddress
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuslice import __version__
from gpuslice.clock import rfc3339, rfc3339_micro
from gpuslice.kube.wire import Taint

KUBELET_VERSION: Final = "v1.36.3+gpuslice"
"""The kubelet whose behaviour is followed, and that it is not that kubelet."""
LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_SECONDS: Final = 40
LEASE_PERIOD: Final = 10.0
"""Seconds between two renewals: a node whose lease is LEASE_SECONDS old counts as dead."""
STATUS_PERIOD: Final = 300.0
"""Seconds between two status reports when nothing changes (nodeStatusReportFrequency)."""
_ARCHITECTURES: Final = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What a simulated node has. `address` is its InternalIP; its pods' addresses follow from it."""

    name: str
    cpu_milli: int = 32_000
    memory_mib: int = 128 * 1024
    pods: int = 110
    ephemeral_storage_mib: int = 200 * 1024
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    address: str = "10.0.0.1"

    def resources(self) -> dict[str, str]:
        """Capacity and allocatable: nothing is reserved for a system that does not exist."""
        cpu = str(self.cpu_milli // 1000) if self.cpu_milli % 1000 == 0 else f"{self.cpu_milli}m"
        return {
            "cpu": cpu,
            "memory": f"{self.memory_mib * 1024}Ki",
            "pods": str(self.pods),
            "ephemeral-storage": f"{self.ephemeral_storage_mib * 1024}Ki",
        }

    def all_labels(self) -> dict[str, str]:
        """Its own and those that every kubelet sets."""
        return {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": _architecture(),
            **self.labels,
        }


def _architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def node_object(node: NodeDescription) -> dict[str, object]:
    """The Node to create, without status."""
    taints = [
        {"key": taint.key, "value": taint.value, "effect": taint.effect}
        if taint.value
        else {"key": taint.key, "effect": taint.effect}
        for taint in node.taints
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": node.all_labels()},
        "spec": {"taints": taints} if taints else {},
    }


def node_status(
    node: NodeDescription,
    capacity: Mapping[str, int],
    allocatable: Mapping[str, int],
    gone: frozenset[str],
    *,
    ready_since_ns: int,
    now_ns: int,
) -> dict[str, object]:
    """The status as a merge patch. `capacity` and `allocatable` are the device plugins'; `gone` became 0."""
    own = node.resources()
    zero = dict.fromkeys(gone, "0")
    system = {
        "architecture": _architecture(),
        "bootID": "",
        "containerRuntimeVersion": f"gpuslice://{__version__}",
        "kernelVersion": platform.release(),
        "kubeProxyVersion": "",
        "kubeletVersion": KUBELET_VERSION,
        "machineID": node.name,
        "operatingSystem": "linux",
        "osImage": "gpuslice simulated node",
        "systemUUID": node.name,
    }
    return {
        "capacity": own | zero | {name: str(count) for name, count in capacity.items()},
        "allocatable": own | zero | {name: str(count) for name, count in allocatable.items()},
        "addresses": [
            {"type": "InternalIP", "address": node.address},
            {"type": "Hostname", "address": node.name},
        ],
        "conditions": _conditions(rfc3339(ready_since_ns), rfc3339(now_ns)),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": system,
    }


def _conditions(since: str, now: str) -> list[dict[str, str]]:
    healthy = (
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    )
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since,
        }
        for kind, status, reason, message in healthy
    ]


def lease_spec(node: str, now_ns: int) -> dict[str, object]:
    return {
        "holderIdentity": node,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": rfc3339_micro(now_ns),
    }


class PodAddresses:
    """Hands out pod IPs of one node: a /24 of 10.128.0.0/9 that follows from the node's own address.

    They are for showing: nothing listens there. A node with more than 254 pods leaves the rest without.
    """

    def __init__(self, node_address: str) -> None:
        base = int(ipaddress.IPv4Address(node_address)) & 0x7FFF
        self._network = int(ipaddress.IPv4Address("10.128.0.0")) + (base << 8)
        self._held: dict[str, int] = {}
        self._free = list(range(254, 0, -1))

    def of(self, uid: str) -> str:
        """The pod's address, the same until it is released; empty if there is none left."""
        if uid not in self._held:
            if not self._free:
                return ""
            self._held[uid] = self._free.pop()
        return str(ipaddress.IPv4Address(self._network + self._held[uid]))

    def release(self, uid: str) -> None:
        number = self._held.pop(uid, None)
        if number is not None:
            self._free.insert(0, number)
