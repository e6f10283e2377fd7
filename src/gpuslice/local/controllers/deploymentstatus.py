"""A Deployment's status and conditions, worded as `kubectl rollout status` and `describe` expect. Pure.

Source: kubernetes `pkg/controller/deployment/{progress,sync}.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from gpuslice.local.controllers.objects import Condition, Conditions, Deployment, DeploymentStatus, ReplicaSet
from gpuslice.local.controllers.pods import seconds
from gpuslice.local.controllers.rollout import fenceposts

NO_DEADLINE: Final = 2**31 - 1


def condition(conditions: Conditions | None, kind: str) -> Condition | None:
    """The condition of that type."""
    return next((one for one in conditions or () if one.type == kind), None)


def with_condition(
    conditions: Conditions | None, new: Condition, now: str, *, again: bool = False
) -> Conditions:
    """Conditions with one set. Same status and reason change nothing, unless `again` renews its time."""
    old = condition(conditions, new.type)
    if old is not None and not again and (old.status, old.reason) == (new.status, new.reason):
        return conditions or ()
    since = old.last_transition_time if old is not None and old.status == new.status else now
    rest = tuple(one for one in conditions or () if one.type != new.type)
    return (*rest, replace(new, last_update_time=now, last_transition_time=since))


def counted(
    item: Deployment, new: ReplicaSet | None, every: Sequence[ReplicaSet], now: str
) -> DeploymentStatus:
    """Status by numbers, with the Available and ReplicaFailure conditions."""
    total = sum(one.spec.replicas for one in every)
    available = sum(one.status.available_replicas for one in every)
    _, max_unavailable = fenceposts(item.spec)
    if available >= item.spec.replicas - max_unavailable:
        text = "Deployment has minimum availability."
        state = Condition("Available", "True", "MinimumReplicasAvailable", text)
    else:
        text = "Deployment does not have minimum availability."
        state = Condition("Available", "False", "MinimumReplicasUnavailable", text)
    conditions = with_condition(item.status.conditions, state, now)
    failed = _failure(new, every)
    if failed is None:
        conditions = tuple(one for one in conditions if one.type != "ReplicaFailure")
    else:
        conditions = with_condition(conditions, failed, now)
    return DeploymentStatus(
        observed_generation=item.metadata.generation,
        replicas=sum(one.status.replicas for one in every),
        updated_replicas=new.status.replicas if new is not None else 0,
        ready_replicas=sum(one.status.ready_replicas for one in every),
        available_replicas=available,
        unavailable_replicas=max(0, total - available),
        collision_count=item.status.collision_count,
        conditions=conditions,
    )


def _failure(new: ReplicaSet | None, every: Sequence[ReplicaSet]) -> Condition | None:
    for one in ([new] if new is not None else []) + list(every):
        found = condition(one.status.conditions, "ReplicaFailure")
        if found is not None:
            return Condition("ReplicaFailure", found.status, found.reason, found.message)
    return None


def progressed(
    item: Deployment, new: ReplicaSet | None, status: DeploymentStatus, now: str
) -> DeploymentStatus:
    """The same status with the Progressing condition brought up to date."""
    old = condition(status.conditions, "Progressing")
    deadline = item.spec.progress_deadline_seconds
    if deadline == NO_DEADLINE:
        return replace(
            status, conditions=tuple(c for c in status.conditions or () if c.type != "Progressing")
        )
    done = old is not None and old.reason == "NewReplicaSetAvailable"
    if done and status.replicas == status.updated_replicas:
        return status
    subject = f'ReplicaSet "{new.name}"' if new is not None else f'Deployment "{item.name}"'
    if complete(item, status):
        text = f"{subject} has successfully progressed."
        state = Condition("Progressing", "True", "NewReplicaSetAvailable", text)
        return replace(status, conditions=with_condition(status.conditions, state, now))
    if _moved(item.status, status):
        state = Condition("Progressing", "True", "ReplicaSetUpdated", f"{subject} is progressing.")
        return replace(status, conditions=with_condition(status.conditions, state, now, again=True))
    if timed_out(item, status, seconds(now)):
        text = f"{subject} has timed out progressing."
        state = Condition("Progressing", "False", "ProgressDeadlineExceeded", text)
        return replace(status, conditions=with_condition(status.conditions, state, now))
    return status


def complete(item: Deployment, status: DeploymentStatus) -> bool:
    """True if every pod is of the new template and available, and no old one is left."""
    numbers = {status.updated_replicas, status.replicas, status.available_replicas}
    return numbers == {item.spec.replicas} and status.observed_generation >= item.metadata.generation


def deadline_in(item: Deployment, status: DeploymentStatus, now: float) -> float | None:
    """Seconds until the rollout counts as stuck; None if it is not being waited for."""
    state = condition(status.conditions, "Progressing")
    if state is None or state.last_update_time is None or complete(item, status):
        return None
    if state.reason in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded"):
        return None
    return seconds(state.last_update_time) + item.spec.progress_deadline_seconds - now


def timed_out(item: Deployment, status: DeploymentStatus, now: float) -> bool:
    """True once nothing has moved for spec.progressDeadlineSeconds."""
    left = deadline_in(item, status, now)
    return left is not None and left < 0


def _moved(before: DeploymentStatus, after: DeploymentStatus) -> bool:
    return (
        after.updated_replicas > before.updated_replicas
        or after.replicas - after.updated_replicas < before.replicas - before.updated_replicas
        or after.ready_replicas > before.ready_replicas
        or after.available_replicas > before.available_replicas
    )
