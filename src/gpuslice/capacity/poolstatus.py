"""Computes a pool's status: counts and two conditions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gpuslice import names
from gpuslice.capacity.nodepool import READY, SCALING, Condition, DesiredPool, GPUNodePool, PoolStatus
from gpuslice.capacity.poolplan import PoolNode, Repartition, Size
from gpuslice.devices.migstate import MigState

LONGEST: Final = 1000
"""The most characters of a condition's message, which may contain text that others wrote."""


@dataclass(frozen=True, slots=True)
class Content:
    """A condition's content: a word for programs, a sentence for people."""

    true: bool
    reason: str
    message: str = ""


def readiness(
    desired: DesiredPool, nodes: Sequence[PoolNode], size: Size, repartition: Repartition
) -> Content:
    """The condition Ready: whether everything is as the spec says, and if not, what is being waited for."""
    if repartition.failed:
        return Content(False, "PartitioningFailed", repartition.waits)
    unready = [node.name for node in nodes if not node.ready]
    if size.add:
        more = "1 more node is" if size.add == 1 else f"{size.add} more nodes are"
        return Content(False, "NodesStarting", f"{more} being made")
    if not nodes and desired.selector is not None:
        labels = ", ".join(f"{key}={value}" for key, value in desired.selector.items())
        return Content(False, "NoNodes", f"no node has the labels {labels}")
    if repartition.waits:
        return Content(False, "Partitioning", repartition.waits)
    if size.retire:
        return Content(
            False, "NodesLeaving", f"these nodes go when their pods have moved: {', '.join(size.retire)}"
        )
    if unready:
        return Content(False, "NodesStarting", f"not ready: {', '.join(unready)}")
    return Content(True, "Ready")


def scaling(desired: DesiredPool, *, makes: bool) -> Content:
    """The condition Scaling: whether the controller chooses the number of nodes."""
    if makes and desired.selector is None:
        low, high = desired.spec.min_count, desired.spec.max_count
        if high is None:
            return Content(True, "Fixed")
        if names.MIG_POLICY in desired.spec.labels:
            need = "as pods of whole GPUs or memory need them; pods that wait for MIG devices add none"
            return Content(True, "Autoscaling", f"{low} to {high} nodes, {need}")
        return Content(True, "Autoscaling", f"{low} to {high} nodes, as pods need them")
    return Content(
        False,
        "NotPossibleHere",
        "the pool is existing nodes, whose machines gpuslice does not make; "
        "count, minCount and maxCount have no effect",
    )


def status_of(
    pool: GPUNodePool, nodes: Sequence[PoolNode] | None, said: Mapping[str, Content], *, now: str
) -> PoolStatus | None:
    """The status to write; None if the pool has it already. A condition's time is that of its last
    transition.

    `nodes` None: the counts stay as they are.
    """
    conditions: list[Condition] = []
    for kind in (READY, SCALING):
        content, old = said.get(kind), pool.condition(kind)
        if content is None:
            conditions += [old] if old is not None else []
            continue
        message = content.message
        if len(message) > LONGEST:
            message = f"{message[: LONGEST - 3]}..."
        new = Condition(kind, "True" if content.true else "False", content.reason, message, now)
        if old is not None and old.status == new.status:
            new = replace(new, last_transition_time=old.last_transition_time)
        conditions.append(new)
    status = replace(pool.status, observed_generation=pool.metadata.generation, conditions=tuple(conditions))
    if nodes is not None:
        status = replace(
            status,
            nodes=len(nodes),
            ready_nodes=sum(node.ready for node in nodes),
            partitioned_nodes=sum(bool(n.wanted) and n.told and n.state == MigState.SUCCESS for n in nodes),
        )
    return None if status == pool.status else status
