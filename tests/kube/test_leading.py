"""Leader election: one acts at a time, the next begins when it may, and never earlier."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from kube_fakes import ManualClock, settle

from gpuslice.errors import Unavailable
from gpuslice.kube.client import Client, Response
from gpuslice.kube.leading import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    Candidate,
    Follower,
    Lease,
    campaigning,
    label_leader,
)
from gpuslice.kube.wire import Pod
from gpuslice.local.apiserver.api.app import ApiServer


class Line:
    """A transport that can be cut."""

    def __init__(self, inner: object) -> None:
        self._inner = inner
        self.cut = False

    async def request(self, method: str, path: str, **more: object) -> Response:
        if self.cut:
            raise Unavailable("cut")
        answer: Response = await self._inner.request(method, path, **more)  # type: ignore[attr-defined]
        return answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class Paused:
    """A clock whose sleepers are not woken until the process goes on."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._on = asyncio.Event()
        self.monotonic = clock.monotonic
        self.now_ns = clock.now_ns

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await self._on.wait()

    def go_on(self) -> None:
        self._on.set()


class World:
    def __init__(self, server: ApiServer, clock: ManualClock) -> None:
        self.clock = clock
        self._server = server
        self.client = Client(server.transport())

    def candidate(self, identity: str, **more: object) -> tuple[Candidate, Line]:
        line = Line(self._server.transport())
        made = Candidate(
            Client(line),  # type: ignore[arg-type]
            namespace="default",
            name="acts",
            identity=identity,
            **{"clock": self.clock, **more},  # type: ignore[arg-type]
        )
        return made, line

    @asynccontextmanager
    async def running(self, *parts: Candidate | Follower) -> AsyncIterator[list[asyncio.Task[None]]]:
        tasks = [asyncio.create_task(part.run()) for part in parts]
        await settle(200)
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def after(self, seconds: float) -> None:
        """Half a second at a time."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            await settle(60)

    async def holder(self) -> str | None:
        return (await self.client.get(Lease, "acts", "default")).spec.holder_identity


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = ManualClock()
    numbers = itertools.count()
    server = ApiServer(clock=clock, new_uid=lambda: f"uid-{next(numbers)}")
    await server.start()
    yield World(server, clock)
    await server.stop()


async def test_one_of_two_leads_and_goes_on_leading(world: World) -> None:
    (a, _), (b, _) = world.candidate("a"), world.candidate("b")
    async with world.running(a, b):
        assert [a.leads, b.leads] == [True, False]
        await world.after(3 * LEASE_SECONDS)
        assert [a.leads, b.leads] == [True, False]
        assert await world.holder() == "a"


async def test_the_next_begins_at_once_after_an_orderly_end(world: World) -> None:
    (a, _), (b, _) = world.candidate("a"), world.candidate("b")
    async with world.running(a) as (first,), world.running(b):
        first.cancel()
        await settle(200)
        assert await world.holder() == ""
        await world.after(2.5)
        assert b.leads


async def test_a_leader_that_is_cut_off_stops_before_the_next_begins(world: World) -> None:
    (a, line), (b, _) = world.candidate("a"), world.candidate("b")
    async with world.running(a, b):
        line.cut = True
        both = 0
        stopped = began = None
        for half in range(1, 61):
            await world.after(0.5)
            both += a.leads and b.leads
            stopped = stopped if stopped is not None or a.leads else half / 2
            began = began if began is not None or not b.leads else half / 2
        assert not both
        assert stopped is not None
        assert began is not None
        assert RENEW_SECONDS <= stopped < LEASE_SECONDS <= began + 2.5
        line.cut = False
        await world.after(10)
        assert [a.leads, b.leads] == [False, True]


async def test_a_leader_that_was_stopped_leads_no_more_when_it_goes_on(world: World) -> None:
    """SIGSTOP, a machine that slept, a long pause: nothing of it ran for 25 seconds, and the next one leads."""
    stopped_clock = Paused(world.clock)
    (a, _), (b, _) = world.candidate("a", clock=stopped_clock), world.candidate("b")
    async with world.running(a) as (stopped,):
        assert a.leads
        async with world.running(b):
            await world.after(LEASE_SECONDS + 10)
            assert b.leads
            assert not a.leads, "before any answer has come"
            stopped_clock.go_on()
            await world.after(5)
            assert [a.leads, b.leads] == [False, True]
        stopped.cancel()


async def test_a_change_of_leader_that_cannot_be_told_does_not_stop_renewing(world: World) -> None:
    async def never(_leads: bool) -> None:
        await asyncio.Event().wait()

    a, _ = world.candidate("a", on_change=never)
    async with world.running(a):
        for _ in range(8):
            await world.after(5)
            assert a.leads


async def test_the_lease_is_given_back_after_the_last_act(world: World) -> None:
    """Binds in flight at the end: another one that leads meanwhile would not know of them."""
    a, _ = world.candidate("a")
    seen: list[str | None] = []
    async with campaigning(a):
        await settle(200)
        try:
            assert a.leads
        finally:
            seen.append(await world.holder())
    assert [*seen, await world.holder()] == ["a", ""]


@pytest.mark.parametrize("seconds", [15, 2**31 - 1])
async def test_a_dead_holders_lease_counts_from_when_it_was_seen(world: World, seconds: int) -> None:
    """The clock in the Lease is another machine's: here it is years ahead. Nor may the Lease ask for years."""
    body: Mapping[str, object] = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "acts", "namespace": "default"},
        "spec": {
            "holderIdentity": "dead",
            "leaseDurationSeconds": seconds,
            "renewTime": "2099-01-01T00:00:00.000000Z",
        },
    }
    await world.client.create(Lease.resource, body, "default")
    a, _ = world.candidate("a")
    async with world.running(a):
        await world.after(14)
        assert not a.leads
        await world.after(3)
        assert a.leads
    lease = await world.client.get(Lease, "acts", "default")
    assert lease.spec.lease_transitions == 1


async def test_an_edit_of_the_lease_does_not_end_leading(world: World) -> None:
    a, _ = world.candidate("a")
    async with world.running(a):
        for _ in range(8):
            await world.client.patch(Lease, "acts", {"metadata": {"labels": {"x": "y"}}}, "default")
            await world.after(1)
            assert a.leads


async def test_the_leaders_pod_is_labelled_and_a_former_leaders_is_not(world: World) -> None:
    for name in ("a", "b"):
        labels = {"role": "true"} if name == "b" else {}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {"containers": [{"name": "c", "image": "x"}]},
        }
        await world.client.create(Pod.resource, body, "default")

    async def labelled() -> dict[str, str | None]:
        pods = (await world.client.list(Pod, "default")).items
        return {pod.name: pod.labels.get("role") for pod in pods}

    a, _ = world.candidate("a", on_change=label_leader(world.client, "default", "a", "role"))
    b, _ = world.candidate("b", on_change=label_leader(world.client, "default", "b", "role"))
    async with world.running(a) as (first,), world.running(b):
        # b led in a former life and did not come to take its label off.
        assert await labelled() == {"a": "true", "b": None}
        first.cancel()
        await world.after(3)
        assert (await labelled())["b"] == "true"


async def test_a_follower_acts_while_the_process_beside_it_holds_the_lease(world: World) -> None:
    follower = Follower(world.client, namespace="default", name="acts", hostname="pod-1", clock=world.clock)
    async with world.running(follower):
        assert not follower.leads
        mine, _ = world.candidate("pod-1_5f0c")
        async with world.running(mine):
            await world.after(2.5)
            assert follower.leads
        other, _ = world.candidate("pod-10_77aa")
        async with world.running(other):
            await world.after(2.5)
            assert not follower.leads


async def test_a_follower_that_cannot_see_the_lease_stops_before_the_next_begins(world: World) -> None:
    line = Line(world.client.transport)
    follower = Follower(
        Client(line),  # type: ignore[arg-type]
        namespace="default",
        name="acts",
        hostname="pod-1",
        clock=world.clock,
    )
    (mine, cut), (other, _) = world.candidate("pod-1_5f0c"), world.candidate("pod-2_77aa")
    async with world.running(follower, mine):
        await world.after(5)
        assert follower.leads
        async with world.running(other):
            line.cut = cut.cut = True  # the machine of both is cut off
            for _ in range(60):
                await world.after(0.5)
                assert not (follower.leads and other.leads)
            assert other.leads


async def test_a_follower_does_not_believe_an_old_lease(world: World) -> None:
    """A restart of the extender alone: who wrote the Lease may have gone long ago."""
    mine, _ = world.candidate("pod-1_5f0c")
    async with world.running(mine) as (gone,):
        gone.cancel()
        await settle(200)
    body = {"spec": {"holderIdentity": "pod-1_5f0c"}}
    await world.client.patch(Lease, "acts", body, "default")
    follower = Follower(world.client, namespace="default", name="acts", hostname="pod-1", clock=world.clock)
    async with world.running(follower):
        await world.after(20)
        assert not follower.leads
        async with world.running(mine):
            await world.after(5)
            assert follower.leads


async def test_whoever_does_not_lead_any_more_says_why_truly(world: World) -> None:
    """A lone scheduler whose loop was held up said that it had lost to another replica."""
    (a, line), (b, _) = world.candidate("a"), world.candidate("b")
    async with world.running(a):
        line.cut = True
        await world.after(RENEW_SECONDS + 5)
        assert not a.leads
        assert a.why == "the Lease acts was not renewed in time: cut"
        async with world.running(b):
            await world.after(LEASE_SECONDS + 5)
            line.cut = False
            await world.after(5)
            assert [a.leads, b.leads] == [False, True]
            assert a.why == "b holds the Lease acts"


async def test_a_leader_that_was_held_up_says_so(world: World) -> None:
    a, _ = world.candidate("a")
    async with world.running(a):
        world.clock.seconds += RENEW_SECONDS + 5  # nobody had a turn
        assert not a.leads
        assert a.why == "the Lease acts was not renewed in time: this process was held up"
