"""Finds pods that see GPUs they did not ask for, and pods that only a taint keeps waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gpuslice import names
from gpuslice.cluster.predicates import NodeCode, NodeRules, node_refusal, rules_of, untolerated
from gpuslice.doctor.checks.rivals import plugin_of
from gpuslice.doctor.checks.say import listed, template_of
from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.objects import Pod
from gpuslice.requests.pod import PodRequest

SEES_NOTHING: Final = frozenset({"", "void", "none"})
"""Values of NVIDIA_VISIBLE_DEVICES that show no GPU."""
INFRASTRUCTURE: Final = ("dcgm-exporter", "gpu-feature-discovery", "gpu-operator", "nvidia-mig-manager")
"""Images that are meant to see every GPU."""


def check(facts: Facts) -> Iterator[Finding]:
    """Visibility, then taints."""
    for pods, make in _grouped(facts):
        yield make(pods)
    yield from _tainted(facts)


def _grouped(facts: Facts) -> Iterator[tuple[list[Pod], Callable[[list[Pod]], Finding]]]:
    """Pods of one controller with the same fault make one finding."""
    found: dict[tuple[str, str], list[Pod]] = {}
    for pod in facts.pods:
        view = facts.views.get(pod.spec.node_name)
        if not pod.alive or _is_infrastructure(facts, pod) or not (view and view.gpus):
            continue
        fault = _fault(facts, pod)
        if fault:
            found.setdefault((fault, pod.owner.uid if pod.owner else pod.uid), []).append(pod)
    for (fault, _), pods in found.items():
        yield pods, _FINDINGS[fault]


def _is_infrastructure(facts: Facts, pod: Pod) -> bool:
    if plugin_of(pod) or pod.uid in facts.agents.uids:
        return True
    return any(word in container.image for container in pod.spec.containers for word in INFRASTRUCTURE)


def _fault(facts: Facts, pod: Pod) -> str:
    """The worst that is wrong with a pod on a node with GPUs; "" if nothing."""
    asks = bool(facts.request(pod))
    if _sets_visible(pod):
        return "overrides" if asks else "sees"
    paths = [volume.host_path.path.rstrip("/") for volume in pod.spec.volumes or () if volume.host_path]
    if any(path.startswith("/dev/nvidia") for path in paths):
        return "mounts"
    # The system's own pods (kube-proxy, network, storage) are privileged nearly everywhere.
    kind = pod.owner.kind if pod.owner else ""
    if not asks and pod.namespace != "kube-system" and kind not in ("DaemonSet", "Node"):
        contexts = (container.security_context for container in pod.spec.all_containers)
        if any(context and context.privileged for context in contexts):
            return "privileged"
    return ""


def _sets_visible(pod: Pod) -> bool:
    return any(
        variable.name == names.VISIBLE_DEVICES and variable.value not in SEES_NOTHING
        for container in pod.spec.all_containers
        for variable in container.env or ()
    )


def _is_daemon(pod: Pod) -> bool:
    return pod.owner is not None and pod.owner.kind == "DaemonSet"


def _unset(pod: Pod) -> str:
    if template_of(pod):
        return f"kubectl -n {pod.namespace} set env {template_of(pod)} {names.VISIBLE_DEVICES}-"
    return _anew(pod, f"and make it anew without {names.VISIBLE_DEVICES}")


def _anew(pod: Pod, change: str) -> str:
    target = template_of(pod) or f"pod {pod.name}"
    verb = "edit" if template_of(pod) else "delete"
    return f"kubectl -n {pod.namespace} {verb} {target}   # {change}"


def _overrides(pods: list[Pod]) -> Finding:
    return _visible(
        pods,
        "visibility-overridden",
        Level.ERROR,
        f"sets {names.VISIBLE_DEVICES} itself beside its request, which beats the GPU that it was given: it "
        "may use any GPU of the node",
        _unset(pods[0]),
    )


def _sees(pods: list[Pod]) -> Finding:
    return _visible(
        pods,
        "visibility-unasked",
        Level.WARNING if _is_daemon(pods[0]) else Level.ERROR,
        f"asks for no GPU but sets {names.VISIBLE_DEVICES}: it sees GPUs whose memory was promised to others",
        _unset(pods[0]),
    )


def _mounts(pods: list[Pod]) -> Finding:
    return _visible(
        pods,
        "device-mounted",
        Level.WARNING if _is_daemon(pods[0]) else Level.ERROR,
        "mounts /dev/nvidia* of the host: it sees GPUs whose memory was promised to others",
        _anew(pods[0], f"take the hostPath volume out, and ask for {names.GPU_MEM} instead"),
    )


def _privileged(pods: list[Pod]) -> Finding:
    return _visible(
        pods,
        "privileged",
        Level.WARNING,
        "is privileged and asks for no GPU: on a node with GPUs it can open every one of them",
        _anew(pods[0], "securityContext.privileged: false, or keep it from nodes with GPUs"),
    )


_FINDINGS: Final = {"overrides": _overrides, "sees": _sees, "mounts": _mounts, "privileged": _privileged}


def _visible(pods: list[Pod], code: str, level: Level, what: str, remedy: str) -> Finding:
    first = pods[0]
    others = f" (and {listed(pod.key for pod in pods[1:])} like it)" if pods[1:] else ""
    return Finding(
        Area.PODS,
        code,
        level,
        f"Pod/{first.key}",
        f"pod {first.key}{others} on node {first.spec.node_name} {what}",
        remedy,
        {"pods": len(pods)},
    )


def _tainted(facts: Facts) -> Iterator[Finding]:
    """Pods that would fit somewhere, were it not for taints. Pods that ask for the same get one answer."""
    by_name = {node.name: node for node in facts.nodes}
    waiting: dict[tuple[NodeRules, PodRequest], list[Pod]] = {}
    for pod in facts.pods:
        if pod.alive and not pod.spec.node_name and not pod.spec.scheduling_gates:
            request = facts.request(pod)
            if request:
                waiting.setdefault((rules_of(pod.spec), request), []).append(pod)
    for (rules, request), pods in waiting.items():
        fitting = facts.cluster.filter(request, sorted(by_name)).fits
        refusals = {name: node_refusal(rules, by_name[name]) for name in fitting}
        tainted = [name for name, why in refusals.items() if why and why.code is NodeCode.TAINTED]
        if not tainted or None in refusals.values():
            continue
        name = tainted[0]
        taint = untolerated(rules, by_name[name])
        assert taint is not None
        key = taint.key
        others = f" (and {listed(pod.key for pod in pods[1:])} like it)" if pods[1:] else ""
        yield Finding(
            Area.PODS,
            "pod-taint",
            Level.ERROR,
            f"Pod/{pods[0].key}",
            f"pod {pods[0].key}{others} fits on node {listed(tainted)}, but does not tolerate the taint "
            f"{f'{key}: {taint.value}'.rstrip(': ')} there",
            f"{_anew(pods[0], f'with the toleration {{key: {key}, operator: Exists}}')}\n"
            f"kubectl taint node {name} {key}-   # or take the taint off",
            {"pods": len(pods), "nodes": len(tainted)},
        )
