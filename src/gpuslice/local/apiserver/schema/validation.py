"""Validation in Kubernetes' own words: metadata and workloads (pods: `podvalidation`)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

from gpuslice.local.apiserver.schema import crdschema
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.podvalidation import pod_spec, pod_update
from gpuslice.local.apiserver.schema.selectors import label_selector
from gpuslice.local.apiserver.schema.status import (
    Cause,
    Json,
    bad_request,
    forbidden_field,
    invalid_value,
    required,
    unsupported,
)
from gpuslice.local.apiserver.schema.syntax import (
    dns_label,
    dns_subdomain,
    label_value,
    path_segment,
    qualified_name,
)

IMMUTABLE = "field is immutable"
ANNOTATIONS_LIMIT = 256 * 1024
_LABEL_NAMED = {("", "namespaces"), ("", "services")}


def check(kind: Kind, obj: Json, old: Json | None, subresource: str) -> list[Cause]:
    """Every wrong field of an object; `old` is what it replaces."""
    causes = _metadata(kind, obj["metadata"], old)
    if kind.custom is not None:
        return causes + list(crdschema.check(kind.custom.schema, obj, ""))
    if subresource == "status":
        return causes
    rule = _RULES.get(kind.key)
    if rule is not None:
        causes += rule(obj, old)
    return causes


def _metadata(kind: Kind, meta: Json, old: Json | None) -> list[Cause]:
    causes = []
    name = meta.get("name")
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    elif old is None:
        if kind.group == "rbac.authorization.k8s.io":
            problem = path_segment(name)
        else:
            problem = dns_label(name) if kind.key in _LABEL_NAMED else dns_subdomain(name)
        if problem:
            causes.append(invalid_value("metadata.name", name, problem))
    was = old["metadata"] if old is not None else {}
    labels = meta.get("labels")
    if labels and labels != was.get("labels"):
        causes += check_labels(labels, "metadata.labels")
    annotations = meta.get("annotations")
    if annotations and annotations != was.get("annotations"):
        for key in annotations:
            if problem := qualified_name(key.lower()):
                causes.append(invalid_value("metadata.annotations", key, problem))
        size = sum(len(key) + len(value) for key, value in annotations.items())
        if size > ANNOTATIONS_LIMIT:
            why = f"may not be more than {ANNOTATIONS_LIMIT} bytes"
            causes.append(Cause("metadata.annotations", "FieldValueTooLong", f"Too long: {why}"))
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                causes.append(required(f"metadata.ownerReferences[{index}].{field}", "must not be empty"))
    for index, finalizer in enumerate(meta.get("finalizers") or ()):
        if problem := qualified_name(finalizer):
            causes.append(invalid_value(f"metadata.finalizers[{index}]", finalizer, problem))
    return causes


def check_labels(labels: dict[str, str], field: str) -> list[Cause]:
    """Every malformed key or value of a label map."""
    causes = []
    for key, value in labels.items():
        if problem := qualified_name(key):
            causes.append(invalid_value(field, key, problem))
        if problem := label_value(value):
            causes.append(invalid_value(field, value, problem))
    return causes


def _pod(obj: Json, old: Json | None) -> list[Cause]:
    if old is not None:
        return pod_update(obj["spec"], old["spec"])
    return pod_spec(obj["spec"], "spec")


def _not_negative(spec: Json, *names: str) -> list[Cause]:
    why = "must be greater than or equal to 0"
    return [
        invalid_value(f"spec.{name}", spec[name], why)
        for name in names
        if isinstance(spec.get(name), int) and spec[name] < 0
    ]


def _template(spec: Json, *, policies: tuple[str, ...] = ("Always",)) -> list[Cause]:
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    causes = check_labels(labels, "spec.template.metadata.labels")
    selector = spec.get("selector")
    if not selector:
        causes.append(required("spec.selector"))
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        causes.append(invalid_value("spec.selector", selector, "empty selector is invalid for deployment"))
    elif not label_selector(selector).matches(labels):
        why = "`selector` does not match template `labels`"
        causes.append(invalid_value("spec.template.metadata.labels", labels, why))
    inner = template.get("spec") or {}
    causes += pod_spec(inner, "spec.template.spec")
    if inner.get("restartPolicy") not in policies:
        causes.append(unsupported("spec.template.spec.restartPolicy", inner.get("restartPolicy"), policies))
    return causes


def _replicated(obj: Json, old: Json | None) -> list[Cause]:
    spec = obj["spec"]
    causes = _not_negative(spec, "replicas", "minReadySeconds", "revisionHistoryLimit")
    if (
        old is None
        or old["spec"].get("template") != spec.get("template")
        or old["spec"].get("selector") != spec.get("selector")
    ):
        causes += _template(spec)
    if old is not None and old["spec"].get("selector") != spec.get("selector"):
        causes.append(invalid_value("spec.selector", spec.get("selector"), IMMUTABLE))
    return causes


def _deployment(obj: Json, old: Json | None) -> list[Cause]:
    causes = _replicated(obj, old)
    strategy = obj["spec"].get("strategy") or {}
    if strategy.get("type") not in ("RollingUpdate", "Recreate"):
        causes.append(unsupported("spec.strategy.type", strategy.get("type"), ("Recreate", "RollingUpdate")))
    elif strategy["type"] == "Recreate" and strategy.get("rollingUpdate"):
        why = "may not be specified when strategy `type` is 'Recreate'"
        causes.append(forbidden_field("spec.strategy.rollingUpdate", why))
    return causes


def _statefulset(obj: Json, old: Json | None) -> list[Cause]:
    causes = _replicated(
        obj,
        None if old is None else {**old, "spec": {**old["spec"], "selector": obj["spec"].get("selector")}},
    )
    if old is not None:
        may = {
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        }
        if _without(obj["spec"], may) != _without(old["spec"], may):
            why = (
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
                "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
                "'minReadySeconds' are forbidden"
            )
            causes.append(forbidden_field("spec", why))
    return causes


def _without(spec: Json, names: set[str]) -> Json:
    return {key: value for key, value in spec.items() if key not in names}


def _job(obj: Json, old: Json | None) -> list[Cause]:
    spec = obj["spec"]
    causes = _not_negative(
        spec, "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"
    )
    template = spec.get("template") or {}
    inner = template.get("spec") or {}
    if old is None:
        causes += pod_spec(inner, "spec.template.spec")
        if inner.get("restartPolicy") not in ("OnFailure", "Never"):
            causes.append(
                unsupported(
                    "spec.template.spec.restartPolicy", inner.get("restartPolicy"), ("Never", "OnFailure")
                )
                if inner.get("restartPolicy") != "Always"
                else Cause(
                    "spec.template.spec.restartPolicy",
                    "FieldValueRequired",
                    'Required value: valid values: "OnFailure", "Never"',
                )
            )
        return causes
    for name in ("completions", "selector", "template", "completionMode"):
        if spec.get(name) != old["spec"].get(name) and not (
            name in ("template",) and old["spec"].get("suspend")
        ):
            if name == "completions" and spec.get("completionMode") == "Indexed":
                continue
            causes.append(invalid_value(f"spec.{name}", spec.get(name), IMMUTABLE))
    return causes


_CRON = re.compile(r"@(yearly|annually|monthly|weekly|daily|midnight|hourly|every .+)|(\S+\s+){4}\S+")


def _cronjob(obj: Json, old: Json | None) -> list[Cause]:
    schedule = obj["spec"].get("schedule")
    if not schedule:
        return [required("spec.schedule")]
    if not _CRON.fullmatch(schedule.strip()):
        return [invalid_value("spec.schedule", schedule, "expected exactly 5 fields")]
    return []


def _service(obj: Json, old: Json | None) -> list[Cause]:
    spec = obj["spec"]
    causes = []
    kinds = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
    if spec["type"] not in kinds:
        causes.append(unsupported("spec.type", spec["type"], kinds))
    ports = spec.get("ports") or []
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(required("spec.ports"))
    for index, port in enumerate(ports):
        if not isinstance(port.get("port"), int) or not 0 < port["port"] < 65536:
            why = "must be between 1 and 65535, inclusive"
            causes.append(invalid_value(f"spec.ports[{index}].port", port.get("port", 0), why))
        if len(ports) > 1 and not port.get("name"):
            causes.append(required(f"spec.ports[{index}].name"))
    was = old["spec"].get("clusterIP") if old is not None else None
    if was and spec["type"] != "ExternalName" and spec.get("clusterIP") != was:
        why = "may not change once set"
        causes.append(invalid_value("spec.clusterIPs[0]", spec.get("clusterIP", ""), why))
    return causes


_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def _config(obj: Json, old: Json | None) -> list[Cause]:
    causes = []
    for field in ("data", "binaryData"):
        for key in obj.get(field) or ():
            if not _DATA_KEY.fullmatch(key):
                why = (
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
                    "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
                    "'[-._a-zA-Z0-9]+')"
                )
                causes.append(invalid_value(f"{field}[{key}]", key, why))
    if old is not None and old.get("immutable"):
        why = "field is immutable when `immutable` is set"
        causes += [
            forbidden_field(field, why)
            for field in ("data", "binaryData")
            if obj.get(field) != old.get(field)
        ]
        if not obj.get("immutable"):
            causes.append(forbidden_field("immutable", why))
    if old is not None and obj.get("kind") == "Secret" and obj.get("type") != old.get("type"):
        causes.append(invalid_value("type", obj.get("type"), IMMUTABLE))
    return causes


def _priority(obj: Json, old: Json | None) -> list[Cause]:
    value = obj.get("value", 0)
    name = obj["metadata"].get("name", "")
    if old is not None:
        if value != old.get("value", 0):
            return [forbidden_field("value", "may not be changed in an update.")]
        return []
    if value > 1_000_000_000 and not name.startswith("system-"):
        return [forbidden_field("value", "maximum allowed value of a user defined priority is 1000000000")]
    return []


def _event(obj: Json, old: Json | None) -> list[Cause]:
    """An event lies where its object lies; of an object without a namespace, in the default one."""
    space = obj["metadata"].get("namespace", "")
    about = (obj.get("involvedObject") or {}).get("namespace") or ""
    if about != space and not (not about and space in ("default", "kube-system")):
        return [invalid_value("involvedObject.namespace", about, "does not match event.namespace")]
    return []


def _secret(obj: Json, old: Json | None) -> list[Cause]:
    """Values that are no base64 cannot even be read, so this is a 400."""
    for value in (obj.get("data") or {}).values():
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            good = re.match(r"[A-Za-z0-9+/]*", value)
            at = good.end() if good else 0
            raise bad_request(
                'Secret in version "v1" cannot be handled as a Secret: '
                f"illegal base64 data at input byte {at}"
            ) from None
    return _config(obj, old)


def _budget(obj: Json, old: Json | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        return [invalid_value("spec", spec, "minAvailable and maxUnavailable cannot be both set")]
    return []


def _definition(obj: Json, old: Json | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    names = spec.get("names") or {}
    causes = [required(f"spec.names.{name}") for name in ("plural", "kind") if not names.get(name)]
    causes += [required(f"spec.{name}") for name in ("group", "scope", "versions") if not spec.get(name)]
    if causes:
        return causes
    want = f"{names['plural']}.{spec['group']}"
    if obj["metadata"].get("name") != want:
        why = 'must be spec.names.plural+"."+spec.group'
        causes.append(invalid_value("metadata.name", obj["metadata"].get("name"), why))
    if sum(bool(one.get("storage")) for one in spec["versions"]) != 1:
        why = "must have exactly one version marked as storage version"
        causes.append(invalid_value("spec.versions", [one.get("name") for one in spec["versions"]], why))
    for index, one in enumerate(spec["versions"]):
        if not (one.get("schema") or {}).get("openAPIV3Schema"):
            causes.append(required(f"spec.versions[{index}].schema.openAPIV3Schema"))
    return causes


def _webhooks(obj: Json, old: Json | None) -> list[Cause]:
    causes = []
    for index, hook in enumerate(obj.get("webhooks") or ()):
        where = f"webhooks[{index}]"
        needed = ("name", "sideEffects", "admissionReviewVersions")
        causes += [required(f"{where}.{name}") for name in needed if not hook.get(name)]
        config = hook.get("clientConfig") or {}
        if bool(config.get("url")) == bool(config.get("service")):
            causes.append(required(f"{where}.clientConfig", "exactly one of url or service is required"))
        elif config.get("url") and not config["url"].startswith("https://"):
            why = "'https' is the only allowed URL scheme; desired format: https://host[/path]"
            causes.append(invalid_value(f"{where}.clientConfig.url", config["url"].partition(":")[0], why))
    return causes


Rule = Callable[[Json, Any], list[Cause]]

_RULES: dict[tuple[str, str], Rule] = {
    ("", "pods"): _pod,
    ("", "services"): _service,
    ("", "configmaps"): _config,
    ("", "secrets"): _secret,
    ("", "events"): _event,
    ("apps", "deployments"): _deployment,
    ("apps", "replicasets"): _replicated,
    ("apps", "daemonsets"): _replicated,
    ("apps", "statefulsets"): _statefulset,
    ("batch", "jobs"): _job,
    ("batch", "cronjobs"): _cronjob,
    ("policy", "poddisruptionbudgets"): _budget,
    ("scheduling.k8s.io", "priorityclasses"): _priority,
    ("apiextensions.k8s.io", "customresourcedefinitions"): _definition,
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _webhooks,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _webhooks,
}
