"""Selectable fields: what `--field-selector` may ask of each kind, read once per write.

Source: the `SelectableFields`/`AddFieldLabelConversionFunc` of each kind in kube-apiserver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuslice.local.apiserver.schema.selectors import FieldSelector
from gpuslice.local.apiserver.schema.status import Json, bad_request

ALWAYS = ("metadata.name", "metadata.namespace")

SELECTABLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "events"): (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    ("", "secrets"): ("type",),
    ("", "namespaces"): ("status.phase",),
    ("", "replicationcontrollers"): ("status.replicas",),
    ("apps", "replicasets"): ("status.replicas",),
    ("batch", "jobs"): ("status.successful",),
    ("scheduling.k8s.io", "priorityclasses"): ("globalDefault",),
}

INDEXED: dict[tuple[str, str], str] = {("", "pods"): "spec.nodeName"}
"""The field by which watchers of a kind are indexed: a kubelet's costs nothing for other nodes' pods."""


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _pod(obj: Json) -> dict[str, str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return {
        "spec.nodeName": spec.get("nodeName") or "",
        "spec.restartPolicy": spec.get("restartPolicy") or "",
        "spec.schedulerName": spec.get("schedulerName") or "",
        "spec.serviceAccountName": spec.get("serviceAccountName") or "",
        "spec.hostNetwork": "true" if spec.get("hostNetwork") else "false",
        "status.phase": status.get("phase") or "",
        "status.podIP": status.get("podIP") or "",
        "status.nominatedNodeName": status.get("nominatedNodeName") or "",
    }


def _event(obj: Json) -> dict[str, str]:
    about = obj.get("involvedObject") or {}
    found = {f"involvedObject.{name}": _text(value) for name, value in about.items()}
    source = (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or ""
    found["reason"] = obj.get("reason") or ""
    found["reportingComponent"] = obj.get("reportingComponent") or ""
    found["source"] = source
    found["type"] = obj.get("type") or ""
    return found


def _node(obj: Json) -> dict[str, str]:
    return {"spec.unschedulable": "true" if (obj.get("spec") or {}).get("unschedulable") else "false"}


def reader(storage: tuple[str, str], extra: tuple[str, ...] = ()) -> Callable[[Json], dict[str, str]]:
    """A function from an object to its selectable fields (beyond name and namespace)."""
    special = {("", "pods"): _pod, ("", "events"): _event, ("", "nodes"): _node}.get(storage)
    if special is not None:
        return special
    paths = [(path, path.split(".")) for path in SELECTABLE.get(storage, ()) + extra]

    def read(obj: Json) -> dict[str, str]:
        found = {}
        for path, parts in paths:
            value: Any = obj
            for part in parts:
                value = value.get(part) if isinstance(value, dict) else None
            found[path] = _text(value)
        return found

    return read


def check(selector: FieldSelector, storage: tuple[str, str], extra: tuple[str, ...]) -> None:
    """Raises 400 if the selector names a field that the kind cannot be selected by."""
    known = SELECTABLE.get(storage, ())
    for path, _, _ in selector.clauses:
        if path not in ALWAYS and path not in known and path not in extra:
            raise bad_request(f"field label not supported: {path}")
