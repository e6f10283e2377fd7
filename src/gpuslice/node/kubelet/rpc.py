"""The only module that uses gRPC: device plugin v1beta1 and pod-resources v1 over unix sockets, both sides.

As a plugin: `serve_plugin`, `register`, `PodResourcesClient`. As a kubelet (`local.kubelet`):
`serve_registration`, `PluginClient`, `serve_pod_resources`. The messages are the values of `messages`.

Errors: a call that fails raises `RpcError` with gRPC's code and the other side's sentence; an `RpcError`
raised by a served object travels the same way. A socket that cannot be bound is an `InputError`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

# gRPC's core writes to stderr when a peer goes away; that is no news here, errors come as exceptions.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio
import structlog

from gpuslice.errors import GpuSliceError, InputError
from gpuslice.node.kubelet import wire
from gpuslice.node.kubelet.messages import (
    ContainerAllocation,
    ContainerDevices,
    Device,
    PluginOptions,
    PodName,
    PodResources,
    PreferredRequest,
    Registration,
)

# gRPC's core would print on a user's terminal that a kubelet restarts or a pod ends.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

Q = TypeVar("Q")
A = TypeVar("A")

LIST_AND_WATCH_LIMIT: Final = 4 * 1024 * 1024
"""Bytes that a kubelet takes as one message from a plugin (grpc-go's default): more ends the stream."""
PRE_START_TIMEOUT: Final = 30.0
"""Seconds that a kubelet gives PreStartContainer."""
MAX_PATH: Final = 103 if sys.platform == "darwin" else 107
"""Bytes of a unix socket's path (sockaddr_un)."""

_PLUGIN: Final = "v1beta1.DevicePlugin"
_REGISTRATION: Final = "v1beta1.Registration"
_LISTER: Final = "v1.PodResourcesLister"

_SMALL: Final = (
    ("grpc.so_reuseport", 0),
    # One connection and no peer but the kubelet: what a public server needs only costs memory here.
    ("grpc.enable_channelz", 0),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
_SERVER: Final = (*_SMALL, ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_CLIENT: Final = (
    *_SMALL,
    # Strict peers refuse the percent-encoded socket path as authority; a kubelet sends this too.
    ("grpc.default_authority", "localhost"),
    # Channels to the same path would share one connection, also one that belongs to a dead server.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_log = structlog.get_logger(__name__)


class RpcCode(StrEnum):
    """gRPC's status codes; the value is Go's spelling, as a kubelet prints it."""

    CANCELLED = "Canceled"
    UNKNOWN = "Unknown"
    INVALID_ARGUMENT = "InvalidArgument"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    NOT_FOUND = "NotFound"
    ALREADY_EXISTS = "AlreadyExists"
    PERMISSION_DENIED = "PermissionDenied"
    RESOURCE_EXHAUSTED = "ResourceExhausted"
    FAILED_PRECONDITION = "FailedPrecondition"
    ABORTED = "Aborted"
    OUT_OF_RANGE = "OutOfRange"
    UNIMPLEMENTED = "Unimplemented"
    INTERNAL = "Internal"
    UNAVAILABLE = "Unavailable"
    DATA_LOSS = "DataLoss"
    UNAUTHENTICATED = "Unauthenticated"


class RpcError(GpuSliceError):
    """A gRPC call failed: why, as a code for programs and a sentence for humans."""

    def __init__(self, code: RpcCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        """True if the other side was away."""
        return self.code is RpcCode.UNAVAILABLE

    @property
    def as_go_prints_it(self) -> str:
        """The text in which a kubelet quotes it: `rpc error: code = Internal desc = ...`."""
        return f"rpc error: code = {self.code} desc = {self}"


class DevicePlugin(Protocol):
    """One resource of one node. Every method may raise RpcError."""

    async def options(self) -> PluginOptions:
        """Which optional calls the plugin wants."""

    def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        """The complete list of ids, now and again after each change. Runs until the kubelet goes."""

    async def prefer(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        """Choose ids, per request."""

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocation]:
        """What a container gets for these ids, per request."""

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Make the ids ready, just before their container starts."""


class PodResourcesLister(Protocol):
    """What a kubelet knows about who holds which ids."""

    async def list(self) -> Sequence[PodResources]:
        """Every pod that counts as active."""

    async def get(self, pod: PodName) -> PodResources:
        """One of them. Raises RpcError(NOT_FOUND)."""

    async def allocatable(self) -> Sequence[ContainerDevices]:
        """All healthy ids, held or not."""


class Server:
    """A gRPC server on one unix socket.

    Stopping removes whatever is at its path by then: stop the old one before another serves there.
    """

    def __init__(self, server: grpc.aio.Server, path: Path) -> None:
        self.path = path
        self._server = server

    async def stop(self) -> None:
        """End every call and remove the socket. Safe to call twice."""
        await self._server.stop(None)


# --- as a device plugin ---------------------------------------------------------------------------
async def serve_plugin(path: Path, plugin: DevicePlugin) -> Server:
    """Serve a plugin on a socket: listening when this returns, so registering may follow."""

    async def options(_: None) -> PluginOptions:
        return await plugin.options()

    async def pre_start(ids: tuple[str, ...]) -> None:
        await plugin.pre_start(ids)

    methods = {
        "GetDevicePluginOptions": _unary(options, _nothing, wire.encode_options),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(
            _streaming(plugin.list_and_watch), _nothing, wire.encode_devices
        ),
        "GetPreferredAllocation": _unary(
            plugin.prefer, wire.decode_preferred_requests, wire.encode_preferred
        ),
        "Allocate": _unary(plugin.allocate, wire.decode_allocate_requests, wire.encode_allocations),
        "PreStartContainer": _unary(pre_start, wire.decode_pre_start, _empty),
    }
    return await _serve(path, {_PLUGIN: methods})


async def register(kubelet: Path, registration: Registration, *, timeout: float = 5.0) -> None:
    """Introduce a plugin that is being served to the kubelet behind that `kubelet.sock`."""
    async with _channel(kubelet) as channel:
        call = channel.unary_unary(f"/{_REGISTRATION}/Register", wire.encode_registration, _nothing)
        await _answer(call(registration, timeout=timeout))


class PodResourcesClient:
    """Asks a kubelet who holds which ids."""

    def __init__(self, path: Path) -> None:
        # A List of a node with many small ids is larger than gRPC's default of 4 MiB.
        self._channel = _channel(path, receive_limit=-1)
        method = self._channel.unary_unary
        self._list = method(f"/{_LISTER}/List", _empty, wire.decode_pods)
        self._get = method(f"/{_LISTER}/Get", wire.encode_pod_name, wire.decode_pod)
        self._allocatable = method(f"/{_LISTER}/GetAllocatableResources", _empty, wire.decode_allocatable)

    async def list(self, *, timeout: float = 10.0) -> tuple[PodResources, ...]:
        return await _answer(self._list(None, timeout=timeout))

    async def get(self, pod: PodName, *, timeout: float = 10.0) -> PodResources:
        return await _answer(self._get(pod, timeout=timeout))

    async def allocatable(self, *, timeout: float = 10.0) -> tuple[ContainerDevices, ...]:
        return await _answer(self._allocatable(None, timeout=timeout))

    async def aclose(self) -> None:
        await self._channel.close()


# --- as a kubelet -----------------------------------------------------------------------------------
async def serve_registration(path: Path, on_register: Callable[[Registration], Awaitable[None]]) -> Server:
    """Wait for plugins on `kubelet.sock`. What `on_register` raises as RpcError is the plugin's answer."""
    method = _unary(on_register, wire.decode_registration, _empty)
    return await _serve(path, {_REGISTRATION: {"Register": method}})


async def serve_pod_resources(path: Path, lister: PodResourcesLister) -> Server:
    async def everything(_: None) -> Sequence[PodResources]:
        return await lister.list()

    async def allocatable(_: None) -> Sequence[ContainerDevices]:
        return await lister.allocatable()

    methods = {
        "List": _unary(everything, _nothing, wire.encode_pods),
        "Get": _unary(lister.get, wire.decode_pod_name, wire.encode_pod),
        "GetAllocatableResources": _unary(allocatable, _nothing, wire.encode_allocatable),
    }
    return await _serve(path, {_LISTER: methods})


class PluginClient:
    """Calls one plugin, with a kubelet's limits. No timeout where a kubelet has none."""

    def __init__(self, path: Path) -> None:
        self._channel = _channel(path, receive_limit=LIST_AND_WATCH_LIMIT)
        method = self._channel.unary_unary
        self._options = method(f"/{_PLUGIN}/GetDevicePluginOptions", _empty, wire.decode_options)
        self._watch = self._channel.unary_stream(f"/{_PLUGIN}/ListAndWatch", _empty, wire.decode_devices)
        self._prefer = method(
            f"/{_PLUGIN}/GetPreferredAllocation",
            wire.encode_preferred_requests,
            wire.decode_preferred,
        )
        self._allocate = method(
            f"/{_PLUGIN}/Allocate", wire.encode_allocate_requests, wire.decode_allocations
        )
        self._pre_start = method(f"/{_PLUGIN}/PreStartContainer", wire.encode_pre_start, _nothing)

    async def options(self) -> PluginOptions:
        return await _answer(self._options(None))

    async def list_and_watch(self) -> AsyncIterator[tuple[Device, ...]]:
        """Follow the plugin's ids until it ends the stream. Raises RpcError when it breaks."""
        call = self._watch(None)
        try:
            while (devices := await _answer(call.read())) is not grpc.aio.EOF:
                yield devices
        finally:
            call.cancel()

    async def prefer(self, request: PreferredRequest) -> tuple[str, ...]:
        """The ids a plugin would choose for one container; empty if it does not care."""
        answers = await _answer(self._prefer((request,)))
        return answers[0] if answers else ()

    async def allocate(self, ids: Sequence[str]) -> tuple[ContainerAllocation, ...]:
        """Allocate ids to one container: one response, unless the plugin is broken."""
        return await _answer(self._allocate((ids,)))

    async def pre_start(self, ids: Sequence[str]) -> None:
        await _answer(self._pre_start(ids, timeout=PRE_START_TIMEOUT))

    async def aclose(self) -> None:
        await self._channel.close()


# --- plumbing ---------------------------------------------------------------------------------------
def _address(path: Path) -> str:
    text = str(path.absolute())
    if len(text.encode()) > MAX_PATH:
        raise InputError(f"the socket path {text!r} is longer than {MAX_PATH} bytes; choose a shorter folder")
    return f"unix:{quote(text)}"


def _channel(path: Path, *, receive_limit: int = LIST_AND_WATCH_LIMIT) -> grpc.aio.Channel:
    options = (*_CLIENT, ("grpc.max_receive_message_length", receive_limit))
    return grpc.aio.insecure_channel(_address(path), options=options)


async def _serve(path: Path, services: dict[str, dict[str, grpc.RpcMethodHandler]]) -> Server:
    address = _address(path)
    _clear(path)
    server = grpc.aio.server(options=_SERVER)
    for name, methods in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise InputError(f"cannot listen on {path}; does its folder exist and may we write there?") from error
    await server.start()
    return Server(server, path)


def _clear(path: Path) -> None:
    """Remove what a dead server left behind, but take no socket away from a living one."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InputError(f"{path} is in the way and is not a socket; remove it or choose another folder")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(
                f"{path} is in use ({error}); stop who serves it or choose another folder"
            ) from error
        else:
            raise InputError(f"{path} is in use by a running server; stop it or choose another folder")


def _unary(
    method: Callable[[Q], Awaitable[A]], decode: Callable[[bytes], Q], encode: Callable[[A], bytes]
) -> grpc.RpcMethodHandler:
    async def handle(request: Q, context: grpc.aio.ServicerContext[Any, Any]) -> A:
        try:
            return await method(request)
        except Exception as error:  # the border: every failure becomes a status
            await _abort(context, error)
            raise AssertionError("abort always raises") from error

    return grpc.unary_unary_rpc_method_handler(handle, decode, encode)


def _streaming(
    method: Callable[[], AsyncIterator[A]],
) -> Callable[[None, grpc.aio.ServicerContext[Any, Any]], AsyncIterator[A]]:
    async def handle(_: None, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[A]:
        try:
            async for item in method():
                yield item
        except Exception as error:  # the border: every failure becomes a status
            await _abort(context, error)

    return handle


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    if isinstance(error, RpcError):
        code = error.code
    elif isinstance(error, GpuSliceError):
        code = RpcCode.INTERNAL
    else:
        code = RpcCode.INTERNAL
        _log.exception("a gRPC method failed")
    await context.abort(grpc.StatusCode[code.name], str(error) or type(error).__name__)


async def _answer(call: Awaitable[A]) -> A:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise _rpc_error(error) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # gRPC raises this when the channel is closed under the call: our own task was not cancelled.
        raise RpcError(RpcCode.CANCELLED, "the connection was closed during the call") from error


def _rpc_error(error: grpc.aio.AioRpcError) -> RpcError:
    return RpcError(RpcCode[error.code().name], error.details() or "no details given")


def _nothing(_: bytes) -> None:
    return None


def _empty(_: object) -> bytes:
    return b""
