"""Events: counted when they repeat, dropped when they cannot be sent, never in the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from kube_fakes import FakeTransport, HurriedClock, ManualClock, settle

from gpuslice.kube import events
from gpuslice.kube.client import Client, Response
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.wire import Node, ObjectMeta, Pod

POD = Pod(metadata=ObjectMeta(name="p", namespace="team", uid="u1"))


@asynccontextmanager
async def recording(server: FakeTransport, clock: ManualClock) -> AsyncIterator[EventRecorder]:
    ids = iter(range(10_000))
    recorder = EventRecorder(Client(server), "tester", clock=clock, new_id=lambda: f"id{next(ids)}")
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def flushed(recorder: EventRecorder) -> None:
    async with asyncio.timeout(5):
        await recorder.flushed()


async def test_an_event_names_its_object_its_component_and_the_time() -> None:
    server, clock = FakeTransport(), ManualClock()
    async with recording(server, clock) as recorder:
        recorder.record(POD, "Normal", "Scheduled", "on node n1")
        await flushed(recorder)
    ((method, path, body),) = server.writes
    assert (method, path) == ("POST", "/api/v1/namespaces/team/events")
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team",
        "name": "p",
        "uid": "u1",
    }
    assert body["metadata"] == {"name": "p.38d7ea4c68000-id0", "namespace": "team"}
    assert (body["type"], body["reason"], body["message"]) == ("Normal", "Scheduled", "on node n1")
    assert body["source"] == {"component": "tester"}
    assert body["firstTimestamp"] == body["lastTimestamp"] == "1970-01-12T13:46:40Z"


async def test_repetition_is_counted_on_the_first_event() -> None:
    """Sent or still waiting: one Event object, its count and its last time."""
    server, clock = FakeTransport(), ManualClock()
    async with recording(server, clock) as recorder:
        recorder.record(POD, "Warning", "FailedScheduling", "no room")
        recorder.record(POD, "Warning", "FailedScheduling", "no room")
        await flushed(recorder)
        clock.advance(60)
        recorder.record(POD, "Warning", "FailedScheduling", "no room")
        await flushed(recorder)
        recorder.record(POD, "Warning", "FailedScheduling", "another reason")
        await flushed(recorder)
    created, patched, other = server.writes
    assert created[2]["count"] == 2
    assert (patched[0], patched[1]) == ("PATCH", "/api/v1/namespaces/team/events/p.38d7ea4c68000-id0")
    assert patched[2] == {"count": 3, "lastTimestamp": "1970-01-12T13:47:40Z"}
    assert other[0] == "POST"


async def test_a_repeated_event_that_expired_on_the_server_is_made_anew() -> None:
    server = FakeTransport()
    server.answer = lambda method, *_: Response(404, b"{}") if method == "PATCH" else Response(201, b"{}")
    async with recording(server, ManualClock()) as recorder:
        recorder.record(POD, "Normal", "R", "m")
        await flushed(recorder)
        recorder.record(POD, "Normal", "R", "m")
        await flushed(recorder)
    assert [(write[0], write[1].rpartition("/")[2]) for write in server.writes] == [
        ("POST", "events"),
        ("PATCH", "p.38d7ea4c68000-id0"),
        ("POST", "events"),
    ]


async def test_an_outage_is_retried_and_then_given_up_without_a_word_to_the_caller() -> None:
    server, clock = FakeTransport(), HurriedClock()
    server.down = True
    async with recording(server, clock) as recorder:
        recorder.record(POD, "Normal", "R", "lost")
        await flushed(recorder)
        assert len(clock.slept) == events.TRIES - 1
        server.down = False
        recorder.record(POD, "Normal", "R", "kept")
        await flushed(recorder)
    assert [write[2]["message"] for write in server.writes] == ["kept"]


async def test_a_refused_event_is_not_retried() -> None:
    server, clock = FakeTransport(), HurriedClock()
    server.answer = lambda *_: Response(403, msgspec.json.encode({"message": "namespace is going away"}))
    async with recording(server, clock) as recorder:
        recorder.record(POD, "Normal", "R", "m")
        await flushed(recorder)
    assert (len(server.writes), clock.slept) == (1, [])


async def test_a_full_queue_drops_the_oldest_and_never_blocks() -> None:
    server = FakeTransport()
    async with recording(server, ManualClock()) as recorder:
        for number in range(events.QUEUE_LIMIT + 5):
            recorder.record(POD, "Normal", "R", f"m{number}")
        await flushed(recorder)
    assert server.writes[0][2]["message"] == "m5"
    assert len(server.writes) == events.QUEUE_LIMIT


async def test_events_of_cluster_scoped_objects_go_to_the_default_namespace_and_long_texts_are_cut() -> None:
    server = FakeTransport()
    async with recording(server, ManualClock()) as recorder:
        recorder.record(Node(metadata=ObjectMeta(name="n1", uid="n")), "Normal", "NodeReady", "x" * 5000)
        await flushed(recorder)
        await settle()
    ((_, path, body),) = server.writes
    assert path == "/api/v1/namespaces/default/events"
    assert len(str(body["message"])) == 1024
