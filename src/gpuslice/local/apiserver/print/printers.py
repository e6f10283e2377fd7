"""The columns and cells of every built-in kind, as `pkg/printers/internalversion` has them.

COLUMNS: `Name_of_column:` and s(tring), i(nteger), d(ate) or b(oolean), `1` for -o wide only, `*` for a name.
CELLS: from an object and the present (Unix seconds) to the cells after the name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuslice.local.apiserver.print.cells import NONE, UNKNOWN, age, born, condition, count, pairs
from gpuslice.local.apiserver.print.workloadcells import (
    cronjob,
    daemonset,
    deployment,
    job,
    pod,
    replicas,
    statefulset,
)
from gpuslice.local.apiserver.schema.selectors import selector_text
from gpuslice.local.apiserver.schema.status import Json

Cells = Callable[[Json, int], list[Any]]

COLUMNS: dict[tuple[str, str], str] = {
    ("", "configmaps"): "Name:s* Data:s Age:s",
    ("", "endpoints"): "Name:s* Endpoints:s Age:s",
    (
        "",
        "events",
    ): "Last_Seen:s Type:s Reason:s Object:s Subobject:s1 Source:s1 Message:s First_Seen:s1 Count:s1 "
    "Name:s1*",
    ("", "namespaces"): "Name:s* Status:s Age:s",
    ("", "nodes"): "Name:s* Status:s Roles:s Age:s Version:s Internal-IP:s1 External-IP:s1 OS-Image:s1 "
    "Kernel-Version:s1 Container-Runtime:s1",
    ("", "persistentvolumeclaims"): "Name:s* Status:s Volume:s Capacity:s Access_Modes:s StorageClass:s "
    "VolumeAttributesClass:s Age:s VolumeMode:s1",
    (
        "",
        "persistentvolumes",
    ): "Name:s* Capacity:s Access_Modes:s Reclaim_Policy:s Status:s Claim:s StorageClass:s "
    "VolumeAttributesClass:s Reason:s Age:s VolumeMode:s1",
    (
        "",
        "pods",
    ): "Name:s* Ready:s Status:s Restarts:s Age:s IP:s1 Node:s1 Nominated_Node:s1 Readiness_Gates:s1",
    (
        "",
        "replicationcontrollers",
    ): "Name:s* Desired:i Current:i Ready:i Age:s Containers:s1 Images:s1 Selector:s1",
    ("", "secrets"): "Name:s* Type:s Data:s Age:s",
    ("", "services"): "Name:s* Type:s Cluster-IP:s External-IP:s Port(s):s Age:s Selector:s1",
    ("apps", "controllerrevisions"): "Name:s* Controller:s Revision:s Age:s",
    (
        "apps",
        "daemonsets",
    ): "Name:s* Desired:i Current:i Ready:i Up-to-date:i Available:i Node_Selector:s Age:s "
    "Containers:s1 Images:s1 Selector:s1",
    (
        "apps",
        "deployments",
    ): "Name:s* Ready:s Up-to-date:s Available:s Age:s Containers:s1 Images:s1 Selector:s1",
    ("apps", "replicasets"): "Name:s* Desired:i Current:i Ready:i Age:s Containers:s1 Images:s1 Selector:s1",
    ("apps", "statefulsets"): "Name:s* Ready:s Age:s Containers:s1 Images:s1",
    ("batch", "jobs"): "Name:s* Status:s Completions:s Duration:s Age:s Containers:s1 Images:s1 Selector:s1",
    (
        "batch",
        "cronjobs",
    ): "Name:s* Schedule:s Timezone:s Suspend:b Active:i Last_Schedule:s Age:s Containers:s1 "
    "Images:s1 Selector:s1",
    (
        "policy",
        "poddisruptionbudgets",
    ): "Name:s* Min_Available:s Max_Unavailable:s Allowed_Disruptions:i Age:s",
    ("coordination.k8s.io", "leases"): "Name:s* Holder:s Age:s",
    ("networking.k8s.io", "ingresses"): "Name:s* Class:s Hosts:s Address:s Ports:s Age:s",
    ("networking.k8s.io", "networkpolicies"): "Name:s* Pod-Selector:s Age:s",
    ("rbac.authorization.k8s.io", "clusterrolebindings"): "Name:s* Role:s Age:s",
    ("rbac.authorization.k8s.io", "rolebindings"): "Name:s* Role:s Age:s",
    ("rbac.authorization.k8s.io", "clusterroles"): "Name:s* Created_At:d",
    ("rbac.authorization.k8s.io", "roles"): "Name:s* Created_At:d",
    ("apiextensions.k8s.io", "customresourcedefinitions"): "Name:s* Created_At:d",
    ("scheduling.k8s.io", "priorityclasses"): "Name:s* Value:i Global-Default:b Age:s PreemptionPolicy:s",
    ("storage.k8s.io", "storageclasses"): "Name:s* Provisioner:s ReclaimPolicy:s VolumeBindingMode:s "
    "AllowVolumeExpansion:s Age:s",
    ("node.k8s.io", "runtimeclasses"): "Name:s* Handler:s Age:s",
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): "Name:s* Webhooks:i Age:s",
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): "Name:s* Webhooks:i Age:s",
    ("resource.k8s.io", "resourceclaims"): "Name:s* State:s Age:s",
    ("resource.k8s.io", "resourceslices"): "Name:s* Node:s Driver:s Pool:s Age:s",
}


def is_bare(storage: tuple[str, str]) -> bool:
    """Whether the rows of a kind do not begin with the object's name."""
    return storage == ("", "events")


def _node(node: Json, moment: int) -> list[Any]:
    ready = condition(node, "Ready")
    text = "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    if (node.get("spec") or {}).get("unschedulable"):
        text += ",SchedulingDisabled"
    roles = set()
    for key, value in (node["metadata"].get("labels") or {}).items():
        if key.startswith("node-role.kubernetes.io/"):
            roles.add(key.removeprefix("node-role.kubernetes.io/"))
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    status = node.get("status") or {}
    info = status.get("nodeInfo") or {}
    kernel = info.get("kernelVersion") or UNKNOWN
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"

    def address(kind: str) -> str:
        return next(
            (str(one.get("address")) for one in status.get("addresses") or () if one.get("type") == kind),
            NONE,
        )

    return [
        text,
        ",".join(sorted(roles)) or NONE,
        born(node, moment),
        info.get("kubeletVersion", ""),
        address("InternalIP"),
        address("ExternalIP"),
        info.get("osImage") or UNKNOWN,
        kernel,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _event(event: Json, moment: int) -> list[Any]:
    about, source = event.get("involvedObject") or {}, event.get("source") or {}
    series = event.get("series") or {}
    first = event.get("firstTimestamp") or event.get("eventTime")
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or first
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host")
    return [
        age(last, moment),
        event.get("type", ""),
        event.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        (event.get("message") or "").strip(),
        age(first, moment),
        str(series.get("count") or event.get("count") or 1),
        event["metadata"]["name"],
    ]


def _service(obj: Json, moment: int) -> list[Any]:
    spec = obj.get("spec") or {}
    kind = spec.get("type") or "ClusterIP"
    external = ",".join(spec.get("externalIPs") or ()) or NONE
    if kind == "LoadBalancer":
        points = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
        external = ",".join(one.get("ip") or one.get("hostname", "") for one in points) or "<pending>"
    elif kind == "ExternalName":
        external = spec.get("externalName", "")
    ports = []
    for one in spec.get("ports") or ():
        node = f":{one['nodePort']}" if one.get("nodePort") else ""
        ports.append(f"{one.get('port')}{node}/{one.get('protocol', 'TCP')}")
    return [
        kind,
        spec.get("clusterIP") or NONE,
        external,
        ",".join(ports) or NONE,
        born(obj, moment),
        pairs(spec.get("selector")),
    ]


def _budget(obj: Json, moment: int) -> list[Any]:
    spec = obj.get("spec") or {}

    def share(name: str) -> str:
        return "N/A" if spec.get(name) is None else str(spec[name])

    allowed = count(obj, "disruptionsAllowed")
    return [share("minAvailable"), share("maxUnavailable"), allowed, born(obj, moment)]


def _modes(spec: Json) -> str:
    short = {
        "ReadWriteOnce": "RWO",
        "ReadOnlyMany": "ROX",
        "ReadWriteMany": "RWX",
        "ReadWriteOncePod": "RWOP",
    }
    return ",".join(short.get(mode, mode) for mode in spec.get("accessModes") or ())


def _claim(obj: Json, moment: int) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    text = "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", "")
    return [
        text,
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", ""),
        _modes(status),
        spec.get("storageClassName") or "",
        "<unset>",
        born(obj, moment),
        spec.get("volumeMode") or "<unset>",
    ]


def _volume(obj: Json, moment: int) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    claim = spec.get("claimRef") or {}
    return [
        (spec.get("capacity") or {}).get("storage", ""),
        _modes(spec),
        spec.get("persistentVolumeReclaimPolicy", ""),
        status.get("phase", ""),
        f"{claim.get('namespace')}/{claim.get('name')}" if claim else "",
        spec.get("storageClassName") or "",
        "<unset>",
        status.get("reason", ""),
        born(obj, moment),
        spec.get("volumeMode") or "<unset>",
    ]


def _ingress(obj: Json, moment: int) -> list[Any]:
    spec = obj.get("spec") or {}
    hosts = ",".join(rule["host"] for rule in spec.get("rules") or () if rule.get("host")) or "*"
    points = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    address = ",".join(one.get("ip") or one.get("hostname", "") for one in points)
    ports = "80, 443" if spec.get("tls") else "80"
    return [spec.get("ingressClassName") or NONE, hosts, address, ports, born(obj, moment)]


def _role_binding(obj: Json, moment: int) -> list[Any]:
    role = obj.get("roleRef") or {}
    return [f"{role.get('kind')}/{role.get('name')}", born(obj, moment)]


def _storage_class(obj: Json, moment: int) -> list[Any]:
    return [
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy") or "Delete",
        obj.get("volumeBindingMode") or "Immediate",
        bool(obj.get("allowVolumeExpansion")),
        born(obj, moment),
    ]


def _namespace(obj: Json, moment: int) -> list[Any]:
    return [(obj.get("status") or {}).get("phase", ""), born(obj, moment)]


def _data(obj: Json, moment: int) -> list[Any]:
    count = len(obj.get("data") or ()) + len(obj.get("binaryData") or ())
    return [str(count), born(obj, moment)]


def _secret(obj: Json, moment: int) -> list[Any]:
    return [obj.get("type") or "Opaque", *_data(obj, moment)]


def _lease(obj: Json, moment: int) -> list[Any]:
    return [(obj.get("spec") or {}).get("holderIdentity") or "", born(obj, moment)]


def _priority(obj: Json, moment: int) -> list[Any]:
    return [
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        born(obj, moment),
        obj.get("preemptionPolicy") or "PreemptLowerPriority",
    ]


def _webhooks(obj: Json, moment: int) -> list[Any]:
    return [len(obj.get("webhooks") or ()), born(obj, moment)]


def _created(obj: Json, moment: int) -> list[Any]:
    return [obj["metadata"].get("creationTimestamp")]


def _endpoints(obj: Json, moment: int) -> list[Any]:
    found = []
    for subset in obj.get("subsets") or ():
        for address in subset.get("addresses") or ():
            ports = subset.get("ports") or ()
            found += [f"{address.get('ip')}:{port.get('port')}" for port in ports] or [address.get("ip", "")]
    shown = ",".join(found[:3]) + (f" + {len(found) - 3} more..." if len(found) > 3 else "")
    return [shown or NONE, born(obj, moment)]


def _revision(obj: Json, moment: int) -> list[Any]:
    owner = next((one for one in obj["metadata"].get("ownerReferences") or () if one.get("controller")), None)
    name = NONE
    if owner is not None:
        group = str(owner.get("apiVersion", "")).rpartition("/")[0]
        name = f"{owner.get('kind', '').lower()}{'.' + group if group else ''}/{owner.get('name')}"
    return [name, str(obj.get("revision", 0)), born(obj, moment)]


def _resource_claim(obj: Json, moment: int) -> list[Any]:
    status = obj.get("status") or {}
    states = ["deleted"] if obj["metadata"].get("deletionTimestamp") else []
    states.append("allocated" if status.get("allocation") else "pending")
    if status.get("reservedFor"):
        states.append("reserved")
    return [",".join(states), born(obj, moment)]


def _resource_slice(obj: Json, moment: int) -> list[Any]:
    spec = obj.get("spec") or {}
    return [
        spec.get("nodeName") or "",
        spec.get("driver", ""),
        (spec.get("pool") or {}).get("name", ""),
        born(obj, moment),
    ]


CELLS: dict[tuple[str, str], Cells] = {
    ("", "configmaps"): _data,
    ("", "endpoints"): _endpoints,
    ("", "events"): _event,
    ("", "namespaces"): _namespace,
    ("", "nodes"): _node,
    ("", "persistentvolumeclaims"): _claim,
    ("", "persistentvolumes"): _volume,
    ("", "pods"): pod,
    ("", "replicationcontrollers"): replicas,
    ("", "secrets"): _secret,
    ("", "services"): _service,
    ("apps", "controllerrevisions"): _revision,
    ("apps", "daemonsets"): daemonset,
    ("apps", "deployments"): deployment,
    ("apps", "replicasets"): replicas,
    ("apps", "statefulsets"): statefulset,
    ("batch", "jobs"): job,
    ("batch", "cronjobs"): cronjob,
    ("policy", "poddisruptionbudgets"): _budget,
    ("coordination.k8s.io", "leases"): _lease,
    ("networking.k8s.io", "ingresses"): _ingress,
    ("networking.k8s.io", "networkpolicies"): lambda obj, moment: [
        selector_text((obj.get("spec") or {}).get("podSelector")) or NONE,
        born(obj, moment),
    ],
    ("rbac.authorization.k8s.io", "clusterrolebindings"): _role_binding,
    ("rbac.authorization.k8s.io", "rolebindings"): _role_binding,
    ("rbac.authorization.k8s.io", "clusterroles"): _created,
    ("rbac.authorization.k8s.io", "roles"): _created,
    ("apiextensions.k8s.io", "customresourcedefinitions"): _created,
    ("scheduling.k8s.io", "priorityclasses"): _priority,
    ("storage.k8s.io", "storageclasses"): _storage_class,
    ("node.k8s.io", "runtimeclasses"): lambda obj, moment: [obj.get("handler", ""), born(obj, moment)],
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _webhooks,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _webhooks,
    ("resource.k8s.io", "resourceclaims"): _resource_claim,
    ("resource.k8s.io", "resourceslices"): _resource_slice,
}
