"""What a kubelet and a device plugin say to each other, as values, and their bytes on the wire.

Each message is a frozen dataclass; `encode_*` and `decode_*` turn it into protobuf and back, so that no
protobuf object leaves this module. No I/O here: `kubeletapi` carries the bytes.

Sources: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1 and .../podresources/v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

from gpuslice.node.kubelet.proto import deviceplugin_pb2 as dp
from gpuslice.node.kubelet.proto import podresources_pb2 as pr

API_VERSION: Final = "v1beta1"
"""The only device plugin version that a kubelet of the last eight years accepts."""
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


# --- device plugin v1beta1 ------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PluginOptions:
    """Which of the optional calls a plugin wants to get."""

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
    """One container's question: `size` ids out of `available`, among them all of `must_include`."""

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


def encode_options(options: PluginOptions) -> bytes:
    return _options(options).SerializeToString()


def decode_options(data: bytes) -> PluginOptions:
    return _read_options(dp.DevicePluginOptions.FromString(data))


def encode_registration(registration: Registration) -> bytes:
    return dp.RegisterRequest(
        version=registration.version,
        endpoint=registration.endpoint,
        resource_name=registration.resource,
        options=_options(registration.options),
    ).SerializeToString()


def decode_registration(data: bytes) -> Registration:
    message = dp.RegisterRequest.FromString(data)
    return Registration(
        message.resource_name, message.endpoint, _read_options(message.options), message.version
    )


def encode_devices(devices: Iterable[Device]) -> bytes:
    """One ListAndWatch answer: the complete list, 60,000 ids in about 20 ms."""
    message = dp.ListAndWatchResponse()
    add = message.devices.add  # fields set one by one: four times as fast as keyword arguments
    for device in devices:
        entry = add()
        entry.ID = device.id
        entry.health = HEALTHY if device.healthy else UNHEALTHY
        for number in device.numa:
            entry.topology.nodes.add(ID=number)
    return message.SerializeToString()


def decode_devices(data: bytes) -> tuple[Device, ...]:
    return tuple(
        Device(
            message.ID,
            message.health == HEALTHY,
            tuple(node.ID for node in message.topology.nodes) if message.HasField("topology") else (),
        )
        for message in dp.ListAndWatchResponse.FromString(data).devices
    )


def encode_preferred_requests(requests: Iterable[PreferredRequest]) -> bytes:
    return dp.PreferredAllocationRequest(
        container_requests=[
            dp.ContainerPreferredAllocationRequest(
                available_deviceIDs=request.available,
                must_include_deviceIDs=request.must_include,
                allocation_size=request.size,
            )
            for request in requests
        ]
    ).SerializeToString()


def decode_preferred_requests(data: bytes) -> tuple[PreferredRequest, ...]:
    return tuple(
        PreferredRequest(
            tuple(message.available_deviceIDs), tuple(message.must_include_deviceIDs), message.allocation_size
        )
        for message in dp.PreferredAllocationRequest.FromString(data).container_requests
    )


def encode_preferred(answers: Iterable[Sequence[str]]) -> bytes:
    return dp.PreferredAllocationResponse(
        container_responses=[dp.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in answers]
    ).SerializeToString()


def decode_preferred(data: bytes) -> tuple[tuple[str, ...], ...]:
    message = dp.PreferredAllocationResponse.FromString(data)
    return tuple(tuple(answer.deviceIDs) for answer in message.container_responses)


def encode_allocate_requests(requests: Iterable[Sequence[str]]) -> bytes:
    return dp.AllocateRequest(
        container_requests=[dp.ContainerAllocateRequest(devices_ids=ids) for ids in requests]
    ).SerializeToString()


def decode_allocate_requests(data: bytes) -> tuple[tuple[str, ...], ...]:
    message = dp.AllocateRequest.FromString(data)
    return tuple(tuple(request.devices_ids) for request in message.container_requests)


def encode_allocations(answers: Iterable[ContainerAllocation]) -> bytes:
    return dp.AllocateResponse(
        container_responses=[
            dp.ContainerAllocateResponse(
                envs=answer.envs,
                mounts=[
                    dp.Mount(
                        container_path=mount.container_path,
                        host_path=mount.host_path,
                        read_only=mount.read_only,
                    )
                    for mount in answer.mounts
                ],
                devices=[
                    dp.DeviceSpec(
                        container_path=node.container_path,
                        host_path=node.host_path,
                        permissions=node.permissions,
                    )
                    for node in answer.devices
                ],
                annotations=answer.annotations,
                cdi_devices=[dp.CDIDevice(name=name) for name in answer.cdi_devices],
            )
            for answer in answers
        ]
    ).SerializeToString()


def decode_allocations(data: bytes) -> tuple[ContainerAllocation, ...]:
    return tuple(
        ContainerAllocation(
            envs=dict(answer.envs),
            mounts=tuple(
                Mount(mount.container_path, mount.host_path, mount.read_only) for mount in answer.mounts
            ),
            devices=tuple(
                DeviceNode(node.container_path, node.host_path, node.permissions) for node in answer.devices
            ),
            annotations=dict(answer.annotations),
            cdi_devices=tuple(device.name for device in answer.cdi_devices),
        )
        for answer in dp.AllocateResponse.FromString(data).container_responses
    )


def encode_pre_start(ids: Sequence[str]) -> bytes:
    return dp.PreStartContainerRequest(devices_ids=ids).SerializeToString()


def decode_pre_start(data: bytes) -> tuple[str, ...]:
    return tuple(dp.PreStartContainerRequest.FromString(data).devices_ids)


def _options(options: PluginOptions) -> dp.DevicePluginOptions:
    return dp.DevicePluginOptions(
        pre_start_required=options.pre_start_required,
        get_preferred_allocation_available=options.preferred_allocation,
    )


def _read_options(message: dp.DevicePluginOptions) -> PluginOptions:
    return PluginOptions(message.pre_start_required, message.get_preferred_allocation_available)


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
    """The question of pod-resources Get."""

    namespace: str
    name: str


# A list is asked for at every start of a container, and most pods in it are as they were: each is put into
# bytes and read from bytes once.
_REMEMBERED: Final = 1 << 13


def encode_pods(pods: Iterable[PodResources]) -> bytes:
    # Messages one after the other are one message with all their repeated fields.
    return b"".join(map(_list_of_one, pods))


def decode_pods(data: bytes) -> tuple[PodResources, ...]:
    message = pr.ListPodResourcesResponse.FromString(data)
    return tuple(_read_pod_bytes(pod.SerializeToString()) for pod in message.pod_resources)


@lru_cache(_REMEMBERED)
def _list_of_one(pod: PodResources) -> bytes:
    return pr.ListPodResourcesResponse(pod_resources=[_pod(pod)]).SerializeToString()


@lru_cache(_REMEMBERED)
def _read_pod_bytes(data: bytes) -> PodResources:
    return _read_pod(pr.PodResources.FromString(data))


def encode_pod_name(pod: PodName) -> bytes:
    return pr.GetPodResourcesRequest(pod_name=pod.name, pod_namespace=pod.namespace).SerializeToString()


def decode_pod_name(data: bytes) -> PodName:
    message = pr.GetPodResourcesRequest.FromString(data)
    return PodName(message.pod_namespace, message.pod_name)


def encode_pod(pod: PodResources) -> bytes:
    return pr.GetPodResourcesResponse(pod_resources=_pod(pod)).SerializeToString()


def decode_pod(data: bytes) -> PodResources:
    return _read_pod(pr.GetPodResourcesResponse.FromString(data).pod_resources)


def encode_allocatable(devices: Iterable[ContainerDevices]) -> bytes:
    return pr.AllocatableResourcesResponse(devices=[_entry(entry) for entry in devices]).SerializeToString()


def decode_allocatable(data: bytes) -> tuple[ContainerDevices, ...]:
    return tuple(_read_entry(entry) for entry in pr.AllocatableResourcesResponse.FromString(data).devices)


def _entry(entry: ContainerDevices) -> pr.ContainerDevices:
    return pr.ContainerDevices(resource_name=entry.resource, device_ids=entry.ids)


def _read_entry(message: pr.ContainerDevices) -> ContainerDevices:
    return ContainerDevices(message.resource_name, tuple(message.device_ids))


def _pod(pod: PodResources) -> pr.PodResources:
    return pr.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            pr.ContainerResources(name=container.name, devices=[_entry(entry) for entry in container.devices])
            for container in pod.containers
        ],
    )


def _read_pod(message: pr.PodResources) -> PodResources:
    return PodResources(
        message.namespace,
        message.name,
        tuple(
            ContainerResources(container.name, tuple(_read_entry(entry) for entry in container.devices))
            for container in message.containers
        ),
    )
