"""The assembled extender against the embedded API server: from the first list to the end of the process."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httptools
import msgspec
import pytest
from builders import agent_node, plain_node, pod

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.kube.client import Client, Response
from gpuslice.kube.wire import Event, Node, Pod
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.scheduler.core import EXTENDER, Core
from gpuslice.scheduler.extender.service import ExtenderSettings, Listening, extender


class Held:
    """A transport whose bindings wait until the test lets them go."""

    def __init__(self, inner: object) -> None:
        self._inner = inner
        self.arrived = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def request(self, method: str, path: str, **more: object) -> Response:
        if path.endswith("/binding"):
            self.arrived.set()
            await self.go.wait()
        answer: Response = await self._inner.request(method, path, **more)  # type: ignore[attr-defined]
        return answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class Site:
    """An API server with one node of 2 x 15 units, and a place to start extenders."""

    def __init__(self, server: ApiServer) -> None:
        self.transport = Held(server.transport())
        self.client = Client(self.transport)  # type: ignore[arg-type]
        self.core: Core

    async def create(self, one: Pod | Node) -> Pod | Node:
        body = msgspec.to_builtins(one)
        namespace = one.namespace or None
        body["metadata"].pop("uid", None)
        if isinstance(one, Pod):
            body["spec"]["containers"][0]["image"] = "x"
        kind = type(one)
        await self.client.create(kind.resource, body, namespace)
        return await self.client.get(kind, one.name, namespace)

    @asynccontextmanager
    async def extender(self) -> AsyncIterator[Listening]:
        core = self.core = Core(
            self.client,
            component=EXTENDER,
            clock=SystemClock(),
            random=lambda: 1.0,
            new_id=lambda: uuid.uuid4().hex[:16],
        )
        async with core.running(), extender(core, ExtenderSettings(port=0)) as listening:
            await core.feed.wait_synced()
            yield listening


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    server = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid.uuid4()))
    await server.start()
    made = Site(server)
    await made.create(agent_node("n", 15, 15))
    async with asyncio.timeout(30):
        yield made
    await server.stop()


class Answer:
    """One HTTP answer, read by a parser of its own."""

    def __init__(self) -> None:
        self.body = b""
        self.done = False

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.done = True


async def post(port: int, verb: str, document: object) -> tuple[int, dict[str, object]]:
    """As Go's client does it, with keep-alive."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = msgspec.json.encode(document)
    head = (
        f"POST /gpushare-scheduler/{verb} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = Answer()
    parser = httptools.HttpResponseParser(answer)
    while not answer.done:
        parser.feed_data(await reader.read(65536))
    writer.close()
    return parser.get_status_code(), json.loads(answer.body)


async def bind(port: int, one: Pod, node: str = "n") -> tuple[int, str]:
    body = {"PodName": one.name, "PodNamespace": one.namespace, "PodUID": one.uid, "Node": node}
    status, answer = await post(port, "bind", body)
    return status, str(answer["Error"])


async def until(site: Site, holds: Callable[[], bool]) -> None:
    """Wait for the feed to show something."""
    changed = asyncio.Event()
    site.core.cluster.subscribe(lambda _change: changed.set())
    while not holds():
        await changed.wait()
        changed.clear()


async def test_from_filter_to_a_bound_pod_with_its_annotations(site: Site) -> None:
    one = await site.create(pod("a", 10))
    assert isinstance(one, Pod)
    async with site.extender() as listening:
        status, answer = await post(listening.port, "filter", {"Pod": one, "NodeNames": ["n", "ghost"]})
        assert (status, answer["NodeNames"]) == (200, ["n"])
        assert await bind(listening.port, one) == (200, "")
        bound = await site.client.get(Pod, "a", "default")
        assert bound.spec.node_name == "n"
        assert bound.annotations[names.MEM_IDX] == "0"
        # Again, as after a timeout: the same answer, and nothing is written a second time.
        assert await bind(listening.port, one) == (200, "")
        again = await site.client.get(Pod, "a", "default")
        assert again.metadata.resource_version == bound.metadata.resource_version


async def test_9a16_a_restarted_extender_knows_what_the_first_one_did(site: Site) -> None:
    """gpushare: one replica, and while it restarts nothing is scheduled; nothing may be lost by it either."""
    pods = [await site.create(pod(name, 10)) for name in ("a", "b", "c")]
    async with site.extender() as listening:
        for one in pods[:2]:
            assert isinstance(one, Pod)
            assert (await bind(listening.port, one))[0] == 200
    async with site.extender() as listening:
        _, answer = await post(listening.port, "filter", {"Pod": pods[2], "NodeNames": ["n"]})
        assert answer["FailedNodes"] == {"n": "Insufficient GPU Memory in one device"}


async def test_9a8_the_end_finishes_binds_in_flight_and_closes_the_door(site: Site) -> None:
    """gpushare: after SIGTERM it went on answering from a frozen cache until it was killed."""
    one = await site.create(pod("a", 10))
    assert isinstance(one, Pod)
    site.transport.go.clear()
    async with site.extender() as listening:
        binding = asyncio.create_task(bind(listening.port, one))
        await site.transport.arrived.wait()
        asyncio.get_running_loop().call_later(0.05, site.transport.go.set)
    assert await binding == (200, "")
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", listening.port)


async def test_a_part_that_fails_ends_the_extender(site: Site) -> None:
    """Rather than answering for ever from what was known at that moment."""

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(BaseExceptionGroup) as raised:
        async with site.extender() as listening:
            site.core.cluster.table.set_node = broken  # type: ignore[method-assign]
            site.core.cluster.quarantine.hold = broken  # type: ignore[method-assign]
            await site.create(plain_node("m", 15, 1))
            await asyncio.Event().wait()
    assert raised.group_contains(RuntimeError, match="a bug")
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", listening.port)


async def test_an_object_that_nobody_foresaw_is_named_and_ends_nothing(site: Site) -> None:
    """Whatever raises for it: the others are followed; it is counted, told of once, and taken back when mended."""
    bad = True

    async def annotate(value: str) -> None:
        await site.client.patch(Pod, "odd", {"metadata": {"annotations": {names.MEM_IDX: value}}}, "default")

    async with site.extender() as listening:
        believed = site.core.cluster.set_pod

        def stumble(new: Pod) -> None:
            if new.name == "odd" and bad:
                raise ValueError("nobody foresaw " + "this" * 1000)
            believed(new)

        site.core.cluster.set_pod = stumble  # type: ignore[method-assign]
        before = await site.client.list(Event, "default")
        await site.create(pod("odd", 3))
        later = await site.create(pod("later", 3))
        assert isinstance(later, Pod)
        assert (await bind(listening.port, later))[0] == 200
        await annotate("1")
        await until(site, lambda: bool(site.core.cluster.quarantine.counts()))
        assert b'gpuslice_unreadable_objects{kind="Pod"} 1.0' in await listening.metrics()
        (sentence,) = site.core.cluster.quarantine.sentences()
        assert sentence.startswith("Pod default/odd cannot be read: ValueError: nobody foresaw this")
        assert len(sentence) < 500
        async for change in site.client.watch(Event, "default", resource_version=before.resource_version):
            if change.object.reason == "Unreadable":
                break
        bad = False
        await annotate("2")
        await until(site, lambda: not site.core.cluster.quarantine.counts())
        assert b"gpuslice_unreadable_objects{" not in await listening.metrics()
        told = [e for e in (await site.client.list(Event, "default")).items if e.reason == "Unreadable"]
        assert [(event.involved_object.name, event.count) for event in told] == [("odd", 1)]


async def test_concurrent_binds_never_book_a_gpu_twice(site: Site) -> None:
    """Eight binds at once for room for two: kube-scheduler sends them without waiting for each other."""
    pods = [await site.create(pod(f"p{number}", 10)) for number in range(8)]
    async with site.extender() as listening:
        answers = await asyncio.gather(*(bind(listening.port, one) for one in pods if isinstance(one, Pod)))
        assert sorted(status for status, _ in answers) == [200, 200] + [500] * 6
        bound = [p for p in (await site.client.list(Pod, "default")).items if p.spec.node_name]
        assert sorted(p.annotations[names.MEM_IDX] for p in bound) == ["0", "1"]
        await until(site, lambda: all(site.core.cluster.pod(p.uid) is not None for p in bound))


async def test_a_pod_that_ends_makes_room(site: Site) -> None:
    one, other = await site.create(pod("a", 15)), await site.create(pod("b", 30))
    assert isinstance(one, Pod)
    async with site.extender() as listening:
        assert (await bind(listening.port, one))[0] == 200
        await until(
            site, lambda: (record := site.core.cluster.pod(one.uid)) is not None and not record.assumed
        )
        await site.client.delete(Pod.resource, "a", "default", grace_seconds=0)
        await until(site, lambda: site.core.cluster.pod(one.uid) is None)
        both = msgspec.structs.replace(
            other,
            metadata=msgspec.structs.replace(other.metadata, annotations={names.SHARES_ACROSS: "2"}),
        )
        _, answer = await post(listening.port, "filter", {"Pod": both, "NodeNames": ["n"]})
        assert answer["NodeNames"] == ["n"]
