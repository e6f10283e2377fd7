"""Checks a container's extended resources as the API server would, before it is asked.

The rules, field paths and words are those of `pkg/apis/core/validation` (validateResourceRequirements), so
that the messages are the same: whole numbers, requests equal to limits, none without a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from gpuslice import names
from gpuslice.errors import InputError
from gpuslice.requests.kinds import kind_of
from gpuslice.requests.pod import Amounts, PodSpecLike, ResourcesLike
from gpuslice.units import canonical_quantity, parse_quantity


def check_pod(spec: PodSpecLike, path: str = "spec") -> list[InputError]:
    """All errors in the extended resources of a pod spec, which is found at `path`."""
    found: list[InputError] = []
    for field, containers in (
        ("initContainers", spec.init_containers or ()),
        ("containers", spec.containers),
    ):
        for position, container in enumerate(containers):
            found += check_resources(container.resources, f"{path}.{field}[{position}].resources")
    return found


def check_resources(resources: ResourcesLike, path: str) -> list[InputError]:
    """The same of one container's resources."""
    return list(_problems(resources, path))


def extended(name: str) -> bool:
    """True for a resource that device plugins or operators add, False for one of Kubernetes' own."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def of_gpus(name: str) -> bool:
    """True for a resource that gives a container a GPU or a part of one, under any name that we know."""
    # nvidia.com/gpu.shared and such: replicas that were renamed are GPUs all the same.
    known = kind_of(name) is not None or name == names.HISTORICAL_GPU
    return known or name.startswith(f"{names.WHOLE_GPU}.")


def may_bring_gpus(name: str) -> bool:
    """The same for names that we do not know: True if somebody else's device plugin might give GPUs for
    it.
    """
    if not extended(name) or name == names.GPU_COUNT:
        return False
    return name.startswith("nvidia.com/") or "gpu" in name.lower() or "cuda" in name.lower()


def asks_for_gpu(spec: PodSpecLike) -> bool:
    """True if any container of a pod asks for one. An amount that cannot be read counts, 0 does not."""
    containers = (*spec.containers, *(spec.init_containers or ()))
    return any(asks_of(container.resources, of_gpus) for container in containers)


def asks_of(resources: ResourcesLike, which: Callable[[str], bool]) -> bool:
    """True if a container asks for any of those resources. An amount that cannot be read counts, 0 does
    not.
    """
    return any(True for _ in asked(resources, which))


def asked(resources: ResourcesLike, which: Callable[[str], bool]) -> Iterator[str]:
    """The resources of those that a container asks for, the same way; one can come twice."""
    for amounts in (resources.limits, resources.requests):
        yield from (name for name, amount in (amounts or {}).items() if which(name) and _some(amount))


def wanted(name: str, amount: object) -> bool:
    """Is so much of that resource a GPU or a part of one?"""
    return of_gpus(name) and _some(amount)


def _some(amount: object) -> bool:
    try:
        return parse_quantity(str(amount), field="") != 0
    except InputError:
        return True


def _problems(resources: ResourcesLike, path: str) -> Iterator[InputError]:
    limits = _numbers(resources.limits)
    for name, number in limits.items():
        yield from _value(f"{path}.limits[{name}]", (resources.limits or {})[name], number)
    for name, number in _numbers(resources.requests).items():
        amount = (resources.requests or {})[name]
        yield from _value(f"{path}.requests[{name}]", amount, number)
        if name not in limits:
            why = "Required value: Limit must be set for non overcommitable resources"
            yield InputError(why, field=f"{path}.limits")
            continue
        limit = limits[name]
        if number is not None and limit is not None and number != limit:
            most = canonical_quantity((resources.limits or {})[name])
            yield _invalid(f"{path}.requests", amount, f"must be equal to {name} limit of {most}")


def _numbers(amounts: Amounts) -> dict[str, Fraction | None]:
    """The extended resources; None for what is no quantity."""
    found: dict[str, Fraction | None] = {}
    for name, amount in (amounts or {}).items():
        if extended(name):
            try:
                found[name] = parse_quantity(str(amount), field="")
            except InputError:
                found[name] = None
    return found


def _value(where: str, amount: object, number: Fraction | None) -> Iterator[InputError]:
    if number is None:
        why = f'Invalid value: "{amount}": is not a quantity; write a whole number such as 1'
        yield InputError(why, field=where)
        return
    if number < 0:
        yield _invalid(where, amount, "must be greater than or equal to 0")
    if number.denominator != 1:
        yield _invalid(where, amount, "must be an integer")


def _invalid(where: str, amount: object, why: str) -> InputError:
    return InputError(f'Invalid value: "{canonical_quantity(amount)}": {why}', field=where)
