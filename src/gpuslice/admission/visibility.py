"""Keeps a container's environment from showing it other GPUs than those that it is given. Pure.

kubelet puts a container's environment together from what the device plugin answered, then `envFrom`, then
`env`, later ones beating earlier ones and all of them the image's (kubelet `makeEnvironmentVariables`). Where
NVIDIA's runtime starts every container it gives what the variables below name. So of a container that gets a
GPU they are taken out, and every other is told `void`, because images say `all` (all of nvidia/cuda).
`void` makes NVIDIA's runtime leave a container alone, whatever else it says; `none` brings the driver's
libraries without a GPU, and whatever the other variables name (NVIDIA Container Toolkit
`internal/config/image`, `internal/modifier`).

Left alone is who can open every GPU of the node anyway, or who looks after them: privileged containers,
those with SYS_ADMIN, and pods that mount the host's root, devices or what device plugins use. The Pod
Security level `baseline` forbids all of these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpuslice import names
from gpuslice.kube.wire import ResourceRequirements, Wire
from gpuslice.requests.check import asks_of, may_bring_gpus, of_gpus

FEATURES: Final = frozenset(
    {
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_GDS",
        "NVIDIA_GDRCOPY",
        "NVIDIA_MOFED",
        "NVIDIA_NVSWITCH",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
    }
)
"""What NVIDIA's runtime adds to a container's GPUs: memory of other nodes, storage, network, switches, the
right to partition. Whether containers get these is said to the device plugin. Not among them is
NVIDIA_DRIVER_CAPABILITIES: which of the driver's libraries are there is the pod's own business."""
PROTECTED: Final = FEATURES | {
    names.VISIBLE_DEVICES,
    names.MEM_IDX,
    names.MEM_POD,
    names.MEM_CONTAINER,
    names.MEM_DEV,
    names.CGPU_DISABLE,
}
"""Variables that belong to the device plugin."""
FIELDS: Final = ("containers", "initContainers", "ephemeralContainers")
"""The lists of containers in a pod's spec."""
MOST: Final = 100
"""So many are taken out of one container: the API server moves the whole list for each."""
HIDDEN: Final = "void"
LIBRARIES_ONLY: Final = "none"
_SHOWS_NONE: Final = ("", HIDDEN, LIBRARIES_ONLY)
_HOST: Final = (
    "/dev",
    "/sys",
    "/proc",
    "/run/nvidia",
    "/var/run/nvidia",
    "/run/cdi",
    "/var/run/cdi",
    "/etc/cdi",
)
_KUBELETS: Final = frozenset({"device-plugins", "pod-resources"})
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - to tell it from devices


class EnvFrom(StrEnum):
    """What becomes of a GPU container's `envFrom`, whose names nobody knows before it starts."""

    REFUSE = "refuse"
    RESOLVE = "resolve"
    """`env` says void, which beats it: right where containers get their GPUs by CDI alone."""
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class Rules:
    """What an administrator chooses. `hide`: also in pods of which no container asks for a GPU."""

    env_from: EnvFrom = EnvFrom.REFUSE
    hide: bool = True


RULES: Final = Rules()
"""The chart's defaults."""


@dataclass(slots=True)
class Changes:
    """What is to become of a pod: a JSON patch, a warning for each change that its author made necessary,
    and why it cannot be let in.
    """

    patch: list[dict[str, object]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


class _EnvVar(Wire, frozen=True, gc=False):
    name: str = ""
    value: str = ""
    value_from: dict[str, object] | None = None

    @property
    def is_void(self) -> bool:
        return (self.name, self.value, self.value_from) == (names.VISIBLE_DEVICES, HIDDEN, None)

    @property
    def shows_none(self) -> bool:
        return self.value_from is None and self.value in _SHOWS_NONE


class _EnvFrom(Wire, frozen=True, gc=False):
    prefix: str = ""


class _Capabilities(Wire, frozen=True, gc=False):
    add: tuple[str, ...] | None = None


class _SecurityContext(Wire, frozen=True, gc=False):
    privileged: bool | None = None
    capabilities: _Capabilities | None = None


class EnvContainer(Wire, frozen=True, gc=False):
    """A container as far as its environment and its rights go."""

    name: str = ""
    env: tuple[_EnvVar, ...] | None = None
    env_from: tuple[_EnvFrom, ...] | None = None
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None
    security_context: _SecurityContext | None = None


class _HostPath(Wire, frozen=True, gc=False):
    path: str = ""


class _Volume(Wire, frozen=True, gc=False):
    host_path: _HostPath | None = None


class EnvSpec(Wire, frozen=True, gc=False):
    """A pod's spec, the same, and the node that it names."""

    node_name: str | None = None
    containers: tuple[EnvContainer, ...] = ()
    init_containers: tuple[EnvContainer, ...] | None = None
    ephemeral_containers: tuple[EnvContainer, ...] | None = None
    volumes: tuple[_Volume, ...] | None = None


def settle(
    spec: EnvSpec,
    annotations: Mapping[str, str],
    *,
    asks: bool,
    fields: Collection[str] = FIELDS,
    known: Collection[str] = (),
    rules: Rules,
) -> Changes:
    """What is to be done about the environments of a pod's containers.

    `asks`: does any of them ask for a GPU? `fields`: which lists of containers may be changed; `known`: the
    names of containers that were there before, which nobody may change any more.
    """
    changes = Changes()
    if not asks and not rules.hide:
        return changes
    host = any(v.host_path is not None and _of_the_host(v.host_path.path) for v in spec.volumes or ())
    shown = _shown(annotations, changes)
    lists = (spec.containers, spec.init_containers, spec.ephemeral_containers)
    for where, containers in zip(FIELDS, lists, strict=True):
        for position, container in enumerate(containers or () if where in fields else ()):
            if container.name in known:
                continue
            path = f"/spec/{where}/{position}"
            if sum(variable.name in PROTECTED for variable in container.env or ()) > MOST:
                changes.refusals.append(
                    f"spec.{where}[{position}].env: container {container.name!r} sets variables of the "
                    f"device plugin more than {MOST} times; leave them out"
                )
                continue
            if asks_of(container.resources, of_gpus):
                _own(container, f"spec.{where}[{position}]", path, changes, rules.env_from)
            elif not (host or _is_trusted(container) or asks_of(container.resources, may_bring_gpus)):
                _hide(container, path, changes, shown)
    return changes


def _shown(annotations: Mapping[str, str], changes: Changes) -> str:
    said = annotations.get(names.DRIVER_LIBRARIES, "false")
    if said not in ("true", "false"):
        changes.warnings.append(
            f"metadata.annotations[{names.DRIVER_LIBRARIES}]: {said[:40]!r} is neither "
            '"true" nor "false", and counts as false'
        )
    return LIBRARIES_ONLY if said == "true" else HIDDEN


def _own(container: EnvContainer, where: str, path: str, changes: Changes, choice: EnvFrom) -> None:
    """Leave the device plugin the last word about a container that gets a GPU."""
    unknown = [index for index, one in enumerate(container.env_from or ()) if _may_name_protected(one)]
    says_void = bool(unknown) and choice is EnvFrom.RESOLVE
    # From the last to the first, so that each removal leaves the earlier indexes right.
    for index, variable in _backwards(container, PROTECTED):
        if says_void and variable.is_void:
            continue
        changes.patch.append({"op": "remove", "path": f"{path}/env/{index}"})
        why = (
            "what it names is given by whoever configures the device plugin"
            if variable.name in FEATURES
            else "gpuslice sets it to the GPU that the container is given"
        )
        changes.warnings.append(f"container {container.name!r}: env {variable.name} was removed; {why}")
    if unknown and choice is EnvFrom.REFUSE:
        changes.refusals.append(
            f"{where}.envFrom[{unknown[0]}]: container {container.name!r} asks for a GPU, and what this "
            f"brings could set {names.VISIBLE_DEVICES}, which would show it every GPU of the node; name the "
            "variables in env (valueFrom), or give it a prefix; an administrator can allow it by "
            "webhook.envFrom in gpuslice's chart"
        )
    if says_void and not any(variable.is_void for variable in container.env or ()):
        _append(container, path, changes, {names.VISIBLE_DEVICES: HIDDEN})


def _may_name_protected(source: _EnvFrom) -> bool:
    return any(name.startswith(source.prefix) for name in PROTECTED)


def _hide(container: EnvContainer, path: str, changes: Changes, shown: str) -> None:
    """Make the container's own environment say that it sees no GPU; silently, unless it said otherwise."""
    told = _told(container, shown)
    kept = [v for v in container.env or () if v.name in told]
    if len(kept) == len(told) and all(v.value_from is None and v.value == told[v.name] for v in kept):
        return
    for index, variable in _backwards(container, told):
        changes.patch.append({"op": "remove", "path": f"{path}/env/{index}"})
        if not variable.shows_none:
            changes.warnings.append(
                f"container {container.name!r}: env {variable.name} was set to {told[variable.name]!r}; the "
                f"container asks for no GPU (aliyun.com/gpu-mem, nvidia.com/gpu)"
            )
    _append(container, path, changes, told)


def _told(container: EnvContainer, shown: str) -> dict[str, str]:
    """The variables that hide the GPUs. With the driver's libraries features would come; they are unsaid."""
    said = [v for v in container.env or () if v.name == names.VISIBLE_DEVICES]
    libraries = bool(said) and all(v.value_from is None and v.value == LIBRARIES_ONLY for v in said)
    if shown == LIBRARIES_ONLY or libraries:
        return {names.VISIBLE_DEVICES: LIBRARIES_ONLY, **dict.fromkeys(sorted(FEATURES), "")}
    return {names.VISIBLE_DEVICES: HIDDEN}


def _append(container: EnvContainer, path: str, changes: Changes, values: Mapping[str, str]) -> None:
    variables = [{"name": name, "value": value} for name, value in values.items()]
    if not container.env:
        changes.patch.append({"op": "add", "path": f"{path}/env", "value": variables})
        return
    changes.patch += [{"op": "add", "path": f"{path}/env/-", "value": variable} for variable in variables]


def _backwards(container: EnvContainer, wanted: Collection[str]) -> Iterator[tuple[int, _EnvVar]]:
    for index, variable in reversed(list(enumerate(container.env or ()))):
        if variable.name in wanted:
            yield index, variable


def _is_trusted(container: EnvContainer) -> bool:
    context = container.security_context
    if context is None:
        return False
    added = context.capabilities.add or () if context.capabilities else ()
    return bool(context.privileged) or not {"SYS_ADMIN", "CAP_SYS_ADMIN", "ALL"}.isdisjoint(added)


def _of_the_host(path: str) -> bool:
    """Does a folder or file of the host show the host's devices, or who has them?"""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    clean = "/" + "/".join(parts)
    if clean == "/" or not _KUBELETS.isdisjoint(parts):
        return True
    return clean != _SHARED_MEMORY and any(clean == one or clean.startswith(f"{one}/") for one in _HOST)
