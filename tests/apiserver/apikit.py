"""A server on a clock that stands still until a test moves it, and a client that speaks JSON to it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.http import Reply, Request

PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
PODS = "/api/v1/namespaces/default/pods"


class StillClock:
    """Time that moves only by `pass_`."""

    def __init__(self) -> None:
        self._now = 1_800_000_000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_ns(self) -> int:
        return int(self._now * 1e9)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now + seconds, waiting))
        await waiting

    async def pass_(self, seconds: float) -> None:
        """Let that much time go by, waking every sleeper in turn."""
        end = self._now + seconds
        for _ in range(20):
            await asyncio.sleep(0)
        while due := [one for one in self._sleepers if one[0] <= end]:
            moment, waiting = min(due, key=lambda one: one[0])
            self._sleepers.remove((moment, waiting))
            self._now = max(self._now, moment)
            if not waiting.done():
                waiting.set_result(None)
            for _ in range(20):
                await asyncio.sleep(0)
        self._now = end


class Answer:
    """A status code, the decoded body, and the warnings that kubectl would print."""

    def __init__(self, reply: Reply, warnings: list[str]) -> None:
        self.status = reply.status
        self.body: Any = msgspec.json.decode(reply.body)
        self.warnings = warnings

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])


class Api:
    """JSON in, JSON out, no transport between."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server

    async def __call__(
        self, method: str, path: str, body: Any = None, *, content: str = "", accept: str = "", **query: str
    ) -> Answer:
        raw = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        request = Request(method, path, query, raw, PATCHES.get(content, content or "application/json"))
        request.accept = accept or request.accept
        answer = await self.server.handle(request)
        assert isinstance(answer, Reply)
        return Answer(answer, request.warnings)

    async def get(self, path: str, **query: str) -> Any:
        answer = await self("GET", path, **query)
        assert answer.status == 200, answer.message
        return answer.body

    async def make(self, path: str, body: Any, **query: str) -> Any:
        answer = await self("POST", path, body, **query)
        assert answer.status == 201, answer.message
        return answer.body

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[Callable[[], Any]]:
        """A function that awaits the next event as (type, object)."""
        options = {"watch": "true", **query}
        async with self.server.transport().stream(path, query=options) as (status, lines):
            assert status == 200

            async def following() -> tuple[str, Any]:
                async with asyncio.timeout(5):
                    event = msgspec.json.decode(await anext(lines))
                return event["type"], event["object"]

            yield following


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    """A small pod."""
    containers = spec.pop("containers", [{"name": "c", "image": "busybox:1"}])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": containers, **spec},
    }


def deployment(name: str = "web", image: str = "nginx:1") -> dict[str, Any]:
    """A small deployment."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
        },
    }


def new_ids() -> Callable[[], str]:
    """uids that count."""
    numbers = itertools.count(1)
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012d}"
