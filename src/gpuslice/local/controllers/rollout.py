"""How many pods each ReplicaSet of a Deployment should have during a rollout. Pure arithmetic.

The rules are Kubernetes' own (kubernetes `pkg/controller/deployment/{rolling,sync}.go` and
`util/deployment_util.go`), so that a rollout here goes through the same steps as on a real cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuslice.local.controllers.objects import DeploymentSpec


@dataclass(frozen=True, slots=True)
class Size:
    """What a rollout needs to know of one ReplicaSet. `born` orders them, oldest first."""

    name: str
    wanted: int
    available: int
    born: tuple[str, str]
    annotated_max: int = 0


def resolve(value: int | str | None, total: int, *, up: bool) -> int:
    """An absolute number, or a percentage of `total` rounded up or down; 0 if it is neither."""
    if isinstance(value, int):
        return value
    text = (value or "0").strip()
    if not text.endswith("%"):
        return int(text) if text.isdecimal() else 0
    share = text[:-1]
    if not share.isdecimal():
        return 0
    exact = int(share) * total / 100
    return math.ceil(exact) if up else math.floor(exact)


def fenceposts(spec: DeploymentSpec) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) in pods; at least one of them is above 0, or nothing could ever move."""
    if spec.strategy.type == "Recreate":
        return 0, spec.replicas
    rolling = spec.strategy.rolling_update
    wish_surge = "25%" if rolling is None or rolling.max_surge is None else rolling.max_surge
    wish_down = "25%" if rolling is None or rolling.max_unavailable is None else rolling.max_unavailable
    surge = resolve(wish_surge, spec.replicas, up=True)
    unavailable = resolve(wish_down, spec.replicas, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return surge, min(unavailable, spec.replicas)


def grow(spec: DeploymentSpec, new: Size, others: Sequence[Size]) -> int:
    """The size that the new ReplicaSet may have now."""
    if new.wanted >= spec.replicas or spec.strategy.type == "Recreate":
        return spec.replicas
    surge, _ = fenceposts(spec)
    room = spec.replicas + surge - new.wanted - sum(one.wanted for one in others)
    return new.wanted + max(0, min(room, spec.replicas - new.wanted))


def shrink(spec: DeploymentSpec, new: Size, old: Sequence[Size]) -> Mapping[str, int]:
    """New sizes for old ReplicaSets that give pods up now: first the unhealthy ones, then the oldest."""
    _, max_unavailable = fenceposts(spec)
    least = spec.replicas - max_unavailable
    total = new.wanted + sum(one.wanted for one in old)
    budget = total - least - (new.wanted - new.available)
    sizes = {one.name: one.wanted for one in old}
    ordered = sorted((one for one in old if one.wanted > 0), key=lambda one: one.born)
    for one in ordered:
        unhealthy = max(0, min(budget, one.wanted - one.available))
        sizes[one.name] -= unhealthy
        budget -= unhealthy
    for one in ordered:  # what is left of the budget is what is available beyond the promise
        taken = max(0, min(budget, sizes[one.name]))
        sizes[one.name] -= taken
        budget -= taken
    return {one.name: sizes[one.name] for one in ordered if sizes[one.name] != one.wanted}


def proportional(spec: DeploymentSpec, sizes: Sequence[Size]) -> Mapping[str, int]:
    """New sizes when a Deployment is scaled in the middle of a rollout: each in proportion to its size."""
    surge, _ = fenceposts(spec)
    allowed = spec.replicas + surge if spec.replicas > 0 else 0
    current = sum(one.wanted for one in sizes)
    to_add = allowed - current
    # Bigger first; of equals the newer one grows first and the older one shrinks first.
    ordered = sorted(sizes, key=lambda one: one.born, reverse=to_add > 0)
    ordered.sort(key=lambda one: -one.wanted)
    result, added = {}, 0
    for one in ordered:
        if one.wanted == 0 or to_add == 0:
            result[one.name] = one.wanted
            continue
        base = one.annotated_max or current
        fraction = math.floor(one.wanted * allowed / base + 0.5) - one.wanted
        left = to_add - added
        part = min(fraction, left) if to_add > 0 else max(fraction, left)
        part = max(0, part) if to_add > 0 else min(0, part)
        result[one.name] = one.wanted + part
        added += part
    if ordered and to_add != added:
        first = ordered[0].name
        result[first] = max(0, result[first] + to_add - added)
    return result
