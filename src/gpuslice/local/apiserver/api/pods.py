"""What only pods have: binding and eviction."""

from __future__ import annotations

from gpuslice.local.apiserver.api.bodies import DeleteOptions
from gpuslice.local.apiserver.api.http import Reply, Request, Target, reply
from gpuslice.local.apiserver.api.rest import Rest, precondition_failed
from gpuslice.local.apiserver.schema.objects import now
from gpuslice.local.apiserver.schema.selectors import label_selector
from gpuslice.local.apiserver.schema.status import (
    Failure,
    Json,
    bad_request,
    conflict,
    invalid,
    required,
)
from gpuslice.local.apiserver.schema.status import success as success_status


def set_condition(status: Json, condition: Json) -> None:
    """Put a condition in the place of the one of its type."""
    conditions = [one for one in status.get("conditions") or () if one.get("type") != condition["type"]]
    status["conditions"] = [*conditions, condition]


def bind(rest: Rest, request: Request, target: Target, binding: Json) -> Reply:
    """POST pods/NAME/binding: set the node, merge the binding's annotations, all in one write.

    As `setPodNodeAndMetadata` of kube-apiserver; metadata.uid and .resourceVersion are preconditions.
    Raises 409 if the pod is bound, being deleted, or another one.
    """
    kind = target.kind
    meta = binding.get("metadata") or {}
    node = (binding.get("target") or {}).get("name")
    if not node:
        raise invalid("", "Binding", target.name, [required("target.name")])
    if (binding.get("target") or {}).get("kind", "Node") not in ("Node", ""):
        raise bad_request("target.kind must be Node")
    if meta.get("name", target.name) != target.name:
        raise bad_request(f'name in URL does not match name in Binding object: "{target.name}"')
    entry = rest.entry(target)
    old, pod = entry.decode(), entry.decode()
    version = pod["metadata"]["resourceVersion"]
    if meta.get("uid") and meta["uid"] != entry.uid:
        raise precondition_failed(kind, target, "UID", meta["uid"], entry.uid)
    if meta.get("resourceVersion") and meta["resourceVersion"] != version:
        raise precondition_failed(kind, target, "ResourceVersion", meta["resourceVersion"], version)
    if pod["metadata"].get("deletionTimestamp"):
        why = f"pod {target.name} is being deleted, cannot be assigned to a host"
        raise conflict("", "pods/binding", target.name, why)
    spec = pod["spec"]
    if spec.get("nodeName"):
        why = f'pod {target.name} is already assigned to node "{spec["nodeName"]}"'
        raise conflict("", "pods/binding", target.name, why)
    if spec.get("schedulingGates"):
        why = f"pod {target.name} has non-empty .spec.schedulingGates"
        raise conflict("", "pods/binding", target.name, why)
    spec["nodeName"] = node
    for field in ("annotations", "labels"):
        if meta.get(field):
            pod["metadata"][field] = {**(pod["metadata"].get(field) or {}), **meta[field]}
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now(rest.clock),
    }
    set_condition(pod.setdefault("status", {}), scheduled)
    if not request.dry_run:
        rest.managers.updated(pod, old, request.writer, kind, "binding")
        rest.commit(kind, old, pod)
    return reply(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201
    )


async def evict(rest: Rest, request: Request, target: Target, eviction: Json) -> Reply:
    """POST pods/NAME/eviction: delete the pod unless a disruption budget forbids it (429)."""
    given = eviction.get("deleteOptions") or {}
    conditions = given.get("preconditions") or {}
    options = DeleteOptions(
        given.get("gracePeriodSeconds"),
        given.get("propagationPolicy") or "",
        conditions.get("uid"),
        conditions.get("resourceVersion"),
        request.dry_run or bool(given.get("dryRun")),
    )
    entry = rest.entry(target)
    pod = entry.decode()
    phase = (pod.get("status") or {}).get("phase")
    if phase not in ("Succeeded", "Failed", "Pending") and not pod["metadata"].get("deletionTimestamp"):
        _spend_budget(rest, target, pod, dry_run=options.dry_run)
    await rest.delete(request, target, options)
    return reply(success_status({}) | {"code": 201}, 201)


def _spend_budget(rest: Rest, target: Target, pod: Json, *, dry_run: bool) -> None:
    budgets = rest.store.collection(("policy", "poddisruptionbudgets"))
    labels = pod["metadata"].get("labels") or {}
    mine = []
    for entry in budgets.in_order(target.namespace):
        budget = entry.decode()
        selector = (budget.get("spec") or {}).get("selector")
        if selector is not None and label_selector(selector).matches(labels):
            mine.append((entry, budget))
    if len(mine) > 1:
        raise Failure(
            500,
            "InternalError",
            "This pod has more than one PodDisruptionBudget, which the eviction subresource "
            "does not support.",
        )
    for entry, budget in mine:
        policy = (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy")
        ready = any(
            one.get("type") == "Ready" and one.get("status") == "True"
            for one in (pod.get("status") or {}).get("conditions") or ()
        )
        if not ready and policy == "AlwaysAllow":
            continue
        allowed, healthy, desired = _allowance(rest, target.namespace, budget)
        if allowed <= 0:
            name = entry.key[1]
            raise Failure(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details={
                    "causes": [
                        {
                            "reason": "DisruptionBudget",
                            "message": f"The disruption budget {name} needs {desired} healthy pods and has "
                            f"{healthy} currently",
                        }
                    ]
                },
            )


def _allowance(rest: Rest, namespace: str, budget: Json) -> tuple[int, int, int]:
    """(disruptions allowed, healthy now, healthy needed), counted afresh from the pods themselves."""
    spec = budget.get("spec") or {}
    selector = label_selector(spec.get("selector"))
    total = healthy = 0
    for entry in rest.store.collection(("", "pods")).in_order(namespace):
        if not selector.matches(entry.labels) or entry.field("status.phase") in ("Succeeded", "Failed"):
            continue
        pod = entry.decode()
        total += 1
        ready = any(
            one.get("type") == "Ready" and one.get("status") == "True"
            for one in (pod.get("status") or {}).get("conditions") or ()
        )
        healthy += ready and not pod["metadata"].get("deletionTimestamp")
    if spec.get("maxUnavailable") is not None:
        desired = total - _share(spec["maxUnavailable"], total)
    else:
        desired = _share(spec.get("minAvailable", 1), total)
    return healthy - max(desired, 0), healthy, max(desired, 0)


def _share(value: int | str, total: int) -> int:
    """An IntOrString of a total; percentages round up, as the disruption controller does."""
    if isinstance(value, str) and value.endswith("%"):
        return -(-int(value[:-1]) * total // 100)
    return int(value)
