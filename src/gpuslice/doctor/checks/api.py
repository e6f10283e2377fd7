"""Checks that the doctor may read everything, that gpuslice is installed, and that the versions fit
together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpuslice.doctor.checks.say import listed
from gpuslice.doctor.facts import LOCAL_RUNTIME, Facts
from gpuslice.doctor.finding import Area, Finding, Level

ESSENTIAL: Final = frozenset({"nodes", "pods"})
"""Without these nothing can be said."""
OLDEST: Final = (1, 25)
"""The chart's kubeVersion."""
KUBELET_LAG: Final = 3
"""Minors that a kubelet may be older than its API server (kubernetes.io/releases/version-skew-policy)."""
_MINOR: Final = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})")


def check(facts: Facts) -> Iterator[Finding]:
    """Access, presence, versions."""
    yield from _blind(facts)
    if not facts.installed and not facts.blind.keys() & ESSENTIAL:
        yield Finding(
            Area.API,
            "not-installed",
            Level.ERROR,
            "Cluster",
            "there is nothing of gpuslice in this cluster: no agent, no scheduler, no webhook and no node "
            "that publishes its GPUs",
            "helm install gpuslice deploy/helm/gpuslice -n gpuslice-system --create-namespace "
            "--set-file agent.devices.simulated=examples/devices/t4x2.yaml",
        )
    yield from _server(facts)
    yield from _kube_schedulers(facts)
    yield from _kubelets(facts)
    yield from _own_images(facts)


def minor(version: str) -> tuple[int, int] | None:
    """(1, 36) of `v1.36.2-eks-1`."""
    match = _MINOR.match(version)
    return (int(match[1]), int(match[2])) if match else None


def tag(image: str) -> str:
    """`v1.36.0` of `registry:5000/kube-scheduler:v1.36.0@sha256:...`; "" if it has none."""
    name = image.partition("@")[0].rpartition("/")[2]
    return name.partition(":")[2]


def _blind(facts: Facts) -> Iterator[Finding]:
    for kind, why in sorted(facts.blind.items()):
        essential = kind in ESSENTIAL
        yield Finding(
            Area.API,
            "cannot-look",
            Level.ERROR if essential else Level.WARNING,
            kind,
            f"cannot look at {kind}, so nothing that depends on them was checked: {why}",
            f"kubectl auth can-i list {kind} -A   # ask for that right, or use another kubeconfig",
        )


def _server(facts: Facts) -> Iterator[Finding]:
    server = minor(facts.version)
    if server is not None and server < OLDEST:
        yield Finding(
            Area.VERSIONS,
            "server-too-old",
            Level.ERROR,
            "Cluster",
            f"the API server is {facts.version}; gpuslice needs Kubernetes {OLDEST[0]}.{OLDEST[1]} or newer",
            f"upgrade the cluster to v{OLDEST[0]}.{OLDEST[1]} or newer",
            {"major": server[0], "minor": server[1]},
        )


def _kube_schedulers(facts: Facts) -> Iterator[Finding]:
    """kube-scheduler may be as new as the API server or one minor older."""
    server = minor(facts.version)
    for one in facts.schedulers:
        theirs = minor(tag(one.kube_scheduler.image)) if one.kube_scheduler else None
        if server is None or theirs is None or server[1] - 1 <= theirs[1] <= server[1]:
            continue
        far = abs(server[1] - theirs[1]) > 1
        yield Finding(
            Area.VERSIONS,
            "kube-scheduler-skew",
            Level.ERROR if far else Level.WARNING,
            one.workload.where,
            f"the kube-scheduler beside the extender in {one.workload.where} is "
            f"{tag(one.kube_scheduler.image)}, "
            f"the API server {facts.version}; it may be the same minor version or one older"
            if one.kube_scheduler
            else "",
            "helm upgrade gpuslice deploy/helm/gpuslice -n "
            f"{one.workload.namespace} --reuse-values --set scheduler.kubeScheduler.image.tag="
            f"v{server[0]}.{server[1]}.0",
            {"server_minor": server[1], "scheduler_minor": theirs[1]},
        )


def _kubelets(facts: Facts) -> Iterator[Finding]:
    server = minor(facts.version)
    for node in facts.pool:
        info = node.status.node_info
        theirs = minor(info.kubelet_version)
        if server is None or theirs is None or info.container_runtime_version.startswith(LOCAL_RUNTIME):
            continue
        if server[1] - KUBELET_LAG <= theirs[1] <= server[1]:
            continue
        yield Finding(
            Area.VERSIONS,
            "kubelet-skew",
            Level.WARNING,
            f"Node/{node.name}",
            f"kubelet of node {node.name} is {info.kubelet_version}, the API server {facts.version}; it may "
            f"be the same minor version or up to {KUBELET_LAG} older",
            f"upgrade kubelet on node {node.name} to v{server[0]}.{server[1]}",
            {"server_minor": server[1], "kubelet_minor": theirs[1]},
        )


def _own_images(facts: Facts) -> Iterator[Finding]:
    """Agents and schedulers of two versions: an upgrade that did not come to its end."""
    found: dict[str, list[str]] = {}
    for daemonset in facts.agents.workloads:
        for container in daemonset.spec.template.spec.containers:
            found.setdefault(container.image, []).append(daemonset.where)
    for one in facts.schedulers:
        found.setdefault(one.own.image, []).append(one.workload.where)
    if len({tag(image) for image in found}) < 2:
        return
    said = listed(f"{where[0]} runs {image}" for image, where in found.items())
    first = next(iter(found.values()))[0]
    namespace = first.split("/")[1]
    yield Finding(
        Area.VERSIONS,
        "own-versions-differ",
        Level.WARNING,
        first,
        f"the parts of gpuslice have different versions: {said}",
        f"helm upgrade gpuslice deploy/helm/gpuslice -n {namespace} --reuse-values   # one image.tag for all",
        {"versions": len(found)},
    )
