"""What a pod's state means to its owner: active, ready, available, and which one goes first. Pure.

The rules are Kubernetes' own (kubernetes `pkg/controller/controller_utils.go` and `pkg/api/v1/pod`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from gpuslice.local.controllers.objects import Condition, Json, Managed, Pod, PodTemplate

NAME_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names: no vowels, so no words."""
SUFFIX: Final = 5
NAME_LIMIT: Final = 58
"""Characters of a generated name before its suffix: the whole is to be a DNS label."""
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "": 0, "Unknown": 1, "Running": 2}


def generated_name(base: str, random: float) -> str:
    """A name that starts with `base-`, from a number in [0, 1), as the API server makes of generateName."""
    return f"{base}-"[:NAME_LIMIT] + _letters(int(random * len(NAME_ALPHABET) ** SUFFIX), SUFFIX)


def safe_letters(digest: bytes) -> str:
    """Eight bytes of a hash as ten letters that are safe in names and labels."""
    return _letters(int.from_bytes(digest, "big"), 10)


def _letters(number: int, length: int) -> str:
    letters = []
    for _ in range(length):
        number, digit = divmod(number, len(NAME_ALPHABET))
        letters.append(NAME_ALPHABET[digit])
    return "".join(letters)


def active(pod: Pod) -> bool:
    """True if it runs or will: neither ended nor being deleted."""
    return pod.status.phase not in ("Succeeded", "Failed") and not pod.deleting


def ready_condition(pod: Pod) -> Condition | None:
    """Its Ready condition, if the kubelet has set one."""
    return next((one for one in pod.status.conditions or () if one.type == "Ready"), None)


def ready(pod: Pod) -> bool:
    """True if it serves."""
    condition = ready_condition(pod)
    return condition is not None and condition.status == "True"


def available_in(pod: Pod, min_ready_seconds: int, now_ns: int) -> float | None:
    """Seconds until the pod counts as available: 0 if it does now, None if it is not even ready."""
    condition = ready_condition(pod)
    if condition is None or condition.status != "True":
        return None
    if min_ready_seconds == 0:
        return 0.0
    if not condition.last_transition_time:
        return None
    return max(0.0, seconds(condition.last_transition_time) + min_ready_seconds - now_ns / 1e9)


def seconds(time: str) -> float:
    """RFC 3339 to Unix seconds."""
    return datetime.fromisoformat(time).timestamp()


def deletion_order(pods: Iterable[Pod], related: Iterable[Pod] = ()) -> list[Pod]:
    """The pods in the order in which a scale-down takes them.

    Unscheduled before scheduled, pending before running, not ready before ready, low deletion cost
    first, then those on the node with most pods of the same owner (`related`), the most recently ready,
    the most restarted, the youngest.
    """
    crowd = Counter(pod.spec.node_name for pod in related if active(pod))

    def rank(pod: Pod) -> tuple[object, ...]:
        condition = ready_condition(pod)
        since = condition.last_transition_time if condition else None
        restarts = sum(status.restart_count for status in pod.status.container_statuses or ())
        return (
            pod.spec.node_name != "",
            _PHASES.get(pod.status.phase, 3),
            ready(pod),
            _cost(pod),
            -crowd[pod.spec.node_name],
            -(seconds(since) if since else 0.0),
            -restarts,
            -(seconds(pod.metadata.creation_timestamp) if pod.metadata.creation_timestamp else 0.0),
            pod.name,
        )

    return sorted(pods, key=rank)


def _cost(pod: Pod) -> int:
    try:
        return int(pod.annotations.get(DELETION_COST, "0"))
    except ValueError:
        return 0


def owner_reference(owner: Managed) -> Json:
    """The reference that makes `owner` an object's controller."""
    return {
        "apiVersion": owner.resource.api_version,
        "kind": owner.resource.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def new_pod(
    owner: Managed,
    template: PodTemplate,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: tuple[str, ...] = (),
    spec: Mapping[str, object] | None = None,
) -> Json:
    """A pod from its owner's template, with what the controller adds; `spec` replaces whole fields."""
    metadata: Json = {
        "name": name,
        "namespace": owner.namespace,
        "labels": {**(template.metadata.labels or {}), **(labels or {})},
        "annotations": {**(template.metadata.annotations or {}), **(annotations or {})},
        "ownerReferences": [owner_reference(owner)],
    }
    if owner.resource.kind != "StatefulSet":
        metadata["generateName"] = name[:-SUFFIX]
    if finalizers:
        metadata["finalizers"] = list(finalizers)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**template.spec, **spec} if spec else template.spec,
    }


def set_condition(
    conditions: tuple[Condition, ...] | None, new: Condition, now: str
) -> tuple[Condition, ...]:
    """Conditions with one replaced; it keeps its transition time if its status is the same.

    Nothing changes if status, reason and message are the same.
    """
    result, found = [], False
    for old in conditions or ():
        if old.type != new.type:
            result.append(old)
            continue
        found = True
        if (old.status, old.reason, old.message) == (new.status, new.reason, new.message):
            result.append(old)
        else:
            since = old.last_transition_time if old.status == new.status else now
            result.append(msgspec.structs.replace(new, last_transition_time=since))
    if not found:
        result.append(msgspec.structs.replace(new, last_transition_time=now))
    return tuple(result)
