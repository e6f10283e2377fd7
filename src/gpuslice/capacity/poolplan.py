"""Decides the next steps for a pool's nodes from their present state. Pure, and safe to repeat.

Nothing is remembered between two plans: work in progress shows on the nodes (labels, cordons).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpuslice.devices.migstate import MigState

CLOSED_SECONDS: Final = 1.0
"""How long a cordon must have existed before all bound pods are known: a scheduler may have decided just
before it."""


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node of a pool as it is.

    `ready`: its GPUs are offered. `wanted`: the desired MIG configuration, "" if the pool does not give one,
    and `wanted_strategy`; `config`, `strategy`, `state` and `reason` are what its labels and annotation say;
    `partitioned`: it has MIG devices. `answered`: devices that have to go are given to nobody any more, and
    the scheduler knows. `holders`: pods that hold GPUs here. `arriving`: pods that were bound just now.
    `pods`: those that would be lost with the machine. `cordoned`: it gets no new pods, since `closed_s`
    seconds; `closed`: we cordoned it. `idle_s`: how long it had no pods.
    """

    name: str
    ready: bool = True
    wanted: str = ""
    wanted_strategy: str = ""
    config: str = ""
    state: str = ""
    reason: str = ""
    strategy: str = ""
    partitioned: bool = False
    answered: bool = True
    holders: int = 0
    arriving: int = 0
    pods: int = 0
    cordoned: bool = False
    closed: bool = False
    closed_s: float = 0.0
    idle_s: float = 0.0

    @property
    def told(self) -> bool:
        """True if its labels already have the desired configuration."""
        return not self.wanted or (self.config, self.strategy) == (self.wanted, self.wanted_strategy)

    @property
    def renames(self) -> bool:
        """True if devices that pods hold here would get another name."""
        return self.partitioned and self.strategy != self.wanted_strategy

    @property
    def has_to_wait(self) -> bool:
        """True if its labels must not change before its holders have ended."""
        return self.renames and self.holders > 0

    @property
    def can_be_told(self) -> bool:
        """True if no pod is on its way to a device that has to go: a pod that is bound to one would be
        rejected.
        """
        return self.cordoned and self.closed_s >= CLOSED_SECONDS and not (self.arriving or self.has_to_wait)


@dataclass(frozen=True, slots=True)
class Repartition:
    """`tell`: nodes whose labels are to be changed now. `close`: nodes that get no new pods for the time
    being. `done`: nodes that are as they should be. `waits`: a sentence about what is not done, "" if all is
    done; `failed`: waiting will not cure it.
    """

    tell: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    done: int = 0
    waits: str = ""
    failed: bool = False


def plan_repartition(nodes: Sequence[PoolNode]) -> Repartition:
    """Repartition the nodes' GPUs, one node after the other, those without holders first.

    A node gets no new pods until its agent has closed what has to go: a pod that is bound to a device which
    goes at that moment would be rejected. Then the agent partitions each GPU as soon as nothing that has to
    go is in use, and other pods may come. A node that waits for pods to end does not hold up nodes without
    holders, only other nodes with holders. Another strategy renames the MIG devices that pods hold: a node
    with MIG devices must be without holders for it.
    """
    wrong = [node for node in nodes if not node.told]
    told = [node for node in nodes if node.told and node.wanted]
    partitioning = [node for node in told if node.state not in (MigState.SUCCESS, MigState.FAILED)]
    unanswered = {node.name for node in told if node.closed and not node.answered}
    done = sum(node.state == MigState.SUCCESS for node in told)
    failed = next((node for node in told if node.state == MigState.FAILED), None)
    if failed is not None:
        why = failed.reason or "its GPUs cannot be partitioned"
        return Repartition((), tuple(sorted(unanswered)), done, f"node {failed.name}: {why}", failed=True)
    if not wrong and not partitioning:
        return Repartition((), tuple(sorted(unanswered)), done)
    chosen = _chosen(wrong, partitioning)
    tell = {node.name for node in chosen if node.can_be_told} if not _is_at_work(partitioning) else set()
    slow = next(iter([*partitioning, *chosen, *wrong]))
    why = slow.reason or (
        f"{slow.holders} pods hold its GPUs" if slow.holders else "its GPUs are being partitioned"
    )
    number = sum(bool(node.wanted) for node in nodes)
    return Repartition(
        tuple(sorted(tell)[:1]),
        tuple(sorted(unanswered | {node.name for node in chosen})),
        done,
        f"{done} of {number} nodes are partitioned; node {slow.name}: {why}",
    )


def _is_at_work(partitioning: Sequence[PoolNode]) -> bool:
    """True if a node is being partitioned at this moment and is not just waiting for pods."""
    return any(not node.holders for node in partitioning)


def _chosen(wrong: Sequence[PoolNode], partitioning: Sequence[PoolNode]) -> list[PoolNode]:
    """The nodes that are next: those closed already, and another one if it need not wait for them.

    At most one node with holders is under way or next.
    """
    closed = sorted(
        (node for node in wrong if node.closed), key=lambda node: (not node.has_to_wait, node.name)
    )
    room = not any(node.holders for node in partitioning)
    chosen: list[PoolNode] = []
    for node in closed:
        if not node.holders or room:
            chosen.append(node)
            room = room and not node.holders
    if all(node.has_to_wait for node in chosen) and not _is_at_work(partitioning):
        open_ones = [n for n in wrong if n not in chosen and (room or not n.holders)]
        chosen += sorted(open_ones, key=lambda node: (node.holders, node.name))[:1]
    return chosen


@dataclass(frozen=True, slots=True)
class Size:
    """`add`: how many machines are missing. `retire`: nodes that are to go, and get no new pods; those in
    `evict` have pods, which have to move. `remove`: machines that can be removed now.
    """

    add: int = 0
    retire: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def plan_count(nodes: Sequence[PoolNode], count: int) -> Size:
    """A fixed number of nodes. Those with the fewest pods go first; their pods are evicted."""
    if len(nodes) <= count:
        return Size(add=count - len(nodes))
    going = sorted(nodes, key=_worth)[: len(nodes) - count]
    return _retire(going, evict=True)


def plan_range(nodes: Sequence[PoolNode], low: int, high: int, *, needed: int, idle_s: float) -> Size:
    """Autoscaling: `needed` nodes that are not ready yet would take the waiting pods.

    A node that had no pods for `idle_s` seconds goes, unless pods wait. Never below `low` nor above `high`;
    only a lowered `high` evicts pods.
    """
    if len(nodes) > high:
        return plan_count(nodes, high)
    coming = sum(not node.ready for node in nodes)
    target = min(max(len(nodes) + max(0, needed - coming), low), high)
    if target > len(nodes) or needed:
        return Size(add=target - len(nodes))
    idle = [node for node in nodes if node.ready and not node.pods and node.idle_s >= idle_s]
    return _retire(sorted(idle, key=_worth)[: len(nodes) - low], evict=False)


def _worth(node: PoolNode) -> tuple[object, ...]:
    """The sort key for removal: the least useful nodes come first; nodes that were chosen before stay
    chosen.
    """
    return not node.cordoned, node.ready, node.pods, -len(node.name), _backwards(node.name)


def _backwards(name: str) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in name)


def _retire(going: Sequence[PoolNode], *, evict: bool) -> Size:
    return Size(
        retire=tuple(node.name for node in going),
        evict=tuple(node.name for node in going if node.pods) if evict else (),
        remove=tuple(node.name for node in going if node.cordoned and not node.pods),
    )


def next_names(pool: str, number: int, taken: set[str]) -> tuple[str, ...]:
    """Names for new nodes: the pool's with the lowest free numbers."""
    found: list[str] = []
    candidate = 0
    while len(found) < number:
        name = f"{pool}-{candidate}"
        if name not in taken:
            found.append(name)
        candidate += 1
    return tuple(found)
