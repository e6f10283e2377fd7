"""Checks that every GPU node has an agent that runs and is registered with kubelet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from gpuslice import names
from gpuslice.cluster.predicates import tolerated
from gpuslice.doctor.checks.rivals import plugin_of
from gpuslice.doctor.checks.say import brief, listed, moment, plural
from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.objects import DaemonSet, Node, Pod
from gpuslice.doctor.ours import failure
from gpuslice.kube.wire import Taint, Toleration

SETTLED: Final = timedelta(seconds=30)
"""A kubelet writes its node's resources every ten seconds when they have changed."""
HELM_RELEASE: Final = "meta.helm.sh/release-name"
ALWAYS: Final = tuple(
    Toleration(f"node.kubernetes.io/{key}", "Exists")
    for key in (
        "not-ready",
        "unreachable",
        "disk-pressure",
        "memory-pressure",
        "pid-pressure",
        "unschedulable",
        "network-unavailable",
    )
)
"""What the DaemonSet controller lets its pods tolerate."""


def check(facts: Facts, now: datetime) -> Iterator[Finding]:
    """Agents and plugins, node by node."""
    yield from _not_installed(facts)
    yield from _empty_pool(facts)
    for node in facts.nodes:
        yield from _on_node(facts, node, now)
        yield from _sick(node)


def untolerated(daemonset: DaemonSet, node: Node) -> Taint | None:
    """The taint that keeps a DaemonSet's pods from a node."""
    tolerations = (*(daemonset.spec.template.spec.tolerations or ()), *ALWAYS)
    return next(
        (
            taint
            for taint in node.spec.taints or ()
            if taint.effect in ("NoSchedule", "NoExecute") and not tolerated(taint, tolerations)
        ),
        None,
    )


def _offers(facts: Facts, node: Node) -> bool:
    """Has it an agent's GPUs, and has kubelet any to hand out? Then an agent is alive, wherever it runs."""
    return names.NODE_GPUS in node.annotations and facts.serves(node)


def _not_installed(facts: Facts) -> Iterator[Finding]:
    if facts.agents.workloads or facts.in_one_process or not facts.installed or "daemonsets" in facts.blind:
        return
    bare = [
        node.name
        for node in facts.pool
        if not _offers(facts, node) and not any(plugin_of(pod) for pod in facts.pods_on(node.name))
    ]
    if bare or not facts.pool:
        yield Finding(
            Area.AGENT,
            "agent-not-installed",
            Level.ERROR,
            "DaemonSet",
            "there is no DaemonSet of gpuslice's agent in the cluster"
            + (f", so node {listed(bare)} with the label gpushare=true offers no GPU" if bare else ""),
            "helm upgrade --install gpuslice deploy/helm/gpuslice -n gpuslice-system",
            {"nodes": len(bare)},
        )


def _empty_pool(facts: Facts) -> Iterator[Finding]:
    if not facts.agents.workloads or facts.pool or "nodes" in facts.blind:
        return
    daemonset = facts.agents.workloads[0]
    selector = daemonset.spec.template.spec.node_selector or {names.LABEL_GPUSHARE: "true"}
    labels = " ".join(f"{key}={value}" for key, value in selector.items())
    yield Finding(
        Area.AGENT,
        "pool-empty",
        Level.ERROR,
        daemonset.where,
        f"no node has the label {labels}, so {daemonset.where} runs no agent and there is no GPU to share",
        f"kubectl label node NODE {labels}",
    )


def _on_node(facts: Facts, node: Node, now: datetime) -> Iterator[Finding]:
    view = facts.views[node.name]
    agents = facts.agents.on(node.name)
    broken = [(pod, words) for pod in agents if (words := failure(pod))]
    for pod, words in broken:
        last = facts.last_words.get(pod.key, "")
        yield Finding(
            Area.AGENT,
            "agent-failing",
            Level.ERROR,
            f"Pod/{pod.key}",
            f"the agent on node {node.name} (pod {pod.key}) is not ready: {brief(words)}"
            + (f"; its last line: {brief(last)}" if last else ""),
            f"kubectl -n {pod.namespace} logs {pod.name} --previous   # or without --previous",
            {"restarts": max((s.restart_count for s in pod.status.all_statuses), default=0)},
        )
    if view.problem:
        yield Finding(
            Area.AGENT,
            "node-record-damaged",
            Level.ERROR,
            f"Node/{node.name}",
            f"what node {node.name} says about its GPUs cannot be read, so it gets no pod: "
            f"{brief(view.problem)}",
            _restart(facts, node),
        )
    elif broken:
        return
    elif not agents and node.name in facts.pool_names and facts.agents.workloads:
        # An agent that offers units is alive though it is no pod of ours.
        if not _offers(facts, node):
            yield _missing(facts, node, facts.agents.workloads[0])
    elif (agents or facts.in_one_process) and facts.lacks(node) and not _young(agents, now):
        yield _unregistered(facts, node)


def _sick(node: Node) -> Iterator[Finding]:
    """What the agent says of the GPUs' health, in its words."""
    for condition in node.status.conditions or ():
        if condition.type == names.UNHEALTHY_CONDITION and condition.status == "True":
            yield Finding(
                Area.AGENT,
                "gpu-unhealthy",
                Level.WARNING,
                f"Node/{node.name}",
                f"node {node.name} has a sick GPU, which gets no new pod: {brief(condition.message)}",
                f"kubectl describe node {node.name}   # once its pods are gone: nvidia-smi --gpu-reset",
            )


def _young(agents: Sequence[Pod], now: datetime) -> bool:
    """True if an agent has only just come: kubelet tells of a new plugin when it next tells of its node."""
    made = [moment(pod.metadata.creation_timestamp) for pod in agents]
    return any(when is not None and now - when < SETTLED for when in made)


def _tolerate(daemonset: DaemonSet, value: dict[str, str]) -> str:
    """The command that adds a toleration. What Helm owns only Helm may change, or its next upgrade fails."""
    present = daemonset.spec.template.spec.tolerations or ()
    release = daemonset.annotations.get(HELM_RELEASE)
    if release:
        every = [{k: v for k, v in msgspec.to_builtins(one).items() if v} for one in present]
        return (
            f"helm -n {daemonset.namespace} upgrade {release} deploy/helm/gpuslice --reset-then-reuse-values "
            f"--set-json 'agent.tolerations={json.dumps([*every, value])}'"
        )
    path = "/spec/template/spec/tolerations"
    operation = {
        "op": "add",
        "path": f"{path}/-" if present else path,
        "value": value if present else [value],
    }
    return (
        f"kubectl -n {daemonset.namespace} patch daemonset {daemonset.name} --type=json "
        f"-p='{json.dumps([operation])}'"
    )


def _missing(facts: Facts, node: Node, daemonset: DaemonSet) -> Finding:
    taint = untolerated(daemonset, node)
    if taint is not None:
        return Finding(
            Area.AGENT,
            "agent-taint",
            Level.ERROR,
            f"Node/{node.name}",
            f"node {node.name} has the taint {say_taint(taint)}, which {daemonset.where} does not tolerate, "
            "so no agent runs there and its GPUs are not offered",
            _tolerate(daemonset, {"key": taint.key, "operator": "Exists"}),
        )
    said = next((e.message for e in reversed(facts.events) if e.involved_object.name == daemonset.name), "")
    why = f": {brief(said)}" if said else ""
    if not facts.agents.wanted_on(node):
        selector = daemonset.spec.template.spec.node_selector or {}
        wanted = ", ".join(f"{key}={value}" for key, value in selector.items())
        why = f": the DaemonSet wants the label {wanted}"
    return Finding(
        Area.AGENT,
        "agent-missing",
        Level.ERROR,
        f"Node/{node.name}",
        f"no agent of {daemonset.where} runs on node {node.name}, although it has the label "
        f"gpushare=true{why}",
        f"kubectl -n {daemonset.namespace} describe daemonset {daemonset.name}",
    )


def say_taint(taint: Taint) -> str:
    """As kubectl writes it."""
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


def _unregistered(facts: Facts, node: Node) -> Finding:
    gpus = len(facts.views[node.name].gpus)
    resource = facts.lacks(node)
    known = resource in (node.status.allocatable or {})
    return Finding(
        Area.AGENT,
        "plugin-not-registered",
        Level.ERROR,
        f"Node/{node.name}",
        f"the agent of node {node.name} has published {plural(gpus, 'GPU')}, but kubelet offers "
        f"{'0' if known else 'no'} {resource}: the device plugin is not registered with it (another "
        "kubelet folder, or kubelet was restarted and the agent has not noticed)",
        _restart(facts, node),
        {"gpus": gpus},
    )


def _restart(facts: Facts, node: Node) -> str:
    agents = facts.agents.on(node.name)
    if agents:
        return f"kubectl -n {agents[0].namespace} delete pod {agents[0].name}   # it comes back by itself"
    if facts.in_one_process:
        return "restart gpuslice up: this cluster's agents run in its process"
    return f"kubectl label node {node.name} {names.LABEL_GPUSHARE}=true   # its agent writes it anew"
