"""Checks that pods asking for GPU memory reach our extender or scheduler, not one that knows nothing of
GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from gpuslice import names
from gpuslice.doctor.checks.say import brief, listed, moment, plural, template_of
from gpuslice.doctor.checks.scheduling import document
from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.objects import Pod
from gpuslice.doctor.ours import failure, runs_kube_scheduler

DEFAULT: Final = "default-scheduler"
LOOKED_AT_AFTER: Final = timedelta(seconds=60)
"""A scheduler that is there looks at a pod within a second; after this nobody does."""
RECORDS: Final = (names.ALLOCATION, names.GPUSHARE_ALLOCATION, names.MEM_IDX)
REFUSED_BY_GPUSHARE: Final = "no-gpu-has-"
"""What gpushare's plugin gives a container as its GPU if no extender has chosen one."""


def check(facts: Facts, now: datetime) -> Iterator[Finding]:
    """Is everybody who binds such pods asking us?"""
    if not facts.installed:
        return
    yield from _kube_scheduler_wired(facts)
    yield from _bypassed(facts)
    yield from _unserved(facts, now)
    yield from _unreachable(facts)


def _kube_schedulers(facts: Facts) -> list[Pod]:
    """The cluster's own, where they can be seen (managed control planes hide theirs)."""
    return [
        pod
        for pod in facts.pods
        if pod.namespace == "kube-system"
        and any(runs_kube_scheduler(container) for container in pod.spec.containers)
        and not any(one.workload.owns(pod) for one in facts.schedulers)
    ]


def _has_config(pod: Pod) -> bool:
    starts = ("--config", "--policy-config-file", "--policy-configmap")
    return any(word.startswith(starts) for c in pod.spec.containers for word in c.words)


def _unwired(facts: Facts) -> list[Pod]:
    return [pod for pod in _kube_schedulers(facts) if not _has_config(pod)]


def served_names(facts: Facts) -> frozenset[str]:
    """The spec.schedulerName for whose pods our extender or scheduler is asked."""
    if facts.in_one_process:
        return frozenset((DEFAULT, names.SCHEDULER_NAME))
    found: set[str] = set()
    for one in facts.schedulers:
        if one.mode == "own":
            found.add(names.SCHEDULER_NAME)
        elif one.mode == "bundled":
            profiles = [
                profile
                for key in one.configs
                if key in facts.configs
                for text in (facts.configs[key].data or {}).values()
                for profile in _profiles(document(text))
            ]
            found |= set(profiles or [one.option("scheduler-name") or names.SCHEDULER_NAME])
        elif not _unwired(facts):
            found.add(DEFAULT)
    if any(_has_config(pod) for pod in _kube_schedulers(facts)):
        found.add(DEFAULT)
    return frozenset(found)


def _profiles(document: dict[str, object]) -> list[str]:
    profiles = document.get("profiles")
    return [
        str(one["schedulerName"])
        for one in (profiles if isinstance(profiles, list) else ())
        if isinstance(one, dict) and "schedulerName" in one
    ]


def _kube_scheduler_wired(facts: Facts) -> Iterator[Finding]:
    extenders = [one for one in facts.schedulers if one.mode == "extender"]
    for pod in _unwired(facts) if extenders else ():
        yield Finding(
            Area.SCHEDULER,
            "kube-scheduler-not-wired",
            Level.ERROR,
            f"Pod/{pod.key}",
            f"kube-scheduler (pod {pod.key}) has no --config on its command line, so it never asks the "
            f"extender of {extenders[0].workload.where}, and no GPU is chosen for any pod",
            f"{_wire(facts)}   # on node {pod.spec.node_name}",
        )


def _wire(facts: Facts) -> str:
    """The command that puts the extender into kube-scheduler's path."""
    addresses = [
        service.spec.cluster_ip
        for service in facts.services
        if (service.spec.selector or {}).get(names.LABEL_LEADER) == "true" and service.spec.cluster_ip
    ]
    return (
        f"sudo gpuslice install scheduler-config --url https://{addresses[0] if addresses else 'ADDRESS'} "
        "--ca ca.crt --manifest /etc/kubernetes/manifests/kube-scheduler.yaml"
    )


def _scheduler_of(pod: Pod) -> str:
    return pod.spec.scheduler_name or DEFAULT


def asks_for_memory(facts: Facts, pod: Pod) -> bool:
    """True for a living pod that asks for GPU memory, by the rules of the scheduler."""
    return pod.alive and facts.request(pod).units > 0


def _bypassed(facts: Facts) -> Iterator[Finding]:
    """Pods that were bound by somebody who did not ask us, or will be."""
    served = served_names(facts)
    found: dict[str, list[Pod]] = {}
    for pod in facts.pods:
        if not asks_for_memory(facts, pod):
            continue
        recorded = any(key in pod.annotations for key in RECORDS)
        scheduler = _scheduler_of(pod)
        # The agent records the GPU of a pod that nobody planned, too. Older pods may be gpushare's work.
        unasked = scheduler == DEFAULT and scheduler not in served and _is_younger(pod, facts)
        if unasked or (pod.spec.node_name and not recorded):
            found.setdefault(scheduler, []).append(pod)
    for scheduler, pods in found.items():
        yield _bypass(facts, scheduler, pods, served)


def _rename(pod: Pod, scheduler: str) -> list[str]:
    """The steps that give a pod to another scheduler."""
    if not template_of(pod):
        again = f"and make it anew with spec.schedulerName: {scheduler}"
        return [f"kubectl -n {pod.namespace} delete pod {pod.name}   # {again}"]
    patch = json.dumps({"spec": {"template": {"spec": {"schedulerName": scheduler}}}})
    return [f"kubectl -n {pod.namespace} patch {template_of(pod)} -p='{patch}'"]


def _is_younger(pod: Pod, facts: Facts) -> bool:
    """True if the pod was made when our scheduler was there already, or still waits."""
    made = [one.workload.metadata.creation_timestamp or "" for one in facts.schedulers]
    return bool(made) and (not pod.spec.node_name or (pod.metadata.creation_timestamp or "") >= min(made))


def _bypass(facts: Facts, scheduler: str, pods: list[Pod], served: frozenset[str]) -> Finding:
    bound = [pod for pod in pods if pod.spec.node_name]
    first, ours = pods[0], sorted(served - {DEFAULT})
    if bound:
        sentence = (
            f"{plural(len(bound), 'pod')} asking for {names.GPU_MEM} ({listed(pod.key for pod in bound)}) "
            f"got a node from {scheduler} without the extender being asked"
        )
    else:
        sentence = (
            f"{plural(len(pods), 'pod')} asking for {names.GPU_MEM} ({listed(pod.key for pod in pods)}) "
            f"wait for {scheduler}, which does not ask the extender"
        )
    extender = any(one.mode == "extender" for one in facts.schedulers)
    if scheduler == DEFAULT and _unwired(facts):
        sentence += "; kube-scheduler has no --config on its command line"
    steps = [f"kubectl -n {first.namespace} delete pod {first.name}   # its controller makes it anew"]
    if scheduler == DEFAULT and extender and DEFAULT not in served:
        steps.insert(0, _wire(facts))
    elif ours and scheduler not in served:
        steps = _rename(first, ours[0])
    return Finding(
        Area.SCHEDULER,
        "extender-bypassed",
        Level.ERROR,
        f"Pod/{first.key}",
        sentence,
        "\n".join(steps),
        {"pods": len(pods), "bound": len(bound)},
    )


def _unserved(facts: Facts, now: datetime) -> Iterator[Finding]:
    """Pods that no scheduler has looked at: nobody answers to that name."""
    found: dict[str, list[Pod]] = {}
    for pod in facts.pods:
        made = moment(pod.metadata.creation_timestamp)
        if (
            asks_for_memory(facts, pod)
            and not pod.spec.node_name
            and not pod.spec.scheduling_gates
            and pod.status.condition("PodScheduled") is None
            and made is not None
            and now - made > LOOKED_AT_AFTER
        ):
            found.setdefault(_scheduler_of(pod), []).append(pod)
    served = served_names(facts)
    for scheduler, pods in found.items():
        known = sorted(served)
        hint = f"; ours are called {listed(known)}" if known and scheduler not in served else ""
        remedy = f"kubectl -n {pods[0].namespace} get pod {pods[0].name} -o yaml | grep schedulerName"
        if known and scheduler not in served:
            remedy = "\n".join(_rename(pods[0], known[-1]))
        elif facts.schedulers:
            one = facts.schedulers[0].workload
            remedy = f"kubectl -n {one.namespace} rollout restart deployment {one.name}"
        yield Finding(
            Area.SCHEDULER,
            "scheduler-unknown",
            Level.ERROR,
            f"Pod/{pods[0].key}",
            f"no scheduler has looked at {plural(len(pods), 'pod')} asking for {names.GPU_MEM} "
            f"({listed(pod.key for pod in pods)}) with schedulerName {scheduler}{hint}",
            remedy,
            {"pods": len(pods)},
        )


def _unreachable(facts: Facts) -> Iterator[Finding]:
    """What kube-scheduler says if the extender does not answer, and gpushare's plugin if nobody asked it."""
    for pod in facts.pods:
        scheduled = pod.status.condition("PodScheduled")
        said = scheduled.message if scheduled and not pod.spec.node_name else ""
        if f"{names.EXTENDER_PREFIX}/" in said:
            yield Finding(
                Area.SCHEDULER,
                "extender-unreachable",
                Level.ERROR,
                f"Pod/{pod.key}",
                f"{_scheduler_of(pod)} cannot reach the extender for pod {pod.key}: {brief(said)}",
                "kubectl get pods -A -l app.kubernetes.io/name=gpuslice -o wide   # and compare its address "
                "with the urlPrefix in kube-scheduler's configuration",
            )
            return
    for pod in facts.pods:
        words = failure(pod) if pod.alive and pod.spec.node_name else ""
        if REFUSED_BY_GPUSHARE in words:
            yield Finding(
                Area.SCHEDULER,
                "gpushare-refused",
                Level.ERROR,
                f"Pod/{pod.key}",
                f"gpushare's device plugin on node {pod.spec.node_name} found no GPU chosen for pod "
                f"{pod.key}, which cannot heal: {brief(words)}",
                f"kubectl -n {pod.namespace} delete pod {pod.name}   # after the extender is wired",
            )
            return
