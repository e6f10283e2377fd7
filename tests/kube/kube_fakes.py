"""What the tests of the kube door share: a clock that is moved by hand and a scripted transport."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from gpuslice.errors import Unavailable
from gpuslice.kube.client import Response


class ManualClock:
    """Time stands still until `advance`; `sleeping` says when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0
        self.slept: list[float] = []
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now_ns(self) -> int:
        return int(self.seconds * 1e9)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.seconds + seconds, len(self.slept), future))
        await future

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        while self._sleepers and self._sleepers[0][0] <= self.seconds + 1e-9:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)


class HurriedClock(ManualClock):
    """Every sleep ends at once, and the time it asked for has passed."""

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds
        await asyncio.sleep(0)


async def settle(rounds: int = 50) -> None:
    """Let everything that can run, run."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def pod(name: str, uid: str, version: int, namespace: str = "default") -> dict[str, object]:
    meta = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta}


def line(kind: str, obj: Mapping[str, object]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": obj})


def gone(version: int = 0) -> bytes:
    return line(
        "ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old: {version}"}
    )


class WatchScript:
    """One open watch: push lines, then end it or break it."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.lines: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    def push(self, *lines: bytes) -> None:
        for item in lines:
            self.lines.put_nowait(item)

    def end(self) -> None:
        self.lines.put_nowait(None)

    def break_off(self) -> None:
        self.lines.put_nowait(Unavailable("connection reset"))

    async def read(self) -> AsyncIterator[bytes]:
        while (item := await self.lines.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item


class FakeTransport:
    """Answers lists from `objects`, opens watches for the test to drive, records writes."""

    def __init__(self) -> None:
        self.objects: list[dict[str, object]] = []
        self.version = 1
        self.down = False
        self.lists = 0
        self.page = 10_000
        self.watches: list[WatchScript] = []
        self.writes: list[tuple[str, str, dict[str, object]]] = []
        self.answer: Callable[[str, str, dict[str, object]], Response] = lambda *_: Response(201, b"{}")
        self._opened = asyncio.Event()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> Response:
        if self.down:
            raise Unavailable("connection refused")
        if method != "GET":
            document = msgspec.json.decode(body or b"{}")
            self.writes.append((method, path, document))
            return self.answer(method, path, document)
        self.lists += 1
        start = int((query or {}).get("continue", "0"))
        meta: dict[str, str] = {"resourceVersion": str(self.version)}
        if start + self.page < len(self.objects):
            meta["continue"] = str(start + self.page)
        items = self.objects[start : start + self.page]
        return Response(200, msgspec.json.encode({"metadata": meta, "items": items}))

    @asynccontextmanager
    async def _open(self, query: Mapping[str, str]) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        if self.down:
            raise Unavailable("connection refused")
        assert query["allowWatchBookmarks"] == "true"
        script = WatchScript(query["resourceVersion"])
        self.watches.append(script)
        self._opened.set()
        yield 200, script.read()

    def stream(self, path: str, *, query: Mapping[str, str]) -> object:
        return self._open(query)

    async def watch(self, number: int) -> WatchScript:
        """The number-th watch that was opened, counted from 1, once it is open."""
        async with asyncio.timeout(5):
            while len(self.watches) < number:
                self._opened.clear()
                await self._opened.wait()
        return self.watches[number - 1]

    async def aclose(self) -> None:
        pass
