"""The node's GPUs for Prometheus: what each has, what is given out of it, and what was refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuslice.devices.inventory import NodeGpus
from gpuslice.node.grants.held import Held

LABELS = ("gpu", "uuid", "model")


def render(
    gpus: NodeGpus, held: Iterable[Held], refused: Mapping[str, int], unreadable: Mapping[str, int]
) -> bytes:
    """The text that /metrics answers. `refused`: kubelet's calls, by the verdict's code; `unreadable`: API
    objects that could not be read, by kind.
    """
    # Imported only when metrics are first read, so that the agent starts sooner.
    from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

    registry = CollectorRegistry()
    memory = Gauge("gpuslice_gpu_memory_mib", "Memory of the GPU, MiB.", LABELS, registry=registry)
    given = Gauge(
        "gpuslice_gpu_memory_allocated_mib", "Memory given to containers, MiB.", LABELS, registry=registry
    )
    containers = Gauge("gpuslice_gpu_containers", "Containers on the GPU.", LABELS, registry=registry)
    healthy = Gauge("gpuslice_gpu_healthy", "0 if the GPU is sick.", LABELS, registry=registry)
    closed = Gauge(
        "gpuslice_gpu_closed",
        "1 if nobody gets the GPU though it is well: it is being partitioned, or changes its use.",
        LABELS,
        registry=registry,
    )
    broken = Gauge(
        "gpuslice_unreadable_objects", "API objects that could not be read.", ["kind"], registry=registry
    )
    refusals = Counter(
        "gpuslice_agent_refusals",
        "Calls of the kubelet that the device plugin refused, by the verdict's code.",
        ["code"],
        registry=registry,
    )
    for code, number in refused.items():
        refusals.labels(code).inc(number)
    for kind, number in unreadable.items():
        broken.labels(kind).set(number)
    holdings = tuple(held)
    for gpu in gpus.gpus:
        labels = (str(gpu.index), gpu.uuid, gpu.model)
        on_it = [holding for holding in holdings if gpu.uuid in holding.gpus]
        memory.labels(*labels).set(gpu.memory_mib)
        given.labels(*labels).set(sum(h.kind.mib(gpus, gpu.uuid, h.gpus[gpu.uuid]) for h in on_it))
        containers.labels(*labels).set(len(on_it))
        healthy.labels(*labels).set(not gpu.availability.sick)
        closed.labels(*labels).set(gpu.availability.closed)
    return generate_latest(registry)
