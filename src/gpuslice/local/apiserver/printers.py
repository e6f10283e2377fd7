"""The columns and cells of every built-in kind, as `pkg/printers/internalversion` has them.

COLUMNS: `Name_of_column:` and s(tring), i(nteger), d(ate) or b(oolean), `1` for -o wide only, `*` for a name.
CELLS: from an object and the present (Unix seconds) to the cells after the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from gpuslice.local.apiserver.selectors import selector_text
from gpuslice.local.apiserver.status import Json

NONE, UNKNOWN = "<none>", "<unknown>"
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


def seconds_of(stamp: Any) -> int | None:
    """Unix seconds of a Time or MicroTime."""
    if not isinstance(stamp, str):
        return None
    try:
        return int(datetime.fromisoformat(stamp).timestamp())
    except ValueError:
        return None


def age(stamp: Any, moment: int) -> str:
    """How long ago, as people read it; `<unknown>` for nothing."""
    start = seconds_of(stamp)
    return UNKNOWN if start is None else duration(moment - start)


def duration(seconds: int) -> str:
    """Seconds as two digits of precision (apimachinery `duration.HumanDuration`)."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    years, rest = divmod(days, 365)
    return f"{years}y{rest}d" if days < 2920 and rest else f"{years}y"


def json_path(obj: Any, path: str) -> list[Any]:
    """The values at a simple JSONPath: `.a.b`, `.a[0]`, `.a[*].b`, `.a['x.y']`, `.a[?(@.t=="R")].s`."""
    steps = re.findall(
        r"\.((?:\\.|[\w-])+)|\[(\d+|\*|'[^']*'|\?\(@\.([\w.]+)\s*==\s*[\"']([^\"']*)[\"']\))\]", path
    )
    values = [obj]
    for name, index, key, wanted in steps:
        found: list[Any] = []
        for value in values:
            if name and isinstance(value, dict):
                found.append(value.get(name.replace("\\", "")))
            elif index.startswith("'") and isinstance(value, dict):
                found.append(value.get(index[1:-1]))
            elif isinstance(value, list):
                if index == "*":
                    found.extend(value)
                elif index.isdigit():
                    found.extend(value[int(index) : int(index) + 1])
                elif key:
                    found.extend(
                        one for one in value if str(json_path(one, "." + key)[:1] or "") == str([wanted])
                    )
        values = [value for value in found if value is not None]
    return values


def _containers(spec: Json) -> tuple[str, str]:
    containers = spec.get("containers") or ()
    return ",".join(one.get("name", "") for one in containers), ",".join(
        one.get("image", "") for one in containers
    )


def _pairs(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def _template(obj: Json) -> tuple[str, str, str]:
    spec = obj.get("spec") or {}
    names, images = _containers((spec.get("template") or {}).get("spec") or {})
    return names, images, selector_text(spec.get("selector")) or NONE


def _born(obj: Json, moment: int) -> str:
    return age(obj["metadata"].get("creationTimestamp"), moment)


def _count(obj: Json, name: str) -> int:
    found: int = (obj.get("status") or {}).get(name) or 0
    return found


def condition(obj: Json, type_: str) -> Json | None:
    """The condition of a type in an object's status."""
    for one in (obj.get("status") or {}).get("conditions") or ():
        if one.get("type") == type_:
            found: Json = one
            return found
    return None


def _true(obj: Json, type_: str) -> bool:
    return (condition(obj, type_) or {}).get("status") == "True"


def pod_status(pod: Json) -> tuple[str, int, int, int, str | None]:
    """(STATUS, ready containers, all containers, restarts, time of the last restart)."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    inits = {one.get("name"): one for one in spec.get("initContainers") or ()}
    sidecars = {name for name, one in inits.items() if one.get("restartPolicy") == "Always"}
    text = status.get("reason") or status.get("phase") or ""
    scheduled = condition(pod, "PodScheduled") or {}
    if scheduled.get("reason") == "SchedulingGated":
        text = "SchedulingGated"
    ready, total = 0, len(spec.get("containers") or ()) + len(sidecars)
    restarts, sidecar_restarts = 0, 0
    last: list[str] = []
    initializing = False

    def note_restart(one: Json) -> None:
        ended = ((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
        if ended:
            last.append(ended)

    for index, one in enumerate(status.get("initContainerStatuses") or ()):
        restarts += one.get("restartCount") or 0
        note_restart(one)
        sidecar = one.get("name") in sidecars
        if sidecar:
            sidecar_restarts += one.get("restartCount") or 0
        state = one.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None and not ended.get("exitCode"):
            continue
        if sidecar and one.get("started"):
            ready += bool(one.get("ready"))
            continue
        if ended is not None:
            text = "Init:" + _end(ended)
        elif waiting.get("reason") and waiting["reason"] != "PodInitializing":
            text = "Init:" + waiting["reason"]
        else:
            text = f"Init:{index}/{len(inits)}"
        initializing = True
        break
    if not initializing or _true(pod, "Initialized"):
        restarts, running = sidecar_restarts, False
        for one in reversed(status.get("containerStatuses") or ()):
            restarts += one.get("restartCount") or 0
            note_restart(one)
            state = one.get("state") or {}
            ended, waiting = state.get("terminated"), state.get("waiting") or {}
            if waiting.get("reason"):
                text = waiting["reason"]
            elif ended is not None:
                text = _end(ended)
            elif one.get("ready") and state.get("running") is not None:
                running = True
                ready += 1
        if text == "Completed" and running:
            text = "Running" if _true(pod, "Ready") else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            text = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            text = "Terminating"
    return text, ready, total, restarts, max(last, default=None)


def _end(ended: Json) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _pod(pod: Json, moment: int) -> list[Any]:
    text, ready, total, restarts, last = pod_status(pod)
    again = f"{restarts} ({age(last, moment)} ago)" if restarts and last else str(restarts)
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    gates = spec.get("readinessGates") or ()
    met = sum(_true(pod, gate.get("conditionType", "")) for gate in gates)
    return [
        f"{ready}/{total}",
        text,
        again,
        _born(pod, moment),
        status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{met}/{len(gates)}" if gates else NONE,
    ]


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

    def address(kind: str) -> str:
        return next(
            (str(one.get("address")) for one in status.get("addresses") or () if one.get("type") == kind),
            NONE,
        )

    return [
        text,
        ",".join(sorted(roles)) or NONE,
        _born(node, moment),
        info.get("kubeletVersion", ""),
        address("InternalIP"),
        address("ExternalIP"),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
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


def _deployment(obj: Json, moment: int) -> list[Any]:
    want = (obj.get("spec") or {}).get("replicas") or 0
    return [
        f"{_count(obj, 'readyReplicas')}/{want}",
        str(_count(obj, "updatedReplicas")),
        str(_count(obj, "availableReplicas")),
        _born(obj, moment),
        *_template(obj),
    ]


def _replicas(obj: Json, moment: int) -> list[Any]:
    want = (obj.get("spec") or {}).get("replicas") or 0
    have = [want, _count(obj, "replicas"), _count(obj, "readyReplicas"), _born(obj, moment)]
    names, images, selector = _template(obj)
    if obj.get("kind") == "ReplicationController":
        selector = _pairs((obj.get("spec") or {}).get("selector"))
    return [*have, names, images, selector]


def _statefulset(obj: Json, moment: int) -> list[Any]:
    want = (obj.get("spec") or {}).get("replicas") or 0
    return [f"{_count(obj, 'readyReplicas')}/{want}", _born(obj, moment), *_template(obj)[:2]]


def _daemonset(obj: Json, moment: int) -> list[Any]:
    names = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    nodes = (((obj.get("spec") or {}).get("template") or {}).get("spec") or {}).get("nodeSelector")
    return [*(_count(obj, name) for name in names), _pairs(nodes), _born(obj, moment), *_template(obj)]


def _job(obj: Json, moment: int) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    done, parallel = status.get("succeeded") or 0, spec.get("parallelism") or 0
    if spec.get("completions") is not None:
        completions = f"{done}/{spec['completions']}"
    else:
        completions = f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"
    start, end = seconds_of(status.get("startTime")), seconds_of(status.get("completionTime"))
    took = "" if start is None else duration((moment if end is None else end) - start)
    if _true(obj, "Complete"):
        text = "Complete"
    elif _true(obj, "Failed"):
        text = "Failed"
    elif obj["metadata"].get("deletionTimestamp"):
        text = "Terminating"
    elif _true(obj, "Suspended"):
        text = "Suspended"
    else:
        text = "FailureTarget" if _true(obj, "FailureTarget") else "Running"
    return [text, completions, took, _born(obj, moment), *_template(obj)]


def _cronjob(obj: Json, moment: int) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    last = status.get("lastScheduleTime")
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    return [
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        bool(spec.get("suspend")),
        len(status.get("active") or ()),
        age(last, moment) if last else NONE,
        _born(obj, moment),
        *_template({"spec": job}),
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
        _born(obj, moment),
        _pairs(spec.get("selector")),
    ]


def _budget(obj: Json, moment: int) -> list[Any]:
    spec = obj.get("spec") or {}

    def share(name: str) -> str:
        return "N/A" if spec.get(name) is None else str(spec[name])

    allowed = _count(obj, "disruptionsAllowed")
    return [share("minAvailable"), share("maxUnavailable"), allowed, _born(obj, moment)]


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
        _born(obj, moment),
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
        _born(obj, moment),
        spec.get("volumeMode") or "<unset>",
    ]


def _ingress(obj: Json, moment: int) -> list[Any]:
    spec = obj.get("spec") or {}
    hosts = ",".join(rule["host"] for rule in spec.get("rules") or () if rule.get("host")) or "*"
    points = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    address = ",".join(one.get("ip") or one.get("hostname", "") for one in points)
    ports = "80, 443" if spec.get("tls") else "80"
    return [spec.get("ingressClassName") or NONE, hosts, address, ports, _born(obj, moment)]


def _role_binding(obj: Json, moment: int) -> list[Any]:
    role = obj.get("roleRef") or {}
    return [f"{role.get('kind')}/{role.get('name')}", _born(obj, moment)]


def _storage_class(obj: Json, moment: int) -> list[Any]:
    return [
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy") or "Delete",
        obj.get("volumeBindingMode") or "Immediate",
        bool(obj.get("allowVolumeExpansion")),
        _born(obj, moment),
    ]


def _namespace(obj: Json, moment: int) -> list[Any]:
    return [(obj.get("status") or {}).get("phase", ""), _born(obj, moment)]


def _data(obj: Json, moment: int) -> list[Any]:
    count = len(obj.get("data") or ()) + len(obj.get("binaryData") or ())
    return [str(count), _born(obj, moment)]


def _secret(obj: Json, moment: int) -> list[Any]:
    return [obj.get("type") or "Opaque", *_data(obj, moment)]


def _lease(obj: Json, moment: int) -> list[Any]:
    return [(obj.get("spec") or {}).get("holderIdentity") or "", _born(obj, moment)]


def _priority(obj: Json, moment: int) -> list[Any]:
    return [
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        _born(obj, moment),
        obj.get("preemptionPolicy") or "PreemptLowerPriority",
    ]


def _webhooks(obj: Json, moment: int) -> list[Any]:
    return [len(obj.get("webhooks") or ()), _born(obj, moment)]


def _created(obj: Json, moment: int) -> list[Any]:
    return [obj["metadata"].get("creationTimestamp")]


def _endpoints(obj: Json, moment: int) -> list[Any]:
    found = []
    for subset in obj.get("subsets") or ():
        for address in subset.get("addresses") or ():
            ports = subset.get("ports") or ()
            found += [f"{address.get('ip')}:{port.get('port')}" for port in ports] or [address.get("ip", "")]
    shown = ",".join(found[:3]) + (f" + {len(found) - 3} more..." if len(found) > 3 else "")
    return [shown or NONE, _born(obj, moment)]


def _revision(obj: Json, moment: int) -> list[Any]:
    owner = next((one for one in obj["metadata"].get("ownerReferences") or () if one.get("controller")), None)
    name = NONE
    if owner is not None:
        group = str(owner.get("apiVersion", "")).rpartition("/")[0]
        name = f"{owner.get('kind', '').lower()}{'.' + group if group else ''}/{owner.get('name')}"
    return [name, str(obj.get("revision", 0)), _born(obj, moment)]


def _resource_claim(obj: Json, moment: int) -> list[Any]:
    status = obj.get("status") or {}
    states = ["deleted"] if obj["metadata"].get("deletionTimestamp") else []
    states.append("allocated" if status.get("allocation") else "pending")
    if status.get("reservedFor"):
        states.append("reserved")
    return [",".join(states), _born(obj, moment)]


def _resource_slice(obj: Json, moment: int) -> list[Any]:
    spec = obj.get("spec") or {}
    return [
        spec.get("nodeName") or "",
        spec.get("driver", ""),
        (spec.get("pool") or {}).get("name", ""),
        _born(obj, moment),
    ]


CELLS: dict[tuple[str, str], Cells] = {
    ("", "configmaps"): _data,
    ("", "endpoints"): _endpoints,
    ("", "events"): _event,
    ("", "namespaces"): _namespace,
    ("", "nodes"): _node,
    ("", "persistentvolumeclaims"): _claim,
    ("", "persistentvolumes"): _volume,
    ("", "pods"): _pod,
    ("", "replicationcontrollers"): _replicas,
    ("", "secrets"): _secret,
    ("", "services"): _service,
    ("apps", "controllerrevisions"): _revision,
    ("apps", "daemonsets"): _daemonset,
    ("apps", "deployments"): _deployment,
    ("apps", "replicasets"): _replicas,
    ("apps", "statefulsets"): _statefulset,
    ("batch", "jobs"): _job,
    ("batch", "cronjobs"): _cronjob,
    ("policy", "poddisruptionbudgets"): _budget,
    ("coordination.k8s.io", "leases"): _lease,
    ("networking.k8s.io", "ingresses"): _ingress,
    ("networking.k8s.io", "networkpolicies"): lambda obj, moment: [
        selector_text((obj.get("spec") or {}).get("podSelector")) or NONE,
        _born(obj, moment),
    ],
    ("rbac.authorization.k8s.io", "clusterrolebindings"): _role_binding,
    ("rbac.authorization.k8s.io", "rolebindings"): _role_binding,
    ("rbac.authorization.k8s.io", "clusterroles"): _created,
    ("rbac.authorization.k8s.io", "roles"): _created,
    ("apiextensions.k8s.io", "customresourcedefinitions"): _created,
    ("scheduling.k8s.io", "priorityclasses"): _priority,
    ("storage.k8s.io", "storageclasses"): _storage_class,
    ("node.k8s.io", "runtimeclasses"): lambda obj, moment: [obj.get("handler", ""), _born(obj, moment)],
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _webhooks,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _webhooks,
    ("resource.k8s.io", "resourceclaims"): _resource_claim,
    ("resource.k8s.io", "resourceslices"): _resource_slice,
}
