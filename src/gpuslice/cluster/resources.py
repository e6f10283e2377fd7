"""Computes how much of a node's ordinary resources a pod takes: CPU, memory, pods, extended resources, host
ports.

GPU memory, whole GPUs and MIG devices are not here: they are counted one by one in `cluster`. The
arithmetic over init and sidecar containers is the kubelet's (k8s.io/component-helpers/resource,
PodRequests), in integers: CPU in thousandths, everything else in units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpuslice.errors import InputError
from gpuslice.kube.wire import Container, PodSpec
from gpuslice.requests.kinds import kind_of
from gpuslice.requests.pod import Role, peak
from gpuslice.units import parse_quantity

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL: Final = "ephemeral-storage"
PODS: Final = "pods"
MOST: Final = 2**60
"""More than any node has; keeps sums within int64."""

EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - what a pod asks for, not what we listen on
Amounts = Mapping[str, str | int | float]
Port = tuple[str, str, int]
"""(protocol, host IP, port); the IP 0.0.0.0 stands for all."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a pod takes from its node. `amounts`: (resource, integer), sorted, without zeros.

    Every pod also takes one of the node's `pods`.
    """

    amounts: tuple[tuple[str, int], ...] = ()
    ports: frozenset[Port] = frozenset()


def footprint_of(spec: PodSpec) -> Footprint:
    """Read a pod spec. Raises InputError naming the field for what is not a quantity."""
    containers = [(_role(c), c) for c in spec.init_containers or ()]
    containers += [(Role.APP, c) for c in spec.containers]
    asked = [(role, _requests(c)) for role, c in containers]
    totals: dict[str, int] = {}
    for name in {name for _, amounts in asked for name in amounts}:
        totals[name] = peak((role, amounts.get(name, 0)) for role, amounts in asked)
    if spec.resources is not None:
        # Resources of the pod as a whole replace the sum of its containers.
        totals.update(read_amounts(spec.resources.requests or {}, "spec.resources.requests"))
    for name, amount in read_amounts(spec.overhead or {}, "spec.overhead").items():
        totals[name] = totals.get(name, 0) + amount
    amounts = tuple(sorted((n, min(a, MOST)) for n, a in totals.items() if a > 0 and kind_of(n) is None))
    return Footprint(amounts, _host_ports(spec))


def read_amounts(amounts: Amounts, field: str) -> dict[str, int]:
    """Quantities as integers, rounded up: CPU in thousandths, everything else in units."""
    read: dict[str, int] = {}
    for name, value in amounts.items():
        try:
            read[name] = _integer(name, value)
        except InputError as error:
            raise InputError(str(error), field=f"{field}[{name}]") from None
    return read


def conflict(wanted: frozenset[Port], taken: frozenset[Port]) -> bool:
    """True if one of the wanted host ports is taken. Takes as many steps as there are ports in both
    together.
    """
    addresses: dict[tuple[str, int], set[str]] = {}
    for protocol, ip, port in taken:
        addresses.setdefault((protocol, port), set()).add(ip)
    return any(
        bool(there) and (ip == EVERYWHERE or ip in there or EVERYWHERE in there)
        for protocol, ip, port in wanted
        if (there := addresses.get((protocol, port)))
    )


@lru_cache(maxsize=4096)
def _integer(name: str, value: str | float) -> int:
    text = str(value) if isinstance(value, float) else value
    number = parse_quantity(text, field="")
    return min(max(math.ceil(number * 1000 if name == CPU else number), 0), MOST)


def _role(init: Container) -> Role:
    return Role.SIDECAR if init.restart_policy == "Always" else Role.INIT


def _requests(container: Container) -> dict[str, int]:
    # The API server sets a missing request to the limit; so do we, for objects that no API server has
    # completed.
    limits, requests = container.resources.limits or {}, container.resources.requests or {}
    if not limits and not requests:
        return {}
    return read_amounts({**limits, **requests}, f"container {container.name} resources")


def _host_ports(spec: PodSpec) -> frozenset[Port]:
    sidecars = [c for c in spec.init_containers or () if c.restart_policy == "Always"]
    return frozenset(
        (port.protocol or "TCP", port.host_ip or "0.0.0.0", port.host_port)  # noqa: S104
        for container in (*sidecars, *spec.containers)
        for port in container.ports or ()
        if port.host_port
    )
