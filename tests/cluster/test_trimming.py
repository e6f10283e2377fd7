"""What stays in memory of pods that carry more than anybody reads."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
from builders import StoppedClock, agent_node, pod

from gpuslice import names
from gpuslice.cluster.feed import ClusterFeed
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.text import RECORD_LIMIT
from gpuslice.cluster.trimming import trimmed
from gpuslice.kube.client import PAGE, PAGE_BYTES, Client, Response
from gpuslice.kube.wire import Pod

PADDING = "x" * 250_000


def padded(name: str) -> Pod:
    record = '{"c0":{"GPU-n-0":1024}}'
    marks = {
        "padding": PADDING,
        names.ALLOCATION: record,
        names.GPUSHARE_ALLOCATION: "[" * (RECORD_LIMIT + 1),
    }
    return pod(name, 1, node="n", annotations=marks, labels={"app": PADDING})


class Api:
    """An API server with many large pods, that remembers how large its pages were."""

    def __init__(self, count: int) -> None:
        self.pods = [msgspec.json.encode(padded(f"p{number}")) for number in range(count)]
        self.pages: list[int] = []

    async def request(self, _method: str, path: str, *, query: Mapping[str, str], **_: object) -> Response:
        items: list[bytes] = []
        meta = {"resourceVersion": "1"}
        if path.endswith("/nodes"):
            items = [msgspec.json.encode(agent_node("n", 1000))]
        elif path.endswith("/pods"):
            start = int(query.get("continue", "0"))
            items = self.pods[start : start + int(query["limit"])]
            if start + len(items) < len(self.pods):
                meta["continue"] = str(start + len(items))
        body = b'{"metadata":' + msgspec.json.encode(meta) + b',"items":[' + b",".join(items) + b"]}"
        if len(items) > 1:
            self.pages.append(len(body))
        return Response(200, body)

    @asynccontextmanager
    async def stream(self, _path: str, **_: object) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        yield 200, nothing()


async def nothing() -> AsyncIterator[bytes]:
    """A watch in which nothing happens."""
    await asyncio.Event().wait()
    yield b""


async def test_nobody_keeps_what_nobody_reads() -> None:
    """Neither the cluster nor who listens; and what is read on the way has a bound per page, too."""
    api, cluster = Api(120), Cluster(clock=StoppedClock())
    feed = ClusterFeed(Client(api), cluster, clock=StoppedClock(), random=lambda: 1.0)  # type: ignore[arg-type]
    told: list[object] = []
    cluster.subscribe(lambda change: told.append(change.object))
    task = asyncio.create_task(feed.run())
    await feed.wait_synced()
    task.cancel()
    assert [one.free_mib // 1024 for one in cluster.fleet.free_gpus("n")] == [1000 - 120]
    pods = [one for one in told if isinstance(one, Pod)]
    assert len(pods) == 120
    assert sum(sys.getsizeof(text) for one in pods for text in one.annotations.values()) < 120 * 200
    assert all(page < 2 * PAGE_BYTES for page in api.pages[1:])
    assert PAGE > 120


def test_what_is_trimmed_says_the_same_to_every_reader() -> None:
    one = padded("p")
    left = trimmed(one)
    assert left.annotations == {
        names.ALLOCATION: one.annotations[names.ALLOCATION],
        names.GPUSHARE_ALLOCATION: "",
    }
    assert left.labels == {}
    assert msgspec.structs.replace(left, metadata=one.metadata) == one
    assert trimmed(left) == left
    plain = pod("q", 1)
    assert trimmed(
        msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, annotations=None))
    )
