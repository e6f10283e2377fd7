"""Finds other programs that give out the same GPUs: other device plugins, gpushare's extender beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuslice import names
from gpuslice.doctor.checks.say import listed, plural
from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.objects import Node, Pod
from gpuslice.errors import InputError
from gpuslice.node.report.featuredaemon import CONTAINER as DAEMON
from gpuslice.units import parse_count

PLUGINS: Final = (
    "nvidia-device-plugin",
    "k8s-device-plugin",
    "gpushare-device-plugin",
    "k8s-gpushare-plugin",
)
"""What the image or command of a device plugin that offers the same resources contains."""
EXTENDERS: Final = ("gpushare-schd-extender", "gpushare-sche-extender")


def check(facts: Facts) -> Iterator[Finding]:
    """Other plugins, other extenders, other counts."""
    yield from _plugins(facts)
    yield from _extenders(facts)
    yield from _feature_discovery(facts)
    for node in facts.nodes:
        yield from _counts(node, facts)


def plugin_of(pod: Pod) -> str:
    """Which rival device plugin a pod runs; "" for any other pod."""
    return _runs(pod, PLUGINS)


def _runs(pod: Pod, wanted: tuple[str, ...]) -> str:
    words = [word for c in pod.spec.containers for word in (c.image, c.name, *c.words[:1])]
    return next((name for name in wanted if any(name in word for word in words)), "")


def _controller(pod: Pod) -> tuple[str, str]:
    """`DaemonSet/kube-system/x` and the command that ends it."""
    if pod.controller is None:
        return f"Pod/{pod.key}", f"kubectl -n {pod.namespace} delete pod {pod.name}"
    kind, name = pod.controller
    if kind == "Node":
        file = f"remove its file from /etc/kubernetes/manifests on node {pod.spec.node_name}"
        return f"Pod/{pod.key}", file
    return f"{kind}/{pod.namespace}/{name}", f"kubectl -n {pod.namespace} delete {kind.lower()} {name}"


def _plugins(facts: Facts) -> Iterator[Finding]:
    """Only where our agent is too: nodes that are still the old installation's work."""
    ours = {pod.spec.node_name for pod in facts.agents.pods}
    ours |= {node.name for node in facts.nodes if names.NODE_GPUS in node.annotations}
    found: dict[tuple[str, str], list[str]] = {}
    for pod in facts.pods:
        if pod.alive and pod.spec.node_name in ours and plugin_of(pod) and pod.uid not in facts.agents.uids:
            found.setdefault(_controller(pod), []).append(pod.spec.node_name)
    for (where, remedy), nodes in found.items():
        yield Finding(
            Area.RIVALS,
            "rival-plugin",
            Level.ERROR,
            where,
            f"{where} runs another device plugin beside our agent on node {listed(sorted(set(nodes)))}; "
            "kubelet listens to whichever registered last, and the same GPU is given away twice",
            remedy,
            {"nodes": len(set(nodes))},
        )


def _extenders(facts: Facts) -> Iterator[Finding]:
    if not facts.installed:
        return
    found = {_controller(pod) for pod in facts.pods if pod.alive and _runs(pod, EXTENDERS)}
    for where, remedy in sorted(found):
        yield Finding(
            Area.RIVALS,
            "rival-extender",
            Level.ERROR,
            where,
            f"gpushare's old extender {where} still runs beside gpuslice: two accounts of the same memory, "
            "of which neither knows what the other has just promised",
            remedy,
        )


def _feature_discovery(facts: Facts) -> Iterator[Finding]:
    """NVIDIA's own may run beside our agent, which then leaves the labels to it."""
    stamped = {node.name for node in facts.nodes if names.GFD_TIMESTAMP in node.labels}
    published = {node.name for node in facts.nodes if names.NODE_GPUS in node.annotations}
    found: dict[tuple[str, str], set[str]] = {}
    for pod in facts.pods:
        if pod.alive and pod.spec.node_name in stamped & published and _runs(pod, (DAEMON,)):
            found.setdefault(_controller(pod), set()).add(pod.spec.node_name)
    for (where, remedy), nodes in sorted(found.items()):
        yield Finding(
            Area.RIVALS,
            "feature-discovery",
            Level.WARNING,
            where,
            f"GPU feature discovery ({where}) runs beside our agent on node {listed(sorted(nodes))}; "
            "the labels under nvidia.com/ there are its, and count GPUs as it sees them",
            f"{remedy}   # our agent then writes the same labels",
            {"nodes": len(nodes)},
        )


def _counts(node: Node, facts: Facts) -> Iterator[Finding]:
    if names.NODE_GPUS not in node.annotations or facts.views[node.name].problem:
        return
    try:
        offered = parse_count((node.status.capacity or {}).get(names.WHOLE_GPU, 0), field=names.WHOLE_GPU)
    except InputError:
        return
    published = sum(one.gpu.resource == names.WHOLE_GPU for one in facts.views[node.name].gpus)
    if offered and offered != published:
        yield Finding(
            Area.RIVALS,
            "foreign-count",
            Level.ERROR,
            f"Node/{node.name}",
            f"node {node.name} offers {offered} {names.WHOLE_GPU}, but its agent has published "
            f"{plural(published, 'GPU')}: somebody else has registered {names.WHOLE_GPU} with its kubelet",
            f"kubectl get pods -A -o wide --field-selector spec.nodeName={node.name} | grep -i device-plugin"
            "   # delete its DaemonSet",
            {"offered": offered, "published": published},
        )
