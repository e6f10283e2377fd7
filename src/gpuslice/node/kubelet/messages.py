"""The messages between a kubelet and a device plugin, as values.

Sources: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1 and .../podresources/v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

API_VERSION: Final = "v1beta1"
"""The only device plugin version that a kubelet of the last eight years accepts."""


# --- device plugin v1beta1 ------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PluginOptions:
    """Which of the optional calls a plugin wants."""

    pre_start_required: bool = False
    preferred_allocation: bool = False


@dataclass(frozen=True, slots=True)
class Registration:
    """A plugin introduces itself: `endpoint` is the file name of its socket in the kubelet's folder."""

    resource: str
    endpoint: str
    options: PluginOptions = PluginOptions()
    version: str = API_VERSION


@dataclass(frozen=True, slots=True)
class Device:
    """One id of a resource. `numa` are the NUMA nodes it is near to, if known."""

    id: str
    healthy: bool = True
    numa: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PreferredRequest:
    """One container's request: `size` ids out of `available`, among them all of `must_include`."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Mount:
    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file; `permissions` is a subset of "rwm"."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """What the container gets for its ids: Allocate's answer."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


# --- pod-resources v1 -----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """Ids of one resource. A kubelet sends one such entry per id, so a resource may come many times."""

    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class ContainerResources:
    name: str
    devices: tuple[ContainerDevices, ...] = ()

    def ids(self, resource: str) -> frozenset[str]:
        """All ids of that resource, in whatever entries they came."""
        return self._ids.get(resource, frozenset())

    @property
    def resources(self) -> Iterable[str]:
        """The resources of which it has ids."""
        return self._ids.keys()

    @cached_property
    def _ids(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for entry in self.devices:
            found.setdefault(entry.resource, set()).update(entry.ids)
        return {resource: frozenset(ids) for resource, ids in found.items()}


@dataclass(frozen=True, slots=True)
class PodResources:
    """A pod that the kubelet counts as holding something: by name only, the API has no uid.

    App containers and sidecars are listed, ordinary init containers are not.
    """

    namespace: str
    name: str
    containers: tuple[ContainerResources, ...] = ()


@dataclass(frozen=True, slots=True)
class PodName:
    """The request of pod-resources Get."""

    namespace: str
    name: str
