"""A pod bound to this node, as the ledger sees it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuslice import names
from gpuslice.cluster.annotations import decode_allocation, recorded_spread
from gpuslice.cluster.podstatus import has_ended
from gpuslice.devices.inventory import NodeGpus
from gpuslice.errors import InputError
from gpuslice.kube.wire import Pod
from gpuslice.requests.allocation import Allocation
from gpuslice.requests.pod import PodRequest, read_given
from gpuslice.units import read_digits


@dataclass(frozen=True, slots=True)
class NodePod:
    """What a pod asks for and where it was planned.

    `alive`: its containers may still touch a GPU. `since`: Unix nanoseconds of its bind, 0 if nobody wrote
    them. `problem`: a sentence that says why its request cannot be read (it then asks for nothing here).
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
    """`namespace/name`. A field and not a property, since every start of a container reads the keys of all
    pods.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.namespace}/{self.name}")


def read_pod(pod: Pod, gpus: NodeGpus, known: NodePod | None = None) -> NodePod:
    """Read a pod of this node. Never raises: what cannot be read becomes `problem`.

    `known`: what was read of it before, which still counts where annotations have become unreadable since.
    """
    try:
        return _read(pod, gpus, known)
    except Exception as error:  # unforeseen: what was known stays, and a pod not known before gets nothing
        if known is not None:
            return replace(known, alive=not has_ended(pod))
        problem = f"{type(error).__name__}: {error}"[:200]
        return NodePod(
            pod.uid, pod.namespace, pod.name, PodRequest(), alive=not has_ended(pod), problem=problem
        )


def _read(pod: Pod, gpus: NodeGpus, known: NodePod | None) -> NodePod:
    problem, request = "", PodRequest()
    try:
        request = read_given(pod.spec, pod.annotations, _spread(pod, gpus, known))
    except InputError as error:
        problem = str(error)
    containers = tuple(container.name for container in pod.spec.containers)
    planned = decode_allocation(pod.annotations, request, containers, gpus) if request else None
    if planned is None and known is not None and known.planned is not None:
        planned = known.planned if all(map(gpus.find, known.planned.gpus)) else None
    return NodePod(
        pod.uid,
        pod.namespace,
        pod.name,
        request,
        containers,
        planned,
        alive=not has_ended(pod),
        leaving=pod.metadata.deletion_timestamp is not None,
        since=read_digits(pod.annotations.get(names.MEM_ASSUME_TIME, ""), 2**63 - 1) or 0,
        problem=problem,
        annotations=pod.annotations,
    )


def _spread(pod: Pod, gpus: NodeGpus, known: NodePod | None) -> Mapping[str, int]:
    """On how many GPUs each container is: as first known, since that is fixed at bind, else as its record
    says.

    A record changes: it also lists a container that kubelet gave ids on too few GPUs, and that may not start.
    """
    if known is not None and known.request:
        return {c.name: c.across for c in known.request.containers}
    return recorded_spread(pod.annotations, [container.name for container in pod.spec.containers], gpus)
