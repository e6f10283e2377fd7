"""Do all who speak about GPUs say the same? Asked of every container of a real cluster at once.

Six witnesses: the manifest (how much), kubelet's pod-resources (which ids), the environment of the running
processes, the slice.json that they see, the pod's annotations, and `gpuslice inspect`. pod-resources is what
the others are compared with. The environment is that of the processes themselves, read from /proc: what was
asked of kubectl exec would be another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuslice import names
from gpuslice.cluster.annotations import decode_gpus
from gpuslice.devices.inventory import NodeGpus
from gpuslice.node.grants.deviceids import DeviceIds
from gpuslice.node.inject.slicefiles import SliceFolders
from gpuslice.node.kubelet.messages import PodResources
from gpuslice.node.kubelet.rpc import PodResourcesClient
from gpuslice.requests.kinds import SHARES, WHOLE_GPUS

from .cluster import Object, RealCluster
from .node import Node
from .processes import first_of
from .waiting import NotInTime

GPUSLICE = Path(sys.executable).with_name("gpuslice")
KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
KINDS = {kind.resource: kind for kind in (SHARES, WHOLE_GPUS)}
OVER = ("Succeeded", "Failed")

ByGpu = dict[str, int]


def differences(cluster: RealCluster, namespace: str = "default") -> list[str]:
    """What does not agree, a sentence each; [] if all is well. Only of containers that run."""
    pods = [p for p in cluster.objects("pods", namespace) if p["spec"].get("nodeName")]
    inspected = {node["name"]: node for node in inspect(cluster)["nodes"]}
    found: list[str] = []
    for node in cluster.nodes:
        here = [p for p in pods if p["spec"]["nodeName"] == node.name and p["status"]["phase"] not in OVER]
        found += _Witnesses.of(cluster, node).differences(here, inspected.get(node.name))
    return found


def leaks(cluster: RealCluster, namespace: str = "default") -> list[str]:
    """What is held for nobody: folders of slices that no container has, memory that inspect counts."""
    found: list[str] = []
    pods = cluster.objects("pods", namespace)
    busy = {p["spec"].get("nodeName") for p in pods if p["status"]["phase"] not in OVER}
    if not pods and (used := inspect(cluster)["usedMiB"]):
        found.append(f"inspect counts {used} MiB though there is no pod")
    for node in cluster.nodes:
        witnesses = _Witnesses.of(cluster, node)
        folders = SliceFolders(Path("/"))
        kept = {folders.of(ids).name for _, _, _, ids in witnesses.listed()}
        slices = node.path("/var/lib/kubelet/gpuslice/slices")
        stale = {f.name for f in slices.iterdir()} - kept if slices.exists() else set()
        if stale and node.name not in busy:
            found.append(f"{node.name} keeps folders of slices that nobody has: {_owners(slices, stale)}")
        elif len(stale) > sum(len(p["spec"].get("initContainers", ())) for p in pods):
            found.append(f"{node.name} keeps folders that no container has: {_owners(slices, stale)}")
    return found


def _owners(slices: Path, stale: Iterable[str]) -> str:
    """For whom these folders were made, by their slice.json."""
    written = SliceFolders(slices).written()
    said = {name: written.get(name) for name in sorted(stale)}
    return ", ".join(f"{name} of {one.pod}/{one.container}" if one else name for name, one in said.items())


def check(cluster: RealCluster, *, pods: int | None = None, timeout: float = 240) -> list[Object]:
    """Wait until all (or `pods`) pods run, then demand that nothing differs and, soon, that nothing leaks.

    What runs must be right at once: only leaks get time, since nobody is hurt by ids that return late.
    A failed pod counts as none if a controller has made another in its place, else it is a failure at once.
    """
    running: list[Object] = []

    def all_running() -> bool:
        found = cluster.objects("pods")
        for pod in (p for p in found if p["status"]["phase"] == "Failed"):
            # One that is deleted before it starts fails on its way out.
            if not {"ownerReferences", "deletionTimestamp"} & pod["metadata"].keys():
                raise NotInTime(f"{pod['metadata']['name']} failed: {pod['status']}\n{cluster.report()}")
        running[:] = [p for p in found if p["status"]["phase"] != "Failed"]
        leaving = any("deletionTimestamp" in p["metadata"] for p in found)
        return not leaving and all(map(_ready, running)) and (pods is None or len(running) == pods)

    cluster.wait(all_running, timeout, f"{'all' if pods is None else pods} pods to run")
    demand(cluster)
    return running


def pace(pods: Iterable[Object]) -> float:
    """Pods per second, from the first one's creation to the last one's start; timestamps are whole seconds."""
    pods = list(pods)
    created = min(_seconds(p["metadata"]["creationTimestamp"]) for p in pods)
    started = max(
        _seconds(c["state"]["running"]["startedAt"]) for p in pods for c in p["status"]["containerStatuses"]
    )
    return len(pods) / max(1.0, started - created)


def demand(cluster: RealCluster) -> None:
    """Nothing differs now, and soon nothing leaks."""
    wrong = differences(cluster)
    assert not wrong, "\n".join([*wrong, cluster.report()])
    left: list[str] = []

    def clean() -> bool:
        left[:] = leaks(cluster)
        return not left

    try:
        cluster.wait(clean, 60, "everything that nobody has to be given back")
    except NotInTime as late:
        raise NotInTime("\n".join([*left, str(late)])) from late


def inspect(cluster: RealCluster) -> Any:
    """What `gpuslice inspect -o json` prints."""
    command = [str(GPUSLICE), "inspect", "-o", "json", f"--kubeconfig={cluster.kubeconfig}"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def pod_resources(node: Node) -> tuple[PodResources, ...]:
    """What the node's kubelet says about who holds which ids."""

    async def ask() -> tuple[PodResources, ...]:
        client = PodResourcesClient(node.socket(KUBELET_SOCKET))
        try:
            return await client.list()
        finally:
            await client.aclose()

    return asyncio.run(ask())


def gpus_of(cluster: RealCluster, node: Node) -> NodeGpus:
    """The node's GPUs as it publishes them."""
    found = decode_gpus(cluster.get("nodes", node.name, None)["metadata"].get("annotations") or {})
    assert found is not None, f"{node.name} publishes no GPUs"
    return found


def asked(container: Mapping[str, Any]) -> dict[str, int]:
    """What a container's manifest asks for, by resource."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return {resource: int(limits[resource]) for resource in KINDS if int(limits.get(resource, 0))}


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())


def first_process(node: Node, container: str) -> int | None:
    for folder, pids in node.cgroup.by_folder().items():
        if folder.rpartition("/")[2] == container:
            return first_of(pids)
    return None


@dataclass
class _Witnesses:
    """What one node's kubelet, processes and files say."""

    node: Node
    gpus: NodeGpus
    listing: tuple[PodResources, ...]
    pids: dict[str, list[int]]
    totals: dict[int, set[str]] = field(default_factory=dict)
    """By the amount that a container asks for: what the pods of such containers ask for."""
    found: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, cluster: RealCluster, node: Node) -> _Witnesses:
        pids = {path.rpartition("/")[2]: pids for path, pids in node.cgroup.by_folder().items()}
        return cls(node, gpus_of(cluster, node), pod_resources(node), pids)

    def listed(self) -> Iterator[tuple[str, str, str, frozenset[str]]]:
        """pod-resources as (namespace/pod, container, resource, ids)."""
        for entry in self.listing:
            for container in entry.containers:
                for resource in KINDS:
                    if ids := container.ids(resource):
                        yield f"{entry.namespace}/{entry.name}", container.name, resource, ids

    def differences(self, pods: Iterable[Object], inspected: Any) -> list[str]:
        self.found = []
        self._check_ids()
        pods = list(pods)
        for pod in pods:
            every = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
            sidecars = [c for c in pod["spec"].get("initContainers") or () if c.get("restartPolicy")]
            lasting = [*sidecars, *pod["spec"]["containers"]]
            amounts = [asked(c).get(names.GPU_MEM, 0) for c in every]
            total = max(*amounts, sum(asked(c).get(names.GPU_MEM, 0) for c in lasting))
            for amount in amounts:
                self.totals.setdefault(amount, set()).add(str(total))
        for pod in pods:
            self._check_pod(pod)
        self._check_inspect(pods, inspected)
        return [f"{self.node.name}: {sentence}" for sentence in self.found]

    # --- who holds what, by itself
    def _check_ids(self) -> None:
        ids = DeviceIds(self.gpus)
        given: Counter[tuple[str, str]] = Counter()
        modes: dict[str, set[str]] = {}
        for _, _, resource, mine in self.listed():
            given.update((resource, one) for one in mine)
            for one in mine:
                if (uuid := ids.locate(KINDS[resource], one)) is None:
                    self.found.append(f"{one} is no id of this node")
                else:
                    modes.setdefault(uuid, set()).add(resource)
        for (resource, one), times in given.items():
            if times > 1:
                self.found.append(f"{one} of {resource} is given out {times} times")
        self.found += [f"{uuid} is held in two ways" for uuid, kinds in modes.items() if len(kinds) > 1]

    # --- one pod
    def _check_pod(self, pod: Object) -> None:
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        spec, status = pod["spec"], pod["status"]
        kinds = [("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")]
        actual: dict[str, ByGpu] = {}
        complete = True
        for containers, statuses in kinds:
            states = {one["name"]: one for one in status.get(statuses) or ()}
            for container in spec.get(containers) or ():
                if not asked(container):
                    continue
                state = states.get(container["name"], {})
                ends = containers == "initContainers" and container.get("restartPolicy") != "Always"
                if "running" not in state.get("state", {}):
                    complete = complete and ends
                    continue
                where = self._check_container(pod, key, container, state, listed=not ends)
                actual[container["name"]] = where
        if actual and complete:
            self._check_annotations(pod, key, actual)

    def _check_container(
        self, pod: Object, key: str, container: Object, state: Object, *, listed: bool
    ) -> ByGpu:
        """What it holds by pod-resources, MiB by UUID; everything else must say the same."""
        name = container["name"]
        label = f"{key}/{name}"
        ((resource, amount),) = asked(container).items()
        whole = resource == names.WHOLE_GPU
        environ, text = self._process(label, state)
        content = self._slice(label, text)
        ids = {
            (kind, frozenset(mine)) for k, c, kind, mine in self.listed() if k == key and c == name and mine
        }
        if listed and len(ids) != 1:
            self.found.append(f"{label}: pod-resources lists {len(ids)} grants, not one")
            return {}
        if ids:
            ((kind, mine),) = ids
            if kind != resource or len(mine) != amount:
                self.found.append(
                    f"{label}: asks {amount} {resource}, pod-resources lists {len(mine)} {kind}"
                )
            counts = {u: len(each) for u, each in DeviceIds(self.gpus).per_gpu(KINDS[kind], mine).items()}
        else:  # an ordinary init container: nobody but the process itself can say
            counts = dict.fromkeys(environ.get(names.VISIBLE_DEVICES, "").split(","), amount)
        if not whole and len(set(counts.values())) > 1:
            self.found.append(f"{label}: its memory lies unevenly on {counts}")
        mib = {uuid: self._mib(uuid, count, whole) for uuid, count in counts.items()}
        devices = environ.get(names.VISIBLE_DEVICES, "")
        if whole:  # in the order in which kubelet asked for them
            self._compare(label, "its environment", sorted(devices.split(",")), sorted(counts))
        else:
            self._compare(label, "its environment", devices, ",".join(counts))
            indexes = ",".join(str(self._index(uuid)) for uuid in counts)
            self._compare(label, f"its {names.MEM_IDX}", environ.get(names.MEM_IDX), indexes)
            self._compare(label, f"its {names.MEM_CONTAINER}", environ.get(names.MEM_CONTAINER), str(amount))
            # Fixed by Allocate, before anybody knows whose container it is: right if equal containers are of pods
            # that ask for as much, else that of one of them.
            if environ.get(names.MEM_POD) not in self.totals.get(amount, set()):
                self.found.append(f"{label}: its {names.MEM_POD} says {environ.get(names.MEM_POD)}")
        said = {gpu["uuid"]: gpu["mib"] for gpu in content.get("gpus", ())}
        self._compare(label, "its slice.json", said, mib)
        owner = [content.get(word) for word in ("namespace", "pod", "uid", "container")]
        metadata = pod["metadata"]
        right = [metadata["namespace"], metadata["name"], metadata["uid"], name]
        self._compare(label, "the owner in its slice.json", owner, right)
        return mib

    def _process(self, label: str, state: Object) -> tuple[dict[str, str], str]:
        """The environment of a container's first process, and the slice.json that it sees."""
        pid = first_of(self.pids.get(state["containerID"].partition("://")[2], ()))
        if pid is None:
            self.found.append(f"{label}: runs, says kubelet, but has no process")
            return {}, ""
        root = Path(f"/proc/{pid}")
        text = ""
        with contextlib.suppress(OSError):
            text = (root / "root" / names.SLICE_DIR_IN_CONTAINER.lstrip("/") / "slice.json").read_text()
        environ = (root / "environ").read_bytes().decode().split("\0")
        return dict(entry.split("=", 1) for entry in environ if "=" in entry), text

    def _slice(self, label: str, text: str) -> Any:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            self.found.append(f"{label}: its slice.json is {text!r}")
            return {}

    def _check_annotations(self, pod: Object, key: str, actual: Mapping[str, ByGpu]) -> None:
        annotations = pod["metadata"].get("annotations") or {}
        record = json.loads(annotations.get(names.ALLOCATION, "{}"))
        init = {c["name"] for c in pod["spec"].get("initContainers") or ()}
        for container, where in actual.items():
            self._compare(f"{key}/{container}", "the annotation", record.get(container), where)
        strangers = record.keys() - actual.keys() - init
        if strangers:
            self.found.append(f"{key}: the annotation speaks of {sorted(strangers)}, which do not run")
        shared = {
            uuid
            for name, where in record.items()
            for uuid in where
            if names.GPU_MEM in asked(_container(pod, name))
        }
        if not shared:
            return
        self._compare(key, names.MEM_ASSIGNED, annotations.get(names.MEM_ASSIGNED), "true")
        index = str(self._index(next(iter(shared)))) if len(shared) == 1 else None
        self._compare(key, names.MEM_IDX, annotations.get(names.MEM_IDX), index)
        if not annotations.get(names.MEM_ASSUME_TIME, "").isdecimal():
            self.found.append(f"{key}: no {names.MEM_ASSUME_TIME}")
        devices = {str(self.gpus.units_of(gpu)) for uuid in shared if (gpu := self.gpus.find(uuid))}
        if annotations.get(names.MEM_DEV) not in devices:
            self.found.append(f"{key}: {names.MEM_DEV} is {annotations.get(names.MEM_DEV)}, not {devices}")

    # --- inspect
    def _check_inspect(self, pods: Iterable[Object], inspected: Any) -> None:
        if inspected is None:
            self.found.append("inspect does not show this node")
            return
        for pending in inspected["pending"]:
            self.found.append(f"inspect does not know the GPU of {pending['name']}")
        shown: dict[str, ByGpu] = {}
        for gpu in inspected["gpus"]:
            if gpu["usedMiB"] > gpu["totalMiB"]:
                self.found.append(f"inspect: GPU {gpu['index']} is over-committed")
            for pod in gpu["pods"]:
                shown.setdefault(f"{pod['namespace']}/{pod['name']}", {})[gpu["uuid"]] = pod["MiB"]
        held: dict[str, ByGpu] = {}
        for key, _, resource, mine in self.listed():
            for uuid, each in DeviceIds(self.gpus).per_gpu(KINDS[resource], mine).items():
                mib = self._mib(uuid, len(each), resource == names.WHOLE_GPU)
                held.setdefault(key, {})[uuid] = held.setdefault(key, {}).get(uuid, 0) + mib
        for pod in pods:
            key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            if not _ready(pod) or any(asked(c) for c in pod["spec"].get("initContainers") or ()):
                continue  # an init container that has ended is still counted with its pod
            self._compare(key, "inspect", shown.get(key, {}), held.get(key, {}))

    # --- small
    def _compare(self, label: str, what: str, said: object, right: object) -> None:
        if said != right:
            self.found.append(f"{label}: {what} says {said}, and it should be {right}")

    def _mib(self, uuid: str, count: int, whole: bool) -> int:
        gpu = self.gpus.find(uuid)
        if gpu is None:
            return 0
        return gpu.memory_mib if whole else self.gpus.unit.to_mib(count)

    def _index(self, uuid: str) -> int | None:
        gpu = self.gpus.find(uuid)
        return gpu.index if gpu else None


def _container(pod: Object, name: str) -> Object:
    spec = pod["spec"]
    return next(
        (c for c in [*(spec.get("initContainers") or ()), *spec["containers"]] if c["name"] == name), {}
    )
