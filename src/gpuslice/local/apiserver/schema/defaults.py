"""Defaults: what Kubernetes fills in for a client that left it out (`pkg/apis/*/v1/defaults.go`)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from gpuslice.local.apiserver.schema import crdschema
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.poddefaults import pod_spec, qos_class
from gpuslice.local.apiserver.schema.status import Json

SERVICE_NETWORK = "10.96"
"""First half of the addresses of services; nothing routes them here."""
NODE_PORTS = (30000, 32768)


def apply(kind: Kind, obj: Json) -> None:
    """Fill in the defaults of a kind, in place."""
    if kind.custom is not None:
        crdschema.fill(kind.custom.schema, obj)
        return
    fill = _DEFAULTS.get(kind.key)
    if fill is not None:
        fill(obj)


def _set(obj: Json, **values: Any) -> None:
    for name, value in values.items():
        if obj.get(name) is None or obj[name] == "":
            obj[name] = value


def _spec(obj: Json) -> Json:
    spec: Json = obj.setdefault("spec", {})
    return spec


def _pod(obj: Json) -> None:
    pod_spec(_spec(obj))


def _template(spec: Json) -> None:
    template: Json = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_spec(template.setdefault("spec", {}))


def _selector(obj: Json, spec: Json) -> None:
    labels = spec["template"]["metadata"].get("labels")
    if obj.get("kind") == "ReplicationController" and labels:
        _set(spec, selector=dict(labels))
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)


def _replicas(obj: Json) -> None:
    spec = _spec(obj)
    _set(spec, replicas=1)
    _template(spec)
    _selector(obj, spec)


def _deployment(obj: Json) -> None:
    spec = _spec(obj)
    _set(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = spec.setdefault("strategy", {})
    _set(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _set(strategy, rollingUpdate={})
        _set(strategy["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")
    _template(spec)


def _statefulset(obj: Json) -> None:
    spec = _spec(obj)
    _set(spec, replicas=1, revisionHistoryLimit=10, podManagementPolicy="OrderedReady", serviceName="")
    strategy = spec.setdefault("updateStrategy", {})
    _set(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _set(strategy, rollingUpdate={})
        _set(strategy["rollingUpdate"], partition=0)
    policy = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    _set(policy, whenDeleted="Retain", whenScaled="Retain")
    for claim in spec.get("volumeClaimTemplates") or ():
        _set(claim, kind="PersistentVolumeClaim", apiVersion="v1", status={"phase": "Pending"})
        _set(_spec(claim), volumeMode="Filesystem")
    _template(spec)


def _daemonset(obj: Json) -> None:
    spec = _spec(obj)
    _set(spec, revisionHistoryLimit=10)
    strategy = spec.setdefault("updateStrategy", {})
    _set(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _set(strategy, rollingUpdate={})
        _set(strategy["rollingUpdate"], maxUnavailable=1, maxSurge=0)
    _template(spec)


def _job_spec(spec: Json) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    _set(spec, parallelism=1, backoffLimit=6, completionMode="NonIndexed", suspend=False)
    policy = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    _set(spec, podReplacementPolicy=policy)
    _template(spec)


def _job(obj: Json) -> None:
    spec = _spec(obj)
    _job_spec(spec)
    uid = obj["metadata"].get("uid")
    if uid and not spec.get("manualSelector") and not spec.get("selector"):
        name = obj["metadata"].get("name", "")
        labels = spec["template"]["metadata"].setdefault("labels", {})
        labels |= {
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": name,
            "controller-uid": uid,
            "job-name": name,
        }
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    if not obj["metadata"].get("labels") and uid and spec["template"]["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(spec["template"]["metadata"]["labels"])


def _cronjob(obj: Json) -> None:
    spec = _spec(obj)
    _set(
        spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1
    )
    job = spec.setdefault("jobTemplate", {})
    job.setdefault("metadata", {})
    inner = _spec(job)
    _set(inner, backoffLimit=6)
    inner.pop("suspend", None)
    _template(inner)


def _service(obj: Json) -> None:
    spec = _spec(obj)
    _set(spec, type="ClusterIP", sessionAffinity="None")
    if spec["type"] != "ExternalName":
        _set(spec, internalTrafficPolicy="Cluster", ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        _set(spec, externalTrafficPolicy="Cluster")
    if spec["type"] == "LoadBalancer":
        _set(spec, allocateLoadBalancerNodePorts=True)
    for port in spec.get("ports") or ():
        _set(port, protocol="TCP")
        if port.get("targetPort") in (None, "", 0):
            port["targetPort"] = port.get("port")


def _secret(obj: Json) -> None:
    _set(obj, type="Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        data = obj.setdefault("data", {})
        for name, text in plain.items():
            data[name] = base64.b64encode(text.encode()).decode()


def _namespace(obj: Json) -> None:
    labels = obj["metadata"].setdefault("labels", {})
    if obj["metadata"].get("name"):
        labels["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def _claim(obj: Json) -> None:
    _set(_spec(obj), volumeMode="Filesystem")


def _volume(obj: Json) -> None:
    _set(_spec(obj), volumeMode="Filesystem", persistentVolumeReclaimPolicy="Retain")


def _priority_class(obj: Json) -> None:
    _set(obj, preemptionPolicy="PreemptLowerPriority")


def _storage_class(obj: Json) -> None:
    _set(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def _webhooks(obj: Json) -> None:
    for hook in obj.get("webhooks") or ():
        _set(hook, failurePolicy="Fail", matchPolicy="Equivalent", timeoutSeconds=10)
        _set(hook, namespaceSelector={}, objectSelector={})
        if obj.get("kind", "").startswith("Mutating"):
            _set(hook, reinvocationPolicy="Never")
        for rule in hook.get("rules") or ():
            _set(rule, scope="*")
        service = (hook.get("clientConfig") or {}).get("service")
        if service:
            _set(service, port=443)


def _binding(obj: Json) -> None:
    _set(obj.setdefault("roleRef", {}), apiGroup="rbac.authorization.k8s.io")
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            _set(subject, apiGroup="rbac.authorization.k8s.io")


def _definition(obj: Json) -> None:
    spec = _spec(obj)
    names = spec.setdefault("names", {})
    if names.get("kind"):
        _set(names, singular=names["kind"].lower(), listKind=names["kind"] + "List")
    _set(spec, conversion={"strategy": "None"})


_DEFAULTS: dict[tuple[str, str], Callable[[Json], None]] = {
    ("", "pods"): _pod,
    ("", "replicationcontrollers"): _replicas,
    ("", "services"): _service,
    ("", "secrets"): _secret,
    ("", "namespaces"): _namespace,
    ("", "persistentvolumeclaims"): _claim,
    ("", "persistentvolumes"): _volume,
    ("apps", "replicasets"): _replicas,
    ("apps", "deployments"): _deployment,
    ("apps", "statefulsets"): _statefulset,
    ("apps", "daemonsets"): _daemonset,
    ("batch", "jobs"): _job,
    ("batch", "cronjobs"): _cronjob,
    ("scheduling.k8s.io", "priorityclasses"): _priority_class,
    ("storage.k8s.io", "storageclasses"): _storage_class,
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _webhooks,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _webhooks,
    ("rbac.authorization.k8s.io", "rolebindings"): _binding,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): _binding,
    ("apiextensions.k8s.io", "customresourcedefinitions"): _definition,
}


def initial_status(kind: Kind, obj: Json) -> None:
    """The status (and the server's own parts of the spec) that an object is born with."""
    match kind.key:
        case ("", "pods"):
            obj["status"] = {"phase": "Pending", "qosClass": qos_class(obj["spec"])}
        case ("", "namespaces"):
            _spec(obj).setdefault("finalizers", ["kubernetes"])
            obj["status"] = {"phase": "Active"}
        case ("", "persistentvolumeclaims" | "persistentvolumes"):
            obj["status"] = {"phase": "Pending"}
        case ("", "services"):
            obj["status"] = {"loadBalancer": {}}
        case ("apps", _) if kind.status:
            obj["status"] = {} if kind.kind == "Deployment" else {"replicas": 0}
            if kind.kind == "DaemonSet":
                names = (
                    "currentNumberScheduled",
                    "numberMisscheduled",
                    "desiredNumberScheduled",
                    "numberReady",
                )
                obj["status"] = dict.fromkeys(names, 0)
        case ("batch", _):
            obj["status"] = {}
