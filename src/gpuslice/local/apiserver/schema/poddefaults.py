"""Defaults of a pod's spec, alone or inside a template (`pkg/apis/core/v1/defaults.go`)."""

from __future__ import annotations

from typing import Any

from gpuslice.local.apiserver.schema.status import Json

NOT_READY_SECONDS = 300
"""How long pods stay on a node that is not ready unless they say otherwise."""
FILE_MODE = 0o644
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def pod_spec(spec: Json) -> None:
    """Fill in the defaults of a PodSpec, in place."""
    for name, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
    ):
        if spec.get(name) is None or spec[name] == "":
            spec[name] = value
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    for volume in spec.get("volumes") or ():
        _volume(volume)
    host = spec.get("hostNetwork")
    for group in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(group) or ():
            _container(container, host)
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]


def _container(container: Json, host_network: Any) -> None:
    if not container.get("terminationMessagePath"):
        container["terminationMessagePath"] = "/dev/termination-log"
    if not container.get("terminationMessagePolicy"):
        container["terminationMessagePolicy"] = "File"
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = _pull_policy(container.get("image") or "")
    resources = container.get("resources")
    if resources is None:
        container["resources"] = {}
    elif resources.get("limits"):
        requests = resources.get("requests") or {}
        missing = {name: value for name, value in resources["limits"].items() if name not in requests}
        if missing:
            resources["requests"] = {**requests, **missing}
    for port in container.get("ports") or ():
        if not port.get("protocol"):
            port["protocol"] = "TCP"
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if probe:
            for key, value in _PROBE.items():
                if not probe.get(key):
                    probe[key] = value
            _http(probe.get("httpGet"))
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict):
            _http(hook.get("httpGet"))
    for one in container.get("env") or ():
        reference = (one.get("valueFrom") or {}).get("fieldRef")
        if reference and not reference.get("apiVersion"):
            reference["apiVersion"] = "v1"


def _http(action: Any) -> None:
    if isinstance(action, dict):
        if not action.get("path"):
            action["path"] = "/"
        if not action.get("scheme"):
            action["scheme"] = "HTTP"


def _pull_policy(image: str) -> str:
    tail = image.rpartition("/")[2]
    if "@" in tail:
        return "IfNotPresent"
    tag = tail.partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _volume(volume: Json) -> None:
    if len(volume) <= 1:
        volume["emptyDir"] = {}
    for name in ("secret", "configMap", "downwardAPI", "projected"):
        source = volume.get(name)
        if isinstance(source, dict) and source.get("defaultMode") is None:
            source["defaultMode"] = FILE_MODE
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
    for source in (volume.get("projected") or {}).get("sources") or ():
        token = source.get("serviceAccountToken")
        if isinstance(token, dict) and token.get("expirationSeconds") is None:
            token["expirationSeconds"] = 3600


def qos_class(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort, by cpu and memory of all containers."""
    guaranteed, some = True, False
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            limit, request = limits.get(name, "0"), requests.get(name, "0")
            some = some or limit != "0" or request != "0"
            guaranteed = guaranteed and limit != "0" and limit == request
    return "BestEffort" if not some else "Guaranteed" if guaranteed else "Burstable"
