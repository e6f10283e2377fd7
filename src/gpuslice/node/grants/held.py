"""The values that the ledger is made of: who holds which ids, and who still waits for some. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from gpuslice.devices.sharing import device_of
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.placement.verdict import Reason
from gpuslice.requests.kinds import Kind
from gpuslice.requests.pod import ContainerRequest, Role

_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Owner:
    """One container of one incarnation of a pod."""

    uid: str
    container: str


@dataclass(frozen=True, slots=True)
class Held:
    """Ids given out in one Allocate, and whose they are.

    `gpus`: how many of them on each GPU, by UUID. `owner` is a guess until `certain`. `call`: which call of
    the kubelet gave them out (they only grow); `since`: when, in monotonic seconds.
    """

    serial: int
    kind: Kind
    ids: frozenset[str]
    gpus: Mapping[str, int]
    owner: Owner | None
    certain: bool
    call: int
    since: float

    def bars(self, kind: Kind) -> bool:
        """True if its GPUs give no ids of that kind meanwhile: a GPU is used in one way at a time."""
        return self.kind != kind


class GrantCode(Reason):
    """Why a container gets no ids, or may not start with those that it has; beside the engine's own codes."""

    UNKNOWN_IDS = "ids_unknown"
    IDS_TAKEN = "ids_of_another_container"
    GPU_GONE = "gpu_gone"
    OTHER_USE = "gpu_in_other_use"
    SCATTERED = "ids_of_several_gpus"
    LISTED_TWICE = "ids_of_several_pods"
    UNKNOWN_POD = "pod_unknown"
    NOT_ASKED_FOR = "ids_not_asked_for"


@dataclass(frozen=True, slots=True)
class Unsure:
    """Ask the API server about this pod (namespace/name, "" for all of the node's) and come back."""

    key: str


@dataclass(frozen=True, slots=True)
class WaitingContainer:
    """A container that was not seen to get its ids yet. `position` in the order of its pod's start."""

    pod: NodePod
    container: ContainerRequest
    position: int

    @property
    def owner(self) -> Owner:
        return Owner(self.pod.uid, self.container.name)

    @property
    def planned(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that the scheduler chose for it."""
        if self.pod.planned is None:
            return ()
        return tuple(grant.gpu for grant in self.pod.planned.of(self.container.name))


def likeliest(
    pods: Mapping[str, NodePod], held: Iterable[Held], kind: Kind, size: int, current: str
) -> list[WaitingContainer]:
    """The waiting containers that ask for exactly that much, the likeliest first.

    The kubelet admits one pod at a time and its containers in order, so the next container of the pod it is
    at (`current`, a uid) is likeliest; then the pods by the time of their bind, and of each pod the first.
    """
    found: list[tuple[bool, bool, bool, int, str, int, WaitingContainer]] = []
    for one, is_next in waiting(pods, held, kind, size):
        pod = one.pod
        # A pod without a time of bind was placed by nobody: it comes last.
        when = pod.since or 2**63
        is_current = is_next and pod.uid == current
        found.append((not is_current, pod.leaving, not is_next, when, pod.key, one.position, one))
    return [rank[-1] for rank in sorted(found, key=itemgetter(0, 1, 2, 3, 4, 5))]


def waiting(
    pods: Mapping[str, NodePod], held: Iterable[Held], kind: Kind, size: int
) -> Iterator[tuple[WaitingContainer, bool]]:
    """The containers that wait for exactly that much, and of each if it is the next of its pod."""
    owned: dict[str, set[str]] = {}
    for holding in held:
        if holding.owner is not None:
            owned.setdefault(holding.owner.uid, set()).add(holding.owner.container)
    for uid, pod in pods.items():
        containers, served = pod.request.containers, owned.get(uid, _NONE)
        # Most pods of a node have all they asked for: this must cost nothing for them.
        if len(served) >= len(containers) or not pod.alive:
            continue
        is_next = True
        for position, container in enumerate(containers):
            if container.name not in served:
                if container.count(kind) == size:
                    yield WaitingContainer(pod, container, position), is_next
                is_next = False


def inits(held: Iterable[Held], kind: Kind, size: int, pods: Iterable[NodePod]) -> list[Owner]:
    """Init containers of that size without a certain grant; those without any first."""
    taken = {h.owner: h.certain for h in held}
    found = [
        Owner(pod.uid, container.name)
        for pod in sorted(pods, key=lambda p: (p.since, p.key))
        for container in pod.request.containers
        if container.role is Role.INIT and container.count(kind) == size
    ]
    return sorted((o for o in found if not taken.get(o)), key=lambda owner: owner in taken)


def is_over(holding: Held, pods: Mapping[str, NodePod]) -> bool:
    """True if the owner is certain and the API server says that it has ended."""
    if not holding.certain or holding.owner is None:
        return False
    pod = pods.get(holding.owner.uid)
    return pod is None or not pod.alive


def is_init(pod: NodePod, owner: Owner | None) -> bool:
    """True if that is an ordinary init container of the pod."""
    container: ContainerRequest | None = pod.request.container(owner.container) if owner else None
    return container is not None and container.role is Role.INIT


def holders(held: Iterable[Held], pods: Mapping[str, NodePod]) -> Mapping[str, Sequence[NodePod]]:
    """The pods that certainly hold a device or a part of it and live, by its UUID."""
    found: dict[str, list[NodePod]] = {}
    for holding in held:
        pod = pods.get(holding.owner.uid) if holding.owner and holding.certain else None
        if pod is not None and pod.alive:
            for uuid in dict.fromkeys(map(device_of, holding.gpus)):
                found.setdefault(uuid, []).append(pod)
    return found
