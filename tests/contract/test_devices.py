"""Kubelet and a device plugin, over the sockets that our agent uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gpuslice.node.kubelet.messages import ContainerAllocation, Device, Mount, PodName, Registration
from gpuslice.node.kubelet.rpc import RpcCode, RpcError, register

from .kit import Kit, Object, container, pod, until
from .plugin import IDS, NODE, NodeUnderTest, node_under_test

SENTENCE = "no single GPU has 5 GiB free; the fullest fit is 3 GiB on GPU 2"


@pytest_asyncio.fixture(loop_scope="session")
async def node(k8s: Kit) -> AsyncIterator[NodeUnderTest]:
    async with node_under_test(k8s) as made:
        yield made


def state(found: Object, name: str = "c", kind: str = "containerStatuses") -> Object:
    for status in found["status"].get(kind) or []:
        if status["name"] == name:
            return status  # type: ignore[no-any-return]
    return {"state": {}, "restartCount": 0}


async def offered(node: NodeUnderTest, what: str, expected: str) -> None:
    async def look() -> bool:
        status = (await node.k8s.api.get(f"/api/v1/nodes/{NODE}"))["status"]
        return bool(status[what].get(node.resource) == expected)

    await until(look, f"{what} of {expected}")


# --- registration ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("resource", "endpoint", "version", "complaint"),
    [
        (
            "contract.example/unit",
            "x.sock",
            "v1alpha",
            'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]',
        ),
        ("unit", "x.sock", "v1beta1", 'the ResourceName "unit" is invalid'),
    ],
)
async def test_a_wrong_registration_is_refused_with_a_sentence(
    node: NodeUnderTest, resource: str, endpoint: str, version: str, complaint: str
) -> None:
    with pytest.raises(RpcError) as refused:
        await register(node.plugins / "kubelet.sock", Registration(resource, endpoint, version=version))
    assert complaint in str(refused.value)
    assert refused.value.code is RpcCode.UNKNOWN


async def test_a_plugins_healthy_ids_become_allocatable_and_all_of_them_capacity(node: NodeUnderTest) -> None:
    plugin = await node.serve(["a", "b", "c"])
    await offered(node, "allocatable", "3")
    plugin.publish([Device("a"), Device("b", healthy=False)])
    await node.counts({"a"})
    await offered(node, "allocatable", "1")
    await offered(node, "capacity", "2")
    # The scheduler goes by it: only this node has any.
    await node.k8s.create("pods", pod("p", node.container()))
    assert (await node.k8s.phase("p", "Running"))["spec"]["nodeName"] == NODE
    assert plugin.of("allocate") == [{"a"}]


async def test_a_plugin_that_goes_takes_allocatable_and_leaves_capacity(node: NodeUnderTest) -> None:
    await node.serve()
    await offered(node, "allocatable", "16")
    await node.stop_plugin()
    await offered(node, "allocatable", "0")
    await offered(node, "capacity", "16")
    await node.create("p")
    found = await node.k8s.phase("p", "Failed")
    assert found["status"]["message"] == (
        "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
        f"{node.resource}, which is unexpected"
    )


async def test_a_plugin_that_registers_again_replaces_itself(node: NodeUnderTest) -> None:
    """But it has to stop the old server first: that one's end is taken for its own."""
    await node.serve()
    node.socket.unlink()
    first, node.servers = node.servers, []
    again = await node.serve(IDS[:3])
    await node.create("p", node.container(units=3))
    await node.k8s.phase("p", "Running")
    assert again.of("allocate") == [set(IDS[:3])]
    kept = node.socket.rename(node.socket.with_suffix(".kept"))
    for server in first:
        await server.stop()
    kept.rename(node.socket)
    await node.counts(set())


# --- admission ------------------------------------------------------------------------------------
async def test_a_container_gets_ids_then_pre_start_then_runs(node: NodeUnderTest) -> None:
    """And at PreStartContainer, pod-resources names the owner of exactly these ids: what our agent builds on."""
    plugin = await node.serve()
    plugin.preferred = lambda request: ["g1-6", "g1-7"]
    await node.create("p", node.container(units=2))
    await node.k8s.phase("p", "Running")
    assert [name for name, _ in plugin.calls] == ["prefer", "allocate", "pre_start"]
    (request,) = plugin.of("prefer")
    assert (set(request.available), set(request.must_include), request.size) == (set(IDS), set(), 2)
    assert plugin.of("allocate") == plugin.of("pre_start") == [{"g1-6", "g1-7"}]
    mine = [one for one in plugin.owners[0] if (one.namespace, one.name) == (node.k8s.ns, "p")]
    assert [(c.name, set(c.ids(node.resource))) for c in mine[0].containers] == [("c", {"g1-6", "g1-7"})]


async def test_ids_that_are_not_preferred_are_filled_up(node: NodeUnderTest) -> None:
    plugin = await node.serve()
    plugin.preferred = lambda request: []
    await node.create("p", node.container(units=2))
    await node.k8s.phase("p", "Running")
    (given,) = plugin.of("allocate")
    assert len(given) == 2


async def test_each_container_has_its_own_allocate_and_ids(node: NodeUnderTest) -> None:
    plugin = await node.serve()
    await node.create("p", node.container("a", 2), node.container("b", 3), container("none"))
    await node.k8s.phase("p", "Running")
    first, second = plugin.of("allocate")
    assert (len(first), len(second), first & second) == (2, 3, set())
    assert set(map(frozenset, plugin.of("pre_start"))) == {first, second}
    second_question = plugin.of("prefer")[1]
    assert set(second_question.available) == set(IDS) - first
    assert await node.held("p") == {"a": first, "b": second, "none": frozenset()}


async def test_a_pods_own_variables_come_after_the_plugins(node: NodeUnderTest) -> None:
    """So NVIDIA_VISIBLE_DEVICES: all in a manifest beats the plugin's: why our webhook takes it out."""
    plugin = await node.serve()
    plugin.answer = ContainerAllocation(envs={"VISIBLE": "GPU-1", "ONLY_PLUGIN": "yes"})
    env = [
        {"name": "VISIBLE", "value": "all"},
        {"name": "OWN", "value": "$(VISIBLE)"},
        {"name": "REFERENCE", "value": "$(ONLY_PLUGIN)"},
    ]
    command = "echo $VISIBLE $ONLY_PLUGIN $OWN $REFERENCE"
    await node.create("p", node.container(command=command, env=env), restartPolicy="Never")
    await node.k8s.phase("p", "Succeeded")
    said = await node.k8s.kubectl("logs", "p")
    assert said == "all yes all $(ONLY_PLUGIN)\n", "references see the pod's own variables only"


async def test_a_plugins_mounts_are_there(node: NodeUnderTest) -> None:
    folder = node.folder / f"{node.k8s.ns}-mount"
    folder.mkdir()
    (folder / "slice.json").write_text('{"pod":"p"}')
    plugin = await node.serve()
    mount = Mount("/run/gpuslice", node.k8s.backend.path_on(NODE, folder), read_only=True)
    plugin.answer = ContainerAllocation(mounts=(mount,), annotations={"contract.example/a": "b"})
    await node.create("p")
    await node.k8s.phase("p", "Running")
    assert await node.k8s.kubectl("exec", "p", "--", "cat", "/run/gpuslice/slice.json") == '{"pod":"p"}'
    found = await node.k8s.api.get(f"{node.k8s.pods}/p")
    assert "contract.example/a" not in found["metadata"].get("annotations", {}), "these are for the runtime"


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (
            "allocate",
            RpcCode.FAILED_PRECONDITION,
            f"rpc error: code = FailedPrecondition desc = {SENTENCE}",
        ),
        (
            "prefer",
            RpcCode.RESOURCE_EXHAUSTED,
            "device plugin GetPreferredAllocation rpc failed with err: "
            f"rpc error: code = ResourceExhausted desc = {SENTENCE}",
        ),
    ],
)
async def test_a_plugins_refusal_fails_the_pod_with_its_sentence_and_frees_the_ids(
    node: NodeUnderTest, method: str, code: RpcCode, text: str
) -> None:
    plugin = await node.serve()
    plugin.refuse[method] = RpcError(code, SENTENCE)
    await node.create("p", node.container(units=15))
    found = await node.k8s.phase("p", "Failed")
    message = f"Pod was rejected: Allocate failed due to {text}, which is unexpected"
    assert (found["status"]["reason"], found["status"]["message"]) == ("UnexpectedAdmissionError", message)
    event = await node.k8s.event("UnexpectedAdmissionError", "p")
    assert (event["type"], event["message"]) == (
        "Warning",
        message.removeprefix("Pod was rejected: ") if not event["message"].startswith("Pod was") else message,
    )
    plugin.refuse.clear()
    await node.create("q", node.container(units=16))
    await node.k8s.phase("q", "Running")


async def test_a_refused_pre_start_shows_its_sentence_and_is_tried_again(node: NodeUnderTest) -> None:
    """restartPolicy Never too, and without a new Allocate."""
    plugin = await node.serve()
    plugin.refuse["pre_start"] = RpcError(RpcCode.FAILED_PRECONDITION, SENTENCE)
    await node.create("p", node.container(units=5), restartPolicy="Never")
    found = await node.k8s.pod(
        "p", lambda p: state(p)["state"].get("waiting", {}).get("message"), "is waiting"
    )
    waiting = state(found)["state"]["waiting"]
    assert found["status"]["phase"] == "Pending"
    message = (
        "device plugin PreStartContainer rpc failed with err: "
        f"rpc error: code = FailedPrecondition desc = {SENTENCE}"
    )
    assert waiting == {"reason": "CreateContainerConfigError", "message": message}
    event = await node.k8s.event("Failed", "p")
    assert event["message"] == f"Error: {message}"
    plugin.refuse.clear()
    await node.k8s.phase("p", "Running")
    assert len(plugin.of("pre_start")) >= 2
    assert len(plugin.of("allocate")) == 1


async def test_pre_start_comes_before_every_start_and_allocate_only_once(node: NodeUnderTest) -> None:
    plugin = await node.serve()
    await node.create("p", node.container(units=2, command="exit 1"))
    await node.k8s.pod("p", lambda p: state(p)["restartCount"] >= 1, "is restarted")
    assert len(plugin.of("allocate")) == 1
    assert plugin.of("pre_start")[:2] == plugin.of("allocate") * 2


async def test_pods_are_admitted_one_at_a_time(node: NodeUnderTest) -> None:
    plugin = await node.serve()
    names = [f"p{number}" for number in range(6)]
    await asyncio.gather(*(node.create(name, node.container(units=2)) for name in names))
    for name in names:
        await node.k8s.phase(name, "Running")
    assert plugin.most_in_flight == 1
    assert len(frozenset().union(*plugin.of("allocate"))) == 12


async def test_a_pod_that_asks_for_more_than_is_left_fails(node: NodeUnderTest) -> None:
    await node.serve(IDS[:4])
    await node.create("first", node.container(units=3))
    await node.k8s.phase("first", "Running")
    await node.create("second", node.container(units=2))
    found = await node.k8s.phase("second", "Failed")
    assert found["status"]["reason"] == "UnexpectedAdmissionError"
    assert found["status"]["message"] == (
        f"Pod was rejected: Allocate failed due to requested number of devices unavailable for {node.resource}. "
        "Requested: 2, Available: 1, which is unexpected"
    )


# --- who holds what -------------------------------------------------------------------------------
async def test_an_init_containers_ids_are_used_again_and_a_sidecar_keeps_its_own(node: NodeUnderTest) -> None:
    plugin = await node.serve()
    init = node.container("i", 4, command="true")
    sidecar = node.container("side", 3, restartPolicy="Always")
    await node.create("p", node.container("c", 6), initContainers=[init, sidecar])
    await node.k8s.phase("p", "Running")
    held = await node.held("p")
    assert set(held) == {"side", "c"}, "an init container that has ended is not listed"
    of_init = plugin.of("allocate")[0]
    assert held["side"] < of_init, "the sidecar has taken three of the init container's four"
    assert not held["side"] & held["c"]
    assert of_init - held["side"] < held["c"], "the fourth is left for the app"
    assert [set(request.must_include) for request in plugin.of("prefer")][-1] == of_init - held["side"]


async def test_what_init_and_app_share_is_allocated_for_each(node: NodeUnderTest) -> None:
    plugin = await node.serve()
    await node.create("p", node.container("c", 2), initContainers=[node.container("i", 2, command="true")])
    await node.k8s.phase("p", "Running")
    assert plugin.of("allocate") == plugin.of("pre_start")
    first, second = plugin.of("allocate")
    assert first == second
    assert len(plugin.of("prefer")) == 1, "nothing is left to prefer"


async def test_pod_resources_say_who_holds_what(node: NodeUnderTest) -> None:
    await node.serve()
    await node.create("p", node.container("a", 2), container("b"))
    await node.k8s.phase("p", "Running")
    found = await node.resources("p")
    assert (found.namespace, found.name) == (node.k8s.ns, "p")
    (listed,) = [one for one in await node.lister.list() if (one.namespace, one.name) == (node.k8s.ns, "p")]
    # An entry for each NUMA node, in whatever order kubelet comes by them.
    held = [[(c.name, c.ids(node.resource)) for c in each.containers] for each in (found, listed)]
    assert held[0] == held[1]
    a, b = found.containers
    assert (a.name, b.name) == ("a", "b")
    assert [one.resource for one in a.devices] == [node.resource] * len(a.devices)
    assert len(a.ids(node.resource)) == 2
    assert not b.devices
    with pytest.raises(RpcError) as nobody:
        await node.lister.get(PodName(node.k8s.ns, "other"))
    assert "pod other in namespace" in str(nobody.value)
    assert "not found" in str(nobody.value)


async def test_a_pod_that_has_ended_gives_its_ids_back(node: NodeUnderTest) -> None:
    plugin = await node.serve(IDS[:4])
    await node.create("first", node.container(units=4, command="true"), restartPolicy="Never")
    await node.k8s.phase("first", "Succeeded")
    await node.create("second", node.container(units=4))
    await node.k8s.phase("second", "Running")
    await node.k8s.api("DELETE", f"{node.k8s.pods}/second")
    await node.k8s.gone(f"{node.k8s.pods}/second")
    await node.create("third", node.container(units=4))
    await node.k8s.phase("third", "Running")
    assert plugin.of("allocate") == [set(IDS[:4])] * 3


async def test_a_pod_that_ends_keeps_its_ids_until_its_containers_have_ended(node: NodeUnderTest) -> None:
    await node.serve(IDS[:4])
    stubborn = "trap '' TERM; echo set; while true; do sleep 0.1; done"
    await node.create("first", node.container(units=4, command=stubborn), terminationGracePeriodSeconds=20)
    await node.k8s.phase("first", "Running")

    async def deaf() -> bool:
        return await node.k8s.kubectl("logs", "first") == "set\n"

    await until(deaf, "the trap to be set")
    await node.k8s.api("DELETE", f"{node.k8s.pods}/first")
    assert await node.held("first") == {"c": frozenset(IDS[:4])}
    await node.create("second", node.container(units=4))
    found = await node.k8s.phase("second", "Failed")
    assert "Requested: 4, Available: 0" in found["status"]["message"]
    await node.k8s.gone(f"{node.k8s.pods}/first")


# --- kubelet restarts -----------------------------------------------------------------------------
async def test_a_restarted_kubelet_keeps_ids_and_waits_for_the_plugin(node: NodeUnderTest) -> None:
    plugin = await node.serve()
    await node.create("p", node.container(units=3))
    before = await node.k8s.phase("p", "Running")
    held = await node.held("p")
    await node.k8s.backend.restart_kubelet(NODE)

    async def without_us() -> bool:
        """Sockets are swept: that is how a plugin learns that it has to register again."""
        return (node.plugins / "kubelet.sock").exists() and not node.socket.exists()

    await until(without_us, "kubelet to sweep its folder")
    await node.stop_plugin()
    await node.register(plugin)
    assert plugin.streams == 2
    await node.create("q", node.container(units=2))
    await node.k8s.phase("q", "Running")
    after = await node.k8s.phase("p", "Running")
    assert state(after)["containerID"] == state(before)["containerID"], "it ran on"
    assert await node.held("p") == held
    first, second = plugin.of("allocate")
    assert (first, first & second) == (held["c"], set())
