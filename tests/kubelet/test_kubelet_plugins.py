"""A node and its device plugins over real unix sockets, as measured against kubelet 1.36."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
from kubelet_world import GUARD, IDS, RESOURCE, Plugin, container, world

from gpuslice import names
from gpuslice.node.kubelet.messages import (
    ContainerAllocation,
    Device,
    Mount,
    PodName,
    PreferredRequest,
    Registration,
)
from gpuslice.node.kubelet.pluginserver import LISTENED_SECONDS, PluginServer, ResourcePlugin
from gpuslice.node.kubelet.rpc import (
    PluginClient,
    PodResourcesClient,
    RpcCode,
    RpcError,
    register,
    serve_plugin,
)
from gpuslice.requests.kinds import SHARES, Kind

SENTENCE = "no single GPU has 5 GiB free; the fullest fit is 3 GiB on GPU 2"


async def test_a_plugin_registers_and_the_node_shows_its_ids() -> None:
    async with world() as node:
        plugin = Plugin(IDS)
        await node.serve(plugin)
        plugin.publish([Device("a"), Device("b", healthy=False)])
        seen = await node.node(lambda seen: (seen.status.allocatable or {}).get(RESOURCE) == "1")
        assert (seen.status.capacity or {})[RESOURCE] == "2"


async def test_a_plugin_that_goes_takes_allocatable_and_leaves_capacity() -> None:
    async with world() as node:
        plugin = Plugin(IDS)
        await node.serve(plugin)
        assert plugin.server is not None
        await plugin.server.stop()
        seen = await node.node(lambda seen: (seen.status.allocatable or {}).get(RESOURCE) == "0")
        assert (seen.status.capacity or {})[RESOURCE] == "64"
        await node.clock.someone_sleeps(300, 300)
        node.clock.advance(301)
        await node.node(lambda seen: (seen.status.capacity or {}).get(RESOURCE) == "0")


async def test_the_container_gets_ids_then_pre_start_then_runs() -> None:
    """And at PreStartContainer, pod-resources names the owner of exactly these ids."""
    async with world() as node:
        plugin = Plugin(IDS)
        plugin.preferred = lambda request: ["g3-1", "g3-2"]
        plugin.lister = PodResourcesClient(node.pod_resources)
        await node.serve(plugin)
        await node.create("p", container("c", 2))
        await node.phase("p", "Running")
        assert plugin.allocated == plugin.started == [frozenset({"g3-1", "g3-2"})]
        ((owner,),) = plugin.owners
        assert (owner.namespace, owner.name) == ("default", "p")
        assert owner.containers[0].ids(RESOURCE) == {"g3-1", "g3-2"}
        assert len(owner.containers[0].devices) == 2, "the kubelet sends an entry per id"
        await plugin.lister.aclose()


async def test_an_error_of_get_preferred_allocation_rejects_the_pod() -> None:
    async with world() as node:
        plugin = Plugin(IDS)
        plugin.refuse_prefer = RpcError(RpcCode.RESOURCE_EXHAUSTED, SENTENCE)
        await node.serve(plugin)
        await node.create("p", container("c", 5))
        pod = await node.phase("p", "Failed")
        text = (
            "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed with "
            f"err: rpc error: code = ResourceExhausted desc = {SENTENCE}, which is unexpected"
        )
        assert (pod.status.reason, pod.status.message) == ("UnexpectedAdmissionError", text)
        assert (await node.event("UnexpectedAdmissionError")).message == text
        assert not plugin.allocated


async def test_an_error_of_allocate_rejects_the_pod_and_frees_the_ids() -> None:
    async with world() as node:
        plugin = Plugin(IDS)
        plugin.refuse_allocate = RpcError(RpcCode.FAILED_PRECONDITION, SENTENCE)
        await node.serve(plugin)
        await node.create("p", container("c", 5))
        pod = await node.phase("p", "Failed")
        assert pod.status.message == (
            "Pod was rejected: Allocate failed due to "
            f"rpc error: code = FailedPrecondition desc = {SENTENCE}, which is unexpected"
        )
        assert not node.kubelet.devices.manager.in_use().get(RESOURCE)


async def test_a_failed_pre_start_shows_the_plugins_sentence_and_heals() -> None:
    """restartPolicy Never too: tried again after 10 to 15 s, without a new Allocate."""
    async with world() as node:
        plugin = Plugin(IDS)
        plugin.refuse_start = RpcError(RpcCode.FAILED_PRECONDITION, SENTENCE)
        await node.serve(plugin)
        await node.create("p", container("c", 5), restartPolicy="Never")
        await node.event("Failed")
        await node.clock.someone_sleeps(10, 15)
        await node.pod("p", lambda pod: bool(pod.status.container_statuses))
        status = (await node.raw("p"))["status"]
        waiting = status["containerStatuses"][0]["state"]["waiting"]
        assert (status["phase"], waiting) == (
            "Pending",
            {
                "reason": "CreateContainerConfigError",
                "message": "device plugin PreStartContainer rpc failed with err: "
                f"rpc error: code = FailedPrecondition desc = {SENTENCE}",
            },
        )
        plugin.refuse_start = None
        node.clock.advance(15)
        await node.phase("p", "Running")
        assert len(plugin.started) == 2
        assert len(plugin.allocated) == 1


async def test_pre_start_comes_before_every_start() -> None:
    """Each init container and each restart; a restart brings no new Allocate."""
    async with world() as node:
        plugin = Plugin(IDS)
        await node.serve(plugin)
        await node.create(
            "p",
            container("c", 2),
            initContainers=[container("i", 2)],
            annotations={"gpuslice.io/run-seconds": "5", "gpuslice.io/exit-code": "1"},
        )
        await node.phase("p", "Running")
        assert len(plugin.started) == 2
        await node.clock.someone_sleeps(5, 5)
        node.clock.advance(5)
        await node.pod("p", lambda pod: _restarts(pod) == 1)
        assert len(plugin.started) == 3
        init, app = plugin.allocated
        assert init == app, "one Allocate per container, and the app reuses the init container's ids"


async def test_ids_of_an_init_container_are_reused_and_a_sidecar_keeps_its_own() -> None:
    async with world() as node:
        plugin = Plugin(IDS)
        await node.serve(plugin)
        sidecar = container("side", 3, restartPolicy="Always")
        await node.create("p", container("c", 6), initContainers=[container("i", 4), sidecar])
        await node.phase("p", "Running")
        # The sidecar takes three of the init container's four ids for good; the fourth is left.
        init, app = plugin.allocated[0], plugin.allocated[-1]
        manager = node.kubelet.devices.manager
        (holder,) = [holding.uid for holding in manager.all_holdings() if holding.container == "c"]
        side = manager.held(holder, "side", RESOURCE)
        assert side is not None
        assert side < init
        assert not side & app
        assert frozenset(plugin.asked[-1].must_include) == init - side


async def test_pod_resources_lists_apps_and_sidecars_but_no_init_containers() -> None:
    async with world() as node:
        await node.serve(Plugin(IDS))
        sidecar = container("side", 1, restartPolicy="Always")
        await node.create("p", container("c", 1), initContainers=[container("i", 1), sidecar])
        await node.phase("p", "Running")
        client = PodResourcesClient(node.pod_resources)
        (pod,) = await client.list()
        assert [one.name for one in pod.containers] == ["side", "c"]
        assert await client.get(PodName("default", "p")) == pod
        with pytest.raises(RpcError, match="not found"):
            await client.get(PodName("default", "other"))
        assert len(await client.allocatable()) == 64
        await client.aclose()


async def test_a_list_in_the_middle_of_an_admission_shows_what_the_pod_has_so_far() -> None:
    """And takes nothing away from it: a pod under admission counts as active."""
    async with world() as node:
        plugin = Plugin(IDS)
        client = PodResourcesClient(node.pod_resources)
        seen: list[frozenset[str]] = []

        async def allocate(requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocation]:
            for pod in await client.list():
                seen.extend(one.ids(RESOURCE) for one in pod.containers)
            plugin.allocated.extend(frozenset(ids) for ids in requests)
            return [ContainerAllocation() for _ in requests]

        plugin.allocate = allocate  # type: ignore[method-assign]
        await node.serve(plugin)
        await node.create("p", container("a", 2), container("b", 2))
        await node.phase("p", "Running")
        first, second = plugin.allocated
        assert seen == [frozenset(), frozenset(), first, frozenset()]
        (pod,) = await client.list()
        assert [one.ids(RESOURCE) for one in pod.containers] == [first, second]
        await client.aclose()


async def test_pods_are_admitted_strictly_one_at_a_time() -> None:
    async with world() as node:
        plugin = Plugin(IDS)
        await node.serve(plugin)
        for number in range(12):
            await node.create(f"p{number:02}", container("c", 2))
        for number in range(12):
            await node.phase(f"p{number:02}", "Running")
        assert plugin.most_in_flight == 1
        assert len(frozenset().union(*plugin.allocated)) == 24


async def test_an_ended_pod_gives_its_ids_back() -> None:
    async with world() as node:
        plugin = Plugin(IDS[:4])
        await node.serve(plugin)
        await node.create("first", container("c", 4), restartPolicy="Never")
        await node.phase("first", "Running")
        await node.create("refused", container("c", 4))
        refused = await node.phase("refused", "Failed")
        assert "Requested: 4, Available: 0" in refused.status.message
        await node.client.delete(refused.resource, "first", "default")
        await node.gone("first")
        await node.create("second", container("c", 4))
        await node.phase("second", "Running")


async def test_a_pod_deleted_by_force_is_forgotten_at_once_and_runs_on() -> None:
    """Its ids are free and pod-resources has it no more; only its folder tells that its processes run."""
    async with world() as node:
        plugin = Plugin(IDS[:4])
        await node.serve(plugin)
        old = await node.create("old", container("c", 4), annotations={names.IGNORE_TERM: "true"})
        await node.phase("old", "Running")
        folder = node.folder / "pods" / old.uid
        await node.client.delete(old.resource, "old", "default", grace_seconds=0)
        await node.gone("old")
        await node.create("new", container("c", 4))
        await node.phase("new", "Running")
        client = PodResourcesClient(node.pod_resources)
        assert [one.name for one in await client.list()] == ["new"]
        await client.aclose()
        assert folder.is_dir()
        node.clock.advance(2)
        async with asyncio.timeout(GUARD):
            while folder.exists():
                node.kubelet.changed.clear()
                await node.kubelet.changed.wait()


async def test_the_race_with_list_offers_ids_in_use() -> None:
    """`old` ends while `inflight` is in Allocate and somebody polls List: `next` is offered 64 of 64."""
    async with world() as node:
        plugin = Plugin(IDS)
        await node.serve(plugin)
        await node.create("old", container("c", 2))
        await node.phase("old", "Running")
        plugin.allocate_gate.clear()
        plugin.allocating.clear()
        await node.create("inflight", container("c", 4))
        async with asyncio.timeout(GUARD):
            await plugin.allocating.wait()
        await node.client.delete((await node.phase("old", "Running")).resource, "old", "default")
        await node.gone("old")
        client = PodResourcesClient(node.pod_resources)
        await client.list()
        await client.aclose()
        plugin.allocate_gate.set()
        await node.phase("inflight", "Running")
        await node.create("next", container("c", 1))
        await node.phase("next", "Running")
        assert len(plugin.asked[-1].available) == 64


async def test_a_kubelet_restart_keeps_ids_and_deletes_sockets() -> None:
    """Streams end, kubelet.sock is new, running containers keep their ids, no Allocate is repeated."""
    async with world() as node:
        plugin = Plugin(IDS)
        await node.serve(plugin)
        await node.create("p", container("c", 3))
        await node.phase("p", "Running")
        before = (node.plugins / "kubelet.sock").stat().st_ctime_ns
        await node.kubelet.restart()
        assert (node.plugins / "kubelet.sock").stat().st_ctime_ns != before
        assert [path.name for path in node.plugins.glob("*.sock")] == ["kubelet.sock"]
        await node.node(lambda seen: (seen.status.allocatable or {}).get(RESOURCE) == "0")
        assert plugin.server is not None
        await plugin.server.stop()
        await node.serve(plugin)
        node.clock.advance(1)
        await node.create("q", container("c", 1))
        await node.phase("q", "Running")
        assert not plugin.allocated[0] & plugin.allocated[1]
        assert len(plugin.allocated) == 2
        assert (await node.phase("p", "Running")).status.phase == "Running"


async def test_a_restart_in_the_middle_of_an_allocate_begins_it_anew() -> None:
    """The first answer is lost with the kubelet; the pod is not rejected for it."""
    async with world() as node:
        plugin = Plugin(IDS)
        await node.serve(plugin)
        plugin.allocate_gate.clear()
        await node.create("p", container("c", 3))
        async with asyncio.timeout(GUARD):
            await plugin.allocating.wait()
        await node.kubelet.restart()
        plugin.allocate_gate.set()
        assert plugin.server is not None
        await plugin.server.stop()
        await node.serve(plugin)
        node.clock.advance(1)
        await node.phase("p", "Running")
        assert node.kubelet.devices.manager.in_use()[RESOURCE] == plugin.allocated[-1]


async def test_a_plugin_absent_at_a_restart_costs_a_pod_with_a_finished_init_container() -> None:
    """Its neighbour without one is passed over, since its containers run."""
    async with world() as node:
        plugin = Plugin(IDS)
        await node.serve(plugin)
        await node.create("plain", container("c", 1))
        await node.create("withinit", container("c", 1), initContainers=[container("i", 1)])
        await node.phase("plain", "Running")
        await node.phase("withinit", "Running")
        await node.kubelet.restart()
        await node.clock.someone_sleeps(1, 1)
        node.clock.advance(1)
        pod = await node.phase("withinit", "Failed")
        assert pod.status.message == (
            "Pod was rejected: Allocate failed due to no healthy devices present; "
            "cannot allocate unhealthy devices aliyun.com/gpu-mem, which is unexpected"
        )
        assert (await node.raw("plain"))["status"]["phase"] == "Running"


async def test_a_new_kubelet_process_gives_pods_the_ids_of_the_checkpoint() -> None:
    async with world() as node:
        plugin = Plugin(IDS)
        await node.serve(plugin)
        pod = await node.create("p", container("c", 3))
        await node.phase("p", "Running")
        other = node.new_kubelet()
        checkpoint = other.devices
        await node.kubelet.devices.stop()
        await checkpoint.start()
        assert checkpoint.manager.held(pod.uid, "c", RESOURCE) == plugin.allocated[0]
        await checkpoint.stop()


async def test_more_than_4_mib_of_ids_end_the_stream() -> None:
    """A kubelet's gRPC client takes no larger message: the resource has no ids."""
    async with world() as node:
        many = Plugin([f"{number:060}" for number in range(60_000)])
        many.server = await serve_plugin(node.plugins / "big.sock", many)
        await register(node.plugins / "kubelet.sock", Registration(RESOURCE, "big.sock"))
        seen = await node.node(lambda seen: RESOURCE in (seen.status.capacity or {}))
        assert (seen.status.capacity or {})[RESOURCE] == "0"
        await many.server.stop()


async def test_tens_of_thousands_of_short_ids_are_no_problem() -> None:
    async with world() as node:
        plugin = Plugin([f"abcd-{number:x}" for number in range(50_000)])
        plugin.preferred = lambda request: sorted(request.available)[: request.size]
        await node.serve(plugin)
        await node.create("p", container("c", 1000))
        await node.phase("p", "Running")
        assert len(plugin.allocated[0]) == 1000


@pytest.mark.parametrize(
    ("registration", "complaint"),
    [
        (Registration(RESOURCE, "x.sock", version="v1alpha"), 'API version "v1alpha" is not supported'),
        (Registration("gpu-mem", "x.sock"), 'ResourceName "gpu-mem" is invalid'),
        (Registration(RESOURCE, "/var/x.sock"), "must be a file name"),
    ],
)
async def test_a_wrong_registration_is_refused(registration: Registration, complaint: str) -> None:
    async with world() as node:
        with pytest.raises(RpcError, match=complaint):
            await register(node.plugins / "kubelet.sock", registration)


async def test_a_plugin_that_registers_again_replaces_itself() -> None:
    """As long as the old one still serves: a kubelet takes the end of its stream for the new one's."""
    async with world() as node:
        await node.serve(Plugin(IDS))
        again = Plugin(IDS[:7])
        (node.plugins / "aliyun.com-gpu-mem.sock").unlink()
        await node.serve(again)
        await node.create("p", container("c", 7))
        await node.phase("p", "Running")
        assert again.allocated == [frozenset(IDS[:7])]


async def test_the_end_of_a_replaced_plugins_stream_disconnects_who_replaced_it() -> None:
    """As kubelet 1.36: whose stream ended is not asked. Who registers once more is known again."""
    async with world() as node:
        old, new = Plugin(IDS), Plugin(IDS[:7])
        await node.serve(old)
        await node.serve(new, endpoint="new.sock")
        assert old.server is not None
        await old.server.stop()
        await node.node(lambda seen: (seen.status.allocatable or {}).get(RESOURCE) == "0")
        async with asyncio.timeout(GUARD):
            await new.disconnected.wait()
        await node.register(new, endpoint="new.sock")
        await node.create("p", container("c", 7))
        await node.phase("p", "Running")
        assert new.allocated == [frozenset(IDS[:7])]


async def test_our_plugin_server_registers_again_when_the_end_of_another_disconnects_it() -> None:
    """The process of a replaced agent may end after the new one has registered; the node must not lose its GPUs."""
    async with world() as node:
        old = Plugin(IDS)
        await node.serve(old)
        new = ResourcePlugin(SHARES, Shares())
        server = PluginServer(new, node.plugins, clock=node.clock, random=lambda: 0.5)
        task = asyncio.create_task(server.run())
        try:
            await node.node(lambda seen: (seen.status.allocatable or {}).get(RESOURCE) == "7")
            node.clock.advance(LISTENED_SECONDS)
            assert old.server is not None
            await old.server.stop()
            await node.node(lambda seen: (seen.status.allocatable or {}).get(RESOURCE) == "0")
            await node.node(lambda seen: (seen.status.allocatable or {}).get(RESOURCE) == "7")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_plugins_mounts_are_seen_by_exec(tmp_path: Path) -> None:
    """`cat /run/gpuslice/slice.json` reads the file that Allocate mounted."""
    (tmp_path / "slice.json").write_text('{"pod":"p"}')
    async with world() as node:
        plugin = Plugin(IDS)
        plugin.answer = lambda ids: ContainerAllocation(mounts=(Mount("/run/gpuslice", str(tmp_path)),))
        await node.serve(plugin)
        await node.create("p", container("c", 1))
        await node.phase("p", "Running")
        assert await node.exec("p", "cat", "/run/gpuslice/slice.json") == (0, '{"pod":"p"}')


async def test_the_list_of_a_plugin_arrives_as_it_was_sent() -> None:
    """Health and NUMA nodes of every id survive the wire."""
    async with world() as node:
        plugin = Plugin([])
        plugin.devices = [Device("a", numa=(0, 1)), Device("b", healthy=False)]
        server = await serve_plugin(node.plugins / "x.sock", plugin)
        client = PluginClient(node.plugins / "x.sock")
        async with aclosing(client.list_and_watch()) as lists:  # type: ignore[type-var]
            assert await anext(lists) == tuple(plugin.devices)
        await client.aclose()
        await server.stop()


class Shares:
    """Seven ids, and nobody asks for them."""

    def devices(self, kind: Kind) -> Sequence[Device]:
        return [Device(id_) for id_ in IDS[:7]]

    async def prefer(self, kind: Kind, request: PreferredRequest) -> Sequence[str]:
        raise NotImplementedError

    async def allocate(self, kind: Kind, ids: Sequence[str]) -> ContainerAllocation:
        raise NotImplementedError

    async def pre_start(self, kind: Kind, ids: Sequence[str]) -> None:
        raise NotImplementedError


def _restarts(pod: object) -> int:
    statuses = pod.status.container_statuses or ()  # type: ignore[attr-defined]
    return statuses[0].restart_count if statuses else 0
