"""Joining a feed that runs already."""

import asyncio
from typing import Any, cast

from binder_world import StepClock, settle

from gpuslice.cluster.feed import ChangeKind, ClusterFeed, Listener
from gpuslice.cluster.joining import Joining
from gpuslice.errors import Unavailable
from gpuslice.kube.client import Client, Listing
from gpuslice.kube.wire import KubeObject, Node, ObjectMeta, Pod


def pod(uid: str, version: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=uid, uid=uid, resource_version=version))


class Server:
    """Lists what it had when it was asked, and answers when it is let."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = list(pods)
        self.answer = asyncio.Event()
        self.down = False

    async def list(self, kind: type[KubeObject]) -> Listing[Any]:
        if self.down:
            raise Unavailable("connection refused")
        items = list(self.pods) if kind is Pod else [Node(metadata=ObjectMeta(name="n1", uid="n1"))]
        await self.answer.wait()
        return Listing(items, "9")


class Feed:
    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.begun = True

    async def wait_synced(self) -> None:
        pass

    def tell(self, kind: ChangeKind, obj: KubeObject) -> None:
        for listener in self.listeners:
            listener(kind, obj)


def join(
    server: Server, feed: Feed, clock: StepClock
) -> tuple[list[tuple[str, str, str]], "asyncio.Task[None]"]:
    told: list[tuple[str, str, str]] = []

    def listener(kind: ChangeKind, obj: KubeObject) -> None:
        told.append((kind, obj.uid, obj.metadata.resource_version))

    joining = Joining(cast(Client, server), cast(ClusterFeed, feed), listener, clock=clock)
    return told, asyncio.create_task(joining.catch_up())


async def test_tells_what_the_feed_had_told_before() -> None:
    server, feed = Server(pod("a", "1")), Feed()
    told, joined = join(server, feed, StepClock())
    server.answer.set()
    await joined
    assert told == [("node", "n1", ""), ("pod", "a", "1")]


async def test_list_on_its_way_does_not_override_what_the_feed_says_meanwhile() -> None:
    """A pod bound, another one deleted while the list travelled: neither comes back from the dead."""
    server, feed = Server(pod("a", "1"), pod("b", "2"), pod("c", "3")), Feed()
    told, joined = join(server, feed, StepClock())
    await settle()
    feed.tell("pod", pod("a", "4"))
    feed.tell("pod-gone", pod("b", "5"))
    server.answer.set()
    await joined
    assert told == [("pod", "a", "4"), ("pod-gone", "b", "5"), ("node", "n1", ""), ("pod", "c", "3")]


async def test_api_server_away_is_waited_out() -> None:
    server, feed, clock = Server(pod("a", "1")), Feed(), StepClock()
    server.down = True
    told, joined = join(server, feed, clock)
    await settle()
    server.down = False
    server.answer.set()
    clock.advance(1)
    await joined
    assert ("pod", "a", "1") in told
