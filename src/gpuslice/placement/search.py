"""Divides a pod's shares among GPUs exactly, within a number of steps.

This is bin packing with bins of different sizes, so in the worst case exponential, and whoever may create a
pod chooses the sizes. So every search has a budget of steps, and a used-up budget has a verdict of its own,
`UNDECIDED`. A step is one choice of GPUs tried for one leg. Steps are counted, not timed, and depend only on
the legs and on how many of their greatest common divisor each GPU has room for: who asks, and in which order
the GPUs are numbered, makes no difference.

Whatever the search leaves out changes neither whether an answer exists nor which one is found first:

* Of GPUs with equal room one is tried: exchanging them turns an answer for one into an answer for the other.
* A state that failed is not entered again. GPUs with less room than the smallest leg left do not count in it.
* Where every leg needs one GPU, a leg that fills one up is tried nowhere else: what an answer puts there
  instead is no larger, so the two can change places.
* The legs left must fit by number and by sum. By number: no GPU holds more legs of at least a size than that
  size goes into its room. By sum: the legs on a GPU are some of those left, each once, so together they take
  at most the largest sum of such legs that is no more than its room.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd
from typing import Final

from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Gpus, Policy
from gpuslice.placement.verdict import Code

STEPS: Final = 400
"""Steps for one pod on one node, some 3 ms. Three containers of a GPU each, on up to 19 GPUs, never need as
many: the last has a place at once or none, so there are at most 19 + 19 * 19 + 1."""
MOST_LEGS: Final = 64
"""Pods with more containers to divide are `UNDECIDED` without a look."""
_WIDEST: Final = 1 << 17
"""Sums are looked at one by one up to this many times the legs' common divisor (of MiB: 128 GiB)."""

Room = tuple[int, int]
"""MiB that a GPU has free, and its index."""
Picks = list[tuple[int, ...]]
"""For each leg the positions of its GPUs among the rooms."""


@dataclass(frozen=True, slots=True)
class Leg:
    """`mib` of room on each of `gpus` distinct GPUs."""

    mib: int
    gpus: int = 1


class Steps:
    """Steps left for questions that belong together, so that their number costs nothing more."""

    __slots__ = ("left",)

    def __init__(self, left: int = STEPS) -> None:
        self.left = left


def divide(
    legs: Sequence[Leg], rooms: Sequence[Room], policy: Policy, steps: Steps | None = None
) -> Picks | Code:
    """GPUs for each leg: the policy's favourite, with the legs served in this order.

    `INSUFFICIENT` if there are certainly none, `UNDECIDED` if the steps were used up before that was known.
    Which of the three does not depend on the policy, only which GPUs. At most `STEPS` of `steps` are used.
    """
    if len(legs) > MOST_LEGS:
        return Code.UNDECIDED
    allowed = Steps(STEPS if steps is None else min(STEPS, steps.left))
    at_first = allowed.left
    found = _Search(legs, rooms, BINPACK).run(allowed)
    if policy is not BINPACK and not isinstance(found, Code):
        favourite = _Search(legs, rooms, policy).run(allowed)
        found = found if isinstance(favourite, Code) else favourite
    if steps is not None:
        steps.left -= at_first - allowed.left
    return found


class _Search:
    """One search. Amounts are in units of the legs' greatest common divisor.

    The state is one sorted number per GPU: its room, then, where rooms are equal, its turn.
    """

    def __init__(self, legs: Sequence[Leg], rooms: Sequence[Room], policy: Policy) -> None:
        self._policy = policy
        self._unit = unit = gcd(*(leg.mib for leg in legs)) or 1
        self._sizes = [leg.mib // unit for leg in legs]
        self._gpus = [leg.gpus for leg in legs]
        self._single_gpus = all(count == 1 for count in self._gpus)
        # Turns follow the rest that is no whole unit, then the index: numbers are ordered as the MiB are.
        self._order = sorted(range(len(rooms)), key=lambda i: (rooms[i][0] % unit, rooms[i][1]))
        self._rests = [rooms[i][0] % unit for i in self._order]
        self._width = max(len(rooms), 1)
        self._start = sorted(rooms[i][0] // unit * self._width + turn for turn, i in enumerate(self._order))
        self._bounds: _Bounds | None = None

    def run(self, steps: Steps) -> Picks | Code:
        """Look until found, certain, or out of steps."""
        # The way down: for each leg the state before it, the ways to go on, and the one taken.
        states: list[list[int]] = [self._start]
        ways = [self._ways(0, self._start)]
        taken: list[tuple[int, ...]] = []
        dead: set[tuple[int, ...]] = set()
        while len(taken) < len(self._sizes):
            pick = next(ways[-1], None)
            if pick is not None:
                if not steps.left:
                    return Code.UNDECIDED
                steps.left -= 1
                after = self._after(states[-1], pick, self._sizes[len(taken)])
                if self._bounds is None or self._is_open(len(taken) + 1, after, dead):
                    taken.append(pick)
                    states.append(after)
                    ways.append(self._ways(len(taken), after))
                continue
            if self._bounds is None:
                # The favourite way is blocked: only now are the bounds worth computing.
                rooms = [room for number in self._start if (room := number // self._width) > 0]
                self._bounds = _Bounds(self._sizes, self._gpus, max(rooms, default=0))
                if not self._bounds.hold(rooms):
                    break
            dead.add(self._key(len(taken), states[-1]))
            states.pop()
            ways.pop()
            if not taken:
                break
            taken.pop()
        if len(taken) < len(self._sizes) or not self._sizes:
            return Code.INSUFFICIENT if self._sizes else []
        return [tuple(sorted(self._order[number % self._width] for number in pick)) for pick in taken]

    def _after(self, state: list[int], pick: tuple[int, ...], size: int) -> list[int]:
        after = [number for number in state if number not in pick]
        after.extend(number - size * self._width for number in pick)
        after.sort()
        return after

    def _key(self, depth: int, state: list[int]) -> tuple[int, ...]:
        assert self._bounds is not None
        width = self._width
        least = self._bounds.smallest[depth] * width
        return (depth, *[number // width for number in state if number >= least])

    def _is_open(self, depth: int, state: list[int], dead: set[tuple[int, ...]]) -> bool:
        """False if it is known that no answer lies beyond."""
        assert self._bounds is not None
        if depth == len(self._sizes):
            return True
        key = self._key(depth, state)
        return key not in dead and self._bounds.sums_hold(depth, key[1:])

    def _ways(self, depth: int, state: list[int]) -> Iterator[tuple[int, ...]]:
        """The choices for a leg, the policy's favourite first; of those that are alike one."""
        if depth == len(self._sizes):
            return iter(())
        size, count, width = self._sizes[depth], self._gpus[depth], self._width
        order = self._policy.order(_Gpus(self, state, size))
        if count == 1:
            return self._single(state, order, size)
        alike: dict[int, list[int]] = {}
        before: Counter[int] = Counter()
        for position in order:
            least = self._least_like(state, state[position])
            number = state[least + before[least]]
            before[least] += 1
            alike.setdefault(number // width, []).append(number)
        return _choices([tuple(same) for same in alike.values()], count)

    def _single(self, state: list[int], order: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
        seen: set[int] = set()
        for position in order:
            number = state[position]
            room = number // self._width
            if room not in seen:
                seen.add(room)
                yield (state[self._least_like(state, number)],)
                if room == size and self._single_gpus:
                    return

    def _least_like(self, state: list[int], number: int) -> int:
        """The position of the lowest index among the GPUs with exactly as much free."""
        room, turn = divmod(number, self._width)
        return bisect_left(state, room * self._width + bisect_left(self._rests, self._rests[turn]))

    def mib(self, number: int) -> int:
        """What a number of the state stands for."""
        room, turn = divmod(number, self._width)
        return room * self._unit + self._rests[turn]

    def gpus(self, state: list[int], size: int) -> tuple[int, int, int]:
        """The first position with room for a leg of that size, the number of GPUs, and the leg in MiB."""
        return bisect_left(state, size * self._width), len(state), size * self._unit


class _Gpus(Gpus):
    """A state of the search as a policy sees it."""

    __slots__ = ("_search", "_state")

    def __init__(self, search: _Search, state: list[int], size: int) -> None:
        super().__init__(*search.gpus(state, size))
        self._search, self._state = search, state

    @property
    def free(self) -> list[int]:
        return [self._search.mib(number) for number in self._state]


def _choices(groups: Sequence[tuple[int, ...]], count: int) -> Iterator[tuple[int, ...]]:
    """Every way to take so many, of each group from its beginning; with the most of the first ones first."""
    later = [*accumulate((len(group) for group in reversed(groups)), initial=0)][::-1]
    if later[0] < count:
        return
    # How many are taken of each group so far, as a stack: recursion would be as deep as there are groups.
    taken: list[int] = []
    missing = count
    while True:
        while missing and len(taken) < len(groups):
            taken.append(min(missing, len(groups[len(taken)])))
            missing -= taken[-1]
        yield tuple(number for group, some in zip(groups, taken, strict=False) for number in group[:some])
        while taken:
            # One less of the last group that can do with less, if those after it can stand in.
            if taken[-1] and missing + 1 <= later[len(taken)]:
                taken[-1] -= 1
                missing += 1
                break
            missing += taken.pop()
        else:
            return


class _Bounds:
    """What the legs left at each depth need at least, so that hopeless states are recognised."""

    def __init__(self, sizes: Sequence[int], gpus: Sequence[int], roomiest: int) -> None:
        self._roomiest = roomiest
        self._legs = sorted(zip(sizes, gpus, strict=True), reverse=True)
        needs = (size * count for size, count in zip(reversed(sizes), reversed(gpus), strict=True))
        self._need = [*accumulate(needs, initial=0)][::-1]
        self.smallest = [*accumulate(reversed(sizes), min)][::-1]
        self._sums = sums_of(sizes[::-1], roomiest)[::-1]
        self._most: list[dict[int, int]] = [{} for _ in self._sums]

    def hold(self, rooms: Sequence[int]) -> bool:
        """For all legs of at least every size: do they fit by number and by sum?"""
        sizes = [size for size, _ in self._legs]
        number = need = 0
        for position, ((size, gpus), sums) in enumerate(
            zip(self._legs, sums_of(sizes, self._roomiest)[1:], strict=True)
        ):
            number += gpus
            need += size * gpus
            if position + 1 < len(sizes) and sizes[position + 1] == size:
                continue
            if sum(min(room // size, position + 1) for room in rooms) < number:
                return False
            if sum(_largest(sums, room) for room in rooms) < need:
                return False
        return True

    def sums_hold(self, depth: int, rooms: Sequence[int]) -> bool:
        """Do the legs from `depth` on fit by sum?"""
        known, need = self._most[depth], self._need[depth]
        total = 0
        for room in rooms:
            most = known.get(room)
            if most is None:
                most = known[room] = _largest(self._sums[depth], room)
            total += most
        return total >= need


def sums_of(sizes: Sequence[int], most: int) -> list[int]:
    """For each beginning of the sizes, the empty one first: the sums up to `most` that some have, as bits.

    All 0 if that is too many to look at.
    """
    if most > _WIDEST:
        return [0] * (len(sizes) + 1)
    mask = (2 << most) - 1
    return [
        *accumulate(
            sizes, lambda sums, size: (sums | sums << size) & mask if size <= most else sums, initial=1
        )
    ]


def _largest(sums: int, room: int) -> int:
    """The largest of the sums that is no more than `room`."""
    if not sums:
        return room
    # Mostly it is close by; all of the sums may be 64 KiB.
    low = max(room - 63, 0)
    near = sums >> low & (2 << room - low) - 1
    return low + near.bit_length() - 1 if near else (sums & (2 << low) - 1).bit_length() - 1
