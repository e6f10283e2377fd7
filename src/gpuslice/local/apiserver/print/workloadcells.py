"""The cells of pods and of what makes pods."""

from __future__ import annotations

from typing import Any

from gpuslice.local.apiserver.print.cells import (
    NONE,
    age,
    born,
    condition,
    count,
    duration,
    is_true,
    pairs,
    seconds_of,
    template_of,
)
from gpuslice.local.apiserver.schema.status import Json


def pod_status(pod: Json) -> tuple[str, int, int, int, str | None]:
    """(STATUS, ready containers, all containers, restarts, time of the last restart)."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    inits = {one.get("name"): one for one in spec.get("initContainers") or ()}
    sidecars = {name for name, one in inits.items() if one.get("restartPolicy") == "Always"}
    text = status.get("reason") or status.get("phase") or ""
    scheduled = condition(pod, "PodScheduled") or {}
    if scheduled.get("reason") == "SchedulingGated":
        text = "SchedulingGated"
    ready, total = 0, len(spec.get("containers") or ()) + len(sidecars)
    restarts, sidecar_restarts = 0, 0
    last: list[str] = []
    initializing = False

    def note_restart(one: Json) -> None:
        ended = ((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
        if ended:
            last.append(ended)

    for index, one in enumerate(status.get("initContainerStatuses") or ()):
        restarts += one.get("restartCount") or 0
        note_restart(one)
        sidecar = one.get("name") in sidecars
        if sidecar:
            sidecar_restarts += one.get("restartCount") or 0
        state = one.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None and not ended.get("exitCode"):
            continue
        if sidecar and one.get("started"):
            ready += bool(one.get("ready"))
            continue
        if ended is not None:
            text = "Init:" + _end(ended)
        elif waiting.get("reason") and waiting["reason"] != "PodInitializing":
            text = "Init:" + waiting["reason"]
        else:
            text = f"Init:{index}/{len(inits)}"
        initializing = True
        break
    if not initializing or is_true(pod, "Initialized"):
        restarts, running = sidecar_restarts, False
        for one in reversed(status.get("containerStatuses") or ()):
            restarts += one.get("restartCount") or 0
            note_restart(one)
            state = one.get("state") or {}
            ended, waiting = state.get("terminated"), state.get("waiting") or {}
            if waiting.get("reason"):
                text = waiting["reason"]
            elif ended is not None:
                text = _end(ended)
            elif one.get("ready") and state.get("running") is not None:
                running = True
                ready += 1
        if text == "Completed" and running:
            text = "Running" if is_true(pod, "Ready") else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            text = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            text = "Terminating"
    return text, ready, total, restarts, max(last, default=None)


def _end(ended: Json) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def pod(pod: Json, moment: int) -> list[Any]:
    text, ready, total, restarts, last = pod_status(pod)
    again = f"{restarts} ({age(last, moment)} ago)" if restarts and last else str(restarts)
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    gates = spec.get("readinessGates") or ()
    met = sum(is_true(pod, gate.get("conditionType", "")) for gate in gates)
    return [
        f"{ready}/{total}",
        text,
        again,
        born(pod, moment),
        status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{met}/{len(gates)}" if gates else NONE,
    ]


def deployment(obj: Json, moment: int) -> list[Any]:
    want = (obj.get("spec") or {}).get("replicas") or 0
    return [
        f"{count(obj, 'readyReplicas')}/{want}",
        str(count(obj, "updatedReplicas")),
        str(count(obj, "availableReplicas")),
        born(obj, moment),
        *template_of(obj),
    ]


def replicas(obj: Json, moment: int) -> list[Any]:
    want = (obj.get("spec") or {}).get("replicas") or 0
    have = [want, count(obj, "replicas"), count(obj, "readyReplicas"), born(obj, moment)]
    names, images, selector = template_of(obj)
    if obj.get("kind") == "ReplicationController":
        selector = pairs((obj.get("spec") or {}).get("selector"))
    return [*have, names, images, selector]


def statefulset(obj: Json, moment: int) -> list[Any]:
    want = (obj.get("spec") or {}).get("replicas") or 0
    return [f"{count(obj, 'readyReplicas')}/{want}", born(obj, moment), *template_of(obj)[:2]]


def daemonset(obj: Json, moment: int) -> list[Any]:
    names = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    nodes = (((obj.get("spec") or {}).get("template") or {}).get("spec") or {}).get("nodeSelector")
    return [*(count(obj, name) for name in names), pairs(nodes), born(obj, moment), *template_of(obj)]


def job(obj: Json, moment: int) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    done, parallel = status.get("succeeded") or 0, spec.get("parallelism") or 0
    if spec.get("completions") is not None:
        completions = f"{done}/{spec['completions']}"
    else:
        completions = f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"
    start, end = seconds_of(status.get("startTime")), seconds_of(status.get("completionTime"))
    took = "" if start is None else duration((moment if end is None else end) - start)
    if is_true(obj, "Complete"):
        text = "Complete"
    elif is_true(obj, "Failed"):
        text = "Failed"
    elif obj["metadata"].get("deletionTimestamp"):
        text = "Terminating"
    elif is_true(obj, "Suspended"):
        text = "Suspended"
    else:
        text = "FailureTarget" if is_true(obj, "FailureTarget") else "Running"
    return [text, completions, took, born(obj, moment), *template_of(obj)]


def cronjob(obj: Json, moment: int) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    last = status.get("lastScheduleTime")
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    return [
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        bool(spec.get("suspend")),
        len(status.get("active") or ()),
        age(last, moment) if last else NONE,
        born(obj, moment),
        *template_of({"spec": job}),
    ]
