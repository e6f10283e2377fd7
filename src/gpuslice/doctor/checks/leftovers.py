"""Finds records of things that no longer exist (GPUs, agents, nodes), and pods that their node never
confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from gpuslice import names
from gpuslice.cluster.nodes import read_unhealthy
from gpuslice.doctor.checks.path import RECORDS
from gpuslice.doctor.checks.say import listed
from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.objects import Pod
from gpuslice.units import read_digits

CONFIRMED_AFTER: Final = timedelta(minutes=5)
"""The agent confirms a pod's GPU when its container starts, or a second later."""


def check(facts: Facts, now: datetime) -> Iterator[Finding]:
    """Pods, nodes, ConfigMaps."""
    for pod in facts.pods:
        yield from _pod(facts, pod, now)
    yield from _nodes(facts)
    yield from _marks(facts)


def _pod(facts: Facts, pod: Pod, now: datetime) -> Iterator[Finding]:
    record = facts.cluster.pod(pod.uid)
    view = facts.views.get(pod.spec.node_name)
    if record is None or view is None or view.problem:
        return
    written = [key for key in RECORDS if key in pod.annotations]
    if record.allocation is None and written:
        yield Finding(
            Area.LEFTOVERS,
            "pod-record-stale",
            Level.ERROR,
            f"Pod/{pod.key}",
            f"pod {pod.key} is recorded on a GPU that node {view.name} does not have "
            f"({written[0]}={pod.annotations[written[0]]}); its memory is counted by guess",
            f"kubectl -n {pod.namespace} delete pod {pod.name}   # it is placed anew",
        )
        return
    since = _nanoseconds(pod.annotations.get(names.MEM_ASSUME_TIME, ""))
    if (
        pod.annotations.get(names.MEM_ASSIGNED) == "false"
        and pod.status.phase == "Running"
        and since is not None
        and now - since > CONFIRMED_AFTER
    ):
        minutes = int((now - since).total_seconds() // 60)
        yield Finding(
            Area.LEFTOVERS,
            "never-confirmed",
            Level.WARNING,
            f"Pod/{pod.key}",
            f"pod {pod.key} has run on node {view.name} for {minutes} minutes, but the node never confirmed "
            f"its GPU ({names.MEM_ASSIGNED}=false): did its agent see it start?",
            f"kubectl -n {pod.namespace} exec {pod.name} -- env | grep -e NVIDIA_VISIBLE_DEVICES -e "
            "ALIYUN_COM",
            {"minutes": minutes},
        )


def _nanoseconds(text: str) -> datetime | None:
    stamp = read_digits(text, 2**63 - 1)
    return None if stamp is None else datetime.fromtimestamp(stamp // 1_000_000_000, UTC)


def _nodes(facts: Facts) -> Iterator[Finding]:
    """GPUs published by an agent that has gone for good. Pods that still run need them to be counted."""
    for node in facts.nodes:
        if (
            names.NODE_GPUS in node.annotations
            and not facts.views[node.name].problem
            and node.name not in facts.pool_names
            and not facts.agents.on(node.name)
            and not facts.units(node)
            and not facts.in_one_process
            and not facts.cluster.pods_on(node.name)
        ):
            yield Finding(
                Area.LEFTOVERS,
                "node-record-orphaned",
                Level.WARNING,
                f"Node/{node.name}",
                f"node {node.name} still has the annotation {names.NODE_GPUS}, but it is not in the pool "
                "and has no agent",
                f"kubectl annotate node {node.name} {names.NODE_GPUS}- {names.MEMORY_UNIT}-",
            )


def _marks(facts: Facts) -> Iterator[Finding]:
    if "nodes" in facts.blind:
        return
    for one in facts.marks:
        if not one.name.startswith(names.UNHEALTHY_PREFIX):
            continue
        node = one.name.removeprefix(names.UNHEALTHY_PREFIX)
        view = facts.views.get(node)
        remove = f"kubectl -n {one.namespace} delete configmap {one.name}"
        if view is None:
            yield Finding(
                Area.LEFTOVERS,
                "unhealthy-map-orphaned",
                Level.WARNING,
                f"ConfigMap/{one.key}",
                f"ConfigMap {one.key} marks GPUs of node {node}, which does not exist: a new node of that "
                "name would lose them",
                remove,
            )
            continue
        text = (one.data or {}).get(names.UNHEALTHY_KEY, "")
        unknown = sorted(read_unhealthy(text) - {held.gpu.index for held in view.gpus})
        if unknown and view.gpus:
            yield Finding(
                Area.LEFTOVERS,
                "unhealthy-map-index",
                Level.WARNING,
                f"ConfigMap/{one.key}",
                f"ConfigMap {one.key} marks GPU {listed(map(str, unknown))}, which node {node} does not have",
                f"kubectl -n {one.namespace} edit configmap {one.name}",
            )
