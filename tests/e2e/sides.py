"""What a pod holds, from each of its sides: the environment of its containers, its annotations, kubelet's own
pod-resources, and what `gpuslice inspect` counts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from gpuslice import names
from gpuslice.cluster.annotations import decode_gpus
from gpuslice.node.grants.deviceids import DeviceIds
from gpuslice.node.kubelet.messages import PodResources
from gpuslice.node.kubelet.rpc import PodResourcesClient
from gpuslice.requests.kinds import SHARES, WHOLE_GPUS, kind_of

from .cluster import Object, RealCluster
from .node import Node

POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
Held = dict[str, dict[str, int]]
"""Container -> UUID -> how much: MiB in annotations, units in pod-resources."""


def environment(
    cluster: RealCluster, pod: str, container: str = "", namespace: str = "default"
) -> dict[str, str]:
    """What `env` prints in a container."""
    chosen = [f"--container={container}"] if container else []
    text = cluster.kubectl("exec", f"--namespace={namespace}", pod, *chosen, "--", "env")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def allocation(pod: Object) -> Held:
    """What our annotation of a pod says; {} if there is none."""
    text = (pod["metadata"].get("annotations") or {}).get(names.ALLOCATION)
    held: Held = json.loads(text) if text else {}
    return held


def pod_resources(cluster: RealCluster, node: Node) -> dict[tuple[str, str], Held]:
    """(namespace, pod) -> what kubelet gave it of our resources, in units."""

    async def ask(path: Path) -> tuple[PodResources, ...]:
        client = PodResourcesClient(path)
        try:
            return await client.list()
        finally:
            await client.aclose()

    gpus = decode_gpus(cluster.get("nodes", node.name, None)["metadata"]["annotations"])
    assert gpus is not None, f"{node.name} says nothing of its GPUs"
    ids = DeviceIds(gpus)
    # The path of a socket has 107 characters at most, the folder of a test may have more.
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "kubelet.sock").symlink_to(node.path(POD_RESOURCES))
        pods = asyncio.run(ask(path))
    found: dict[tuple[str, str], Held] = {}
    for pod in pods:
        for container in pod.containers:
            count: Counter[str] = Counter()
            for devices in container.devices:
                if (kind := kind_of(devices.resource)) in (SHARES, WHOLE_GPUS):
                    count.update(ids.locate(kind, one) or "unknown" for one in devices.ids)
            if count:
                found.setdefault((pod.namespace, pod.name), {})[container.name] = dict(count)
    return found


def gpuslice(cluster: RealCluster, *arguments: str, check: bool = True) -> str:
    """Our own command on this machine, as an administrator; its output."""
    command = [
        str(Path(sys.executable).parent / "gpuslice"),
        *arguments,
        f"--kubeconfig={cluster.kubeconfig}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"gpuslice {' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def inspected(cluster: RealCluster) -> dict[tuple[str, str], dict[str, int]]:
    """(namespace, pod) -> UUID -> MiB, as `gpuslice inspect` counts; UUID "" for a pod whose GPU nobody knows."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for node in json.loads(gpuslice(cluster, "inspect", "-o", "json"))["nodes"]:
        places = [(gpu["uuid"], pod) for gpu in node["gpus"] for pod in gpu["pods"]]
        places += [("", pod) for pod in node["pending"]]
        for uuid, pod in places:
            found.setdefault((pod["namespace"], pod["name"]), {})[uuid] = pod["MiB"]
    return found


def assert_sides_agree(cluster: RealCluster, namespace: str = "default", *, unit_mib: int = 1024) -> None:
    """Every running pod's containers see the GPU that its annotation, kubelet and inspect say, with that much."""
    pods = [pod for pod in cluster.objects("pods", namespace) if pod["status"].get("phase") == "Running"]
    pods = [pod for pod in pods if _asks(pod)]
    counted = inspected(cluster)
    by_node = {node.name: pod_resources(cluster, node) for node in cluster.nodes}
    for pod in pods:
        name = pod["metadata"]["name"]
        held = allocation(pod)
        assert set(held) == set(_asks(pod)), f"{name}: the annotation says {held}"
        given = by_node[pod["spec"]["nodeName"]].get((namespace, name))
        assert given == {
            container: {uuid: mib // unit_mib for uuid, mib in gpus.items()}
            for container, gpus in held.items()
        }, f"{name}: the annotation says {held}, pod-resources {given}"
        total: Counter[str] = Counter()
        for container, gpus in held.items():
            total.update(gpus)
            env = environment(cluster, name, container, namespace)
            assert set(env[names.VISIBLE_DEVICES].split(",")) == set(gpus), f"{name}/{container}: {env}"
            assert env[names.MEM_CONTAINER] == str(sum(gpus.values()) // unit_mib), (
                f"{name}/{container}: {env}"
            )
        assert counted.get((namespace, name)) == dict(total), f"{name}: inspect counts {counted}"
        assert pod["metadata"]["annotations"][names.MEM_ASSIGNED] == "true", name


def _asks(pod: Object) -> dict[str, int]:
    """Container -> units of memory that it asks for."""
    asked = {}
    for container in pod["spec"]["containers"]:
        if units := (container.get("resources", {}).get("limits") or {}).get(names.GPU_MEM):
            asked[container["name"]] = int(units)
    return asked
