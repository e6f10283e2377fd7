"""The reflector against a scripted API server: what its owner is told, and when it lists or only watches."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_fakes import FakeTransport, HurriedClock, ManualClock, gone, line, pod, settle
from structlog.testing import capture_logs

from gpuslice.kube.client import Client, Response
from gpuslice.kube.decoding import DEEPEST, shallow
from gpuslice.kube.reflector import BACKWARDS_SECONDS, BEHIND_SECONDS, Reflector
from gpuslice.kube.wire import Pod


class Owner:
    """Believes what it is told."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.told: list[str] = []
        self.asks: Callable[[], bool] = lambda: True
        self.whole: list[bool] = []
        """What `asks` said at each call."""
        self.wrong: list[str] = []
        self.stumbles_over: set[str] = set()

    def on_set(self, item: Pod) -> None:
        self.whole.append(self.asks())
        if item.name in self.stumbles_over:
            raise KeyError(item.name)
        if self.state.get(item.key, item.uid) != item.uid:
            self.wrong.append(f"a new uid of {item.key} without a drop of the old one")
        self.state[item.key] = item.uid
        self.told.append(f"set {item.name} {item.uid} {item.metadata.resource_version}")

    def on_drop(self, item: Pod) -> None:
        self.whole.append(self.asks())
        if self.state.pop(item.key, item.uid if item.name in self.stumbles_over else "") != item.uid:
            self.wrong.append(f"a drop of {item.key}, which was never told")
        self.told.append(f"drop {item.name} {item.uid}")


@asynccontextmanager
async def following(
    server: FakeTransport, clock: ManualClock, *, relists: bool = False
) -> AsyncIterator[tuple[Owner, Reflector[Pod]]]:
    owner = Owner()
    reflector = Reflector(
        Client(server),
        Pod,
        on_set=owner.on_set,
        on_drop=owner.on_drop,
        salvage=lambda item: bool(item.spec.node_name),
        clock=clock,
        random=lambda: 1.0,
        relists=relists,
    )
    task = asyncio.create_task(reflector.run())
    try:
        yield owner, reflector
        assert not task.done(), task.exception()
        assert owner.wrong == []
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_lists_every_page_then_watches_from_the_lists_version() -> None:
    server = FakeTransport()
    server.page = 2
    server.objects = [pod(f"p{n}", f"u{n}", n) for n in range(5)]
    server.version = 17
    async with following(server, ManualClock()) as (owner, reflector):
        watch = await server.watch(1)
        assert reflector.synced.is_set()
        assert owner.state == {f"default/p{n}": f"u{n}" for n in range(5)}
        assert (watch.version, server.lists) == ("17", 3)
        watch.push(line("ADDED", pod("new", "n", 18)), line("DELETED", pod("p0", "u0", 19)))
        await settle()
        assert owner.told[-2:] == ["set new n 18", "drop p0 u0"]


async def test_end_of_stream_resumes_from_the_last_version_without_a_list() -> None:
    """Bookmarks move the version, so a quiet kind does not expire."""
    server, clock = FakeTransport(), HurriedClock()
    async with following(server, clock):
        watch = await server.watch(1)
        # As kube-apiserver sends it for pods: the zero value of each field.
        empty = {
            "metadata": {"resourceVersion": "90", "creationTimestamp": None},
            "spec": {"containers": None},
        }
        watch.push(line("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", **empty, "status": {}}))
        watch.end()
        second = await server.watch(2)
        assert (second.version, server.lists) == ("90", 1)


async def test_gone_lists_again_and_tells_of_what_vanished_meanwhile() -> None:
    server, clock = FakeTransport(), HurriedClock()
    server.objects = [pod("stays", "a", 1), pod("goes", "b", 1), pod("reborn", "c", 1)]
    async with following(server, clock) as (owner, _):
        watch = await server.watch(1)
        server.objects = [pod("stays", "a", 1), pod("reborn", "d", 9)]
        server.version = 9
        watch.push(gone())
        assert (await server.watch(2)).version == "9"
        assert owner.state == {"default/stays": "a", "default/reborn": "d"}
        assert {"drop goes b", "drop reborn c"} <= set(owner.told)


async def test_a_name_that_comes_back_in_the_watch_is_dropped_first() -> None:
    """The deletion's event was lost; the new object must not inherit from the old one."""
    server = FakeTransport()
    server.objects = [pod("p", "old", 1)]
    async with following(server, ManualClock()) as (owner, _):
        watch = await server.watch(1)
        watch.push(line("ADDED", pod("p", "new", 5)))
        await settle()
        assert owner.told[-2:] == ["drop p old", "set p new 5"]
        watch.push(line("DELETED", pod("p", "old", 4)))
        await settle()
        assert owner.state == {"default/p": "new"}


async def test_repeated_events_change_nothing() -> None:
    server = FakeTransport()
    async with following(server, ManualClock()) as (owner, _):
        watch = await server.watch(1)
        added, deleted = line("ADDED", pod("p", "u", 5)), line("DELETED", pod("p", "u", 6))
        watch.push(added, added, deleted, added, deleted)
        await settle()
        assert owner.told == ["set p u 5", "drop p u"]


async def test_an_outage_of_a_minute_is_waited_out_and_logged_once() -> None:
    server, clock = FakeTransport(), HurriedClock()
    server.objects = [pod("p", "u", 1)]
    with capture_logs() as logs:
        async with following(server, clock) as (owner, _):
            watch = await server.watch(1)
            began = clock.seconds
            server.down = True
            watch.break_off()
            while clock.seconds < began + 60:
                await settle(5)
            server.down = False
            second = await server.watch(2)
            second.push(line("DELETED", pod("p", "u", 2)))
            await settle()
    assert owner.state == {}
    assert server.lists == 1, "a short outage needs no list"
    assert [entry["log_level"] for entry in logs] == ["warning", "info"]
    assert "connection reset" in logs[0]["error"]
    assert clock.slept[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(clock.slept) == 10.0


async def test_a_kind_that_is_not_installed_is_waited_for_without_a_warning() -> None:
    class Without(FakeTransport):
        async def request(self, *args: Any, **more: Any) -> Response:
            if self.down:
                return Response(404, b"404 page not found\n")
            return await super().request(*args, **more)

    server, clock = Without(), HurriedClock()
    server.down = True
    with capture_logs() as logs:
        async with following(server, clock) as (_, reflector):
            while len(clock.slept) < 20:
                await settle(5)
            assert [(entry["log_level"], entry["kind"]) for entry in logs] == [("info", "Pod")]
            server.down = False
            await reflector.synced.wait()


async def test_an_api_server_that_is_down_at_the_start_is_waited_for() -> None:
    server, clock = FakeTransport(), HurriedClock()
    server.down = True
    async with following(server, clock) as (_, reflector):
        await settle()
        assert not reflector.synced.is_set()
        server.down = False
        await server.watch(1)
        assert reflector.synced.is_set()


async def test_a_server_that_ends_every_watch_at_once_is_not_hammered() -> None:
    server, clock = FakeTransport(), HurriedClock()
    async with following(server, clock):
        for number in range(1, 6):
            (await server.watch(number)).end()
        await server.watch(6)
    assert clock.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])


async def test_an_error_other_than_gone_lists_again() -> None:
    """Such an answer (a server restored from a backup, say) makes our version worthless."""
    server, clock = FakeTransport(), HurriedClock()
    async with following(server, clock):
        watch = await server.watch(1)
        watch.push(line("ERROR", {"kind": "Status", "code": 500, "message": "etcd lost its mind"}))
        await server.watch(2)
        assert server.lists == 2


async def test_what_is_known_is_not_whole_while_a_list_is_handed_over() -> None:
    """What the vanished ones held looks free until those are known that came in their place."""
    server, clock = FakeTransport(), HurriedClock()
    server.page = 2
    server.objects = [pod(f"p{n}", f"u{n}", n) for n in range(5)]
    async with following(server, clock) as (owner, reflector):
        assert not reflector.whole
        owner.asks = lambda: reflector.whole
        watch = await server.watch(1)
        assert reflector.whole
        assert owner.whole == [False] * 5
        owner.whole.clear()
        server.objects = [pod(f"q{n}", f"v{n}", 9) for n in range(600)]  # several turns of the event loop
        server.version = 9
        watch.push(gone())
        await server.watch(2)
        assert owner.whole == [False] * 605
        assert reflector.whole


async def test_a_list_after_an_empty_one_is_not_whole_page_by_page() -> None:
    server, clock = FakeTransport(), HurriedClock()
    async with following(server, clock) as (owner, reflector):
        owner.asks = lambda: reflector.whole
        watch = await server.watch(1)
        server.objects, server.version, server.page = [pod("p", "u", 2), pod("q", "v", 2)], 2, 1
        watch.push(gone())
        await server.watch(2)
        assert owner.whole == [False, False]


async def test_what_is_known_grows_old_without_a_watch() -> None:
    server, clock = FakeTransport(), ManualClock()
    async with following(server, clock) as (_, reflector):
        watch = await server.watch(1)
        server.down = True
        watch.break_off()
        await settle()
        clock.advance(BEHIND_SECONDS - 0.1)
        assert reflector.whole, "a server ends each watch after some minutes"
        clock.advance(0.1)
        assert not reflector.whole
        clock.advance(3600)
        await settle()
        clock.advance(3600)
        server.down = False
        await settle()
        clock.advance(20)
        await server.watch(2)
        await settle()
        assert reflector.whole


async def test_who_decides_lists_anew_after_a_gap() -> None:
    """A watch brings what happened in the gap as well, but does not say when all of it has come."""
    server, clock = FakeTransport(), HurriedClock()
    server.objects = [pod("p", "u", 1)]
    async with following(server, clock, relists=True) as (owner, reflector):
        watch = await server.watch(1)
        watch.break_off()
        second = await server.watch(2)
        assert (server.lists, second.version) == (1, "1"), "a short one is none"
        began = clock.seconds
        server.down = True
        second.break_off()
        while clock.seconds < began + BEHIND_SECONDS + 1:
            await settle(5)
        server.objects, server.version = [], 5
        server.down = False
        assert not reflector.whole
        assert (await server.watch(3)).version == "5"
        assert (server.lists, owner.state) == (2, {})
        assert reflector.whole


async def test_a_list_of_the_past_is_not_believed_unless_the_server_insists() -> None:
    """An API server that is behind the others brings ended pods back; one restored from a backup is right."""
    server, clock = FakeTransport(), HurriedClock()
    server.objects, server.version = [pod("old", "a", 3)], 10
    async with following(server, clock, relists=True) as (owner, reflector):
        watch = await server.watch(1)
        watch.push(line("DELETED", pod("old", "a", 20)), line("ADDED", pod("new", "b", 21)))
        await settle()
        began = clock.seconds
        watch.push(gone())
        while clock.seconds < began + BEHIND_SECONDS:
            await settle(1)
        assert owner.state == {"default/new": "b"}
        assert not reflector.whole
        await server.watch(2)
        assert clock.seconds - began >= BACKWARDS_SECONDS
        assert owner.state == {"default/old": "a"}
        assert reflector.whole


def unreadable(name: str, uid: str, version: int, node: str = "") -> dict[str, object]:
    """A pod with one field that no API server sends."""
    body = pod(name, uid, version)
    body["spec"] = {
        "nodeName": node,
        "priority": "high",
        "containers": [{"name": "c", "resources": 7}, {"name": "d"}],
    }
    return body


async def test_an_object_that_does_not_decode_costs_no_other() -> None:
    """In the list and in the watch; it is named as long as it is there, and told when it can be read."""
    server = FakeTransport()
    server.objects = [pod("a", "1", 1), unreadable("bad", "2", 1), pod("c", "3", 1)]
    async with following(server, HurriedClock()) as (owner, reflector):
        watch = await server.watch(1)
        assert owner.state == {"default/a": "1", "default/c": "3"}
        assert reflector.quarantine.sentences() == [
            "Pod default/bad cannot be read: Expected `int`, got `str` - at `$.spec.priority`"
        ]
        watch.push(line("ADDED", pod("d", "4", 2)), line("MODIFIED", unreadable("c", "3", 3)))
        await settle()
        assert owner.told[-1] == "set d 4 2", "what is known of c stays"
        assert reflector.quarantine.counts() == {"Pod": 2}
        watch.push(line("MODIFIED", pod("bad", "2", 4)), line("DELETED", unreadable("c", "3", 5)))
        await settle()
        assert owner.told[-2:] == ["set bad 2 4", "drop c 3"]
        assert reflector.quarantine.counts() == {}


async def test_what_does_not_decode_is_not_taken_for_gone() -> None:
    server, clock = FakeTransport(), HurriedClock()
    server.objects = [pod("a", "1", 1), pod("b", "2", 1), pod("c", "3", 1)]
    async with following(server, clock) as (owner, reflector):
        watch = await server.watch(1)
        server.objects, server.version = [unreadable("a", "1", 8), unreadable("b", "new", 8)], 9
        watch.push(gone())
        second = await server.watch(2)
        assert owner.state == {"default/a": "1"}
        assert reflector.quarantine.counts() == {"Pod": 2}
        server.objects, server.version = [pod("a", "1", 10)], 11
        second.push(gone())
        await server.watch(3)
        assert reflector.quarantine.counts() == {}


async def test_what_is_certain_of_a_pod_on_a_node_is_told() -> None:
    """Its owner says so: what it holds there is not free."""
    server = FakeTransport()
    server.objects = [unreadable("bad", "2", 1, node="n")]
    seen: list[Pod] = []
    reflector = Reflector(
        Client(server),
        Pod,
        on_set=seen.append,
        on_drop=lambda _pod: None,
        salvage=lambda item: bool(item.spec.node_name),
        clock=HurriedClock(),
        random=lambda: 1.0,
    )
    task = asyncio.create_task(reflector.run())
    await server.watch(1)
    task.cancel()
    (told,) = seen
    assert (told.key, told.uid, told.spec.node_name, told.spec.priority) == ("default/bad", "2", "n", 0)
    assert [container.name for container in told.spec.containers] == ["c", "d"]


@pytest.mark.parametrize("depth", [99, 5_000, 100_000])
async def test_managed_fields_can_be_as_deep_as_their_writer_likes(depth: int) -> None:
    """The API server keeps them so; what we read of such an object is read."""
    server = FakeTransport()
    deep: bytes = b'{"f:x":' * depth + b'"]}\\"{[" ' + b"}" * depth
    body = msgspec.json.encode(pod("a", "1", 1)).replace(
        b'"metadata":{', b'"metadata":{"managedFields":' + deep + b","
    )

    async def request(*_: object, **__: object) -> Response:
        server.lists += 1
        items = body + b"," + msgspec.json.encode(pod("b", "2", 1))
        return Response(200, b'{"metadata":{"resourceVersion":"7"},"items":[' + items + b"]}")

    server.request = request  # type: ignore[method-assign, assignment]
    async with following(server, ManualClock()) as (owner, reflector):
        watch = await server.watch(1)
        assert owner.state == {"default/a": "1", "default/b": "2"}
        watch.push(
            b'{"type":"MODIFIED","object":'
            + body.replace(b'"resourceVersion":"1"', b'"resourceVersion":"8"')
            + b"}"
        )
        await settle()
        assert owner.told[-1] == "set a 1 8"
        assert reflector.quarantine.counts() == {}


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(json_values, st.integers(0, DEEPEST + 50))
def test_only_what_is_too_deep_is_cut_off(value: object, depth: int) -> None:
    wrapped: object = value
    for _ in range(depth):
        wrapped = [wrapped, 1]
    read = msgspec.json.decode(shallow(msgspec.json.encode(wrapped)))
    for _ in range(min(depth, DEEPEST)):
        read, one = read
        assert one == 1
    if depth + 20 <= DEEPEST:
        assert read == value
    elif depth > DEEPEST:
        assert read is None


async def test_an_owner_that_stumbles_over_one_object_is_told_of_the_others() -> None:
    server = FakeTransport()
    server.objects = [pod("a", "1", 1), pod("bad", "2", 1), pod("c", "3", 1)]
    with capture_logs() as logs:
        async with following(server, ManualClock()) as (owner, reflector):
            owner.stumbles_over.add("bad")
            watch = await server.watch(1)
            watch.push(*(line("MODIFIED", pod("bad", "2", version)) for version in range(2, 50)))
            await settle(200)
            assert reflector.quarantine.sentences() == ["Pod default/bad cannot be read: KeyError: 'bad'"]
            watch.push(line("ADDED", pod("d", "4", 50)), line("DELETED", pod("bad", "2", 51)))
            await settle()
            assert owner.state == {"default/a": "1", "default/c": "3", "default/d": "4"}
            assert reflector.quarantine.sentences() == []
    assert [entry["where"].partition(":")[0] for entry in logs] == ["Owner.on_set"]


NAMES = ["a", "b", "c"]
step = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(NAMES)),
    st.tuples(st.just("update"), st.sampled_from(NAMES)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("recreate silently"), st.sampled_from(NAMES)),
    st.tuples(st.just("lose"), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(["repeat", "end", "break", "gone", "bookmark"]), st.just("")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(step, max_size=25))
def test_whatever_the_network_does_the_owner_ends_with_the_servers_state(
    steps: list[tuple[str, str]],
) -> None:
    """Events lost, repeated, streams ended and broken, names reborn: after the next list all is true.

    On the way the owner is never told of a drop it does not know, nor of a new uid over an old one
    (asserted in `Owner`).
    """

    async def story() -> None:
        server, clock = FakeTransport(), HurriedClock()
        truth: dict[str, dict[str, object]] = {}
        uids = iter(range(10_000))
        opened = 1
        sent: list[bytes] = []
        async with following(server, clock) as (owner, _):
            watch = await server.watch(opened)

            def change(kind: str, obj: dict[str, object], *, lost: bool = False) -> None:
                server.objects = list(truth.values())
                sent.append(line(kind, obj))
                if not lost:
                    watch.push(sent[-1])

            for action, name in steps:
                server.version += 1
                version = server.version
                old = truth.get(name)
                if action == "create" and old is None:
                    truth[name] = pod(name, f"u{next(uids)}", version)
                    change("ADDED", truth[name])
                elif action == "update" and old is not None:
                    truth[name] = pod(name, str(old["metadata"]["uid"]), version)  # type: ignore[index]
                    change("MODIFIED", truth[name])
                elif action in ("delete", "lose") and old is not None:
                    gone_object = pod(name, str(old["metadata"]["uid"]), version)  # type: ignore[index]
                    del truth[name]
                    change("DELETED", gone_object, lost=action == "lose")
                elif action == "recreate silently":
                    truth[name] = pod(name, f"u{next(uids)}", version)
                    change("ADDED", truth[name], lost=True)
                elif action == "repeat" and sent:
                    watch.push(*sent[-2:])
                elif action == "bookmark":
                    watch.push(line("BOOKMARK", {"metadata": {"resourceVersion": str(version)}}))
                elif action in ("end", "break", "gone"):
                    {"end": watch.end, "break": watch.break_off, "gone": lambda w=watch: w.push(gone())}[
                        action
                    ]()
                    opened += 1
                    watch = await server.watch(opened)
            await settle()
            watch.push(gone())
            await server.watch(opened + 1)
            assert owner.state == {f"default/{name}": obj["metadata"]["uid"] for name, obj in truth.items()}  # type: ignore[index]

    asyncio.run(story())
