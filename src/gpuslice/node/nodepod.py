"""A pod bound to this node, as the ledger sees it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuslice import names
from gpuslice.cluster.annotations import decode_allocation
from gpuslice.cluster.state import has_ended
from gpuslice.devices.inventory import NodeGpus
from gpuslice.errors import InputError
from gpuslice.kube.wire import Pod
from gpuslice.requests.allocation import Allocation
from gpuslice.requests.pod import PodRequest, read_request


@dataclass(frozen=True, slots=True)
class NodePod:
    """What a pod asks for and where it was planned.

    `alive`: its containers may still touch a GPU. `since`: Unix nanoseconds of its bind, 0 if nobody
    wrote them. `problem`: the sentence why its request cannot be read (it then asks for nothing here).
    """

    uid: str
    namespace: str
    name: str
    request: PodRequest
    containers: tuple[str, ...] = ()
    planned: Allocation | None = None
    alive: bool = True
    leaving: bool = False
    since: int = 0
    problem: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    key: str = field(init=False)
    """`namespace/name`. A field, since every start of a container looks at those of all pods."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.namespace}/{self.name}")


def read_pod(pod: Pod, gpus: NodeGpus) -> NodePod:
    """Read a pod of this node. Never raises: what cannot be read becomes `problem`."""
    problem, request = "", PodRequest()
    try:
        request = read_request(pod.spec, pod.annotations)
    except InputError as error:
        problem = str(error)
    containers = tuple(container.name for container in pod.spec.containers)
    stamp = pod.annotations.get(names.MEM_ASSUME_TIME, "")
    return NodePod(
        pod.uid,
        pod.namespace,
        pod.name,
        request,
        containers,
        decode_allocation(pod.annotations, request, containers, gpus) if request else None,
        alive=not has_ended(pod),
        leaving=pod.metadata.deletion_timestamp is not None,
        since=int(stamp) if stamp.isdecimal() and len(stamp) < 20 else 0,
        problem=problem,
        annotations=pod.annotations,
    )
