"""The agent with a kubelet and an API server: from a bound pod to a running container that holds its slice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing

import pytest
from agent_world import GPUS, GUARD, container, world
from kubelet_world import ManualClock

from gpuslice import names
from gpuslice.devices.inventory import Gpu
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node, Pod
from gpuslice.local.kubelet.kubelet import LEAST_GRACE, READMIT_AFTER
from gpuslice.node.kubelet.messages import Device
from gpuslice.node.kubelet.rpc import PluginClient
from gpuslice.units import MemoryUnit

PART = "nvidia.com/mig-3g.20gb"


async def test_a_planned_pod_gets_its_gpu_and_its_record() -> None:
    """The pod starts on the GPU that the scheduler chose; annotations and slice.json say so."""
    async with world() as here:
        pod = await here.create("a", container("c", 5), on={"c": (1,)})
        await here.running("a")
        found = await here.assigned("a")
        assert found.annotations[names.MEM_IDX] == "1"
        assert found.annotations[names.MEM_ASSUME_TIME] == pod.annotations[names.MEM_ASSUME_TIME]
        assert here.slices() == [
            {
                "namespace": "default",
                "pod": "a",
                "uid": pod.uid,
                "container": "c",
                "gpus": [
                    {"index": 1, "uuid": GPUS[1].uuid, "model": "Tesla T4", "mib": 5120, "whole": False}
                ],
            }
        ]


async def test_a_pod_that_nobody_placed_is_placed_by_the_agent() -> None:
    """gpushare 9.B.3: without a scheduler of ours the pod runs all the same, and is accounted."""
    async with world() as here:
        await here.create("a", container("c", 9))
        await here.create("b", container("c", 3))
        await here.running("a")
        await here.running("b")
        a, b = await here.assigned("a"), await here.assigned("b")
        assert a.annotations[names.MEM_IDX] == b.annotations[names.MEM_IDX], "best fit fills one GPU first"
        assert a.annotations[names.MEM_POD] == "9"
        assert a.annotations[names.MEM_DEV] == "14"


async def test_a_burst_of_equal_pods_ends_with_true_annotations() -> None:
    """gpushare 9.B.2: whatever order the kubelet takes, each pod's annotation names the GPU it has."""
    async with world() as here:
        for number in range(12):
            await here.create(f"p{number}", container("c", 2), on={"c": (number % 2,)})
        for number in range(12):
            await here.running(f"p{number}")
            await here.assigned(f"p{number}")
        held = {entry["pod"]: entry["gpus"][0]["index"] for entry in here.slices()}
        listing = await here.client.list(Pod, "default")
        assert {pod.name: int(pod.annotations[names.MEM_IDX]) for pod in listing.items} == held
        assert sorted(held.values()) == [0] * 6 + [1] * 6


async def test_several_containers_and_an_init_container() -> None:
    """gpushare 9.B.1: every container of a pod gets its own part; an init container lends its ids."""
    async with world() as here:
        await here.create(
            "a",
            container("one", 3),
            container("two", 4),
            initContainers=[container("first", 5)],
            on={"first": (1,), "one": (1,), "two": (1,)},
        )
        await here.running("a")
        found = await here.assigned("a")
        assert json.loads(found.annotations[names.ALLOCATION]) == {
            "first": {GPUS[1].uuid: 5120},
            "one": {GPUS[1].uuid: 3072},
            "two": {GPUS[1].uuid: 4096},
        }


async def test_whole_gpus_and_shares_exclude_each_other() -> None:
    """A GPU held whole gives no shares: the third pod is told so and its ids are not given out."""
    async with world() as here:
        await here.create("whole", container("c", whole=1), on={"c": (0,)})
        await here.running("whole")
        await here.create("share", container("c", 10))
        await here.running("share")
        found = await here.assigned("share")
        assert found.annotations[names.MEM_IDX] == "1"
        await here.create("more", container("c", 10))
        refused = await here.pod("more", lambda pod: pod.status.phase == "Failed")
        assert "no such room is left on this node" in refused.status.message
        assert refused.status.reason == "UnexpectedAdmissionError"
        told = (await here.running_agent.metrics()).decode()
        assert 'gpuslice_agent_refusals_total{code="insufficient_memory_in_one_gpu"} 1.0' in told


async def test_ids_that_lie_apart_are_refused() -> None:
    """gpushare 9.B.8: kubelet takes all that is left, of two GPUs; the pod is rejected with a sentence."""
    async with world() as here:
        await here.create("a", container("c", 12), on={"c": (0,)})
        await here.create("b", container("c", 12), on={"c": (1,)})
        await here.running("a")
        await here.running("b")
        await here.create("c", container("c", 4))
        refused = await here.pod("c", lambda pod: pod.status.phase == "Failed")
        assert (
            "the free memory is spread over several: 2 GiB on GPU 0, 2 GiB on GPU 1" in refused.status.message
        )
        told = (await here.running_agent.metrics()).decode()
        assert 'gpuslice_agent_refusals_total{code="ids_of_several_gpus"} 1.0' in told


async def test_shares_of_two_gpus_when_asked_for() -> None:
    async with world() as here:
        await here.create("a", container("c", 8), annotations={names.SHARES_ACROSS: "2"}, on={"c": (0, 1)})
        await here.running("a")
        await here.assigned("a")
        assert [gpu["mib"] for gpu in here.slices()[0]["gpus"]] == [4096, 4096]


async def test_a_deleted_pod_gives_its_room_back() -> None:
    """The ids go to the next pod once pod-resources and the API server agree that the first is gone."""
    async with world() as here:
        for round_ in range(3):
            await here.create("same", container("c", 14), on={"c": (0,)})
            await here.create(f"other{round_}", container("c", 14), on={"c": (1,)})
            await here.running("same")
            await here.running(f"other{round_}")
            for name in ("same", f"other{round_}"):
                await here.client.delete(Pod.resource, name, "default", grace_seconds=1)
                await here.gone(name)


async def test_a_pod_deleted_by_force_gives_its_room_back_soon_after_its_containers_have_ended() -> None:
    """The API server and pod-resources have it no more at once, but its processes run on."""
    clock = ManualClock()
    async with world(kubelet_clock=clock) as here:
        await here.create(
            "a",
            container("c", 14),
            on={"c": (0,)},
            annotations={names.IGNORE_TERM: "true"},
            terminationGracePeriodSeconds=1,
        )
        await here.running("a")
        await here.client.delete(Pod.resource, "a", "default", grace_seconds=0)
        await clock.someone_sleeps(LEAST_GRACE, LEAST_GRACE)
        clock.advance(LEAST_GRACE)
        await here.swept()


async def test_the_node_is_described() -> None:
    """GPUs and unit as annotations, their number in the status; written again when the node is made anew."""
    async with world() as here:

        def described(node: Node) -> bool:
            annotations = node.metadata.annotations or {}
            return (
                GPUS[1].uuid in annotations.get(names.NODE_GPUS, "")
                and annotations.get(names.MEMORY_UNIT) == "GiB"
                and (node.status.capacity or {}).get(names.GPU_COUNT) == "2"
                and (node.status.allocatable or {}).get(names.GPU_COUNT) == "2"
            )

        first = await here.until(Node, "n1", described)
        await here.client.delete(Node.resource, "n1")
        await here.stop("kubelet")
        await here.start_kubelet()
        await here.until(Node, "n1", lambda node: node.uid != first.uid and described(node))


async def test_a_sick_gpu_gets_nothing_new_and_recovers() -> None:
    """gpushare 9.B.7: health goes both ways."""
    async with world() as here:
        here.backend.set_health(GPUS[0].uuid, healthy=False, reason="XID 79")
        await here.allocatable(14)
        await here.until(Node, "n1", lambda n: "XID 79" in (n.metadata.annotations or {})[names.NODE_GPUS])
        await here.create("a", container("c", 2), on={"c": (0,)})
        await here.running("a")
        assert (await here.assigned("a")).annotations[names.MEM_IDX] == "1"
        here.backend.set_health(GPUS[0].uuid, healthy=True)
        await here.allocatable(28)


async def test_everybody_who_listens_hears_of_a_sick_gpu() -> None:
    """Two streams of one resource would share NVIDIA's channel: each sick device is told to one of them."""
    async with world() as here, AsyncExitStack() as closing:
        streams = []
        for _ in range(3):
            plugin = PluginClient(here.folder / "device-plugins" / "gpuslice-gpu.sock")
            closing.push_async_callback(plugin.aclose)
            streams.append(await closing.enter_async_context(aclosing(plugin.list_and_watch())))
        assert [[one.healthy for one in await anext(stream)] for stream in streams] == [[True, True]] * 3
        here.backend.set_health(GPUS[1].uuid, False, "XID 79")
        assert [[one.healthy for one in await anext(stream)] for stream in streams] == [[True, False]] * 3


async def test_a_node_whose_gpus_are_all_cut_has_no_whole_ones() -> None:
    """As with NVIDIA's plugin: a resource of which a node has nothing is not announced."""
    partitioned = Gpu(0, "MIG-a", "A100 MIG 3g.20gb", 19968, resource=PART, parent="GPU-a", shareable=False)
    async with world((partitioned,)) as here:
        node = await here.allocatable(1, PART)
        assert names.WHOLE_GPU not in (node.status.allocatable or {})


async def test_a_restarted_kubelet_keeps_its_pods() -> None:
    """kubelet.md: the plugins are back at once, so that no running pod is lost, and ids stay given out."""
    clock = ManualClock()
    async with world(kubelet_clock=clock) as here:
        await here.create(
            "a", container("c", 9), initContainers=[container("i", 2)], on={"i": (0,), "c": (0,)}
        )
        await here.running("a")
        assert here.kubelet is not None
        await here.kubelet.restart()
        await here.served(28)
        clock.advance(READMIT_AFTER)
        await here.create("b", container("c", 6))
        await here.running("b")
        await here.assigned("b")
        assert {e["pod"]: e["gpus"][0]["index"] for e in here.slices()} == {"a": 0, "b": 1}
        assert (await here.running("a")).status.phase == "Running"


async def test_a_restarted_agent_knows_what_is_given_out() -> None:
    async with world() as here:
        await here.create("a", container("c", 9), on={"c": (1,)})
        await here.running("a")
        await here.assigned("a")
        await here.stop("agent")
        await here.served(0)
        await here.start_agent()
        await here.served(28)
        await here.create("b", container("c", 6), on={"c": (1,)})
        await here.running("b")
        await here.assigned("b")
        assert {e["pod"]: e["gpus"][0]["index"] for e in here.slices()} == {"a": 1, "b": 0}


async def test_kubelet_has_the_devices_before_the_api_server_answers_and_waits_for_the_rest() -> None:
    """139 of 153 pods that were turned away in trials were told "no healthy devices present" after a restart."""
    async with world() as here:
        await here.create("a", container("c", 9), on={"c": (1,)})
        await here.running("a")
        await here.assigned("a")
        await here.stop("agent")
        await here.served(0)
        here.api_of_agent.fail_after(lambda _method: True)
        await here.start_agent()
        await here.served(28, lacks="the API server has not said yet which pods this node has")
        await here.create("b", container("c", 6), on={"c": (1,)})
        here.api_of_agent.heal()
        await here.running("b")
        await here.assigned("b")
        assert {e["pod"]: e["gpus"][0]["index"] for e in here.slices()} == {"a": 1, "b": 0}


async def test_a_second_agent_is_told_in_one_sentence() -> None:
    async with world() as here:
        with pytest.raises(InputError, match="in use by a running server"):
            async with asyncio.timeout(GUARD):
                await here.agent().run()


async def test_a_unit_that_is_too_fine_is_refused_at_start() -> None:
    """gpushare 9.B.4: one sentence at start instead of a node that shows 0."""
    gpus = tuple(type(GPUS[0])(i, f"GPU-{i}", "B200", 192 * 1024) for i in range(8))
    async with world() as here:
        here.backend.set_gpus(gpus)
        with pytest.raises(InputError, match="use 8MiB or more"):
            await here.agent(unit=MemoryUnit(1)).run()


async def test_containers_start_while_the_api_server_is_away() -> None:
    """Identity is certain from pod-resources; the annotations follow when the API server is back."""
    async with world() as here:
        here.api_of_agent.fail_after(lambda method: method == "PATCH")
        await here.create("a", container("c", 5))
        await here.running("a")
        assert here.slices()[0]["pod"] == "a"
        assert names.MEM_IDX not in (await here.running("a")).annotations
        here.api_of_agent.heal()
        await here.assigned("a")


async def test_an_absent_api_server_does_not_stop_an_admission() -> None:
    """The agent has not heard of the pod and cannot ask: it is placed by best fit, and starts when known."""
    async with world() as here:
        here.api_of_agent.fail_after(lambda method: True)
        await here.create("a", container("c", 5))
        refused = await here.pod("a", lambda pod: _waiting(pod) == "CreateContainerConfigError")
        assert "cannot ask the API server about default/a" in _message(refused)
        here.api_of_agent.heal()
        # The kubelet tries again after 10 s of its own; here the plugin is asked directly.
        await here.start_by_hand("a", "c")
        assert here.slices()[0]["pod"] == "a"


async def test_a_socket_that_vanishes_is_served_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until kubelet has seen the old stream's end and the new one's list, it admits no pod; and we say so."""
    async with world() as here:
        assert here.kubelet is not None
        manager, gone, back = here.kubelet.devices.manager, asyncio.Event(), asyncio.Event()
        disconnect, set_devices = manager.disconnect, manager.set_devices
        waited_for: list[str] = []

        def lost(resource: str, now: float) -> None:
            disconnect(resource, now)
            if resource == names.GPU_MEM:
                waited_for.append(here.running_agent.waits_for())
                gone.set()

        def listed(resource: str, devices: Sequence[Device]) -> None:
            set_devices(resource, devices)
            if resource == names.GPU_MEM and gone.is_set():
                back.set()

        monkeypatch.setattr(manager, "disconnect", lost)
        monkeypatch.setattr(manager, "set_devices", listed)
        (here.folder / "device-plugins" / "gpuslice-gpu-mem.sock").unlink()
        async with asyncio.timeout(GUARD):
            await back.wait()
        assert waited_for[0] == f"kubelet has not taken the plugin of {names.GPU_MEM}"
        await here.served(28)
        await here.create("a", container("c", 5))
        await here.running("a")


async def test_slices_of_a_former_run_are_swept() -> None:
    """A folder that nobody holds is removed when the agent starts; one of a running pod stays."""
    async with world() as here:
        await here.create("a", container("c", 9))
        await here.running("a")
        await here.assigned("a")
        await here.stop("agent")
        left = here.folder / "gpuslice" / "slices" / "0123"
        left.mkdir(parents=True)
        await here.served(0)
        await here.start_agent()
        await here.served(28)
        assert not left.exists()
        assert [entry["pod"] for entry in here.slices()] == ["a"]


async def test_the_slice_of_an_init_container_of_a_former_run_goes_with_its_pod() -> None:
    """pod-resources never lists it, so this run does not know who holds it; the pod's end says that nobody does."""
    async with world() as here:
        await here.create("a", container("c", 3), initContainers=[container("first", 5)])
        await here.running("a")
        await here.stop("agent")
        await here.served(0)
        await here.start_agent()
        await here.served(28)
        assert len(here.slices()) == 2
        await here.client.delete(Pod.resource, "a", "default", grace_seconds=1)
        await here.swept()


def _waiting(pod: Pod) -> str:
    statuses = pod.status.container_statuses or ()
    return str((statuses[0].state.waiting or {}).get("reason", "")) if statuses else ""


def _message(pod: Pod) -> str:
    assert pod.status.container_statuses
    return str((pod.status.container_statuses[0].state.waiting or {}).get("message", ""))
