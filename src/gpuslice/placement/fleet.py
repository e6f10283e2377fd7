"""The GPUs of the whole cluster as arrays: one row per node, one column per GPU slot.

A check of 5,000 nodes is a handful of numpy operations on summaries that are kept up to date event by event,
so a filter costs microseconds. Only pods whose containers might need different GPUs fall back to the exact
search of `placement.node`. It runs on the nodes that neither the summaries nor `placement.glance` decide,
with one bound on its steps for all nodes together.

Memory is int32 MiB and signed: an over-committed GPU shows a negative remainder instead of wrapping
round to a huge one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gpuslice import names
from gpuslice.devices.inventory import NodeGpus
from gpuslice.placement.columns import FleetTable, Rows
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.glance import hopeless, straight_down
from gpuslice.placement.node import legs_apart, place, why_not
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.nodes import Nodes, Scores
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.search import MOST_LEGS, STEPS, Leg, Steps
from gpuslice.placement.verdict import FITS, Code, Reason, Verdict, refusal
from gpuslice.placement.whole import lacking
from gpuslice.requests.allocation import Allocation, Charge
from gpuslice.requests.pod import PodRequest, Role
from gpuslice.units import MAX_UNITS, MemoryUnit

Codes = npt.NDArray[np.uint8]
Refuse = Callable[[npt.NDArray[np.bool_], Code], None]

CODES: tuple[Code, ...] = (
    Code.FITS,
    Code.NODE_NOT_FOUND,
    Code.NOT_GPU_NODE,
    Code.NODE_FULL,
    Code.NO_WHOLE_GPU,
    Code.NO_MIG_DEVICE,
    Code.NO_REPLICA,
    Code.SAME_DEVICE,
    Code.INSUFFICIENT_GPUS,
    Code.INSUFFICIENT,
    Code.CLOSED,
    Code.UNHEALTHY,
    Code.UNDECIDED,
    Code.NEEDS_AGENT,
)
"""What the numbers in an array of codes mean; 0 means that the node fits."""
_NUMBER: dict[Reason, int] = {code: number for number, code in enumerate(CODES)}
NO_NODE = 0
"""The row that stands for every unknown name: always empty."""
FEW = 16
"""The number of GPUs in the largest existing machines, if they are neither partitioned nor replicated."""
PASS_STEPS = 10 * STEPS
"""Steps of the exact search for one pod on all nodes together, some 30 ms. Nodes for which no steps are left
are undecided: the pod waits, unless another node takes it."""
_MOST = 2**45
"""MiB that one pod can count with on one GPU: sums of them stay within int64, however many pods there are."""
UNLIMITED = MAX_UNITS
"""The allocatable amount of a node that publishes none: only the GPUs themselves limit it."""


class Fleet:
    """Mutable state of all GPUs. Every method is synchronous and leaves the summaries consistent."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        self._names: list[str] = [""]
        self._gpus: list[NodeGpus | None] = [None]
        self._reusable: list[int] = []
        self._kinds: dict[str, int] = {names.WHOLE_GPU: 0}
        """Resources that count whole devices, by number."""
        self.version = 0
        """Changes whenever a name may mean another row (nodes added or removed)."""
        self._table = FleetTable()

    # --- nodes ------------------------------------------------------------------------------------
    def __contains__(self, node: str) -> bool:
        return node in self._row

    def names(self) -> list[str]:
        """All node names, sorted."""
        return sorted(self._row)

    def set_node(
        self,
        node: str,
        gpus: NodeGpus,
        *,
        units: int = UNLIMITED,
        whole: Mapping[str, int] | None = None,
    ) -> None:
        """Add a node or replace its inventory. All charges on it are gone: charge its pods again.

        `units` and `whole`: what the node's device plugin lets the kubelet give out at the moment, whole
        devices by resource (a resource that is missing counts as 0). None: only the devices limit it.
        """
        table = self._table
        kinds = [self._kinds.setdefault(resource, len(self._kinds)) for resource in gpus.resources]
        row = self._row.get(node)
        if row is None:
            row = self._reusable.pop() if self._reusable else len(self._names)
            if row == len(self._names):
                self._names.append(node)
                self._gpus.append(None)
            self._names[row] = node
            self._row[node] = row
            self.version += 1
        self._gpus[row] = gpus
        table.reserve(rows=row + 1, slots=len(gpus.gpus), kinds=len(self._kinds))
        table.set(row, gpus, self._kinds)
        table.units_left[row] = units
        for kind, resource in zip(kinds, gpus.resources, strict=True):
            table.whole_left[kind, row] = UNLIMITED if whole is None else whole.get(resource, 0)
        table.summarise(row)

    def drop_node(self, node: str) -> None:
        """Forget a node. Unknown names are fine."""
        row = self._row.pop(node, None)
        if row is not None:
            self._gpus[row] = None
            self._names[row] = ""
            self._table.clear(row)
            self._reusable.append(row)
            self.version += 1

    def gpus(self, node: str) -> NodeGpus | None:
        """The inventory as it was set."""
        row = self._row.get(node)
        return None if row is None else self._gpus[row]

    def free_gpus(self, node: str) -> list[FreeGpu]:
        """What is left of each GPU of a node, by index. Empty for an unknown node."""
        table = self._table
        row = self._row.get(node)
        inventory = None if row is None else self._gpus[row]
        if row is None or inventory is None:
            return []
        return [
            FreeGpu(gpu, int(table.free[slot, row]), int(table.holders[slot, row]))
            for slot, gpu in enumerate(inventory.gpus)
        ]

    # --- charges ----------------------------------------------------------------------------------
    def charge(self, node: str, charges: Iterable[Charge], request: PodRequest) -> None:
        """Take what a pod holds. GPUs that the node does not have (any more) are skipped."""
        self._apply(node, charges, request, 1)

    def release(self, node: str, charges: Iterable[Charge], request: PodRequest) -> None:
        """Give back exactly what `charge` took."""
        self._apply(node, charges, request, -1)

    def _apply(self, node: str, charges: Iterable[Charge], request: PodRequest, sign: int) -> None:
        table = self._table
        row = self._row.get(node)
        inventory = None if row is None else self._gpus[row]
        if row is None or inventory is None:
            return
        slots = {gpu.uuid: slot for slot, gpu in enumerate(inventory.gpus)}
        for taken in charges:
            slot = slots.get(taken.gpu)
            if slot is not None:
                mib = int(table.total[slot, row]) if taken.whole else min(taken.mib, _MOST)
                table.used[slot, row] += sign * mib
                table.holders[slot, row] += sign
        table.units_left[row] -= sign * request.units
        for resource, count in request.devices.items():
            if (kind := self._kinds.get(resource)) is not None:
                table.whole_left[kind, row] -= sign * count
        table.summarise(row)

    # --- questions --------------------------------------------------------------------------------
    def rows(self, nodes: Sequence[str]) -> Rows:
        """Row numbers of names; unknown ones are `NO_NODE`. Valid while `version` stays the same."""
        get = self._row.get
        return np.fromiter((get(name, NO_NODE) for name in nodes), dtype=np.int32, count=len(nodes))

    def codes(self, request: PodRequest) -> Codes:
        """For every row the node's answer to the request, as an index into `CODES`."""
        table = self._table
        end = len(self._names)
        units, whole = request.units, request.devices
        codes = np.zeros(end, dtype=np.uint8)

        def refuse(mask: npt.NDArray[np.bool_], code: Code) -> None:
            np.copyto(codes, np.uint8(_NUMBER[code]), where=mask & (codes == 0))

        codes[NO_NODE] = _NUMBER[Code.NODE_NOT_FOUND]
        refuse(
            (table.offers[:end] <= 0) if units else (table.gpu_count[:end] == 0),
            Code.NOT_GPU_NODE,
        )
        for resource, count in whole.items():
            available, well, anyhow = (n >= count for n in self._free_devices(resource, slice(0, end)))
            refuse(~available & well, Code.CLOSED)
            refuse(~available & anyhow, Code.UNHEALTHY)
            refuse(~available, lacking(resource))
        if any(container.whole > 1 for container in request.containers):
            self._settle_apart(request, codes)
        if units:
            self._refuse_shares(request, refuse, end)
        if units and (whole or not _one_leg(request)):
            self._settle_exactly(request, codes)
        if not _together(request):
            refuse(table.lone[:end], Code.NEEDS_AGENT)
        refuse(table.units_left[:end] < units, Code.NODE_FULL)
        for resource, count in whole.items():
            if (kind := self._kinds.get(resource)) is not None:
                refuse(table.whole_left[kind, :end] < count, Code.NODE_FULL)
        return codes

    def verdict(self, request: PodRequest, node: str, policy: Policy = BINPACK) -> Verdict:
        """The verdict of one node, with its numbers."""
        outcome = self.place(request, node, policy)
        return outcome if isinstance(outcome, Verdict) else FITS

    def place(self, request: PodRequest, node: str, policy: Policy = BINPACK) -> Allocation | Verdict:
        """Choose the GPUs for a pod on one node, or say why not. Changes nothing."""
        table = self._table
        row = self._row.get(node)
        inventory = None if row is None else self._gpus[row]
        if row is None or inventory is None:
            return refusal(Code.NODE_NOT_FOUND, node)
        if (request.units and table.offers[row] <= 0) or not inventory.gpus:
            return refusal(Code.NOT_GPU_NODE, node)
        outcome = place(request, inventory.unit, self.free_gpus(node), policy, node=node)
        if isinstance(outcome, Verdict):
            return outcome
        offers = [(request.units, table.units_left[row])]
        offers += [(n, table.whole_left[self._kinds[name], row]) for name, n in request.devices.items()]
        for wanted, left in offers:
            if wanted > left:
                return refusal(Code.NODE_FULL, node, wanted=wanted, left=int(left))
        return outcome

    def scores(self, request: PodRequest, nodes: Sequence[str], policy: Policy) -> list[int]:
        """0..1000 for each node that fits, higher is better. See `score_rows`."""
        return [int(score) for score in self.score_rows(request, self.rows(nodes), policy)]

    def score_rows(self, request: PodRequest, rows: Rows, policy: Policy) -> Scores:
        """0..1000 for each of these rows, whose nodes fit; higher is better."""
        table = self._table
        scores: Scores = np.zeros(len(rows), np.int64)
        few = table.gpu_count[rows] <= FEW
        # One node with hundreds of replicas must not make all other nodes as expensive.
        for some, slots in ((few, FEW), (~few, table.slots)):
            if some.any():
                scores[some] = policy.score(self._nodes(request, rows[some], min(slots, table.slots)))
        return scores

    # --- inside -----------------------------------------------------------------------------------
    def _nodes(self, request: PodRequest, rows: Rows, slots: int) -> Nodes:
        """The view of these rows that a policy gets."""
        table = self._table
        usable = table.open_to_shares(slots, rows)
        untouched = np.zeros(len(rows), np.int64)
        if request.whole:
            # Compared with its own kind: whole GPUs among GPUs, devices of a profile among those of that
            # profile.
            kinds = [self._kinds.get(resource, -1) for resource in request.devices]
            usable = table.available[:slots, rows] & np.isin(table.kind[:slots, rows], kinds)
            for resource in request.devices:
                untouched += self._free_devices(resource, rows)[0]
        return Nodes(
            request,
            usable,
            table.total[:slots, rows],
            table.free[:slots, rows],
            table.unit[rows].astype(np.int64),
            untouched,
        )

    def _free_devices(self, resource: str, rows: Rows | slice) -> tuple[npt.NDArray[np.int32], ...]:
        """How many devices of a resource nobody uses: available ones, those that are not sick, any."""
        table = self._table
        if resource == names.WHOLE_GPU:
            return table.untouched[rows], table.untouched_well[rows], table.untouched_any[rows]
        unused = table.unused(table.slots, rows) & (table.kind[:, rows] == self._kinds.get(resource, -1))
        states = (unused & table.available[:, rows], unused & table.well[:, rows], unused)
        return tuple(state.sum(axis=0, dtype=np.int32) for state in states)

    def _refuse_shares(self, request: PodRequest, refuse: Refuse, end: int) -> None:
        """Shares: sufficient and necessary for one leg, only necessary otherwise."""
        table = self._table
        largest = max(c.units_per_gpu for c in request.shares)
        across = max(c.across for c in request.shares)
        if _together(request) and _one_leg(request):
            largest = request.units
        if across > 1:
            with_room = table.free[:, :end] // table.unit[:end] >= largest
            with_room &= table.open_to_shares(table.slots, slice(0, end))
            refuse(with_room.sum(axis=0) < across, Code.INSUFFICIENT_GPUS)
        fits = table.max_units[:end] >= largest
        shut = ~fits & (table.max_units_any[:end] >= largest)
        if shut.any():
            refuse(shut & (table.max_units_well[:end] >= largest), Code.CLOSED)
            refuse(shut, Code.UNHEALTHY)
        refuse(~fits, Code.INSUFFICIENT)

    def _settle_apart(self, request: PodRequest, codes: Codes) -> None:
        """Settle replicas of different devices: their number does not decide where a container asks for
        several.
        """
        unsure = self._table.minds[: len(codes)]
        if unsure.any():
            self._ask(PodRequest(tuple(c for c in request.containers if c.whole)), codes, unsure)

    def _settle_exactly(self, request: PodRequest, codes: Codes) -> None:
        """Run the exact search on the nodes that the summaries let through without being sure."""
        unsure = codes == 0
        if not request.whole and _together(request):
            unsure &= self._table.max_units[: len(codes)] < request.units
        if len(request.shares) <= MOST_LEGS:
            self._glance(request, codes, unsure)
        self._ask(request, codes, unsure)

    def _glance(self, request: PodRequest, codes: Codes, unsure: npt.NDArray[np.bool_]) -> None:
        """Decide about nodes without the exact search where the search would not have to backtrack."""
        table = self._table
        rows = np.flatnonzero(unsure)
        # Nodes with hundreds of replicas under a rule: they must not make all others as dear.
        few = table.gpu_count[rows] <= FEW
        for unit in np.unique(table.unit[rows]).tolist():
            mine = table.unit[rows] == unit
            legs = legs_apart(request, MemoryUnit(unit))
            together = [Leg(unit * request.units)] if _together(request) else legs
            if _one_leg(request):
                legs = together
            for some, slots in ((rows[mine & few], FEW), (rows[mine & ~few], table.slots)):
                free = np.where(table.open_to_shares(slots, some), table.free[:slots, some], np.int32(-1))
                known = self._take_whole(request, some, free)
                lone = table.lone[some]
                one_gpu, fits = straight_down(together, free), straight_down(legs, free)
                codes[some[known & lone & fits & ~one_gpu]] = _NUMBER[Code.NEEDS_AGENT]
                fits = known & (fits | one_gpu)
                unsure[some[fits]] = False
                no = some[~fits][hopeless(legs, free[:, ~fits])]
                codes[no] = _NUMBER[Code.INSUFFICIENT]
                unsure[no] = False

    def _take_whole(
        self, request: PodRequest, rows: Rows, free: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.bool_]:
        """Take the pod's whole GPUs out of `free` on the nodes where it is clear which ones `placement.whole`
        takes.

        Returns which nodes those are.
        """
        if not request.whole:
            return np.ones(len(rows), np.bool_)
        if request.devices.keys() != {names.WHOLE_GPU}:
            return np.zeros(len(rows), np.bool_)
        return self._table.take_smallest(request.whole, rows, free)

    def _ask(self, request: PodRequest, codes: Codes, unsure: npt.NDArray[np.bool_]) -> None:
        """Run the exact search. Nodes that are alike are searched once: equal machines have few states.

        Nodes with the most free memory come first, since there may be more nodes than steps.
        """
        table = self._table
        rows = np.flatnonzero((codes == 0) & unsure)
        slots = int(table.gpu_count[rows].max(initial=0))
        keys = table.keys(rows, slots)
        free = np.maximum(table.free[:slots, rows], 0).sum(axis=0, dtype=np.int64)
        known: dict[bytes, np.uint8] = {}
        steps = Steps(PASS_STEPS)
        for at in sorted(range(len(rows)), key=lambda at: (-free[at], self._names[rows[at]])):
            row, key = rows[at], keys[at]
            inventory = self._gpus[row]
            if inventory is None:
                continue
            if key not in known:
                verdict: Verdict | None = refusal(Code.UNDECIDED, "")
                if steps.left >= STEPS:
                    free_gpus = self.free_gpus(self._names[row])
                    verdict = why_not(request, inventory.unit, free_gpus, steps=steps)
                known[key] = np.uint8(0 if verdict is None else _NUMBER[verdict.code])
            codes[row] = known[key]


def _together(request: PodRequest) -> bool:
    return all(c.across == 1 for c in request.shares)


def _one_leg(request: PodRequest) -> bool:
    """True if the shares of the pod need the same GPU whatever happens, or there is only one leg."""
    shares = request.shares
    return len(shares) == 1 or (_together(request) and any(c.role is Role.INIT for c in shares))
