"""The extender's answers, byte by byte where gpushare's clients look, and gpushare's defects it lacks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest
from builders import StoppedClock, agent_node, plain_node, pod
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice import names
from gpuslice.cluster.state import Cluster
from gpuslice.kube.client import Client, Response
from gpuslice.kube.wire import Pod
from gpuslice.observe.metrics import Metrics
from gpuslice.scheduler.binder import Binder
from gpuslice.scheduler.extender.handlers import Extender


class Pods:
    """An API server that knows pods and bindings only; everything else is an empty list."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, object]] = {}
        self.bindings: list[dict[str, object]] = []
        self.patches: asyncio.Queue[tuple[str, dict[str, object]]] = asyncio.Queue()
        self.listed: list[str] = []
        self.reads = 0
        self.writes = 0
        self.at_once = 0
        self.most_at_once = 0

    def add(self, one: Pod) -> None:
        self.objects[one.name] = json.loads(msgspec.json.encode(one))

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
    ) -> Response:
        self.writes += method != "GET"
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if method == "GET" and path.endswith(("/nodes", "/pods", "/configmaps")):
            self.listed.append(path)
            return Response(200, b'{"metadata":{"resourceVersion":"1"},"items":[]}')
        name = path.split("/")[6]
        found = self.objects.get(name)
        if found is None:
            return Response(404, json.dumps({"message": f'pods "{name}" not found', "code": 404}).encode())
        if method == "POST" and body is not None:
            self.bindings.append(json.loads(body))
            return Response(201, b"{}")
        if method == "PATCH" and body is not None:
            self.patches.put_nowait((name, json.loads(body)))
            return Response(200, json.dumps(found).encode())
        self.reads += 1
        return Response(200, json.dumps(found).encode())

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        await asyncio.Event().wait()
        yield 200, _no_lines()

    async def aclose(self) -> None:
        """Nothing to give back."""


async def _no_lines() -> AsyncIterator[bytes]:
    for line in ():
        yield line


class World:
    def __init__(self) -> None:
        self.clock = clock = StoppedClock()
        self.cluster = Cluster(clock=clock)
        self.api = Pods()
        client = Client(self.api)
        self.binder = Binder(self.cluster, client, clock=clock)
        self.extender = Extender(self.cluster, client, self.binder, Metrics())

    def filter(self, one: Pod | None, nodes: object, *, key: str = "NodeNames") -> dict[str, object]:
        answer: dict[str, object] = json.loads(self.extender.filter(args(one, nodes, key=key)))
        return answer

    async def bind(self, one: Pod, node: str, **changes: str) -> tuple[int, str]:
        body = {
            "PodName": one.name,
            "PodNamespace": one.namespace,
            "PodUID": one.uid,
            "Node": node,
            **changes,
        }
        status, answer = await self.extender.bind(json.dumps(body).encode())
        return status, json.loads(answer)["Error"]


def args(one: Pod | None, nodes: object, *, key: str = "NodeNames") -> bytes:
    document = {"Pod": one, "Nodes": None, "NodeNames": None, key: nodes}
    return msgspec.json.encode(document)


@pytest.fixture
def world() -> World:
    return World()


def with_version(one: Pod) -> Pod:
    meta = msgspec.structs.replace(one.metadata, resource_version="7")
    return msgspec.structs.replace(one, metadata=meta)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "Node"])
async def test_a_name_in_bind_that_is_a_path_leads_nowhere(world: World, field: str, known: bool) -> None:
    """`PodName: "../../../nodes/n1"` fetched a node."""
    world.cluster.set_node(plain_node("n", 15, 1))
    one = pod("a", 5)
    evil = "../../../nodes/n1"
    if known:
        # kube-scheduler's filter names the pod, too: whoever calls may write anything there.
        part = {"PodName": "name", "PodNamespace": "namespace"}.get(field)
        meta = msgspec.structs.replace(one.metadata, **({part: evil} if part else {}))
        one = msgspec.structs.replace(one, metadata=meta)
        world.filter(one, ["n"])
    status, error = await world.bind(one, "n", **{field: evil})
    assert status == 500
    assert error == f"{field} '../../../nodes/n1' is no name: it has the character '/' in it"
    assert (world.api.reads, world.api.writes, world.api.bindings) == (0, 0, [])


def test_filter_answers_names_with_gpushares_sentences(world: World) -> None:
    world.cluster.set_node(plain_node("n1", 30, 2))
    world.cluster.set_node(plain_node("n2", 4, 1))
    world.cluster.set_node(plain_node("cpu", 0, 0))
    body = args(pod("a", 5), ["n1", "n2", "cpu", "ghost"])
    assert world.extender.filter(body) == (
        b'{"Nodes":null,"NodeNames":["n1"],"FailedNodes":{"ghost":"node \\"ghost\\" not found",'
        b'"cpu":"The node cpu is not for GPU share, need skip",'
        b'"n2":"Insufficient GPU Memory in one device"},"FailedAndUnresolvableNodes":{},"Error":""}'
    )


def test_filter_by_nodes_gives_the_same_objects_back(world: World) -> None:
    """nodeCacheCapable=false: whole nodes in, whole nodes out, untouched."""
    world.cluster.set_node(plain_node("n1", 30, 2))
    world.cluster.set_node(plain_node("n2", 4, 1))
    items = [{"metadata": {"name": n, "labels": {"x": "y"}}, "spec": {"odd": [1]}} for n in ("n1", "n2")]
    answer = world.filter(pod("a", 5), {"metadata": {}, "items": items}, key="Nodes")
    assert answer["Nodes"] == {"metadata": {}, "items": [items[0]]}
    assert answer["NodeNames"] == ["n1"]
    assert answer["FailedNodes"] == {"n2": "Insufficient GPU Memory in one device"}


def test_nothing_fits_is_an_empty_list_not_null(world: World) -> None:
    world.cluster.set_node(plain_node("n", 4, 1))
    answer = world.filter(pod("a", 5), ["n"])
    assert answer["NodeNames"] == []
    assert world.filter(pod("a", 1), ["n"])["FailedNodes"] == {}


def test_keys_in_any_casing_are_understood(world: World) -> None:
    world.cluster.set_node(plain_node("n", 30, 2))
    body = msgspec.json.encode({"pod": pod("a", 5), "nodenames": ["n"]})
    assert json.loads(world.extender.filter(body))["NodeNames"] == ["n"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "EOF"),
        (b'{"Pod":null,"NodeNames":["n"]}', "arg or pod is nil"),
        (b'{"Pod":{},"Nodes":null,"NodeNames":null}', "cannot get node names"),
        (b"{nonsense", "the body is not a FilterArgs"),
        (b'{"Pod":{"metadata":7},"NodeNames":[]}', "Pod: the pod cannot be read"),
        (b'{"Pod":{},"NodeNames":{"a":1}}', "NodeNames: not a list of node names"),
        (b'{"Pod":{},"Nodes":{"items":[3]}}', "Nodes: not a list of nodes"),
    ],
)
def test_malformed_bodies_get_one_sentence(world: World, body: bytes, error: str) -> None:
    answer = json.loads(world.extender.filter(body))
    assert str(answer["Error"]).startswith(error)
    assert answer["NodeNames"] is None


def test_keys_in_mixed_casing_are_understood(world: World) -> None:
    """Go prefers the exact key and takes any other casing: one request may mix them."""
    world.cluster.set_node(plain_node("n", 30, 2))
    body = msgspec.json.encode({"Pod": pod("a", 5), "nodeNames": ["n"], "nodes": None})
    assert json.loads(world.extender.filter(body))["NodeNames"] == ["n"]


async def test_bind_understands_any_casing(world: World) -> None:
    world.cluster.set_node(plain_node("n", 30, 2))
    one = with_version(pod("a", 5))
    world.api.add(one)
    body = {"podName": "a", "PodNamespace": "default", "poduid": "uid-a", "node": "n"}
    assert await world.extender.bind(json.dumps(body).encode()) == (200, b'{"Error":""}')


@pytest.mark.parametrize("whole_nodes", [False, True])
def test_a_limit_that_cannot_be_read_is_refused_by_each_node(world: World, whole_nodes: bool) -> None:
    """As gpushare's: kube-scheduler counts the sentence, and the attempt is not an error of the extender."""
    container = {"resources": {"limits": {names.GPU_MEM: "-1"}}}
    asked: dict[str, object] = {
        "Pod": {"spec": {"containers": [container]}},
        "Nodes": None,
        "NodeNames": None,
    }
    if whole_nodes:
        asked["Nodes"] = {"items": [{"metadata": {"name": name}} for name in ("n", "m")]}
    else:
        asked["NodeNames"] = ["n", "m"]
    answer = json.loads(world.extender.filter(json.dumps(asked).encode()))
    why = "spec.containers[0].resources.limits[aliyun.com/gpu-mem]: '-1' is negative; ask for 0 or more"
    assert answer == {
        "Nodes": {"metadata": {}, "items": []} if whole_nodes else None,
        "NodeNames": [],
        "FailedNodes": {"n": why, "m": why},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_an_error_has_every_key_that_kube_scheduler_knows(world: World) -> None:
    for body in (b"", b"{}", b'{"Pod":{}}', b"nonsense"):
        answer = json.loads(world.extender.filter(body))
        assert answer.pop("Error")
        keys = ("Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes")
        assert answer == dict.fromkeys(keys)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["Pod", "NodeNames", "Nodes", "spec", "containers", "items", "metadata"]), inner, max_size=3),
    max_leaves=10,
).map(lambda document: json.dumps(document).encode()))  # fmt: skip
def test_no_body_whatever_makes_the_decoder_fail(body: bytes) -> None:
    """Fuzz of every verb: each answers valid JSON, none raises."""
    world = World()

    def preempt(body: bytes) -> bytes:
        return asyncio.run(world.extender.preempt(body))

    for verb in (world.extender.filter, world.extender.prioritize, preempt):
        json.loads(verb(body))


async def test_bind_writes_everything_in_one_request(world: World) -> None:
    world.cluster.set_node(agent_node("n", 15, 15))
    one = with_version(pod("a", 5))
    world.api.add(one)
    world.filter(one, ["n"])
    assert await world.bind(one, "n") == (200, "")
    [binding] = world.api.bindings
    meta = binding["metadata"]
    assert isinstance(meta, dict)
    assert meta["uid"] == "uid-a"
    assert meta["annotations"][names.MEM_IDX] == "0"
    assert meta["annotations"][names.MEM_ASSIGNED] == "false"
    assert world.api.reads == 0  # filter has shown the pod already
    assert world.filter(pod("b", 12), ["n"])["NodeNames"] == ["n"]
    assert world.filter(pod("c", 16), ["n"])["NodeNames"] == []


async def test_bind_of_another_incarnation_is_refused_in_gpushares_words(world: World) -> None:
    world.cluster.set_node(agent_node("n", 15))
    world.api.add(with_version(pod("a", 5, uid="new")))
    status, error = await world.bind(pod("a", 5, uid="old"), "n")
    assert status == 500
    assert error == "The pod a in ns default's uid is new, and it's not equal with expected old"
    assert world.api.bindings == []


async def test_bind_without_room_says_why(world: World) -> None:
    """Defect 9.A.13: gpushare dumped the whole pod and the user saw `code 500`."""
    world.cluster.set_node(agent_node("n", 4))
    one = with_version(pod("a", 5))
    world.api.add(one)
    assert await world.bind(one, "n") == (500, "Insufficient GPU Memory in one device")
    assert await world.bind(one, "ghost") == (500, 'node "ghost" not found')


async def test_9a10_filter_counts_what_is_still_being_bound(world: World) -> None:
    world.cluster.set_node(agent_node("n", 15))
    first = with_version(pod("a", 10))
    world.api.add(first)
    world.filter(first, ["n"])
    binding = asyncio.create_task(world.bind(first, "n"))
    await asyncio.sleep(0)
    assert world.filter(pod("b", 10), ["n"])["NodeNames"] == []
    assert (await binding)[0] == 200


async def test_a_pod_that_is_being_bound_is_offered_only_its_own_node(world: World) -> None:
    """Defect 9.A.7: kube-scheduler gave up waiting and tried elsewhere; the first bind may have worked."""
    world.cluster.set_node(agent_node("n", 15))
    world.cluster.set_node(agent_node("m", 15))
    one = with_version(pod("a", 10))
    world.api.add(one)
    assert (await world.bind(one, "n"))[0] == 200
    assert world.filter(one, ["m", "n"])["NodeNames"] == ["n"]
    status, error = await world.bind(one, "m")
    assert status == 500
    assert "holds GPU memory on node n" in error
    assert (await world.bind(one, "n"))[0] == 200


async def test_9a13_inspect_of_an_unknown_node_is_an_answer(world: World) -> None:
    status, body = await world.extender.inspect("ghost")
    assert status == 404
    assert json.loads(body) == {"nodes": [], "error": 'node "ghost" not found'}


async def test_inspect_is_gpushares_json_in_stable_order(world: World) -> None:
    world.cluster.set_node(plain_node("b", 30, 2))
    world.cluster.set_node(plain_node("a", 15, 1))
    world.cluster.set_pod(pod("x", 3, node="b", index=1, phase="Running"))
    _, body = await world.extender.inspect()
    assert json.loads(body) == {
        "nodes": [
            {"name": "a", "totalGPU": 15, "usedGPU": 0, "devs": [{"id": 0, "totalGPU": 15, "usedGPU": 0, "pods": []}]},
            {
                "name": "b",
                "totalGPU": 30,
                "usedGPU": 3,
                "devs": [
                    {"id": 0, "totalGPU": 15, "usedGPU": 0, "pods": []},
                    {
                        "id": 1,
                        "totalGPU": 15,
                        "usedGPU": 3,
                        "pods": [{"name": "x", "namespace": "default", "usedGPU": 3}],
                    },
                ],
            },
        ]
    }  # fmt: skip


def test_prioritize_packs_across_nodes(world: World) -> None:
    """Defect 9.A.14: gpushare left the choice of the node to kube-scheduler, which spreads."""
    world.cluster.set_node(plain_node("empty", 15, 1))
    world.cluster.set_node(plain_node("used", 15, 1))
    world.cluster.set_pod(pod("x", 10, node="used", index=0))
    scores = {
        entry["Host"]: entry["Score"]
        for entry in json.loads(world.extender.prioritize(args(pod("a", 5), ["empty", "used"])))
    }
    assert 0 <= scores["empty"] < scores["used"] <= 10


def preempt(world: World, one: Pod, victims: dict[str, list[str]], *, meta: bool = True) -> dict[str, object]:
    if meta:
        proposed = {
            n: {"Pods": [{"UID": u} for u in uids], "NumPDBViolations": 0} for n, uids in victims.items()
        }
        body = {"Pod": one, "NodeNameToVictims": None, "NodeNameToMetaVictims": proposed}
    else:
        full = {n: {"Pods": [{"metadata": {"uid": u}} for u in uids]} for n, uids in victims.items()}
        body = {"Pod": one, "NodeNameToVictims": full, "NodeNameToMetaVictims": None}
    answer = json.loads(asyncio.run(world.extender.preempt(msgspec.json.encode(body))))
    kept: dict[str, object] = answer["NodeNameToMetaVictims"]
    return kept


@pytest.mark.parametrize("meta", [True, False])
def test_preempt_names_victims_that_free_one_gpu(world: World, meta: bool) -> None:
    """kube-scheduler proposes by the node's sum: 5 + 5 units on two GPUs make no room for 10."""
    world.cluster.set_node(plain_node("n", 30, 2))
    world.cluster.set_pod(pod("a0", 5, node="n", index=0))
    world.cluster.set_pod(pod("a1", 10, node="n", index=0, priority=5))
    world.cluster.set_pod(pod("b0", 5, node="n", index=1))
    world.cluster.set_pod(pod("b1", 10, node="n", index=1, priority=50))
    important = pod("new", 10, priority=20)
    kept = preempt(world, important, {"n": ["uid-a0", "uid-b0", "uid-other"]}, meta=meta)
    assert kept == {"n": {"Pods": [{"UID": "uid-a1"}, {"UID": "uid-other"}], "NumPDBViolations": 0}}
    assert preempt(world, important, {"n": ["uid-a1"]}, meta=meta) == {
        "n": {"Pods": [{"UID": "uid-a1"}], "NumPDBViolations": 0}
    }
    assert preempt(world, pod("new", 10, priority=0), {"n": ["uid-a0"]}, meta=meta) == {}
