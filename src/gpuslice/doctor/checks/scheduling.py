"""Checks that our scheduler and extender exist, run, have a leader and are configured."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from gpuslice import names
from gpuslice.config.reader import load_yaml
from gpuslice.doctor.checks.say import brief, moment, plural
from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.ours import Scheduler, failure
from gpuslice.errors import InputError

LEASE_STALE_AFTER: Final = timedelta(seconds=60)
"""A holder renews every 2 s; another one takes over after 15 s."""


def check(facts: Facts, now: datetime) -> Iterator[Finding]:
    """Every scheduler of ours."""
    if not facts.installed:
        return
    if not facts.schedulers and not facts.in_one_process and "deployments" not in facts.blind:
        yield Finding(
            Area.SCHEDULER,
            "scheduler-not-installed",
            Level.ERROR,
            "Deployment",
            "there is no Deployment of gpuslice's extender or scheduler in the cluster, so nobody chooses "
            "GPUs",
            "helm upgrade --install gpuslice deploy/helm/gpuslice -n gpuslice-system",
        )
    for one in facts.schedulers:
        yield from _living(facts, one, now)
        yield from _configured(facts, one)


def _living(facts: Facts, one: Scheduler, now: datetime) -> Iterator[Finding]:
    if "pods" in facts.blind:
        return
    where = one.workload.where
    broken = [(pod, words) for pod in one.pods if (words := failure(pod))]
    ready = len(one.pods) - len(broken)
    if not ready:
        said = next(
            (e.message for e in reversed(facts.events) if e.involved_object.name == one.workload.name), ""
        )
        why = brief(broken[0][1] if broken else said)
        last = brief(facts.last_words.get(broken[0][0].key, "")) if broken else ""
        target = (
            f"logs {broken[0][0].name} --all-containers"
            if broken
            else f"describe deployment {one.workload.name}"
        )
        yield Finding(
            Area.SCHEDULER,
            "scheduler-down",
            Level.ERROR,
            where,
            f"no pod of {where} is ready, so no pod gets a GPU{f': {why}' if why else ''}"
            + (f"; its last line: {last}" if last else ""),
            f"kubectl -n {one.workload.namespace} {target}",
            {"pods": len(one.pods)},
        )
        return
    for pod, words in broken:
        yield Finding(
            Area.SCHEDULER,
            "scheduler-replica-down",
            Level.WARNING,
            f"Pod/{pod.key}",
            f"pod {pod.key}, one of {plural(len(one.pods), 'replica')} of {where}, is not ready: "
            f"{brief(words)}",
            f"kubectl -n {pod.namespace} logs {pod.name} --all-containers",
        )
    for key in one.leases:
        yield from _led(facts, one, key, now)


def _led(facts: Facts, one: Scheduler, key: str, now: datetime) -> Iterator[Finding]:
    if "leases" in facts.blind:
        return
    lease = facts.leases.get(key)
    renewed = moment(lease.spec.renew_time) if lease and lease.spec.holder_identity else None
    if renewed is not None and now - renewed <= LEASE_STALE_AFTER:
        return
    if lease is None:
        why = "does not exist"
    elif renewed is None:
        why = "has no holder"
    else:
        why = f"was renewed {int((now - renewed).total_seconds())} s ago by {lease.spec.holder_identity}"
    namespace, _, name = key.partition("/")
    verb = "update" if one.mode == "bundled" else "patch"  # kube-scheduler's way, and ours
    yield Finding(
        Area.SCHEDULER,
        "no-leader",
        Level.ERROR,
        f"Lease/{key}",
        f"no replica of {one.workload.where} acts: the Lease {key} {why}",
        f"kubectl auth can-i {verb} leases/{name} -n {namespace} "
        f"--as=system:serviceaccount:{namespace}:{one.workload.spec.template.spec.service_account_name}"
        f"\nkubectl -n {namespace} rollout restart deployment {one.workload.name}",
    )


def _configured(facts: Facts, one: Scheduler) -> Iterator[Finding]:
    """Does the kube-scheduler beside our extender ask it, at the port where it listens?"""
    if one.mode == "extender":
        yield from _extender_service(facts, one)
    if one.mode != "bundled" or "configmaps" in facts.blind:
        return
    for key in one.configs or ("",):
        texts = (facts.configs[key].data or {}).values() if key in facts.configs else ()
        problem = ""
        if not texts:
            problem = f"its ConfigMap {key or 'with the configuration'} does not exist"
        else:
            extender = _our_extender([document(text) for text in texts])
            port = one.option("listen").rpartition(":")[2]
            if extender is None:
                problem = f"no extender in ConfigMap {key} manages {names.GPU_MEM}"
            elif port and f":{port}/" not in f"{extender.get('urlPrefix', '')}/":
                asked = extender.get("urlPrefix")
                problem = f"ConfigMap {key} asks {asked}, but the extender listens on port {port}"
        if problem:
            yield Finding(
                Area.SCHEDULER,
                "extender-not-configured",
                Level.ERROR,
                one.workload.where,
                f"the kube-scheduler in {one.workload.where} does not ask our extender: {problem}",
                f"helm upgrade gpuslice deploy/helm/gpuslice -n {one.workload.namespace} --reuse-values "
                "--force",
            )


def _extender_service(facts: Facts, one: Scheduler) -> Iterator[Finding]:
    if "services" in facts.blind or "endpointslices" in facts.blind:
        return
    for service in facts.services:
        if service.namespace != one.workload.namespace:
            continue
        if (service.spec.selector or {}).get(names.LABEL_LEADER) != "true":
            continue
        if sum(
            s.ready for s in facts.slices if s.service == service.name and s.namespace == service.namespace
        ):
            continue
        yield Finding(
            Area.SCHEDULER,
            "extender-no-endpoint",
            Level.ERROR,
            f"Service/{service.key}",
            f"Service {service.key} leads nowhere: no ready pod has the label {names.LABEL_LEADER}=true, so "
            "kube-scheduler cannot ask the extender",
            f"kubectl -n {service.namespace} rollout restart deployment {one.workload.name}",
        )


def document(text: str) -> dict[str, object]:
    """YAML that should be a mapping; empty if it is not."""
    try:
        found = load_yaml(text)
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}


def _our_extender(documents: list[dict[str, object]]) -> dict[str, object] | None:
    """The extender of a KubeSchedulerConfiguration that is asked about GPU memory."""
    for document in documents:
        extenders = document.get("extenders")
        for one in extenders if isinstance(extenders, list) else ():
            managed = one.get("managedResources") if isinstance(one, dict) else None
            if any(isinstance(m, dict) and m.get("name") == names.GPU_MEM for m in managed or ()):
                return dict(one)
    return None
