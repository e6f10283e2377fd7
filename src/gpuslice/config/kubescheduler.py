"""kube-scheduler's own configuration with our extender in it, and the static pod that reads it. Pure.

Sources: kubescheduler.config.k8s.io/v1 (and v1beta2, v1beta3, whose extenders are the same), the Policy of
kube-scheduler before 1.23, kubeadm's manifest of the static pod.
"""

from __future__ import annotations

import copy
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuslice import names
from gpuslice.errors import InputError
from gpuslice.requests.kinds import FIXED, SHARES

Json = dict[str, Any]

VOLUME: Final = "gpuslice-scheduler-config"
_GROUP: Final = "kubescheduler.config.k8s.io"
_TIMEOUT_SECONDS: Final = 10
_CONFIG: Final = "--config"
_POLICY: Final = "--policy-config-file"


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a kube-scheduler of that version, (major, minor), reaches the extender.

    For https, all PEM: `ca` signed the extender's certificate, which is for `server_name` where the URL has
    another one; `client` is the certificate and the key that the extender asks for.
    """

    url: str
    version: tuple[int, int]
    ca: bytes | None = None
    client: tuple[bytes, bytes] | None = None
    server_name: str | None = None
    weight: int = 5

    @property
    def uses_policy(self) -> bool:
        """True for the format that 1.23 took away."""
        return self.version < (1, 22)

    @property
    def api_version(self) -> str:
        if self.version >= (1, 25):
            return f"{_GROUP}/v1"
        return f"{_GROUP}/v1beta3" if self.version >= (1, 23) else f"{_GROUP}/v1beta2"


def extender_of(wiring: Wiring) -> Json:
    """The extender's entry. Without its answer no pod gets a GPU; other pods are not concerned."""
    https = wiring.url.startswith("https:")
    url = wiring.url.rstrip("/")
    entry: Json = {
        "urlPrefix": url if url.endswith(names.EXTENDER_PREFIX) else url + names.EXTENDER_PREFIX,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": wiring.weight,
        "enableHttps" if wiring.uses_policy else "enableHTTPS": https,
        "httpTimeout": _TIMEOUT_SECONDS * 10**9 if wiring.uses_policy else f"{_TIMEOUT_SECONDS}s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [{"name": kind.resource, "ignoredByScheduler": False} for kind in FIXED],
    }
    tls: Json = {}
    if wiring.server_name is not None:
        tls["serverName"] = wiring.server_name
    if wiring.ca is not None:
        tls["caData"] = b64encode(wiring.ca).decode()
    if wiring.client is not None:
        tls["certData"], tls["keyData"] = (b64encode(part).decode() for part in wiring.client)
    if tls:
        entry["tlsConfig"] = tls
    return entry


def configuration(wiring: Wiring, *, kubeconfig: str, base: Mapping[str, Any] | None = None) -> Json:
    """The whole file. `base`: what the scheduler reads today; everything else in it stays.

    An extender of gpushare's in it gives way: kube-scheduler takes one that binds. Raises InputError.
    """
    made: Json = copy.deepcopy(dict(base)) if base else {}
    if wiring.uses_policy:
        made = {"kind": "Policy", "apiVersion": "v1", **made}
    elif not made:
        made = {
            "apiVersion": wiring.api_version,
            "kind": "KubeSchedulerConfiguration",
            # With a configuration file kube-scheduler does not look at --kubeconfig.
            "clientConnection": {"kubeconfig": kubeconfig},
            "leaderElection": {"leaderElect": True},
        }
    elif not str(made.get("apiVersion", "")).startswith(f"{_GROUP}/"):
        raise InputError(f"{made.get('apiVersion')!r} is no version of {_GROUP}", field="apiVersion")
    others = made.get("extenders") or []
    if not isinstance(others, list):
        raise InputError("is not a list", field="extenders")
    kept = [other for other in others if not _manages_shares(other)]
    binders = [other["urlPrefix"] for other in kept if isinstance(other, dict) and other.get("bindVerb")]
    if binders:
        raise InputError(
            f"the extender at {binders[0]} binds pods, too, and kube-scheduler takes one such; "
            "take its bindVerb out",
            field="extenders",
        )
    made["extenders"] = [*kept, extender_of(wiring)]
    return made


def config_argument(manifest: Mapping[str, Any]) -> str | None:
    """The path in the container that a static pod reads its configuration from, if it names one."""
    for word in _command(manifest):
        for flag in (_CONFIG, _POLICY):
            if word.startswith(f"{flag}="):
                return word.partition("=")[2]
    return None


def kubeconfig_argument(manifest: Mapping[str, Any]) -> str:
    """The kubeconfig that it uses; kubeadm's if it names none."""
    found = [word.partition("=")[2] for word in _command(manifest) if word.startswith("--kubeconfig=")]
    return found[-1] if found else "/etc/kubernetes/scheduler.conf"


def host_path(manifest: Mapping[str, Any], path: str) -> str | None:
    """Where a file of the container lies on the host, by its volumes; None if it is none of the host's."""
    volumes = {
        volume.get("name"): (volume.get("hostPath") or {}).get("path")
        for volume in manifest["spec"].get("volumes") or []
    }
    for mount in _container(manifest).get("volumeMounts") or []:
        inside, outside = str(mount.get("mountPath")).rstrip("/"), volumes.get(mount.get("name"))
        if outside is not None and (path == inside or path.startswith(f"{inside}/")):
            return str(outside).rstrip("/") + path[len(inside) :]
    return None


def is_wired(manifest: Mapping[str, Any]) -> bool:
    """True if the manifest reads a configuration of ours."""
    return any(volume.get("name") == VOLUME for volume in manifest["spec"].get("volumes") or [])


def wired(manifest: Mapping[str, Any], wiring: Wiring, config: str) -> Json:
    """The manifest with `config`, a path of the host, mounted and read. Repeating it changes nothing."""
    made = unwired(manifest)
    command = _command(made)
    flag = _POLICY if wiring.uses_policy else _CONFIG
    previous = [word for word in command if word.startswith((f"{_CONFIG}=", f"{_POLICY}="))]
    command[:] = [word for word in command if word not in previous] + [f"{flag}={config}"]
    container = _container(made)
    mount = {"mountPath": config, "name": VOLUME, "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
    volume = {"hostPath": {"path": config, "type": "File"}, "name": VOLUME}
    made["spec"]["volumes"] = [*(made["spec"].get("volumes") or []), volume]
    if previous:
        made["metadata"].setdefault("annotations", {})[names.PREVIOUS_ARGUMENTS] = "\n".join(previous)
    return made


def unwired(manifest: Mapping[str, Any]) -> Json:
    """The manifest as it was without us, whatever else has changed in it since."""
    made: Json = copy.deepcopy(dict(manifest))
    if not is_wired(made):
        return made
    container, command = _container(made), _command(made)
    mine = {
        mount["mountPath"] for mount in container.get("volumeMounts") or [] if mount.get("name") == VOLUME
    }
    annotations = made["metadata"].get("annotations") or {}
    previous = [word for word in annotations.pop(names.PREVIOUS_ARGUMENTS, "").split("\n") if word]
    if not annotations:
        made["metadata"].pop("annotations", None)
    command[:] = [word for word in command if word.partition("=")[2] not in mine] + previous
    container["volumeMounts"] = [m for m in container["volumeMounts"] if m.get("name") != VOLUME]
    made["spec"]["volumes"] = [v for v in made["spec"]["volumes"] if v.get("name") != VOLUME]
    return made


def check_manifest(document: object) -> Json:
    """Raises InputError unless it is the manifest of a kube-scheduler."""
    if not isinstance(document, dict) or document.get("kind") != "Pod":
        raise InputError("is not the manifest of a Pod")
    if not isinstance(document.get("metadata"), dict) or not isinstance(document.get("spec"), dict):
        raise InputError("has no metadata or spec")
    _command(document)
    return document


def _container(manifest: Mapping[str, Any]) -> Json:
    containers = manifest["spec"].get("containers") or []
    for container in containers:
        if isinstance(container, dict) and container.get("name") == "kube-scheduler":
            return container
    raise InputError("has no container kube-scheduler", field="spec.containers")


def _command(manifest: Mapping[str, Any]) -> list[str]:
    """The list that the flags stand in, to be changed in place."""
    container = _container(manifest)
    for field in ("args", "command"):
        words = container.get(field)
        if isinstance(words, list) and any(str(word).startswith("--") for word in words):
            return words
    command = container.get("command")
    if isinstance(command, list) and command:
        return command
    raise InputError("does not say how it is started", field="spec.containers[kube-scheduler].command")


def _manages_shares(extender: object) -> bool:
    managed = extender.get("managedResources") if isinstance(extender, dict) else None
    return any(isinstance(one, dict) and one.get("name") == SHARES.resource for one in managed or [])
