"""Admission that is built in: service accounts, priorities and tolerations of pods, addresses of services."""

from __future__ import annotations

from gpuslice.local.apiserver.api.store import Store
from gpuslice.local.apiserver.schema.defaults import NODE_PORTS, SERVICE_NETWORK
from gpuslice.local.apiserver.schema.poddefaults import NOT_READY_SECONDS
from gpuslice.local.apiserver.schema.status import Json, forbidden, invalid, invalid_value


def admit_pod(obj: Json, store: Store) -> None:
    """What kube-apiserver's admission adds to a new pod: service account, priority, tolerations.

    No token is mounted: the simulated kubelet has nobody to show it to. Raises 403 for an unknown
    priority class.
    """
    spec = obj["spec"]
    if not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = spec["serviceAccount"] = "default"
    if spec.get("enableServiceLinks") is None:
        spec["enableServiceLinks"] = True
    _priority(obj, spec, store)
    tolerations = spec.get("tolerations") or []
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            one.get("key") in (None, "", key) and one.get("effect") in (None, "", "NoExecute")
            for one in tolerations
        ):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": NOT_READY_SECONDS,
                }
            )
    spec["tolerations"] = tolerations


def admit_service(obj: Json, store: Store) -> None:
    """A cluster IP and node ports for a service that wants them. Raises 422 if a demanded one is taken."""
    spec = obj["spec"]
    if spec["type"] == "ExternalName":
        return
    services = store.collection(("", "services"))
    me = (obj["metadata"].get("namespace", ""), obj["metadata"].get("name", ""))
    others = [entry.decode()["spec"] for entry in services.in_order() if entry.key != me]
    taken = {other.get("clusterIP") for other in others}
    if not spec.get("clusterIP"):
        number = 10
        while (address := f"{SERVICE_NETWORK}.{number // 256}.{number % 256}") in taken:
            number += 1
        spec["clusterIP"] = address
    elif spec["clusterIP"] != "None" and spec["clusterIP"] in taken:
        why = "failed to allocate IP " + spec["clusterIP"] + ": provided IP is already allocated"
        raise invalid("", "Service", me[1], [invalid_value("spec.clusterIPs", [spec["clusterIP"]], why)])
    spec["clusterIPs"] = [spec["clusterIP"]]
    if spec["type"] in ("NodePort", "LoadBalancer"):
        used = {port.get("nodePort") for other in others for port in other.get("ports") or ()}
        for index, port in enumerate(spec.get("ports") or ()):
            if not port.get("nodePort"):
                port["nodePort"] = next(number for number in range(*NODE_PORTS) if number not in used)
            elif port["nodePort"] in used:
                why = "provided port is already allocated"
                cause = invalid_value(f"spec.ports[{index}].nodePort", port["nodePort"], why)
                raise invalid("", "Service", me[1], [cause])
            used.add(port["nodePort"])


def _priority(obj: Json, spec: Json, store: Store) -> None:
    classes = store.collection(("scheduling.k8s.io", "priorityclasses"))
    name = spec.get("priorityClassName") or ""
    priority, policy = 0, "PreemptLowerPriority"
    if name:
        entry = classes.get("", name)
        if entry is None:
            pod = obj["metadata"].get("name", "")
            raise forbidden("", "pods", pod, f"no PriorityClass with name {name} was found")
        found = entry.decode()
        priority, policy = found.get("value", 0), found.get("preemptionPolicy") or policy
    else:
        for entry in classes.in_order():
            if entry.selectable.get("globalDefault") == "true":
                found = entry.decode()
                spec["priorityClassName"] = found["metadata"]["name"]
                priority, policy = found.get("value", 0), found.get("preemptionPolicy") or policy
    given = spec.get("priority")
    if given is not None and given != priority:
        why = (
            f"the integer value of priority ({given}) must not be provided in pod spec; priority admission "
            f"controller computed {priority} from the given PriorityClass name"
        )
        raise forbidden("", "pods", obj["metadata"].get("name", ""), why)
    spec["priority"] = priority
    spec["preemptionPolicy"] = spec.get("preemptionPolicy") or policy
