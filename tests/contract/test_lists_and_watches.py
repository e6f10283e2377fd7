"""Lists and watches: what our reflector lives on."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from gpuslice.errors import Gone
from gpuslice.kube.wire import Pod

from .custom import gadget_type, gadgets
from .kit import TABLE, Kit, config, idle


def names(listing: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    return [item["metadata"]["name"] for item in listing["items"]]


async def test_a_list_comes_in_pages_of_one_moment(k8s: Kit) -> None:
    path = k8s.path("configmaps")
    for number in range(5):
        await k8s.create("configmaps", config(f"c{number}", a="before"))
    chosen = await k8s.api.get(path, limit="2", labelSelector="!x")
    assert "remainingItemCount" not in chosen["metadata"], "with a selector nobody has counted"
    first = await k8s.api.get(path, limit="2")
    assert first["metadata"]["remainingItemCount"] >= 3
    await k8s.create("configmaps", config("c9"))
    await k8s.api("DELETE", k8s.path("configmaps", "c3"))
    seen, page = names(first), first
    versions = {page["metadata"]["resourceVersion"]}
    while token := page["metadata"].get("continue"):
        page = await k8s.api.get(path, **{"limit": "2", "continue": token})
        versions.add(page["metadata"]["resourceVersion"])
        seen += names(page)
    assert [name for name in seen if name.startswith("c")] == ["c0", "c1", "c2", "c3", "c4"]
    assert len(versions) == 1


async def test_a_continue_token_that_is_none_is_refused(k8s: Kit) -> None:
    answer = await k8s.api("GET", k8s.path("configmaps"), **{"limit": "2", "continue": "rubbish"})
    assert answer.refusal == (400, "BadRequest")
    assert answer.message.startswith("invalid continue token: continue key is not valid")


async def test_our_client_lists_and_watches_from_there(k8s: Kit) -> None:
    await k8s.create("pods", idle("old"))
    listing = await k8s.client.list(Pod, k8s.ns)
    assert [p.name for p in listing.items] == ["old"]
    watch = k8s.client.watch(Pod, k8s.ns, resource_version=listing.resource_version)
    await k8s.create("pods", idle("new"))
    await k8s.api("DELETE", f"{k8s.pods}/old")
    seen = []
    async with asyncio.timeout(20), aclosing(watch) as events:  # type: ignore[type-var]
        async for event in events:
            seen.append((event.type, event.object.name))
            if event.type == "DELETED":
                break
    # The real one says before that the pod is going, with a grace period of 0.
    assert seen == [("ADDED", "new"), *([("MODIFIED", "old")] if k8s.real else []), ("DELETED", "old")]


async def test_a_watch_from_a_version_misses_nothing_since(k8s: Kit) -> None:
    made = await k8s.create("configmaps", config("c", a="1"))
    await k8s.api.patch(k8s.path("configmaps", "c"), {"data": {"a": "2"}})
    await k8s.api("DELETE", k8s.path("configmaps", "c"))
    query = {"resourceVersion": made["metadata"]["resourceVersion"], "fieldSelector": "metadata.name=c"}
    async with k8s.api.watch(k8s.path("configmaps"), **query) as following:
        kind, changed = await following()
        assert (kind, changed["data"]) == ("MODIFIED", {"a": "2"})
        kind, deleted = await following()
        assert kind == "DELETED"
        assert int(deleted["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


async def test_a_watch_from_any_version_begins_with_what_is_there(k8s: Kit) -> None:
    await k8s.create("pods", idle("here"))
    async with k8s.api.watch(k8s.pods, resourceVersion="0") as following:
        kind, found = await following()
        assert (kind, found["metadata"]["name"]) == ("ADDED", "here")


async def test_a_watch_ends_when_its_time_is_up(k8s: Kit) -> None:
    version = (await k8s.api.get(k8s.pods))["metadata"]["resourceVersion"]
    async with k8s.api.watch(k8s.pods, resourceVersion=version, timeoutSeconds="1") as following:
        with pytest.raises(StopAsyncIteration):
            assert not await following()


async def test_a_bookmark_comes_before_a_watch_ends_and_is_no_object(k8s: Kit) -> None:
    """It says from where to go on. What else is in it is the zero value of the kind: `containers: null`."""
    version = (await k8s.api.get(k8s.pods))["metadata"]["resourceVersion"]
    query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "10"}
    async with k8s.api.watch(k8s.pods, **query) as following:
        await k8s.create("pods", idle("other"))
        assert (await following())[0] == "ADDED"
        kind, mark = await following()
        with pytest.raises(StopAsyncIteration):
            assert (await following())[0] == "BOOKMARK"
            assert not await following()
    assert (kind, mark["kind"], mark["apiVersion"]) == ("BOOKMARK", "Pod", "v1")
    assert int(mark["metadata"]["resourceVersion"]) >= int(version)
    assert "name" not in mark["metadata"]
    assert (mark["spec"], mark["status"]) == ({"containers": None}, {})


async def test_our_client_reads_bookmarks(k8s: Kit) -> None:
    listing = await k8s.client.list(Pod, k8s.ns)
    await k8s.create("pods", idle("first"))
    seen = []
    async for event in k8s.client.watch(
        Pod, k8s.ns, resource_version=listing.resource_version, timeout_seconds=10
    ):
        seen.append(event)
        if len(seen) == 1:
            await k8s.create("pods", idle("second"))
    assert {event.type for event in seen} == {"ADDED", "BOOKMARK"}
    assert int(seen[-1].object.metadata.resource_version) >= int(listing.resource_version)


async def test_a_watch_list_ends_its_beginning_with_a_bookmark(k8s: Kit) -> None:
    """What client-go's reflectors ask for since 1.35."""
    await k8s.create("pods", idle("here"))
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with k8s.api.watch(k8s.pods, **query) as following:
        kind, found = await following()
        if k8s.real and kind == "ERROR":
            # etcd 3.5.1, which is what can be built here, is too old; then client-go lists as it always did.
            assert "required storage feature RequestWatchProgress is disabled" in found["message"]
            return
        assert (kind, found["metadata"]["name"]) == ("ADDED", "here")
        kind, mark = await following()
        assert kind == "BOOKMARK"
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert mark["metadata"]["resourceVersion"]


async def test_a_watch_from_a_version_of_the_future(k8s: Kit) -> None:
    """The real one waits in silence. Ours may have lost its memory, and then says so: list again."""
    made = await k8s.create("configmaps", config("c"))
    future = str(int(made["metadata"]["resourceVersion"]) + 1_000_000)
    async with k8s.api.watch(k8s.path("configmaps"), resourceVersion=future, timeoutSeconds="1") as following:
        if k8s.real:
            with pytest.raises(StopAsyncIteration):
                assert not await following()
        else:
            kind, status = await following()
            assert (kind, status["code"]) == ("ERROR", 410)


async def test_a_watch_from_a_version_that_is_forgotten_is_gone(k8s: Kit) -> None:
    """Our reflector lists again then; anything else would miss deletions."""
    group = await gadgets(k8s)
    # Of a kind that is new, no server remembers what was before.
    with pytest.raises(Gone) as gone:
        async with asyncio.timeout(20):
            async for _ in k8s.client.watch(gadget_type(group), k8s.ns, resource_version="1"):
                pass
    assert "too old resource version: 1" in str(gone.value)
    async with k8s.api.watch(k8s.path("gadgets", group=group), resourceVersion="1") as following:
        kind, status = await following()
    assert kind == "ERROR"
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")


async def test_a_version_that_is_none_is_a_bad_request(k8s: Kit) -> None:
    answer = await k8s.api("GET", k8s.pods, resourceVersion="yesterday")
    assert answer.refusal == (400, "BadRequest")
    assert answer.message.startswith('invalid resource version: resourceVersion: Invalid value: "yesterday"')


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=a", ["a"]),
        ("metadata.name!=a", ["b", "c"]),
        ("spec.nodeName=somewhere", ["b"]),
        ("spec.nodeName=", ["a", "c"]),
        ("status.phase=Pending", ["a", "b", "c"]),
        ("status.phase!=Succeeded,status.phase!=Failed,spec.nodeName=somewhere", ["b"]),
        ("spec.schedulerName=other", ["c"]),
        ("spec.restartPolicy=Never", ["c"]),
    ],
)
async def test_field_selectors_of_pods(k8s: Kit, selector: str, expected: list[str]) -> None:
    await k8s.create("pods", idle("a"))
    await k8s.create("pods", idle("b", nodeName="somewhere"))
    await k8s.create("pods", idle("c", restartPolicy="Never", schedulerName="other"))
    assert names(await k8s.api.get(k8s.pods, fieldSelector=selector)) == expected


async def test_an_unknown_field_selector_is_a_bad_request(k8s: Kit) -> None:
    answer = await k8s.api("GET", k8s.pods, fieldSelector="spec.hostname=x")
    assert answer.refusal == (400, "BadRequest")
    assert "field label not supported: spec.hostname" in answer.message


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=a", ["a"]),
        ("app==a", ["a"]),
        ("app!=a", ["b", "c"]),
        ("app in (a, b)", ["a", "b"]),
        ("app notin (a)", ["b", "c"]),
        ("app", ["a", "b"]),
        ("!app", ["c"]),
        ("app in (a,b),tier!=x", ["b"]),
        ("weight>5", ["b"]),
    ],
)
async def test_label_selectors(k8s: Kit, selector: str, expected: list[str]) -> None:
    for name, labels in (("a", {"app": "a", "tier": "x"}), ("b", {"app": "b", "weight": "9"}), ("c", {})):
        await k8s.create("pods", idle(name, labels=labels))
    assert names(await k8s.api.get(k8s.pods, labelSelector=selector)) == expected


async def test_a_label_selector_that_is_none_is_a_bad_request(k8s: Kit) -> None:
    answer = await k8s.api("GET", k8s.pods, labelSelector="a in b")
    assert answer.refusal == (400, "BadRequest")
    assert "unable to parse requirement" in answer.message


async def test_an_object_enters_and_leaves_a_watch_with_a_selector(k8s: Kit) -> None:
    """As our agent sees pods come to its node, and ends see them leave."""
    made = await k8s.create("pods", idle())
    query = {"resourceVersion": made["metadata"]["resourceVersion"], "labelSelector": "mine=yes"}
    async with k8s.api.watch(k8s.pods, **query) as following:
        for value in ("yes", "no"):
            await k8s.api.patch(f"{k8s.pods}/p", {"metadata": {"labels": {"mine": value}}})
        assert (await following())[0] == "ADDED"
        kind, left = await following()
        assert kind == "DELETED"
        assert left["metadata"]["labels"]["mine"] == "yes"
    query = {"resourceVersion": made["metadata"]["resourceVersion"], "fieldSelector": "spec.nodeName=there"}
    async with k8s.api.watch(k8s.pods, **query) as following:
        binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "there"}}
        await k8s.api.make(f"{k8s.pods}/p/binding", binding)
        kind, found = await following()
        assert (kind, found["spec"]["nodeName"]) == ("ADDED", "there")


async def test_a_table_has_what_kubectl_prints(k8s: Kit) -> None:
    await k8s.create("pods", idle())
    answer = await k8s.api("GET", k8s.pods, accept=TABLE)
    assert answer.body["kind"] == "Table"
    columns = [c["name"] for c in answer.body["columnDefinitions"]]
    assert columns == [
        *("Name", "Ready", "Status", "Restarts", "Age"),
        *("IP", "Node", "Nominated Node", "Readiness Gates"),
    ]
    (row,) = answer.body["rows"]
    assert row["cells"][:4] == ["p", "0/1", "Pending", "0"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "p"


async def test_metadata_alone_can_be_asked_for(k8s: Kit) -> None:
    await k8s.create("pods", idle())
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    answer = await k8s.api("GET", k8s.pods, accept=accept)
    assert answer.body["kind"] == "PartialObjectMetadataList"
    (item,) = answer.body["items"]
    assert "spec" not in item
    assert item["metadata"]["name"] == "p"
