"""From a pod spec to one normalised GPU request per container.

Limits are read (for extended resources the API server makes requests equal to them); a container that
states only requests is taken at its word. The arithmetic over init and sidecar containers is the
kubelet's (k8s.io/component-helpers/resource, PodRequests).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from gpuslice import names
from gpuslice.devices.inventory import MAX_GPUS
from gpuslice.errors import InputError, quoted
from gpuslice.requests.kinds import Kind, kinds_in
from gpuslice.units import MAX_UNITS, parse_count

MAX_CONTAINERS = 128
"""Containers of one pod that can ask for GPUs: what is done for each is done on one event loop."""

Amounts = Mapping[str, str | int | float] | None


class ResourcesLike(Protocol):
    @property
    def limits(self) -> Amounts: ...
    @property
    def requests(self) -> Amounts: ...


class ContainerLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def resources(self) -> ResourcesLike: ...
    @property
    def restart_policy(self) -> str | None: ...


class PodSpecLike(Protocol):
    @property
    def containers(self) -> Sequence[ContainerLike]: ...
    @property
    def init_containers(self) -> Sequence[ContainerLike] | None: ...


class Role(StrEnum):
    """When a container runs: `INIT` before the others and then no more, `SIDECAR` from its turn on."""

    APP = "app"
    SIDECAR = "sidecar"
    INIT = "init"


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container asks for: an `amount` of one kind, shares spread evenly `across` that many GPUs."""

    name: str
    role: Role
    kind: Kind
    amount: int
    across: int = 1

    @property
    def units(self) -> int:
        """Units of GPU memory in shares, on all its GPUs together."""
        return 0 if self.kind.whole else self.amount

    @property
    def units_per_gpu(self) -> int:
        return self.units // self.across

    @property
    def whole(self) -> int:
        """Whole devices."""
        return self.amount if self.kind.whole else 0

    @property
    def gpus(self) -> int:
        """On how many GPUs, MIG devices or replicas it is."""
        return self.whole or self.across

    def count(self, kind: Kind) -> int:
        """How much of a kind it asks for, which is the number of ids that a kubelet gives it."""
        return self.amount if self.kind == kind else 0


@dataclass(frozen=True, slots=True)
class PodRequest:
    """The containers of a pod that ask for a GPU: init and sidecar containers first, in their order."""

    containers: tuple[ContainerRequest, ...] = ()
    kinds: tuple[Kind, ...] = field(init=False, repr=False, compare=False)
    units: int = field(init=False, repr=False, compare=False)
    """Units of gpu-mem that the kubelet counts for the whole pod."""
    devices: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """Whole devices that the kubelet counts for the whole pod, by resource."""

    def __post_init__(self) -> None:
        # Kept, since every question about a node asks for them.
        object.__setattr__(self, "kinds", tuple(dict.fromkeys(c.kind for c in self.containers)))
        object.__setattr__(self, "units", peak((c.role, c.units) for c in self.containers))
        devices = {kind.resource: self.count(kind) for kind in self.kinds if kind.whole}
        object.__setattr__(self, "devices", devices)

    def __bool__(self) -> bool:
        return bool(self.containers)

    def count(self, kind: Kind) -> int:
        """How much of a kind the kubelet counts for the whole pod."""
        return peak((c.role, c.count(kind)) for c in self.containers)

    @property
    def whole(self) -> int:
        """Whole devices of all resources together."""
        return sum(self.devices.values())

    @property
    def shares(self) -> tuple[ContainerRequest, ...]:
        """The containers that ask for memory shares."""
        return tuple(c for c in self.containers if c.units)

    def container(self, name: str) -> ContainerRequest | None:
        """The request of the container of that name, if it asks for a GPU."""
        return next((c for c in self.containers if c.name == name), None)


def peak(amounts: Iterable[tuple[Role, int]]) -> int:
    """The most that is held at any moment of a pod's life, given (role, amount) in start order.

    An ordinary init container runs beside the sidecars started before it; the app containers run beside
    all sidecars.
    """
    sidecars = highest = apps = 0
    for role, amount in amounts:
        if role is Role.INIT:
            highest = max(highest, sidecars + amount)
        elif role is Role.SIDECAR:
            sidecars += amount
            highest = max(highest, sidecars)
        else:
            apps += amount
    return max(highest, sidecars + apps)


def read_request(spec: PodSpecLike, annotations: Mapping[str, str]) -> PodRequest:
    """Normalise a pod spec. A pod that asks for no GPU gives an empty (falsy) request.

    Raises InputError naming the field: not a whole number, negative, overflowing, shares and whole GPUs
    in one container, shares that cannot be spread evenly.
    """
    request = _read_spec(spec)
    return _spread(request, annotations) if request else request


def read_given(spec: PodSpecLike, annotations: Mapping[str, str], gpus: Mapping[str, int]) -> PodRequest:
    """The same for a pod that has a node: what it was given stays, whatever its annotations say by now.

    `gpus`: on how many GPUs each container was put, by the pod's record. What the record does not say
    believably, the user's annotation says, and if that cannot be read either, each share is on one GPU.
    Raises InputError for what the spec says, which nobody can edit.
    """
    request = _read_spec(spec)
    # A value that cannot be read now was different when the pod was bound, or no scheduler of ours handled
    # the pod.
    with suppress(InputError):
        request = _spread(request, annotations)
    return PodRequest(
        tuple(
            replace(c, across=gpus[c.name]) if can_be_spread(c, gpus.get(c.name, 0)) else c
            for c in request.containers
        )
    )


def count_spec(spec: PodSpecLike) -> PodRequest:
    """What a pod on a node counts with if its spec cannot be read as a request. Never raises.

    A container that asks for GPUs of two kinds counts with both; an amount that cannot be read counts as
    none, since no kubelet admits it.
    """
    return _read_spec(spec, strict=False)


def can_be_spread(container: ContainerRequest, gpus: int) -> bool:
    """True if the container's share can lie on that many GPUs, evenly."""
    if not container.units or not 1 <= gpus <= MAX_GPUS or container.units % gpus:
        return False
    return gpus == 1 or container.role is not Role.INIT


def _read_spec(spec: PodSpecLike, *, strict: bool = True) -> PodRequest:
    found: list[ContainerRequest] = []
    groups = (("initContainers", spec.init_containers or ()), ("containers", spec.containers))
    for group, containers in groups:
        for position, container in enumerate(containers):
            where = f"spec.{group}[{position}].resources"
            wanted = [
                (kind, amount)
                for kind in _kinds(container.resources)
                if (amount := _amount(container.resources, kind.resource, where, strict=strict))
            ]
            if len(wanted) > 1 and strict:
                asked = " and ".join(kind.resource for kind, _ in wanted)
                raise InputError(
                    f"container {container.name!r} asks for {asked}; a container gets GPUs of one kind, "
                    "ask for one of them",
                    field=where,
                )
            role = _role(group, container)
            found += [ContainerRequest(container.name, role, kind, amount) for kind, amount in wanted]
    if strict and len(found) > MAX_CONTAINERS:
        raise InputError(
            f"{len(found)} containers ask for GPUs; at most {MAX_CONTAINERS} of a pod can",
            field="spec.containers",
        )
    request = PodRequest(tuple(found))
    if strict and (request.units > MAX_UNITS or request.whole > MAX_UNITS):
        raise InputError("the containers together ask for more than any node has", field="spec.containers")
    return request


def _role(field: str, container: ContainerLike) -> Role:
    if field == "containers":
        return Role.APP
    return Role.SIDECAR if container.restart_policy == "Always" else Role.INIT


def _kinds(resources: ResourcesLike) -> Iterator[Kind]:
    named = {name for amounts in (resources.limits, resources.requests) for name in amounts or ()}
    return kinds_in(sorted(named))


def _amount(resources: ResourcesLike, resource: str, where: str, *, strict: bool) -> int:
    for kind, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        if amounts and resource in amounts:
            try:
                return parse_count(amounts[resource], field=f"{where}.{kind}[{resource}]")
            except InputError:
                if strict:
                    raise
    return 0


def _spread(request: PodRequest, annotations: Mapping[str, str]) -> PodRequest:
    text = annotations.get(names.SHARES_ACROSS)
    if text is None:
        return request
    field = f"metadata.annotations[{names.SHARES_ACROSS}]"
    across = parse_count(text, field=field)
    if not 1 <= across <= MAX_GPUS:
        raise InputError(f"{quoted(text)} is not a number of GPUs from 1 to {MAX_GPUS}", field=field)
    spread: list[ContainerRequest] = []
    for c in request.containers:
        if c.units % across:
            raise InputError(
                f"container {c.name!r} asks for {c.units} units, which cannot be spread evenly over {across} "
                "GPUs; ask for a multiple",
                field=field,
            )
        if c.units and c.role is Role.INIT and across > 1:
            # kubelet hands a random subset of an init container's ids on to the app containers, so equal
            # shares on several GPUs cannot be kept.
            raise InputError(
                f"init container {c.name!r} cannot hold shares of several GPUs; use a sidecar or one GPU",
                field=field,
            )
        spread.append(replace(c, across=across) if c.units else c)
    return PodRequest(tuple(spread))
