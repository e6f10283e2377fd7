"""Keeps room that has been made for a pod from going to a less important pod meanwhile.

A nominated pod waits for its victims on one node to end. Another pod gets that node only if the nominated
pods of at least its own priority still fit beside it, GPU by GPU, once their victims are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuslice.cluster.accounts import GpuAccounts
from gpuslice.cluster.nodetable import AssignedPod, NodeTable
from gpuslice.cluster.waiting import WaitingPod
from gpuslice.placement.freegpu import FreeGpu, after_charges
from gpuslice.placement.node import place
from gpuslice.placement.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Nomination:
    """A pod, the node where room is being made for it, and the uids of the pods that make it."""

    waiting: WaitingPod
    node: str
    victims: frozenset[str]


class Nominations:
    """Nominated pods, the earlier first. A pod has one nomination at most."""

    def __init__(self, table: NodeTable, accounts: GpuAccounts) -> None:
        self._table = table
        self._accounts = accounts
        self._by_uid: dict[str, Nomination] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def nominate(self, waiting: WaitingPod, node: str, victims: Iterable[str]) -> None:
        """Keep room for a pod on a node."""
        self._by_uid.pop(waiting.uid, None)
        self._by_uid[waiting.uid] = Nomination(waiting, node, frozenset(victims))

    def withdraw(self, uid: str) -> str | None:
        """The pod no longer needs the room. Returns the node whose room is now free for others."""
        nomination = self._by_uid.pop(uid, None)
        return nomination.node if nomination else None

    def of(self, uid: str) -> Nomination | None:
        """A pod's nomination."""
        return self._by_uid.get(uid)

    @property
    def nodes(self) -> set[str]:
        """The nodes where room is kept."""
        return {nomination.node for nomination in self._by_uid.values()}

    def leaving(self, nomination: Nomination) -> bool:
        """True while a victim is still on the node."""
        return any(self._table.pod(uid) is not None for uid in nomination.victims)

    def before(self, waiting: WaitingPod, node: str) -> list[Nomination]:
        """The nominations on a node that a pod must leave room for.

        Those of its own priority count as well, but of two nominated pods only the earlier: otherwise each
        would wait for the other for ever.
        """
        kept: list[Nomination] = []
        own = False
        for nomination in self._by_uid.values():
            if nomination.waiting.uid == waiting.uid:
                own = nomination.node == node
                continue
            theirs, mine = nomination.waiting.demand.priority, waiting.demand.priority
            if nomination.node == node and (theirs > mine or (theirs == mine and not own)):
                kept.append(nomination)
        return kept

    def allow(self, waiting: WaitingPod, node: str) -> bool:
        """True if the pod, which fits now, may take the GPUs that the engine would choose on the node."""
        kept = self.before(waiting, node)
        if not kept:
            return True
        row = self._table.row(node)
        footprints = [waiting.demand.footprint, *(n.waiting.demand.footprint for n in kept[1:])]
        if row is None or self._table.shortages(
            kept[0].waiting.demand.footprint, row, self.victims(kept), footprints
        ):
            return False
        if not waiting.demand.request or not any(n.waiting.demand.request for n in kept):
            return True
        choice = self._accounts.fleet.place(waiting.demand.request, node, self._accounts.policy)
        if isinstance(choice, Verdict):
            return False
        free_gpus = after_charges(
            self._accounts.fleet.free_gpus(node), choice.charges(waiting.demand.request), -1
        )
        return self.free_beside(kept, node, free_gpus) is not None

    def victims(self, kept: Iterable[Nomination]) -> list[AssignedPod]:
        """The victims of these nominations that are still there."""
        uids = {uid for nomination in kept for uid in nomination.victims}
        return [assigned for uid in uids if (assigned := self._table.pod(uid)) is not None]

    def free_beside(
        self, kept: Sequence[Nomination], node: str, free_gpus: Sequence[FreeGpu]
    ) -> list[FreeGpu] | None:
        """What is free once the victims have left and the nominated pods have come; None if they cannot."""
        gpus = self._accounts.gpus(node)
        if gpus is None:
            return None
        after = list(free_gpus)
        for uid in {uid for nomination in kept for uid in nomination.victims}:
            record = self._accounts.pod(uid)
            if record is not None and record.node == node:
                after = after_charges(after, record.charges, 1)
        for nomination in kept:
            request = nomination.waiting.demand.request
            if request:
                outcome = place(request, gpus.unit, after, self._accounts.policy)
                if isinstance(outcome, Verdict):
                    return None
                after = after_charges(after, outcome.charges(request), -1)
        return after
