"""What a new cluster holds: the four namespaces, the default service, the system's priority classes."""

from __future__ import annotations

from collections.abc import Callable

from gpuslice.clock import Clock
from gpuslice.local.apiserver.api.rest import Rest
from gpuslice.local.apiserver.schema.defaults import SERVICE_NETWORK
from gpuslice.local.apiserver.schema.objects import now
from gpuslice.local.apiserver.schema.status import Json

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
PRIORITY_CLASSES: dict[str, tuple[int, str]] = {
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if "
        "necessary.",
    ),
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}


def populate(rest: Rest, clock: Clock, new_uid: Callable[[], str]) -> None:
    """Create what is missing; leave alone what a database restored."""

    def put(group: str, plural: str, obj: Json) -> None:
        kind = rest.registry.find(group, "v1", plural)
        assert kind is not None
        meta = obj["metadata"]
        if rest.collection(kind).get(meta.get("namespace", ""), meta["name"]) is not None:
            return
        meta |= {"uid": new_uid(), "creationTimestamp": now(clock)}
        rest.commit(kind, None, {"apiVersion": kind.api_version, "kind": kind.kind, **obj})

    for name in NAMESPACES:
        put(
            "",
            "namespaces",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            },
        )
        put("", "serviceaccounts", {"metadata": {"name": "default", "namespace": name}})
    put(
        "",
        "services",
        {
            "metadata": {
                "name": "kubernetes",
                "namespace": "default",
                "labels": {"component": "apiserver", "provider": "kubernetes"},
            },
            "spec": {
                "type": "ClusterIP",
                "clusterIP": f"{SERVICE_NETWORK}.0.1",
                "clusterIPs": [f"{SERVICE_NETWORK}.0.1"],
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "internalTrafficPolicy": "Cluster",
                "sessionAffinity": "None",
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
            },
            "status": {"loadBalancer": {}},
        },
    )
    for name, (value, description) in PRIORITY_CLASSES.items():
        put(
            "scheduling.k8s.io",
            "priorityclasses",
            {
                "metadata": {"name": name, "generation": 1},
                "value": value,
                "description": description,
                "preemptionPolicy": "PreemptLowerPriority",
            },
        )
