"""A container's environment and command line, put together in the kubelet's order.

The plugins' variables come first and the pod's own after them, so the pod's value wins: an
`NVIDIA_VISIBLE_DEVICES: all` in a pod spec overrides what the device plugin said. Source:
pkg/kubelet/kubelet_pods.go (makeEnvironmentVariables) and third_party/forked/golang/expansion.
Service variables (KUBERNETES_SERVICE_HOST ...) are left out: nothing listens there.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from gpuslice.errors import GpuSliceError
from gpuslice.local.kubelet.podspec import EnvSource, EnvVar, ResourceFieldRef, RunContainer, RunPod
from gpuslice.node.kubelet.messages import ContainerAllocation
from gpuslice.units import parse_quantity

Kind = Literal["configmap", "secret"]
Values = Mapping[tuple[Kind, str], Mapping[str, str] | None]
"""The ConfigMaps and Secrets of the pod's namespace by kind and name; None if it does not exist."""

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(GpuSliceError):
    """The container cannot be configured yet: waiting reason CreateContainerConfigError."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """What fieldRef and resourceFieldRef can name besides the pod itself."""

    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]
    """The node's cpu, memory and ephemeral-storage: the value of a limit that is not set."""


def sources(container: RunContainer) -> set[tuple[Kind, str]]:
    """Which ConfigMaps and Secrets the environment is made of."""
    found: set[tuple[Kind, str]] = set()
    for whole in container.env_from or ():
        if whole.config_map_ref:
            found.add(("configmap", whole.config_map_ref.name))
        if whole.secret_ref:
            found.add(("secret", whole.secret_ref.name))
    for variable in container.env or ():
        source = variable.value_from
        if source and source.config_map_key_ref:
            found.add(("configmap", source.config_map_key_ref.name))
        if source and source.secret_key_ref:
            found.add(("secret", source.secret_key_ref.name))
    return found


def environment(
    pod: RunPod,
    container: RunContainer,
    answers: Iterable[ContainerAllocation],
    values: Values,
    facts: WaitingPod,
) -> dict[str, str]:
    """Every variable of the container. Raises ConfigError with the kubelet's text."""
    result: dict[str, str] = {}
    for answer in answers:
        result.update(answer.envs)
    own = _from_whole_objects(pod, container, values)
    for variable in container.env or ():
        value = _value(pod, container, variable, own, values, facts)
        if value is not None:
            own[variable.name] = value
    return result | own


def command_line(container: RunContainer, env: Mapping[str, str]) -> tuple[str, ...]:
    """command and args with $(VAR) replaced; empty if only the image knows what to run."""
    if not container.command:
        return ()
    return tuple(expand(word, env) for word in (*container.command, *(container.args or ())))


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace $(NAME); an unknown name stays as it is written, `$$(NAME)` is a literal `$(NAME)`."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else env.get(match[2], match[0])

    return _REFERENCE.sub(replace, text) if "$" in text else text


def _from_whole_objects(pod: RunPod, container: RunContainer, values: Values) -> dict[str, str]:
    own: dict[str, str] = {}
    for whole in container.env_from or ():
        references: tuple[tuple[Kind, object], ...] = (
            ("configmap", whole.config_map_ref),
            ("secret", whole.secret_ref),
        )
        for kind, reference in references:
            if reference is None:
                continue
            name, optional = reference.name, reference.optional  # type: ignore[attr-defined]
            data = _object(kind, name, optional, values)
            own.update({whole.prefix + key: value for key, value in sorted((data or {}).items())})
    return own


def _value(
    pod: RunPod,
    container: RunContainer,
    variable: EnvVar,
    own: Mapping[str, str],
    values: Values,
    facts: WaitingPod,
) -> str | None:
    source = variable.value_from
    if source is None:
        return expand(variable.value, own)
    if source.field_ref is not None:
        return _field(pod, source.field_ref.field_path, facts)
    if source.resource_field_ref is not None:
        return _resource(pod, container, source.resource_field_ref, facts)
    return _key(pod, source, values)


def _key(pod: RunPod, source: EnvSource, values: Values) -> str | None:
    kind: Kind = "configmap" if source.config_map_key_ref else "secret"
    reference = source.config_map_key_ref or source.secret_key_ref
    if reference is None:
        raise ConfigError("an env var has a valueFrom of a kind that this kubelet does not know")
    data = _object(kind, reference.name, reference.optional, values)
    if data is not None and reference.key in data:
        return data[reference.key]
    if reference.optional:
        return None
    what = "ConfigMap" if kind == "configmap" else "Secret"
    raise ConfigError(f"couldn't find key {reference.key} in {what} {pod.namespace}/{reference.name}")


def _object(kind: Kind, name: str, optional: bool, values: Values) -> Mapping[str, str] | None:
    data = values.get((kind, name))
    if data is None:
        if optional:
            return None
        raise ConfigError(f'{kind} "{name}" not found')
    return data


def _field(pod: RunPod, path: str, facts: WaitingPod) -> str:
    fixed = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
    }
    if path in fixed:
        return fixed[path]
    keyed = _KEYED.fullmatch(path)
    if keyed is None:
        raise ConfigError(f"unsupported fieldPath: {path}")
    where = pod.labels if keyed[1] == "labels" else pod.annotations
    return where.get(keyed[2], "")


def _resource(pod: RunPod, container: RunContainer, reference: ResourceFieldRef, facts: WaitingPod) -> str:
    side, _, resource = reference.resource.partition(".")
    if reference.container_name:
        named = [one for one in pod.all_containers if one.name == reference.container_name]
        if not named:
            raise ConfigError(f"container {reference.container_name} not found")
        container = named[0]
    asked = (container.resources.limits if side == "limits" else container.resources.requests) or {}
    value = asked.get(resource, facts.allocatable.get(resource, "0") if side == "limits" else "0")
    divisor = parse_quantity(str(reference.divisor or "1"), field="divisor") or Fraction(1)
    return str(-(-parse_quantity(str(value), field=reference.resource) // divisor))


def decode_secret(data: Mapping[str, str]) -> dict[str, str]:
    """A Secret's values as text; bytes that are no UTF-8 are replaced, as in the process environment."""
    try:
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
    except binascii.Error as error:
        raise ConfigError(f"a secret holds a value that is not base64: {error}") from error


def on_the_host(words: Sequence[str], answers: Iterable[ContainerAllocation]) -> tuple[str, ...]:
    """Replace mounted container paths at the start of arguments by their host paths.

    Processes of this kubelet run in the host's file system: a bind mount would need root. So that
    `cat /run/gpuslice/slice.json` reads the container's own file, an argument that is a mounted path, or
    lies under one, is rewritten; nothing else is, and the environment stays exact.
    """
    mounts = [mount for answer in answers for mount in answer.mounts]

    def rewrite(word: str) -> str:
        for mount in mounts:
            if word == mount.container_path or word.startswith(mount.container_path.rstrip("/") + "/"):
                return mount.host_path + word[len(mount.container_path.rstrip("/")) :]
        return word

    return tuple(rewrite(word) for word in words)


def mounted_programs(answers: Iterable[ContainerAllocation]) -> tuple[tuple[str, str], ...]:
    """The folders of mounts that are single files, in the container and on the host.

    With the host's on its PATH, a process that calls such a file by its name gets the mounted one.
    """
    pairs = [
        (Path(mount.container_path), Path(mount.host_path)) for answer in answers for mount in answer.mounts
    ]
    return tuple(
        (str(inside.parent), str(host.parent))
        for inside, host in pairs
        if inside.name == host.name and host.is_file()
    )
