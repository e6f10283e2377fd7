"""Node pools for people and programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuslice import names
from gpuslice.capacity.nodepool import READY, SCALING, Condition, GPUNodePool, PoolFields
from gpuslice.cli.output import Report
from gpuslice.cli.tabwriter import align

HEAD = ("NAME", "VM SIZE", "NODES", "READY", "PROFILE", "STRATEGY", "AUTOSCALING", "STATE")


class PoolReport(Report, frozen=True):
    """In the words of Azure's API where it has some."""

    name: str
    vm_size: str
    count: int
    ready_count: int
    gpu_instance_profile: str | None
    mig_strategy: str
    mig_policy: str
    min_count: int | None
    max_count: int | None
    node_labels: Mapping[str, str]
    node_taints: Sequence[str]
    selector: Mapping[str, str] | None
    state: str
    message: str
    scaling: str


class PoolsReport(Report, frozen=True):
    pools: list[PoolReport]


def report(pool: GPUNodePool) -> PoolReport:
    """One pool. `count` is the number of nodes that there are; a status of an older spec is none."""
    answered = pool.status.observed_generation == pool.metadata.generation
    spec, ready = pool.spec, _condition(pool, READY) if answered else Condition(READY, "Unknown")
    return PoolReport(
        pool.name,
        spec.vm_size,
        pool.status.nodes,
        pool.status.ready_nodes,
        spec.gpu_instance_profile,
        strategy(spec),
        policy(spec),
        spec.min_count,
        spec.max_count,
        spec.node_labels or {},
        spec.node_taints,
        spec.selector,
        ready.reason or "Pending",
        ready.message,
        _condition(pool, SCALING).message,
    )


def table(pools: Iterable[PoolReport]) -> str:
    """A line for each pool."""
    rows = [
        (
            pool.name,
            pool.vm_size or "-",
            str(pool.count),
            str(pool.ready_count),
            pool.gpu_instance_profile or ("-" if pool.mig_policy == "static" else pool.mig_policy),
            pool.mig_strategy,
            "-" if pool.max_count is None else f"{pool.min_count} to {pool.max_count}",
            pool.state,
        )
        for pool in pools
    ]
    return align("".join("\t".join(row) + "\n" for row in (HEAD, *rows)))


def details(pool: PoolReport) -> str:
    """The table of one pool, what is being waited for, and what its number of nodes depends on."""
    text = table([pool])
    return text + "".join(f"{line}\n" for line in (pool.message, pool.scaling) if line)


def strategy(spec: PoolFields) -> str:
    """How MIG devices are counted, by default where it is not said."""
    if policy(spec) != "static":
        return "mixed"
    return spec.mig_strategy or ("single" if spec.gpu_instance_profile else "none")


def policy(spec: PoolFields) -> str:
    """Who says how GPUs are partitioned."""
    return spec.mig_policy or (spec.node_labels or {}).get(names.MIG_POLICY, "static")


def _condition(pool: GPUNodePool, kind: str) -> Condition:
    return pool.condition(kind) or Condition(kind, "Unknown")
