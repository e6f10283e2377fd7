"""The facts about all GPUs of the cluster as arrays: a column per fact, declared once.

The declaration of a column is complete: how it is allocated, grown, emptied and filled from a node, and
whether it distinguishes nodes that are alike otherwise, follows from it and is written nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from gpuslice import names
from gpuslice.devices.inventory import Gpu, NodeGpus, ReplicaRule

Rows = npt.NDArray[np.int32]
Which = npt.NDArray[np.signedinteger[Any]] | slice | int
"""The rows that a question is about."""
Kinds = Mapping[str, int]
"""Resources that count whole devices, by number."""
Fill = Callable[[NodeGpus, Kinds], Any]
"""The values of a column for one node: by GPU, or a single one."""
Scalar = TypeVar("Scalar", bound=np.generic)
_LEAST = -(2**31)
_NEVER = 2**40


class Per(Enum):
    """What a column has a value for. Its last axis is always the node's row, the first if there are two:"""

    NODE = "node"
    GPU = "the slot of a GPU on the node"
    KIND = "the number of a resource"


class Column(Generic[Scalar]):
    """One declared column; on an instance of its table it is the array.

    `fill`: its values for a node that is set; without it they are `empty` then. `tells_apart`: the exact
    search's answer for a node may depend on it. Only columns that the search does not get may leave that out.
    """

    name: str

    def __init__(
        self,
        per: Per,
        dtype: type[Scalar],
        fill: Fill | None = None,
        *,
        empty: int = 0,
        tells_apart: bool = True,
    ) -> None:
        if tells_apart and not np.can_cast(dtype, np.int32):
            raise TypeError(f"{dtype.__name__} does not fit in a key of int32")
        self.per, self.dtype, self.fill, self.empty, self.tells_apart = per, dtype, fill, empty, tells_apart

    def __set_name__(self, _table: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, table: None, owner: type) -> Column[Scalar]: ...
    @overload
    def __get__(self, table: object, owner: type) -> npt.NDArray[Scalar]: ...
    def __get__(self, table: object, owner: type) -> Column[Scalar] | npt.NDArray[Scalar]:
        # An instance has the array under the same name, which Python finds before it looks here.
        if table is None:
            return self
        raise AttributeError(self.name)


class Table:
    """The arrays of the columns that a class declares. Rows and slots are made as they are needed."""

    def __init__(self) -> None:
        self.columns: tuple[Column[Any], ...] = tuple(
            column
            for owner in reversed(type(self).__mro__)
            for column in vars(owner).values()
            if isinstance(column, Column)
        )
        self._sizes = {Per.NODE: 16, Per.GPU: 8, Per.KIND: 2}
        for column in self.columns:
            self.__dict__[column.name] = self._new(column)

    @property
    def slots(self) -> int:
        """The number of GPUs per node that the arrays can hold."""
        return self._sizes[Per.GPU]

    def reserve(self, *, rows: int, slots: int, kinds: int) -> None:
        """Grow the arrays to these sizes; their content stays. Rows and kinds double, so that growing is
        rare.
        """
        wanted = {Per.NODE: rows, Per.GPU: slots, Per.KIND: kinds}
        short = {per: number for per, number in wanted.items() if number > self._sizes[per]}
        if not short:
            return
        self._sizes |= {per: number if per is Per.GPU else 2 * number for per, number in short.items()}
        for column in self.columns:
            old = self.__dict__[column.name]
            self.__dict__[column.name] = array = self._new(column)
            array[tuple(slice(size) for size in old.shape)] = old

    def set(self, row: int, node: NodeGpus, kinds: Kinds) -> None:
        """A row is this node now."""
        self.clear(row)
        for column in self.columns:
            if column.fill is not None:
                values, array = column.fill(node, kinds), self.__dict__[column.name]
                if column.per is Per.NODE:
                    array[row] = values
                else:
                    array[: len(values), row] = values

    def clear(self, row: int) -> None:
        """A row is nobody's now."""
        for column in self.columns:
            self.__dict__[column.name][..., row] = column.empty

    def keys(self, rows: npt.NDArray[np.signedinteger[Any]], slots: int) -> list[bytes]:
        """For each of these rows, whose GPUs are in the first `slots`, what distinguishes it from the other
        rows.
        """
        parts = []
        for column in self.columns:
            if column.tells_apart:
                array = self.__dict__[column.name]
                part = array[:slots, rows] if column.per is Per.GPU else array[..., rows]
                parts.append(np.atleast_2d(part))
        states = np.ascontiguousarray(np.vstack(parts).T, np.int32)
        return [state.tobytes() for state in states]

    def _new(self, column: Column[Any]) -> npt.NDArray[Any]:
        rows = self._sizes[Per.NODE]
        shape = (rows,) if column.per is Per.NODE else (self._sizes[column.per], rows)
        return np.full(shape, column.empty, column.dtype)


class FleetTable(Table):
    """The columns of `placement.fleet`. Memory in MiB."""

    total = Column(Per.GPU, np.int32, lambda node, _: [gpu.memory_mib for gpu in node.gpus])
    # Sums of what pods claim have 64 bits: a hand-made pod may claim more than fits into 32. Used by `free`.
    used = Column(Per.GPU, np.int64, tells_apart=False)
    free = Column(Per.GPU, np.int32)
    holders = Column(Per.GPU, np.int32)
    present = Column(Per.GPU, np.bool_, lambda node, _: [True for _ in node.gpus])
    available = Column(Per.GPU, np.bool_, lambda node, _: [gpu.available for gpu in node.gpus])
    # Available or closed.
    well = Column(Per.GPU, np.bool_, lambda node, _: [not gpu.availability.sick for gpu in node.gpus])
    shareable = Column(Per.GPU, np.bool_, lambda node, _: [gpu.shareable for gpu in node.gpus])
    kind = Column(Per.GPU, np.int16, lambda node, kinds: [kinds[gpu.resource] for gpu in node.gpus])
    # For replicas under a rule about what else their container may hold: the number of the device on the
    # node, from 1; negative if the replica must be alone. 0: no rule.
    replica_rule = Column(Per.GPU, np.int16, lambda node, _: _replica_rule(node))

    unit = Column(Per.NODE, np.int32, lambda node, _: node.unit.mib, empty=1)
    # All shares of a pod must be on one GPU.
    lone = Column(Per.NODE, np.bool_, lambda node, _: any(gpu.lone for gpu in node.gpus))

    # What the node's plugin has to give out is compared for every node, whatever the search says.
    units_left = Column(Per.NODE, np.int64, tells_apart=False)
    whole_left = Column(Per.KIND, np.int64, tells_apart=False)

    # Summaries of the columns above, one number per node. Units of memory that its GPUs have in all; how many
    # GPUs it has; there are only GPUs, whose memory can be shared; a container can be given some sets of free
    # devices and others not.
    offers = Column(Per.NODE, np.int64, lambda node, _: sum(map(node.units_of, node.gpus)), tells_apart=False)
    gpu_count = Column(Per.NODE, np.int32, lambda node, _: len(node.gpus), tells_apart=False)
    plain = Column(Per.NODE, np.bool_, lambda node, _: all(map(_is_plain, node.gpus)), tells_apart=False)
    minds = Column(Per.NODE, np.bool_, lambda node, _: _minds(node), tells_apart=False)

    # The largest room in units, and the number of GPUs that nobody uses: of those that are available, of
    # those that are well, of any.
    max_units = Column(Per.NODE, np.int32, empty=-1, tells_apart=False)
    max_units_well = Column(Per.NODE, np.int32, empty=-1, tells_apart=False)
    max_units_any = Column(Per.NODE, np.int32, empty=-1, tells_apart=False)
    untouched = Column(Per.NODE, np.int32, tells_apart=False)
    untouched_well = Column(Per.NODE, np.int32, tells_apart=False)
    untouched_any = Column(Per.NODE, np.int32, tells_apart=False)

    def open_to_shares(self, slots: int, rows: Which) -> npt.NDArray[np.bool_]:
        """Which GPUs in the first `slots` give out shares of their memory."""
        return self.available[:slots, rows] & self.shareable[:slots, rows]

    def unused(self, slots: int, rows: Which) -> npt.NDArray[np.bool_]:
        """Which GPUs in the first `slots` nobody uses any of, whether they are available or not."""
        unused: npt.NDArray[np.bool_] = self.present[:slots, rows] & (self.holders[:slots, rows] == 0)
        unused &= self.free[:slots, rows] >= self.total[:slots, rows]
        return unused

    def take_smallest(self, count: int, rows: Which, free: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Take the smallest untouched GPUs out of `free` on the nodes that have GPUs and nothing else.

        Returns which nodes those are.
        """
        plain = self.plain[rows]
        untouched = self.unused(len(free), rows) & self.available[: len(free), rows] & plain
        size = np.where(untouched, self.total[: len(free), rows].astype(np.int64), _NEVER)
        columns = np.flatnonzero(plain)
        for _ in range(min(count, len(free))):
            smallest = size.argmin(axis=0)
            free[smallest[columns], columns] = -1
            size[smallest[columns], columns] = _NEVER
        return plain

    def summarise(self, row: int) -> None:
        """Bring what follows from the pods of a node up to date."""
        self.free[:, row] = np.maximum(self.total[:, row] - self.used[:, row], _LEAST)
        free, shareable = self.free[:, row], self.shareable[:, row]
        available, present = self.available[:, row], self.present[:, row]
        unused = self.unused(self.slots, row) & (self.kind[:, row] == 0)
        unit = int(self.unit[row])

        def levels(among: npt.NDArray[np.bool_]) -> tuple[int, int]:
            largest = int(free[among & shareable].max(initial=-1))
            return max(largest // unit, -1), int(np.count_nonzero(unused & among))

        now = well = anyhow = levels(available)
        if not np.array_equal(available, present):
            well, anyhow = levels(self.well[:, row]), levels(present)
        self.max_units[row], self.untouched[row] = now
        self.max_units_well[row], self.untouched_well[row] = well
        self.max_units_any[row], self.untouched_any[row] = anyhow


def _is_plain(gpu: Gpu) -> bool:
    return gpu.shareable and gpu.resource == names.WHOLE_GPU


def _minds(node: NodeGpus) -> bool:
    return any(gpu.replica_rule is not ReplicaRule.ANY for gpu in node.gpus)


def _replica_rule(node: NodeGpus) -> list[int]:
    if not _minds(node):
        return []
    numbers = {device: number for number, device in enumerate(dict.fromkeys(g.device for g in node.gpus), 1)}
    signs = {ReplicaRule.ANY: 0, ReplicaRule.OTHER_DEVICES: 1, ReplicaRule.ALONE: -1}
    return [signs[gpu.replica_rule] * numbers[gpu.device] for gpu in node.gpus]
