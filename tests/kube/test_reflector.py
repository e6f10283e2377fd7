"""The reflector against a scripted API server: what its owner is told, and when it lists or only watches."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_fakes import FakeTransport, HurriedClock, ManualClock, gone, line, pod, settle
from structlog.testing import capture_logs

from gpuslice.kube.client import Client
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

    def on_set(self, item: Pod) -> None:
        self.whole.append(self.asks())
        assert self.state.get(item.key, item.uid) == item.uid, "a new uid without a drop of the old one"
        self.state[item.key] = item.uid
        self.told.append(f"set {item.name} {item.uid} {item.metadata.resource_version}")

    def on_drop(self, item: Pod) -> None:
        self.whole.append(self.asks())
        assert self.state.pop(item.key) == item.uid, "a drop of something never told"
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
        clock=clock,
        random=lambda: 1.0,
        relists=relists,
    )
    task = asyncio.create_task(reflector.run())
    try:
        yield owner, reflector
        assert not task.done(), task.exception()
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
