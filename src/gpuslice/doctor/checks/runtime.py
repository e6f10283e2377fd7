"""Checks that containers can reach the GPUs: driver, NVIDIA's container runtime, GPUs that nobody publishes.

What the hooks of the container runtime say is in the status of the pods they refused; it is the surest sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpuslice import names
from gpuslice.doctor.checks.say import brief
from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.objects import Node
from gpuslice.doctor.ours import failure

DRIVER: Final = re.compile(
    r"driver not loaded|nvml error|libnvidia-ml\.so|load library failed|driver/library version mismatch", re.I
)
RUNTIME: Final = re.compile(
    r'no runtime for "nvidia"|could not select device driver|unknown or invalid runtime name:? ?"?nvidia'
    r'|exec: "?nvidia-container-runtime|unresolvable CDI devices|runtime handler "?nvidia',
    re.I,
)
CARD: Final = re.compile(r"feature\.node\.kubernetes\.io/pci-(?:\w+_)?10de(?:_\w+)?\.present")
"""Node Feature Discovery: a PCI device of NVIDIA's."""


def check(facts: Facts) -> Iterator[Finding]:
    """Driver and runtime."""
    said: set[tuple[str, str]] = set()
    for finding in _refused_by_hooks(facts):
        if (finding.code, finding.object) not in said:
            said.add((finding.code, finding.object))
            yield finding
    for node in facts.nodes:
        on_node = _without_gpus(facts, node) or _without_runtime_class(facts, node)
        if on_node is not None and (on_node.code, on_node.object) not in said:
            yield on_node


def has_card(node: Node) -> bool:
    """True if a label says that there is an NVIDIA GPU in the node."""
    return any(
        value == "true" and (key == names.GPU_PRESENT or CARD.fullmatch(key))
        for key, value in node.labels.items()
    )


def _refused_by_hooks(facts: Facts) -> Iterator[Finding]:
    by_name = {node.name: node for node in facts.nodes}
    for pod in facts.pods:
        node = by_name.get(pod.spec.node_name)
        words = failure(pod) if node is not None and pod.alive else ""
        if node is None or not words:
            continue
        if DRIVER.search(words):
            yield Finding(
                Area.RUNTIME,
                "driver-absent",
                Level.ERROR,
                f"Node/{node.name}",
                f"NVIDIA's driver does not answer on node {node.name}: pod {pod.key} {brief(words)}",
                f"nvidia-smi   # on node {node.name}; if it fails, install the driver and reboot",
            )
        elif RUNTIME.search(words):
            yield Finding(
                Area.RUNTIME,
                "runtime-missing",
                Level.ERROR,
                f"Node/{node.name}",
                f"the container runtime of node {node.name} does not know NVIDIA's: pod {pod.key} "
                f"{brief(words)}",
                _configure(node),
            )


def _configure(node: Node) -> str:
    engine = node.status.node_info.container_runtime_version.partition("://")[0]
    name = {"docker": "docker", "cri-o": "crio"}.get(engine, "containerd")
    return (
        f"sudo nvidia-ctk runtime configure --runtime={name} --set-as-default && sudo systemctl restart "
        f"{name}   # on node {node.name}"
    )


def _without_gpus(facts: Facts, node: Node) -> Finding | None:
    """A card, or a place in the pool, but no GPU published."""
    view = facts.views[node.name]
    if view.gpus or view.problem:
        return None
    ready = [pod for pod in facts.agents.on(node.name) if not failure(pod)]
    if ready:
        return Finding(
            Area.RUNTIME,
            "driver-absent",
            Level.ERROR,
            f"Node/{node.name}",
            f"the agent on node {node.name} runs but finds no GPU there"
            + (", although the node has an NVIDIA card: the driver is not loaded" if has_card(node) else ""),
            f"kubectl -n {ready[0].namespace} logs {ready[0].name}   # and nvidia-smi on node {node.name}",
        )
    if has_card(node) and node.name not in facts.pool_names:
        return Finding(
            Area.RUNTIME,
            "card-not-in-pool",
            Level.WARNING,
            f"Node/{node.name}",
            f"node {node.name} has an NVIDIA card that nobody offers: it is not in the pool",
            f"kubectl label node {node.name} {names.LABEL_GPUSHARE}=true",
        )
    return None


def _without_runtime_class(facts: Facts, node: Node) -> Finding | None:
    if not has_card(node) or node.name not in facts.pool_names or "runtimeclasses" in facts.blind:
        return None
    if any(one.handler.startswith("nvidia") for one in facts.runtime_classes):
        return None
    engine = node.status.node_info.container_runtime_version or "unknown"
    return Finding(
        Area.RUNTIME,
        "runtime-unproven",
        Level.WARNING,
        f"Node/{node.name}",
        f"nothing shows that the container runtime of node {node.name} ({engine}) knows NVIDIA's: there is "
        "no RuntimeClass with the handler nvidia, and without the runtime containers start but see no GPU",
        _configure(node),
    )
