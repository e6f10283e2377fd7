"""Decides which container gets the ids of an Allocate, by who waits and what was given out before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuslice.devices.inventory import NodeGpus
from gpuslice.node.grants.held import GrantCode, Held, Owner, WaitingContainer, is_init, is_over
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.node.grants.table import GrantTable
from gpuslice.placement.verdict import Verdict, unavailable
from gpuslice.requests.kinds import Kind
from gpuslice.requests.pod import Role


def closed(
    table: GrantTable, kind: Kind, gpus: Mapping[str, int], pods: Mapping[str, NodePod]
) -> Verdict | None:
    """Why one of these GPUs must not give out anything of this kind."""
    for uuid in gpus:
        gpu = table.ids.gpus.find(uuid)
        if gpu is None:
            return Verdict(GrantCode.GPU_GONE, f"GPU {uuid} is not there any more and gets no container")
        if not gpu.available:
            return Verdict(
                unavailable(gpu.availability.closed),
                f"GPU {gpu.index} gets no container; it is {gpu.availability}",
            )
        if any(uuid in h.gpus and h.bars(kind) and not is_over(h, pods) for h in table.held()):
            how = "shared" if kind.whole else "held whole"
            return Verdict(
                GrantCode.OTHER_USE,
                f"GPU {gpu.index} is {how} by another container; it can be used in one way only",
            )
    return None


def heir(
    table: GrantTable,
    shared: Sequence[Held],
    kind: Kind,
    size: int,
    pods: Mapping[str, NodePod],
    waiting: Sequence[WaitingContainer],
) -> Owner | None:
    """The container that takes over ids of its pod's init containers, or None if that is impossible.

    A kubelet serves one pod at a time, so what it gave out since must belong to the same pod.
    """
    uids = {h.owner.uid if h.owner else "" for h in shared}
    pod = pods.get(next(iter(uids))) if len(uids) == 1 else None
    if pod is not None and all(is_init(pod, h.owner) for h in shared):
        found = next((w for w in waiting if w.pod.uid == pod.uid), None)
        if found is not None:
            return found.owner
    first = min(h.call for h in shared)
    for candidate in sorted(pods.values(), key=lambda p: (p.since, p.key)):
        run = _run(table, candidate, shared, first, kind, size)
        if run:
            containers = candidate.request.containers
            for holding, container in zip(run, containers, strict=False):
                owner = Owner(candidate.uid, container.name)
                table.hand_over(holding, owner, pods)
                table.give(holding.serial, owner, certain=False)
            return Owner(candidate.uid, containers[len(run)].name)
    return None


def _run(
    table: GrantTable, pod: NodePod, shared: Sequence[Held], first: int, kind: Kind, size: int
) -> list[Held] | None:
    """The latest grants, if they can be those of this pod's first containers and these its next ids."""
    if not pod.alive:
        return None
    latest = sorted(table.held(), key=lambda h: h.call)
    least = sum(h.call >= first for h in latest)
    containers = pod.request.containers
    for count in range(least, min(len(latest), len(containers) - 1) + 1):
        run = latest[len(latest) - count :]
        fits = all(
            not h.certain and c.count(h.kind) == len(h.ids) for h, c in zip(run, containers, strict=False)
        )
        lent = all(
            c.role is Role.INIT
            for h, c in zip(run, containers, strict=False)
            if any(h.serial == s.serial for s in shared)
        )
        if fits and lent and containers[count].count(kind) == size:
            return run
    return None


def claimant(
    table: GrantTable, kind: Kind, size: int, gpus: Mapping[str, int], waiting: Sequence[WaitingContainer]
) -> Owner | Verdict | None:
    """Who gets ids that nobody holds: of the containers that wait for as much, the likeliest that the ids
    suit.
    """
    if kind.whole:
        return waiting[0].owner if waiting else None
    even = len(set(gpus.values())) == 1
    suited = [one for one in waiting if even and one.container.across == len(gpus)]
    if len(gpus) > 1 and not suited:
        return scattered(table.ids.gpus, gpus, size)
    if waiting and not suited:
        return Verdict(
            GrantCode.SCATTERED,
            f"the container asks for memory of {waiting[0].container.across} GPUs, but all that kubelet has "
            "left to give is on one",
        )
    planned = [one for one in suited if set(one.planned) == set(gpus)]
    best = next(iter(planned or suited), None)
    return best.owner if best else None


def scattered(node: NodeGpus, gpus: Mapping[str, int], size: int) -> Verdict:
    """Why a container gets no ids: what is left does not lie on as few GPUs as it must."""
    parts = ", ".join(
        f"{node.unit.say(count)} on GPU {gpu.index}"
        for uuid, count in gpus.items()
        if (gpu := node.find(uuid)) is not None
    )
    return Verdict(
        GrantCode.SCATTERED,
        f"the container asks for {node.unit.say(size)} on one GPU, but the free memory is spread over "
        f"several: {parts}",
    )
