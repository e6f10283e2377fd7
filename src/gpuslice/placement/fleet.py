"""The GPUs of the whole cluster as arrays: one row per node, one column per GPU slot.

A question about 5,000 nodes is a handful of numpy operations on summaries that are kept up to date
event by event, so a filter costs microseconds. Only pods whose containers might need different GPUs
fall back to the exact search of `placement.node`, on the nodes that neither the summaries nor a glance at all
of them (`placement.glance`) decide, and for all nodes together within a number of steps.

Memory is int32 MiB and signed: an over-committed GPU shows a negative remainder instead of wrapping
round to a huge one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gpuslice import names
from gpuslice.devices.inventory import Apart, NodeGpus
from gpuslice.placement.glance import hopeless, straight_down
from gpuslice.placement.node import legs_apart, place, why_not
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Nodes, Policy, Scores
from gpuslice.placement.room import GpuRoom
from gpuslice.placement.search import MOST_LEGS, STEPS, Leg, Steps
from gpuslice.placement.verdict import FITS, Code, Reason, Verdict, refusal
from gpuslice.placement.whole import lacking
from gpuslice.requests.allocation import Allocation, Charge
from gpuslice.requests.pod import PodRequest, Role
from gpuslice.units import MAX_UNITS, MemoryUnit

Rows = npt.NDArray[np.int32]
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
"""What the numbers in an array of codes mean; 0 is a yes."""
_NUMBER: dict[Reason, int] = {code: number for number, code in enumerate(CODES)}
NO_NODE = 0
"""The row that stands for every unknown name: always empty."""
FEW = 16
"""GPUs of the largest machines that there are, when they are neither cut nor replicated."""
PASS_STEPS = 10 * STEPS
"""Steps of the exact search for one pod on all nodes together, some 30 ms. Nodes for which none are left are
said to be undecided: the pod waits, unless another node takes it."""
_LEAST = -(2**31)
_MOST = 2**45
"""MiB that one pod can count with on one GPU: sums of them stay within int64, however many pods there are."""
_NEVER = 2**40
UNLIMITED = MAX_UNITS
"""Allocatable of a node that states none: only the GPUs themselves limit it."""


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
        self._slots = 1
        self._allocate(rows=16, slots=8)

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

        `units` and `whole`: what the node's device plugin lets the kubelet hand out at the moment, whole
        devices by resource (what it does not name: none). None: nothing but the devices limits it.
        """
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
        if (
            row >= self._total.shape[1]
            or len(gpus.gpus) > self._slots
            or len(self._kinds) > len(self._whole_left)
        ):
            self._grow(rows=row + 1, slots=len(gpus.gpus))
        self._gpus[row] = gpus
        self._clear(row)
        self._lone[row] = any(gpu.lone for gpu in gpus.gpus)
        count = len(gpus.gpus)
        self._total[:count, row] = [gpu.memory_mib for gpu in gpus.gpus]
        self._available[:count, row] = [gpu.available for gpu in gpus.gpus]
        self._well[:count, row] = [not gpu.availability.sick for gpu in gpus.gpus]
        self._present[:count, row] = True
        self._kind[:count, row] = [self._kinds[gpu.resource] for gpu in gpus.gpus]
        self._shareable[:count, row] = [gpu.shareable for gpu in gpus.gpus]
        self._apart[:count, row] = _apart(gpus)
        self._unit[row] = gpus.unit.mib
        self._units_left[row] = units
        for kind, resource in zip(kinds, gpus.resources, strict=True):
            self._whole_left[kind, row] = UNLIMITED if whole is None else whole.get(resource, 0)
        self._summarise(row)

    def drop_node(self, node: str) -> None:
        """Forget a node. Unknown names are fine."""
        row = self._row.pop(node, None)
        if row is not None:
            self._gpus[row] = None
            self._names[row] = ""
            self._clear(row)
            self._summarise(row)
            self._reusable.append(row)
            self.version += 1

    def gpus(self, node: str) -> NodeGpus | None:
        """The inventory as it was set."""
        row = self._row.get(node)
        return None if row is None else self._gpus[row]

    def rooms(self, node: str) -> list[GpuRoom]:
        """What is left of each GPU of a node, by index. Empty for an unknown node."""
        row = self._row.get(node)
        inventory = None if row is None else self._gpus[row]
        if row is None or inventory is None:
            return []
        return [
            GpuRoom(
                gpu.index,
                gpu.uuid,
                int(self._free[slot, row]),
                int(self._total[slot, row]),
                int(self._holders[slot, row]),
                gpu.availability,
                gpu.resource,
                gpu.parent,
                gpu.shareable,
                gpu.apart,
                gpu.packed,
                gpu.lone,
            )
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
        row = self._row.get(node)
        inventory = None if row is None else self._gpus[row]
        if row is None or inventory is None:
            return
        slots = {gpu.uuid: slot for slot, gpu in enumerate(inventory.gpus)}
        for taken in charges:
            slot = slots.get(taken.gpu)
            if slot is not None:
                mib = int(self._total[slot, row]) if taken.whole else min(taken.mib, _MOST)
                self._used[slot, row] += sign * mib
                self._holders[slot, row] += sign
        self._units_left[row] -= sign * request.units
        for resource, count in request.devices.items():
            if (kind := self._kinds.get(resource)) is not None:
                self._whole_left[kind, row] -= sign * count
        self._summarise(row)

    # --- questions --------------------------------------------------------------------------------
    def rows(self, nodes: Sequence[str]) -> Rows:
        """Row numbers of names; unknown ones are `NO_NODE`. Valid while `version` stays the same."""
        get = self._row.get
        return np.fromiter((get(name, NO_NODE) for name in nodes), dtype=np.int32, count=len(nodes))

    def codes(self, request: PodRequest) -> Codes:
        """For every row the index into `CODES` of what the node says to the request."""
        end = len(self._names)
        units, whole = request.units, request.devices
        codes = np.zeros(end, dtype=np.uint8)

        def refuse(mask: npt.NDArray[np.bool_], code: Code) -> None:
            np.copyto(codes, np.uint8(_NUMBER[code]), where=mask & (codes == 0))

        codes[NO_NODE] = _NUMBER[Code.NODE_NOT_FOUND]
        refuse((self._offers[:end] <= 0) if units else (self._gpu_count[:end] == 0), Code.NOT_GPU_NODE)
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
            refuse(self._lone[:end], Code.NEEDS_AGENT)
        refuse(self._units_left[:end] < units, Code.NODE_FULL)
        for resource, count in whole.items():
            if (kind := self._kinds.get(resource)) is not None:
                refuse(self._whole_left[kind, :end] < count, Code.NODE_FULL)
        return codes

    def verdict(self, request: PodRequest, node: str, policy: Policy = BINPACK) -> Verdict:
        """What one node says, with its numbers."""
        outcome = self.place(request, node, policy)
        return outcome if isinstance(outcome, Verdict) else FITS

    def place(self, request: PodRequest, node: str, policy: Policy = BINPACK) -> Allocation | Verdict:
        """Choose the GPUs for a pod on one node, or say why not. Changes nothing."""
        row = self._row.get(node)
        inventory = None if row is None else self._gpus[row]
        if row is None or inventory is None:
            return refusal(Code.NODE_NOT_FOUND, node)
        if (request.units and self._offers[row] <= 0) or not inventory.gpus:
            return refusal(Code.NOT_GPU_NODE, node)
        outcome = place(request, inventory.unit, self.rooms(node), policy, node=node)
        if isinstance(outcome, Verdict):
            return outcome
        offers = [(request.units, self._units_left[row])]
        offers += [(n, self._whole_left[self._kinds[name], row]) for name, n in request.devices.items()]
        for wanted, left in offers:
            if wanted > left:
                return refusal(Code.NODE_FULL, node, wanted=wanted, left=int(left))
        return outcome

    def scores(self, request: PodRequest, nodes: Sequence[str], policy: Policy) -> list[int]:
        """0..1000 for each node that fits, higher is better. See `score_rows`."""
        return [int(score) for score in self.score_rows(request, self.rows(nodes), policy)]

    def score_rows(self, request: PodRequest, rows: Rows, policy: Policy) -> Scores:
        """0..1000 for each of these rows, whose nodes fit; higher is better."""
        scores: Scores = np.zeros(len(rows), np.int64)
        few = self._gpu_count[rows] <= FEW
        # One node with hundreds of replicas must not make all others as dear.
        for some, slots in ((few, FEW), (~few, self._slots)):
            if some.any():
                scores[some] = policy.score(self._nodes(request, rows[some], min(slots, self._slots)))
        return scores

    # --- inside -----------------------------------------------------------------------------------
    def _nodes(self, request: PodRequest, rows: Rows, slots: int) -> Nodes:
        """What a policy sees of these rows."""
        usable = self._available[:slots, rows]
        untouched = np.zeros(len(rows), np.int64)
        if request.whole:
            # Beside its like: whole GPUs among GPUs, devices of a profile among those of that profile.
            kinds = [self._kinds.get(resource, -1) for resource in request.devices]
            usable = usable & np.isin(self._kind[:slots, rows], kinds)
            for resource in request.devices:
                untouched += self._free_devices(resource, rows)[0]
        else:
            usable = usable & self._shareable[:slots, rows]
        return Nodes(
            request,
            usable,
            self._total[:slots, rows],
            self._free[:slots, rows],
            self._unit[rows].astype(np.int64),
            untouched,
        )

    def _free_devices(self, resource: str, rows: Rows | slice) -> tuple[npt.NDArray[np.int32], ...]:
        """How many devices of a resource nobody uses: available ones, those that are not sick, any."""
        if resource == names.WHOLE_GPU:
            return self._untouched[rows], self._untouched_well[rows], self._untouched_any[rows]
        like = self._kind[:, rows] == self._kinds.get(resource, -1)
        free = like & self._present[:, rows] & (self._holders[:, rows] == 0)
        free &= self._free[:, rows] >= self._total[:, rows]
        states = (free & self._available[:, rows], free & self._well[:, rows], free)
        return tuple(state.sum(axis=0, dtype=np.int32) for state in states)

    def _refuse_shares(self, request: PodRequest, refuse: Refuse, end: int) -> None:
        """Shares: sufficient and necessary for one leg, only necessary otherwise."""
        largest = max(c.units_per_gpu for c in request.shares)
        across = max(c.across for c in request.shares)
        if _together(request) and _one_leg(request):
            largest = request.units
        if across > 1:
            with_room = self._free[:, :end] // self._unit[:end] >= largest
            with_room &= self._available[:, :end] & self._shareable[:, :end]
            refuse(with_room.sum(axis=0) < across, Code.INSUFFICIENT_GPUS)
        fits = self._max_units[:end] >= largest
        refuse(~fits & (self._max_units_well[:end] >= largest), Code.CLOSED)
        refuse(~fits & (self._max_units_any[:end] >= largest), Code.UNHEALTHY)
        refuse(~fits, Code.INSUFFICIENT)

    def _settle_apart(self, request: PodRequest, codes: Codes) -> None:
        """Replicas of different devices: their number is no answer where a container asks for several."""
        unsure = self._minds[: len(codes)]
        if unsure.any():
            self._ask(PodRequest(tuple(c for c in request.containers if c.whole)), codes, unsure)

    def _settle_exactly(self, request: PodRequest, codes: Codes) -> None:
        """Ask the exact search about the nodes that the summaries let through without being sure."""
        unsure = codes == 0
        if not request.whole and _together(request):
            unsure &= self._max_units[: len(codes)] < request.units
        if len(request.shares) <= MOST_LEGS:
            self._glance(request, codes, unsure)
        self._ask(request, codes, unsure)

    def _glance(self, request: PodRequest, codes: Codes, unsure: npt.NDArray[np.bool_]) -> None:
        """Decide about nodes without the exact search where it would not have to turn back."""
        rows = np.flatnonzero(unsure)
        # Nodes with hundreds of replicas apart: they must not make all others as dear.
        few = self._gpu_count[rows] <= FEW
        for unit in np.unique(self._unit[rows]).tolist():
            mine = self._unit[rows] == unit
            legs = legs_apart(request, MemoryUnit(unit))
            together = [Leg(unit * request.units)] if _together(request) else legs
            if _one_leg(request):
                legs = together
            for some, slots in ((rows[mine & few], FEW), (rows[mine & ~few], self._slots)):
                usable = self._available[:slots, some] & self._shareable[:slots, some]
                free = np.where(usable, self._free[:slots, some], np.int32(-1))
                known = self._take_whole(request, some, free)
                lone = self._lone[some]
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
        """Take what the pod has whole out of `free`, where it is plain which GPUs `placement.whole` takes.

        Returns where that is so: on nodes that have GPUs and nothing else, of which the smallest are taken.
        """
        if not request.whole:
            return np.ones(len(rows), np.bool_)
        if request.devices.keys() != {names.WHOLE_GPU}:
            return np.zeros(len(rows), np.bool_)
        slots = len(free)
        plain = self._plain[rows]
        untouched = self._present[:slots, rows] & self._available[:slots, rows] & plain
        untouched &= (self._holders[:slots, rows] == 0) & (
            self._free[:slots, rows] >= self._total[:slots, rows]
        )
        size = np.where(untouched, self._total[:slots, rows].astype(np.int64), _NEVER)
        columns = np.flatnonzero(plain)
        for _ in range(min(request.whole, slots)):
            smallest = size.argmin(axis=0)
            free[smallest[columns], columns] = -1
            size[smallest[columns], columns] = _NEVER
        return plain

    def _ask(self, request: PodRequest, codes: Codes, unsure: npt.NDArray[np.bool_]) -> None:
        """The exact search. Nodes that look alike are asked once: equal machines have few states.

        Those with the most room first, since there may be more than there are steps for.
        """
        rows = np.flatnonzero((codes == 0) & unsure)
        slots = int(self._gpu_count[rows].max(initial=0))
        columns = (
            self._free,
            self._total,
            self._holders,
            self._available,
            self._well,
            self._kind,
            self._shareable,
            self._apart,
        )
        states = np.vstack([self._unit[np.newaxis, rows], *(column[:slots, rows] for column in columns)])
        keys = [state.tobytes() for state in np.ascontiguousarray(states.T, np.int32)]
        room = np.maximum(self._free[:slots, rows], 0).sum(axis=0, dtype=np.int64)
        known: dict[bytes, np.uint8] = {}
        steps = Steps(PASS_STEPS)
        for at in sorted(range(len(rows)), key=lambda at: (-room[at], self._names[rows[at]])):
            row, key = rows[at], keys[at]
            inventory = self._gpus[row]
            if inventory is None:
                continue
            if key not in known:
                verdict: Verdict | None = refusal(Code.UNDECIDED, "")
                if steps.left >= STEPS:
                    rooms = self.rooms(self._names[row])
                    verdict = why_not(request, inventory.unit, rooms, steps=steps)
                known[key] = np.uint8(0 if verdict is None else _NUMBER[verdict.code])
            codes[row] = known[key]

    def _summarise(self, row: int) -> None:
        self._free[:, row] = np.maximum(self._total[:, row] - self._used[:, row], _LEAST)
        free, total = self._free[:, row], self._total[:, row]
        available, well, present = self._available[:, row], self._well[:, row], self._present[:, row]
        unit, shareable = max(int(self._unit[row]), 1), self._shareable[:, row]
        self._max_units[row] = max(int(free[available & shareable].max(initial=-1)) // unit, -1)
        self._max_units_well[row] = max(int(free[well & shareable].max(initial=-1)) // unit, -1)
        self._max_units_any[row] = max(int(free[shareable].max(initial=-1)) // unit, -1)
        self._offers[row] = int((total[shareable] // unit).sum()) if shareable.any() else 0
        untouched = present & (self._kind[:, row] == 0) & (self._holders[:, row] == 0) & (free >= total)
        self._untouched[row] = int((untouched & available).sum())
        self._untouched_well[row] = int((untouched & well).sum())
        self._untouched_any[row] = int(untouched.sum())
        self._gpu_count[row] = int(present.sum())
        self._minds[row] = bool(self._apart[:, row].any())
        self._plain[row] = bool((self._shareable[:, row] & (self._kind[:, row] == 0))[present].all())

    def _clear(self, row: int) -> None:
        for array in (
            self._total,
            self._used,
            self._free,
            self._holders,
            self._available,
            self._well,
            self._present,
            self._kind,
            self._shareable,
            self._apart,
            self._whole_left,
        ):
            array[:, row] = 0
        self._unit[row] = 1
        self._units_left[row] = 0
        self._lone[row] = False

    def _allocate(self, rows: int, slots: int) -> None:
        self._slots = slots
        self._total: npt.NDArray[np.int32] = np.zeros((slots, rows), np.int32)
        # What pods claim is summed up in 64 bits: a hand-made pod may claim more than 32 can say.
        self._used: npt.NDArray[np.int64] = np.zeros((slots, rows), np.int64)
        self._free: npt.NDArray[np.int32] = np.zeros((slots, rows), np.int32)
        self._holders: npt.NDArray[np.int32] = np.zeros((slots, rows), np.int32)
        self._available: npt.NDArray[np.bool_] = np.zeros((slots, rows), np.bool_)
        # Available or closed: not sick.
        self._well: npt.NDArray[np.bool_] = np.zeros((slots, rows), np.bool_)
        self._present: npt.NDArray[np.bool_] = np.zeros((slots, rows), np.bool_)
        self._shareable: npt.NDArray[np.bool_] = np.zeros((slots, rows), np.bool_)
        self._kind: npt.NDArray[np.int16] = np.zeros((slots, rows), np.int16)
        # Of a replica that minds what its container holds besides: the number of its device on the node,
        # from 1; negative where it is to be alone. 0: it does not mind.
        self._apart: npt.NDArray[np.int16] = np.zeros((slots, rows), np.int16)
        self._unit: npt.NDArray[np.int32] = np.ones(rows, np.int32)
        self._units_left: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self._whole_left: npt.NDArray[np.int64] = np.zeros((2 * len(self._kinds), rows), np.int64)
        # True where all shares of a pod must be on one GPU.
        self._lone: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        # Summaries over the GPUs of a node: the largest room in units (of those that are available, of those
        # that are well, of any), the units that the node has in all, the number of GPUs that nobody uses (of
        # the same three), the number of GPUs.
        self._max_units: npt.NDArray[np.int32] = np.full(rows, -1, np.int32)
        self._max_units_well: npt.NDArray[np.int32] = np.full(rows, -1, np.int32)
        self._max_units_any: npt.NDArray[np.int32] = np.full(rows, -1, np.int32)
        self._offers: npt.NDArray[np.int32] = np.zeros(rows, np.int32)
        self._untouched: npt.NDArray[np.int32] = np.zeros(rows, np.int32)
        self._untouched_well: npt.NDArray[np.int32] = np.zeros(rows, np.int32)
        self._untouched_any: npt.NDArray[np.int32] = np.zeros(rows, np.int32)
        self._gpu_count: npt.NDArray[np.int32] = np.zeros(rows, np.int32)
        # True where there are only GPUs, whose memory can be shared.
        self._plain: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        # True where a container can be given some sets of free devices and others not.
        self._minds: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)

    def _grow(self, rows: int, slots: int) -> None:
        old = dict(self.__dict__)
        had_slots, had_rows = self._total.shape
        self._allocate(2 * rows if rows > had_rows else had_rows, max(had_slots, slots))
        for name, array in old.items():
            if isinstance(array, np.ndarray):
                self.__dict__[name][(*[slice(size) for size in array.shape],)] = array


def _apart(gpus: NodeGpus) -> list[int]:
    numbers = {device: number for number, device in enumerate(dict.fromkeys(g.device for g in gpus.gpus), 1)}
    signs = {Apart.NO: 0, Apart.DEVICE: 1, Apart.ALONE: -1}
    return [signs[gpu.apart] * numbers[gpu.device] for gpu in gpus.gpus]


def _together(request: PodRequest) -> bool:
    return all(c.across == 1 for c in request.shares)


def _one_leg(request: PodRequest) -> bool:
    """True if the shares of the pod need the same GPU whatever happens, or there is only one leg."""
    shares = request.shares
    return len(shares) == 1 or (_together(request) and any(c.role is Role.INIT for c in shares))
