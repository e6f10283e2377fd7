"""Objects for the tests of commands, as an API server sends them."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.cluster.state import Cluster
from gpuslice.devices.availability import OK, sick
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.units import GIB, MemoryUnit

Json = dict[str, Any]


def old_node(name: str, address: str | None, units: int, gpus: int) -> Json:
    """A node as gpushare leaves it: no annotations, equal GPUs."""
    amounts = {
        names.GPU_MEM: str(units),
        names.GPU_COUNT: str(gpus),
        "cpu": "64",
        "memory": "64Gi",
        "pods": "110",
    }
    addresses = [{"type": "Hostname", "address": name}]
    if address:
        addresses.append({"type": "InternalIP", "address": address})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"capacity": amounts, "allocatable": amounts, "addresses": addresses},
    }


def node(name: str, *mib: int, unit: MemoryUnit = GIB, unhealthy: tuple[int, ...] = ()) -> Json:
    """A node with our agent. GPU i has the UUID `GPU-<name>-<i>`."""
    gpus = NodeGpus(
        tuple(
            Gpu(
                i,
                f"GPU-{name}-{i}",
                "Tesla T4",
                size,
                sick("ECC error") if i in unhealthy else OK,
            )
            for i, size in enumerate(mib)
        ),
        unit,
    )
    units = sum(gpus.units_of(gpu) for gpu in gpus.gpus if gpu.available)
    body = old_node(name, "10.0.0.1", units, len(mib))
    body["metadata"]["annotations"] = encode_gpus(gpus)
    body["status"]["allocatable"][names.WHOLE_GPU] = str(len(mib) - len(unhealthy))
    return body


def pod(name: str, units: int | dict[str, int], *, on: str = "", phase: str = "", **more: Any) -> Json:
    """A pod; `units` per container. `annotations`, `namespace` and further fields of the spec in `more`."""
    amounts = units if isinstance(units, dict) else {"main": units}
    namespace, annotations = more.pop("namespace", "default"), more.pop("annotations", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "annotations": annotations,
        },
        "spec": {
            "nodeName": on,
            "containers": [
                {
                    "name": container,
                    "image": "image",
                    "resources": {"limits": {names.GPU_MEM: str(amount)}} if amount else {},
                }
                for container, amount in amounts.items()
            ],
            **more,
        },
        "status": {"phase": phase or ("Running" if on else "Pending")},
    }


def decode(bodies: list[Json]) -> tuple[list[Node], list[Pod]]:
    """The same objects as the client reads them."""
    nodes = [msgspec.convert(body, Node) for body in bodies if body["kind"] == "Node"]
    pods = [msgspec.convert(body, Pod) for body in bodies if body["kind"] == "Pod"]
    return nodes, pods


def remember(bodies: list[Json], policy: Policy = BINPACK) -> Cluster:
    """A cluster that has seen them."""
    cluster = Cluster(clock=SystemClock(), policy=policy)
    nodes, pods = decode(bodies)
    for one in nodes:
        cluster.set_node(one)
    for each in pods:
        cluster.set_pod(each)
    return cluster
