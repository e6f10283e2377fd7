"""Watches: from a version on, filtered, resumable, and honest about what they have lost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from apikit import PODS, Api, StillClock, pod

from gpuslice.errors import Gone
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Pod
from gpuslice.local.apiserver.api import store
from gpuslice.local.apiserver.api.app import ApiServer

CONFIGS = "/api/v1/namespaces/default/configmaps"


async def test_every_change_after_a_version_in_order(api: Api) -> None:
    """A watch begins exactly where the list ended."""
    await api.make(PODS, pod("old"))
    version = (await api.get(PODS))["metadata"]["resourceVersion"]
    await api.make(PODS, pod("a"))
    async with api.watch(PODS, resourceVersion=version) as following:
        await api("PATCH", f"{PODS}/a", {"metadata": {"labels": {"x": "y"}}}, content="merge")
        await api("DELETE", f"{PODS}/a")
        seen = [await following() for _ in range(3)]
    assert [type_ for type_, _ in seen] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(obj["metadata"]["resourceVersion"]) for _, obj in seen]
    assert versions == sorted(versions) and len(set(versions)) == 3


async def test_without_a_version_it_begins_with_what_exists(api: Api) -> None:
    """No resourceVersion means the state first, as ADDED."""
    await api.make(PODS, pod("a"))
    async with api.watch(PODS) as following:
        assert (await following())[1]["metadata"]["name"] == "a"


async def test_send_initial_events_ends_with_a_marked_bookmark(api: Api) -> None:
    """A streaming list says where it ends."""
    await api.make(PODS, pod("a"))
    options = {
        "sendInitialEvents": "true",
        "allowWatchBookmarks": "true",
        "resourceVersionMatch": "NotOlderThan",
    }
    async with api.watch(PODS, **options) as following:
        assert (await following())[0] == "ADDED"
        type_, mark = await following()
    assert type_ == "BOOKMARK"
    assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_entering_and_leaving_a_selection(api: Api) -> None:
    """A pod that comes to match is ADDED, one that stops matching is DELETED in its last matching state."""
    made = await api.make(PODS, pod("a"))
    version = made["metadata"]["resourceVersion"]
    async with api.watch(PODS, resourceVersion=version, labelSelector="team=x") as following:
        await api("PATCH", f"{PODS}/a", {"metadata": {"labels": {"team": "x"}}}, content="merge")
        await api("PATCH", f"{PODS}/a", {"metadata": {"labels": {"team": "y"}}}, content="merge")
        added, deleted = await following(), await following()
    assert (added[0], deleted[0], deleted[1]["metadata"]["labels"]["team"]) == ("ADDED", "DELETED", "x")
    assert int(deleted[1]["metadata"]["resourceVersion"]) > int(added[1]["metadata"]["resourceVersion"])


async def test_a_node_watches_only_its_pods(server: ApiServer, api: Api) -> None:
    """spec.nodeName selects from the binding on; a watcher of another node is not even asked."""
    made = await api.make(PODS, pod("a"))
    version = made["metadata"]["resourceVersion"]
    async with (
        api.watch("/api/v1/pods", resourceVersion=version, fieldSelector="spec.nodeName=n1") as mine,
        api.watch("/api/v1/pods", resourceVersion=version, fieldSelector="spec.nodeName=n2"),
    ):
        other = next(
            one
            for one in server.store.collection(("", "pods")).hub.watchers()
            if one.index == ("field", "n2")
        )
        other.labels = None  # type: ignore[assignment]  # would raise if it were consulted
        await api.make(f"{PODS}/a/binding", {"target": {"name": "n1"}})
        assert (await mine())[0] == "ADDED"


async def test_too_old_is_gone(api: Api, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once history is lost the client hears 410 and lists again; a version from the future is gone too."""
    monkeypatch.setattr(store, "HISTORY", 3)
    for number in range(6):
        await api.make(CONFIGS, {"metadata": {"name": f"c{number}"}})
    for version in ("1", "99999"):
        async with api.watch(CONFIGS, resourceVersion=version) as following:
            kind, status = await following()
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    client = Client(server.transport())
    with pytest.raises(Gone):
        async for _ in client.watch(Pod, resource_version="99999"):
            pass


async def test_bookmarks_keep_an_idle_watch_fresh(api: Api, clock: StillClock) -> None:
    """A quiet watch learns of the version that others have reached."""
    version = (await api.get(PODS))["metadata"]["resourceVersion"]
    async with api.watch(PODS, resourceVersion=version, allowWatchBookmarks="true") as following:
        made = await api.make(CONFIGS, {"metadata": {"name": "a"}})
        await clock.pass_(61)
        type_, mark = await following()
    assert (type_, mark["metadata"]["resourceVersion"]) == ("BOOKMARK", made["metadata"]["resourceVersion"])


async def test_a_watch_ends_when_its_time_is_up(api: Api, server: ApiServer, clock: StillClock) -> None:
    """timeoutSeconds closes the stream cleanly."""
    async with server.transport().stream(PODS, query={"watch": "1", "timeoutSeconds": "5"}) as (_, lines):
        await clock.pass_(6)
        async with asyncio.timeout(5):
            assert [line async for line in lines] == []
    assert len(server.store.collection(("", "pods")).hub) == 0


async def test_stop_ends_every_watch(server: ApiServer) -> None:
    """Nobody has to wait for a client to let go."""
    async with server.transport().stream(PODS, query={"watch": "1"}) as (_, lines):
        await server.stop()
        async with asyncio.timeout(5):
            assert [line async for line in lines] == []


async def test_typed_client_over_the_transport(server: ApiServer) -> None:
    """The program's own client lists, watches and binds without noticing that there is no network."""
    client = Client(server.transport())
    await client.create(Pod.resource, pod("a"), "default")
    listing = await client.list(Pod)
    assert [one.name for one in listing.items] == ["a"]
    binding = {
        "metadata": {"name": "a", "uid": listing.items[0].uid},
        "target": {"kind": "Node", "name": "n1"},
    }
    await client.create(Pod.resource, binding, "default", name="a", subresource="binding")
    async with asyncio.timeout(5):
        async for event in client.watch(Pod, resource_version=listing.resource_version):
            assert (event.type, event.object.spec.node_name) == ("MODIFIED", "n1")
            break


async def test_a_table_watch_sends_the_columns_once(api: Api) -> None:
    """kubectl get -w gets rows, with definitions in the first event only."""
    await api.make(PODS, pod("a"))
    from gpuslice.local.apiserver.api.http import Request, Stream

    request = Request("GET", PODS, {"watch": "1"}, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    answer = await api.server.handle(request)
    assert isinstance(answer, Stream)
    await api.make(PODS, pod("b"))
    events = [msgspec.json.decode(line) for line in await anext(answer.batches)]
    assert [event["object"]["rows"][0]["cells"][0] for event in events] == ["a", "b"]
    assert [bool(event["object"]["columnDefinitions"]) for event in events] == [True, False]
    answer.close()
