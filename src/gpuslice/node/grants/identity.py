"""Learns from pod-resources whose ids are whose, before any process of a container runs. Pure.

The owner of a wrong guess is swapped with the container that it was confused with: containers that ask for
the same are interchangeable, as long as their records are true. pod-resources does not list ordinary init
containers: their ids are found by sharing ids with other containers of their pod, or by elimination.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpuslice.node.grants.held import GrantCode, Held, Owner, Unsure, inits, is_init, is_over
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.node.grants.table import GrantTable
from gpuslice.node.kubelet.messages import PodResources
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.kinds import Kind, kinds_in
from gpuslice.requests.pod import Role


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose container is about to start."""

    pod: NodePod
    container: str
    held: Held


def identify(
    table: GrantTable,
    kind: Kind,
    ids: Collection[str],
    listing: Iterable[PodResources],
    pods: Mapping[str, NodePod],
    now: float,
    *,
    fresh: bool,
) -> Identity | Unsure | Verdict:
    """Whose container is about to start with these ids.

    `fresh`: `pods` was read from the API server just now, so a pod that it lacks does not exist.
    """
    listing = list(listing)
    wanted = frozenset(ids)
    learn(table, listing, pods, now, starting=wanted)
    listed = {
        f"{entry.namespace}/{entry.name}": entry
        for entry in listing
        if any(c.ids(kind.resource) & wanted for c in entry.containers)
    }
    if len(listed) > 1:
        ended = {pod.key for pod in pods.values() if not pod.alive}
        listed = {key: entry for key, entry in listed.items() if key not in ended} or listed
    if len(listed) > 1:
        return Verdict(
            GrantCode.LISTED_TWICE,
            f"kubelet gave ids of this container to {' and to '.join(sorted(listed))}; it can start when "
            "the others have ended",
        )
    if not listed:
        return _unlisted(table, kind, wanted, listing, pods, now, fresh=fresh)
    key, entry = next(iter(listed.items()))
    pod = next((p for p in pods.values() if p.key == key), None)
    if pod is None or (not pod.alive and not fresh):
        unknown = Verdict(GrantCode.UNKNOWN_POD, f"the API server does not know pod {key}")
        return unknown if fresh else Unsure(key)
    exact = next((c.name for c in entry.containers if c.ids(kind.resource) == wanted), None)
    holding = _of_pod(table, kind, wanted, pod, exact)
    if holding is None or holding.owner is None:
        if not fresh:
            return Unsure(key)
        if exact is None:
            return Verdict(
                GrantCode.IDS_TAKEN,
                f"kubelet gave ids of this container to {key}, which asks for another number of them; "
                "it can start when that one has ended",
            )
        return Verdict(
            GrantCode.NOT_ASKED_FOR,
            f"a container of pod {key} was given {len(wanted)} ids, but the pod as the API server has it "
            "does not ask for them; delete the pod and create it again",
        )
    return _in_order(table, Identity(pod, holding.owner.container, holding), listing, pods)


def learn(
    table: GrantTable,
    listing: Iterable[PodResources],
    pods: Mapping[str, NodePod],
    now: float,
    *,
    starting: frozenset[str] = frozenset(),
) -> None:
    """Take over from pod-resources who holds what. Repeating it changes nothing.

    `starting`: the ids of a container that is about to start.
    """
    listing = list(listing)
    pods = table.replanned(pods)
    named = _named(table, listing, pods, starting)
    settled = {(h.kind, h.ids): h.owner for h in table.held() if h.certain}
    for entry, pod in named:
        for container in entry.containers:
            for kind in kinds_in(container.resources):
                ids = container.ids(kind.resource)
                known = settled.get((kind, ids)) if ids and pod else None
                if pod and known is not None and known == Owner(pod.uid, container.name):
                    continue
                if ids:
                    asked = pod.request.container(container.name) if pod else None
                    fits = asked is not None and asked.count(kind) == len(ids)
                    owner = Owner(pod.uid, container.name) if pod and fits else None
                    _learn_one(table, kind, ids, f"{entry.namespace}/{entry.name}", owner, pods, now)
    if all(holding.certain for holding in table.held()):
        return
    for entry, pod in named:
        if pod is not None and any(c.role is Role.INIT for c in pod.request.containers):
            _learn_inits(table, entry, pod)


def _named(
    table: GrantTable, listing: Sequence[PodResources], pods: Mapping[str, NodePod], starting: frozenset[str]
) -> list[tuple[PodResources, NodePod | None]]:
    """Each entry with the pod that it is about, None if that is not known.

    While a pod that was deleted by force still ends, its successor may have the same name. The ending pod
    starts no container; otherwise an entry that was certain stays so, and otherwise the later grant belongs
    to the later pod.
    """
    by_key = {pod.key: pod for pod in pods.values()}
    entries: dict[str, list[PodResources]] = {}
    for entry in listing:
        entries.setdefault(f"{entry.namespace}/{entry.name}", []).append(entry)
    found: list[tuple[PodResources, NodePod | None]] = []
    for key, same in entries.items():
        pod = by_key.get(key)
        meant = same[0]
        if pod is not None and len(same) > 1:
            meant = max(same, key=partial(_rank, table, pod, starting))
        found += [(entry, pod if entry is meant else None) for entry in same]
    return found


def _rank(
    table: GrantTable, pod: NodePod, starting: frozenset[str], entry: PodResources
) -> tuple[bool, bool, bool, int]:
    """How likely an entry of a pod's name is the pod's: the greater the likelier."""
    mine = [h for h in table.held() if any(c.ids(h.kind.resource) == h.ids for c in entry.containers)]
    return (
        any(c.ids(name) == starting for c in entry.containers for name in c.resources if starting),
        any(h.certain and h.owner is not None and h.owner.uid == pod.uid for h in mine),
        all(
            asked.count(kind) == len(c.ids(kind.resource))
            for c in entry.containers
            if (asked := pod.request.container(c.name)) is not None
            for kind in {asked.kind, *kinds_in(c.resources)}
        ),
        max((h.call for h in mine), default=0),
    )


def _learn_one(
    table: GrantTable,
    kind: Kind,
    ids: frozenset[str],
    key: str,
    owner: Owner | None,
    pods: Mapping[str, NodePod],
    now: float,
) -> None:
    """A container of the pod `key` has these ids. `owner`: None if the pod or container is not known."""
    matches = [h for h in table.held() if h.kind == kind and h.ids == ids]
    mine = next((h for h in matches if owner is not None and h.owner == owner), None)
    # An app container can hold exactly its init container's ids: the later grant is its own.
    holding = mine or next((h for h in reversed(matches) if not h.certain), None)
    if holding is None and matches:
        return
    if holding is None:
        holding = table.write(kind, ids, None, certain=False, now=now)
    if owner is not None:
        table.hand_over(holding, owner, pods)
        table.give(holding.serial, owner, certain=True)
    elif (taken_for := pods.get(holding.owner.uid) if holding.owner else None) and taken_for.key != key:
        # That guess was wrong: the container still waits. The real owner is gone from the API server, or not
        # known yet.
        table.change(holding, None, certain=False)


def _learn_inits(table: GrantTable, entry: PodResources, pod: NodePod) -> None:
    """Grants that share ids with what the pod certainly has were its init containers'.

    So it goes on from each such grant to the next: a container gets a random subset of what the init
    containers before it leave, and that subset may miss all the ids of one of them.
    """
    for kind in sorted({h.kind for h in table.held() if not h.certain}, key=lambda kind: kind.resource):
        unsure = [h for h in table.held() if h.kind == kind and not h.certain]
        theirs = frozenset().union(
            *(c.ids(kind.resource) for c in entry.containers),
            *(h.ids for h in table.held_by(pod.uid) if h.certain and h.kind == kind),
        )
        found: list[Held] = []
        while linked := [h for h in unsure if h.ids & theirs]:
            found += linked
            unsure = [h for h in unsure if not h.ids & theirs]
            theirs = theirs.union(*(h.ids for h in linked))
        for size in sorted({len(h.ids) for h in found}):
            grants = sorted((h for h in found if len(h.ids) == size), key=lambda h: h.serial)
            unknown = [
                owner
                for owner in inits((), kind, size, [pod])
                if not any(h.owner == owner and h.certain for h in table.held_by(pod.uid))
            ]
            # A kubelet that dies while it admits a pod forgets the latest grant, and asks for another.
            for holding, owner in zip(grants[max(0, len(grants) - len(unknown)) :], unknown, strict=False):
                table.give(holding.serial, owner, certain=True)
    _guess_next(table, pod)


def _guess_next(table: GrantTable, pod: NodePod) -> None:
    """A kubelet serves a pod's containers one after the other, so the next grant is the next container's.

    Only a guess: it may have died in between. It is needed where a sidecar keeps all that was left before.
    """
    mine = {h.owner.container: h.serial for h in table.held_by(pod.uid) if h.certain and h.owner}
    unsure = {h.serial: h for h in table.held() if not h.certain}
    latest = -1
    for container in pod.request.containers:
        after = unsure.get(latest + 1)
        unknown = container.role is Role.INIT and container.name not in mine
        if unknown and after is not None and container.count(after.kind) == len(after.ids):
            table.give(after.serial, Owner(pod.uid, container.name), certain=False)
        latest = max(latest, mine.get(container.name, latest))


def _of_pod(
    table: GrantTable, kind: Kind, ids: frozenset[str], pod: NodePod, container: str | None
) -> Held | None:
    """The grant of exactly these ids that is certainly this pod's."""
    mine = [
        h
        for h in table.held()
        if h.kind == kind and h.ids == ids and h.certain and h.owner and h.owner.uid == pod.uid
    ]
    named = next((h for h in mine if h.owner and h.owner.container == container), None)
    if named or mine:
        return named or mine[0]
    if container is not None:
        return None
    # An ordinary init container whose grant a former run of the agent wrote down: it restarts.
    owner = next(iter(inits(table.held(), kind, len(ids), [pod])), None)
    return table.write(kind, ids, owner, certain=True, now=0.0) if owner else None


def _unlisted(
    table: GrantTable,
    kind: Kind,
    ids: frozenset[str],
    listing: Sequence[PodResources],
    pods: Mapping[str, NodePod],
    now: float,
    *,
    fresh: bool,
) -> Identity | Unsure | Verdict:
    """The init container whose ids pod-resources does not list in any container.

    Its pod's other containers ask for nothing, or got other ids of those that its init containers left. Pods
    that ask for the same in this way cannot be told apart; only their names would matter.
    """
    holding = next((h for h in table.held() if h.kind == kind and h.ids == ids), None)
    owner = _known_init(holding, pods)
    if owner is None:
        owner = _by_elimination(table, kind, ids, holding, pods, fresh=fresh)
    if owner is None:
        if not fresh:
            return Unsure("")
        return Verdict(
            GrantCode.UNKNOWN_POD,
            f"no pod of this node is known that holds these {len(ids)} ids; kubelet will try again",
        )
    if holding is None:
        holding = table.write(kind, ids, None, certain=False, now=now)
    table.give(holding.serial, owner, certain=True)
    found = Identity(pods[owner.uid], owner.container, table.get(holding.serial))
    return _in_order(table, found, listing, pods)


def _known_init(holding: Held | None, pods: Mapping[str, NodePod]) -> Owner | None:
    """The init container that certainly has these ids, if its pod lives."""
    owner = holding.owner if holding and holding.certain else None
    pod = pods.get(owner.uid) if owner else None
    return owner if pod is not None and pod.alive and is_init(pod, owner) else None


def _by_elimination(
    table: GrantTable,
    kind: Kind,
    ids: frozenset[str],
    holding: Held | None,
    pods: Mapping[str, NodePod],
    *,
    fresh: bool,
) -> Owner | None:
    """An init container of that size of which nothing is known; the guessed owner comes first.

    Other containers of its pod may be listed with other ids: then a sidecar keeps all that was left before,
    or a former run of the agent wrote the grant down. All pods must be known for that.
    """
    living = [pod for pod in pods.values() if pod.alive]
    alone = [pod for pod in living if _only_init(pod, kind)]
    listed = [p for p in living if any(h.certain for h in table.held_by(p.uid))] if fresh else []
    guess = holding.owner if holding else None
    if any(pod.uid == guess.uid and is_init(pod, guess) for pod in alone + listed if guess):
        return guess
    gpus = table.ids.per_gpu(kind, ids).keys()
    near = [p for p in listed if any(h.certain and h.gpus.keys() & gpus for h in table.held_by(p.uid))]
    # An owner found by elimination may really hold the ids of a container that is gone: then one of the
    # living has these ids.
    held = table.held()
    rounds = ((held, alone), (held, near), (held, listed), ((), alone if fresh else ()), ((), near))
    return next((found[0] for known, some in rounds if (found := inits(known, kind, len(ids), some))), None)


def _in_order(
    table: GrantTable, identity: Identity, listing: Sequence[PodResources], pods: Mapping[str, NodePod]
) -> Identity | Verdict:
    """Fail closed: a container whose slice is not what it asked for does not start."""
    holding, asked = identity.held, identity.pod.request.container(identity.container)
    where = f"container {identity.container} of {identity.pod.key}"
    if asked is None or asked.count(holding.kind) != len(holding.ids):
        return Verdict(
            GrantCode.NOT_ASKED_FOR,
            f"{where} holds {len(holding.ids)} ids, which is not what it asks for; delete the pod",
        )
    if not holding.kind.whole:
        counts = set(holding.gpus.values())
        if len(holding.gpus) != asked.across or len(counts) != 1 or sum(holding.gpus.values()) != asked.units:
            return Verdict(
                GrantCode.SCATTERED,
                f"{where} asks for {table.ids.gpus.unit.say(asked.units_per_gpu)} on {asked.across} GPU(s), "
                f"but its ids lie on {len(holding.gpus)}; delete the pod",
            )
    for other in table.held():
        clash = other.bars(holding.kind) and other.gpus.keys() & holding.gpus.keys()
        twice = other.kind == holding.kind and other.ids & holding.ids
        same = other.owner is not None and other.owner.uid == identity.pod.uid
        # Grants that are over, as the API server and kubelet agree, stay here until the next reconciliation.
        ended = is_over(other, pods) and not _lists(listing, other)
        if (clash or twice) and not same and other.certain and not ended:
            return Verdict(
                GrantCode.IDS_TAKEN,
                f"{where} holds ids of a GPU that another pod has; it starts when that one has ended",
            )
    return identity


def _lists(listing: Iterable[PodResources], holding: Held) -> bool:
    """True if some container still has one of these ids, as kubelet sees it."""
    return any(c.ids(holding.kind.resource) & holding.ids for entry in listing for c in entry.containers)


def _only_init(pod: NodePod, kind: Kind) -> bool:
    asking = [c for c in pod.request.containers if c.count(kind)]
    return bool(asking) and all(c.role is Role.INIT for c in asking)
