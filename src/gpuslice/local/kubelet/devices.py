"""The device manager's shell: registration, the plugins' streams, and allocation calls.

Owns `device-plugins/` of one node: deletes every socket there at start (so plugins notice), serves
kubelet.sock, follows each plugin's ListAndWatch, and keeps the checkpoint. Decisions are made by the pure
`devicemanager`; this module carries them to the plugins.
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random
from typing import Final

import structlog

from gpuslice.clock import Clock
from gpuslice.errors import InputError
from gpuslice.local.kubelet.checkpoint import CheckpointFile
from gpuslice.local.kubelet.devicemanager import (
    STOP_GRACE_SECONDS,
    AllocationError,
    Ask,
    DeviceManager,
    Holding,
    Reusable,
)
from gpuslice.local.kubelet.podspec import RunContainer, RunPod
from gpuslice.node.kubelet.messages import API_VERSION, ContainerAllocation, PreferredRequest, Registration
from gpuslice.node.kubelet.rpc import PluginClient, RpcCode, RpcError, Server, serve_registration
from gpuslice.units import parse_count

SOCKET: Final = "kubelet.sock"
SAVE_SECONDS: Final = 0.05

_log = structlog.get_logger(__name__)


class _Endpoint:
    """A registered plugin and the task that follows its ids."""

    def __init__(self, registration: Registration, client: PluginClient) -> None:
        self.options = registration.options
        self.client = client
        self.task: asyncio.Task[None] | None = None
        self.stopped = False
        """The kubelet holds it for gone: it is not asked any more."""

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
        await self.client.aclose()


class Devices:
    """The plugins of one node and what its containers hold.

    `active` answers with the uids of the pods whose containers may run; `on_change` is called when
    capacity or allocatable may have changed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        active: Callable[[], Collection[str]],
        on_change: Callable[[], None],
        clock: Clock,
        random: Random,
    ) -> None:
        self.manager = DeviceManager(random)
        self._folder = folder
        self._active = active
        self._on_change = on_change
        self._clock = clock
        self._random = random
        self._file = CheckpointFile(folder)
        self._endpoints: dict[str, _Endpoint] = {}
        self._connected: dict[str, _Endpoint] = {}  # of these, whose streams are held for open
        self._replaced: list[_Endpoint] = []  # of plugins that registered again; their streams may be open
        self._server: Server | None = None
        self._expiries: set[asyncio.Task[None]] = set()
        self._saving: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Read the checkpoint, delete every socket in the folder, and wait for plugins."""
        self._folder.mkdir(parents=True, exist_ok=True)
        checkpoint = self._file.load()
        self.manager = DeviceManager(self._random)
        self.manager.restore(checkpoint.resources, checkpoint.holdings, self._clock.monotonic())
        if checkpoint.resources:
            self._expire_later()
        for path in self._folder.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink(missing_ok=True)
        self._server = await serve_registration(self._folder / SOCKET, self._register)

    async def stop(self) -> None:
        """End the streams and close kubelet.sock. What containers hold stays on disk."""
        for task in self._expiries:
            task.cancel()
        endpoints = [*self._endpoints.values(), *self._replaced]
        self._endpoints, self._replaced = {}, []
        for endpoint in endpoints:
            await endpoint.close()
        if self._server is not None:
            await self._server.stop()
            self._server = None
        self.flush()

    # --- plugins ----------------------------------------------------------------------------------
    async def _register(self, registration: Registration) -> None:
        if registration.version != API_VERSION:
            raise RpcError(
                RpcCode.UNKNOWN,
                f'requested API version "{registration.version}" is not supported by kubelet. '
                f'Supported version is ["{API_VERSION}"]',
            )
        if not _extended(registration.resource):
            raise RpcError(RpcCode.UNKNOWN, f'the ResourceName "{registration.resource}" is invalid')
        if "/" in registration.endpoint or not registration.endpoint:
            raise RpcError(
                RpcCode.UNKNOWN, f"the endpoint {registration.endpoint!r} must be a file name, not a path"
            )
        try:
            client = PluginClient(self._folder / registration.endpoint)
        except InputError as error:
            raise RpcError(RpcCode.UNKNOWN, str(error)) from error
        endpoint = _Endpoint(registration, client)
        old = self._endpoints.get(registration.resource)
        self._endpoints[registration.resource] = self._connected[registration.resource] = endpoint
        if old is not None:
            self._replaced.append(old)  # its stream stays open
        self.manager.connect(registration.resource)
        endpoint.task = asyncio.create_task(
            self._follow(registration.resource, endpoint), name=f"ListAndWatch {registration.resource}"
        )

    async def _follow(self, resource: str, endpoint: _Endpoint) -> None:
        reason = "the plugin ended ListAndWatch"
        try:
            async for devices in endpoint.client.list_and_watch():
                self.manager.set_devices(resource, devices)
                self._save()
                self._on_change()
        except RpcError as error:
            reason = error.as_go_prints_it
        _log.info("a device plugin is gone", resource=resource, reason=reason)
        # A kubelet does not ask whose stream ended. It disconnects who is registered now, so a plugin that
        # registered beside an old one loses its stream when the old one ends, and has to register once more
        # (`runClient` in pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go of 1.36).
        current = self._connected.pop(resource, None)
        if current is not None:
            current.stopped = True
            self.manager.disconnect(resource, self._clock.monotonic())
            self._expire_later()
            self._on_change()
            if current is not endpoint:
                await current.close()
        if endpoint in self._replaced:
            self._replaced.remove(endpoint)
            await endpoint.client.aclose()

    def _expire_later(self) -> None:
        async def expire() -> None:
            await self._clock.sleep(STOP_GRACE_SECONDS)
            if self.manager.forget_gone(self._clock.monotonic()):
                self._save()
                self._on_change()

        task = asyncio.create_task(expire(), name="plugin expiry")
        self._expiries.add(task)
        task.add_done_callback(self._expiries.discard)

    # --- containers -------------------------------------------------------------------------------
    async def allocate(self, pod: RunPod, running: Callable[[str], bool]) -> None:
        """Give every container of a pod its ids, init containers first.

        `running` tells by name which containers run already. Raises AllocationError.
        """
        reusable = Reusable()
        for container in pod.init_containers:
            await self._allocate(pod, container, reusable, running(container.name))
            for resource, _ in self._wanted(container):
                ids = self.manager.held(pod.uid, container.name, resource) or ()
                (reusable.keep if container.sidecar else reusable.leave)(resource, ids)
        for container in pod.spec.containers:
            await self._allocate(pod, container, reusable, running(container.name))
            for resource, _ in self._wanted(container):
                reusable.keep(resource, self.manager.held(pod.uid, container.name, resource) or ())

    async def _allocate(
        self, pod: RunPod, container: RunContainer, reusable: Reusable, running: bool
    ) -> None:
        for resource, size in self._wanted(container):
            self.manager.update((*self._active(), pod.uid))
            decision = self.manager.plan(
                pod.uid, container.name, resource, size, reusable.of(resource), running=running
            )
            if decision is None:
                continue
            if isinstance(decision, Ask):
                decision = self.manager.settle(decision, await self._prefer(decision))
            endpoint = self._endpoints.get(resource)
            if endpoint is None:
                self.manager.rollback()
                raise AllocationError(f"unknown Device Plugin {resource}")
            if endpoint.stopped:
                self.manager.rollback()
                raise AllocationError(_stopped(resource))
            try:
                answers = await endpoint.client.allocate(tuple(decision.ids))
            except RpcError as error:
                self.manager.rollback()
                raise AllocationError(error.as_go_prints_it) from error
            if not answers:
                raise AllocationError("no containers return in allocation response")
            self.manager.insert(Holding(pod.uid, container.name, resource, decision.ids, answers[0]))
            self._save()

    async def _prefer(self, ask: Ask) -> tuple[str, ...]:
        endpoint = self._endpoints.get(ask.resource)
        if endpoint is None:
            raise AllocationError(f"endpoint not found in cache for a registered resource: {ask.resource}")
        if not endpoint.options.preferred_allocation:
            return ()
        if endpoint.stopped:
            text = f"device plugin GetPreferredAllocation rpc failed with err: {_stopped(ask.resource)}"
            raise AllocationError(text)
        try:
            return await endpoint.client.prefer(
                PreferredRequest(tuple(ask.available), tuple(ask.must_include), ask.size)
            )
        except RpcError as error:
            raise AllocationError(
                f"device plugin GetPreferredAllocation rpc failed with err: {error.as_go_prints_it}"
            ) from error

    async def pre_start(self, pod: RunPod, container: RunContainer) -> None:
        """Tell the plugins that this container is about to start. Raises AllocationError."""
        for resource, _ in self._wanted(container):
            endpoint = self._endpoints.get(resource)
            if endpoint is None:
                raise AllocationError(f"endpoint not found in cache for a registered resource: {resource}")
            if not endpoint.options.pre_start_required:
                continue
            ids = self.manager.held(pod.uid, container.name, resource)
            if ids is None:
                # Admitted before the plugin came: the kubelet allocates late rather than never.
                await self._allocate(pod, container, Reusable(), running=False)
                ids = self.manager.held(pod.uid, container.name, resource) or frozenset()
            if endpoint.stopped:
                text = f"device plugin PreStartContainer rpc failed with err: {_stopped(resource)}"
                raise AllocationError(text)
            try:
                await endpoint.client.pre_start(tuple(ids))
            except RpcError as error:
                text = f"device plugin PreStartContainer rpc failed with err: {error.as_go_prints_it}"
                raise AllocationError(text) from error

    def answers(self, pod: RunPod, container: RunContainer) -> list[ContainerAllocation]:
        """What the plugins said this container gets, a resource each."""
        return [holding.answer for holding in self.manager.holdings(pod.uid, container.name)]

    def _wanted(self, container: RunContainer) -> list[tuple[str, int]]:
        """The container's limits that a plugin serves. Raises AllocationError for a wrong quantity."""
        try:
            return [
                (resource, parse_count(quantity, field=resource))
                for resource, quantity in (container.resources.limits or {}).items()
                if self.manager.manages(resource)
            ]
        except InputError as error:
            raise AllocationError(str(error)) from error

    def _save(self) -> None:
        """Write the checkpoint soon. A kubelet does it at once; this one cannot die alone, so many pods that
        start together are written together.
        """
        if self._saving is None:
            # The loop's own time: nothing is decided by when this happens.
            self._saving = asyncio.get_running_loop().call_later(SAVE_SECONDS, self.flush)

    def flush(self) -> None:
        """Write now what is to be written."""
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None
            self._file.save(self.manager.healthy_ids(), self.manager.all_holdings())


def _stopped(resource: str) -> str:
    """What a kubelet says of a plugin that is gone; it prints a pointer where the name is."""
    return f"endpoint {resource} has been stopped"


def _extended(resource: str) -> bool:
    """True for a name such as aliyun.com/gpu-mem: with a domain, and not one of Kubernetes' own."""
    domain, _, name = resource.partition("/")
    return bool(domain and name) and "kubernetes.io" not in domain and not resource.startswith("requests.")
