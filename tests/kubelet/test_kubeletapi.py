"""The gRPC door: both directions over a unix socket, and what happens when something is wrong."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubelet_world import Plugin

from gpuslice.errors import InputError
from gpuslice.node.kubelet import wire
from gpuslice.node.kubelet.messages import (
    ContainerAllocation,
    ContainerDevices,
    ContainerResources,
    Device,
    DeviceNode,
    Mount,
    PluginOptions,
    PodName,
    PodResources,
    PreferredRequest,
    Registration,
)
from gpuslice.node.kubelet.rpc import (
    PluginClient,
    PodResourcesClient,
    RpcCode,
    RpcError,
    register,
    serve_plugin,
    serve_pod_resources,
    serve_registration,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="gprc 50%"))  # a path that a URI would have to quote
    yield made
    shutil.rmtree(made)


async def test_a_registration_arrives_as_it_was_sent(folder: Path) -> None:
    seen: list[Registration] = []

    async def on_register(registration: Registration) -> None:
        seen.append(registration)

    server = await serve_registration(folder / "kubelet.sock", on_register)
    sent = Registration("aliyun.com/gpu-mem", "x.sock", PluginOptions(True, True))
    await register(folder / "kubelet.sock", sent)
    assert seen == [sent]
    await server.stop()
    assert not (folder / "kubelet.sock").exists()


async def test_every_field_of_an_allocation_survives(folder: Path) -> None:
    plugin = Plugin([])
    answer = ContainerAllocation(
        envs={"A": "1", "B": ""},
        mounts=(Mount("/run/gpuslice", "/host", True), Mount("/w", "/h", False)),
        devices=(DeviceNode("/dev/nvidia0", "/dev/nvidia1", "rwm"),),
        annotations={"x": "y"},
        cdi_devices=("nvidia.com/gpu=0",),
    )
    plugin.answer = lambda ids: answer
    plugin.preferred = lambda request: ("b",) if request.must_include == ("a",) else ()
    server = await serve_plugin(folder / "x.sock", plugin)
    client = PluginClient(folder / "x.sock")
    assert await client.options() == PluginOptions(True, True)
    assert await client.prefer(PreferredRequest(("a", "b"), ("a",), 2)) == ("b",)
    assert await client.allocate(["a", "b"]) == (answer,)
    await client.pre_start(["a"])
    assert plugin.started == [frozenset({"a"})]
    await client.aclose()
    await server.stop()


async def test_a_plugins_error_arrives_with_code_and_sentence(folder: Path) -> None:
    plugin = Plugin([])
    plugin.refuse_allocate = RpcError(RpcCode.RESOURCE_EXHAUSTED, "no GPU has 5 GiB free")
    server = await serve_plugin(folder / "x.sock", plugin)
    client = PluginClient(folder / "x.sock")
    with pytest.raises(RpcError) as failure:
        await client.allocate(["a"])
    assert failure.value.code is RpcCode.RESOURCE_EXHAUSTED
    assert failure.value.as_go_prints_it == (
        "rpc error: code = ResourceExhausted desc = no GPU has 5 GiB free"
    )
    assert not failure.value.retryable
    await client.aclose()
    await server.stop()


async def test_nobody_listening_is_a_retryable_error(folder: Path) -> None:
    with pytest.raises(RpcError) as failure:
        await register(folder / "kubelet.sock", Registration("a/b", "x.sock"))
    assert failure.value.code is RpcCode.UNAVAILABLE
    assert failure.value.retryable


async def test_a_channel_closed_under_a_call_is_an_error_and_no_cancellation(folder: Path) -> None:
    """gRPC raises CancelledError there, which would silently end the task that made the call."""
    plugin = Plugin([])
    plugin.allocate_gate.clear()
    server = await serve_plugin(folder / "x.sock", plugin)
    client = PluginClient(folder / "x.sock")
    call = asyncio.create_task(client.allocate(["a"]))
    await plugin.allocating.wait()
    await client.aclose()
    with pytest.raises(RpcError, match="the connection was closed during the call"):
        await call
    plugin.allocate_gate.set()
    await server.stop()


async def test_pod_resources_arrive_even_when_larger_than_grpcs_default(folder: Path) -> None:
    """A List of a node with many small ids has more than 4 MiB."""
    ids = tuple(ContainerDevices("aliyun.com/gpu-mem", (f"{number:040}",)) for number in range(70_000))
    pods = (PodResources("default", "p", (ContainerResources("c", ids),)),)
    assert len(wire.encode_pods(pods)) > 4 * 2**20

    class Lister:
        async def list(self) -> tuple[PodResources, ...]:
            return pods

        async def get(self, pod: PodName) -> PodResources:
            raise RpcError(RpcCode.NOT_FOUND, f"no pod {pod.namespace}/{pod.name}")

        async def allocatable(self) -> tuple[ContainerDevices, ...]:
            return ids[:2]

    server = await serve_pod_resources(folder / "kubelet.sock", Lister())
    client = PodResourcesClient(folder / "kubelet.sock")
    assert await client.list() == pods
    assert await client.allocatable() == ids[:2]
    with pytest.raises(RpcError, match="no pod default/q"):
        await client.get(PodName("default", "q"))
    await client.aclose()
    await server.stop()


async def test_a_socket_in_use_is_not_taken_away(folder: Path) -> None:
    first, second = Plugin([]), Plugin([])
    server = await serve_plugin(folder / "x.sock", first)
    with pytest.raises(InputError, match=r"x\.sock is in use by a running server; stop it"):
        await serve_plugin(folder / "x.sock", second)
    client = PluginClient(folder / "x.sock")
    await client.pre_start(["a"])
    assert first.started
    await client.aclose()
    await server.stop()


async def test_a_socket_that_a_dead_server_left_is_replaced(folder: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(folder / "x.sock"))
    dead.close()
    server = await serve_plugin(folder / "x.sock", Plugin([]))
    client = PluginClient(folder / "x.sock")
    assert (await client.options()).pre_start_required
    await client.aclose()
    await server.stop()


async def test_a_file_in_the_way_is_named(folder: Path) -> None:
    (folder / "x.sock").write_text("precious")
    with pytest.raises(InputError, match="is not a socket; remove it"):
        await serve_plugin(folder / "x.sock", Plugin([]))
    assert (folder / "x.sock").read_text() == "precious"


async def test_a_missing_folder_and_a_long_path_are_named(folder: Path) -> None:
    with pytest.raises(InputError, match="does its folder exist"):
        await serve_plugin(folder / "no" / "x.sock", Plugin([]))
    with pytest.raises(InputError, match=r"longer than 10[37] bytes; choose a shorter folder"):
        await serve_plugin(folder / ("x" * 120), Plugin([]))


def test_a_healthy_id_costs_23_bytes() -> None:
    """The size that keeps a node's ids under the kubelet's 4 MiB (an id of 10 characters)."""
    assert len(wire.encode_devices([Device("abcd-12345")])) == 23
