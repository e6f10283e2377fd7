"""What a contract test is written with: requests as JSON, a kubectl, and one way to wait."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from gpuslice.kube.client import Client
from gpuslice.kube.kubeconfig import read_access
from gpuslice.kube.transport import HttpTransport

from .backend import Backend

T = TypeVar("T")
Object = dict[str, Any]

PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
IMAGE = "busybox:e2e"
PATIENCE = 60.0
PAUSE = 0.05


async def until(holds: Callable[[], Awaitable[T | None]], what: str, *, patience: float = PATIENCE) -> T:
    """Look again and again until there is something; the only place that lets time pass."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    while True:
        if found := await holds():
            return found
        assert loop.time() < end, f"{what}: not within {patience:g} s"
        await asyncio.sleep(PAUSE)


@dataclass(frozen=True)
class Answer:
    """A status code, the decoded body, and the warnings that kubectl would print."""

    status: int
    body: Any
    warnings: list[str]

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def refusal(self) -> tuple[int, str]:
        return self.status, self.reason

    @property
    def causes(self) -> list[tuple[str, str]]:
        """What a 422 says of each field: (field, reason)."""
        return [(cause["field"], cause["reason"]) for cause in self.body["details"]["causes"]]


class Api:
    """JSON in, JSON out, over HTTPS as an administrator."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def __call__(
        self, method: str, path: str, body: Any = None, *, content: str = "", accept: str = "", **query: str
    ) -> Answer:
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept or "application/json"}
        if raw is not None:
            headers["Content-Type"] = PATCHES.get(content, content or "application/json")
        reply = await self._http.request(method, path, params=query, content=raw, headers=headers)
        warnings = [
            re.sub(r"\\(.)", r"\1", text)
            for line in reply.headers.get_list("warning")
            for text in re.findall(r'299 - "((?:[^"\\]|\\.)*)"', line)
        ]
        is_json = reply.headers.get("content-type", "").startswith("application/json")
        return Answer(reply.status_code, reply.json() if is_json else {"message": reply.text}, warnings)

    async def get(self, path: str, **query: str) -> Any:
        return _good(await self("GET", path, **query), 200)

    async def make(self, path: str, body: Any, **query: str) -> Any:
        return _good(await self("POST", path, body, **query), 201)

    async def patch(self, path: str, body: Any, content: str = "merge", **query: str) -> Any:
        return _good(await self("PATCH", path, body, content=content, **query), 200)

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[Callable[[], Awaitable[tuple[str, Any]]]]:
        """A function that awaits the next event as (type, object)."""
        options = {"watch": "true", "timeoutSeconds": "60", **query}
        async with self._http.stream("GET", path, params=options) as reply:
            assert reply.status_code == 200, await reply.aread()
            lines = reply.aiter_lines()

            async def following() -> tuple[str, Any]:
                async with asyncio.timeout(PATIENCE):
                    event = json.loads(await anext(lines))
                return event["type"], event["object"]

            yield following


def _good(answer: Answer, status: int) -> Any:
    assert answer.status == status, f"{answer.status} {answer.message}"
    return answer.body


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


class Kubectl:
    """The real kubectl; arguments are complete but for the kubeconfig."""

    def __init__(self, program: Path, kubeconfig: Path, home: Path) -> None:
        self._program = program
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(home)}

    async def run(self, *words: str, stdin: str = "", namespace: str = "") -> Ran:
        process = await asyncio.create_subprocess_exec(
            self._program,
            *([f"--namespace={namespace}"] if namespace else []),
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                out, err = await process.communicate(stdin.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(), err.decode())


@dataclass
class Kit:
    """One test's view of a cluster: everything it makes is in a namespace of its own, `ns`."""

    backend: Backend
    api: Api
    client: Client
    ns: str
    _kubectl: Callable[[], Kubectl]
    made: list[str] = field(default_factory=list)
    """Paths of objects without a namespace, to delete at the end."""

    @property
    def real(self) -> bool:
        return self.backend.real

    @property
    def pods(self) -> str:
        return self.path("pods")

    def path(self, plural: str, name: str = "", group: str = "") -> str:
        """The path of a collection in the test's namespace, or of an object: "apps/v1" is a group."""
        base = f"/apis/{group}" if group else "/api/v1"
        return f"{base}/namespaces/{self.ns}/{plural}" + (f"/{name}" if name else "")

    async def run(self, *words: str, stdin: str = "") -> Ran:
        return await self._kubectl().run(*words, stdin=stdin, namespace=self.ns)

    async def kubectl(self, *words: str, stdin: str = "") -> str:
        """What kubectl prints; it must succeed."""
        ran = await self.run(*words, stdin=stdin)
        assert ran.code == 0, f"kubectl {' '.join(words)}: {ran.err or ran.out}"
        return ran.out

    async def create(self, plural: str, body: Any, group: str = "") -> Any:
        return await self.api.make(self.path(plural, group=group), body)

    async def global_(self, collection: str, body: Any) -> Any:
        """Create an object without a namespace; it is deleted when the test ends."""
        made = await self.api.make(collection, body)
        self.made.append(f"{collection}/{made['metadata']['name']}")
        return made

    async def pod(
        self, name: str, holds: Callable[[Object], object], what: str, *, patience: float = PATIENCE
    ) -> Object:
        """Wait until something is true of a pod."""
        seen: Object = {}

        async def look() -> Object | None:
            seen.update(await self.api.get(f"{self.pods}/{name}"))
            return seen if holds(seen) else None

        try:
            return await until(look, f"pod {name} {what}", patience=patience)
        except AssertionError as error:
            raise AssertionError(f"{error}; its status is {json.dumps(seen.get('status'))}") from error

    async def phase(self, name: str, phase: str) -> Object:
        return await self.pod(name, lambda pod: pod["status"].get("phase") == phase, f"is {phase}")

    async def gone(self, path: str) -> None:
        """Wait until there is no such object."""

        async def look() -> bool:
            return (await self.api("GET", path)).status == 404

        await until(look, f"{path} is gone")

    async def event(self, reason: str, about: str = "") -> Object:
        """Wait for an event of that reason (about the object of that name)."""

        async def look() -> Object | None:
            fields = f"reason={reason}" + (f",involvedObject.name={about}" if about else "")
            items = (await self.api.get(self.path("events"), fieldSelector=fields))["items"]
            return items[0] if items else None

        return await until(look, f"event {reason} {about}")


@asynccontextmanager
async def connected(backend: Backend) -> AsyncIterator[tuple[Api, Client]]:
    """Our own client, and one that shows status codes and headers."""
    access = read_access(backend.kubeconfig)
    client = Client(HttpTransport(access))
    transport = httpx2.AsyncHTTPTransport(verify=access.tls)
    async with httpx2.AsyncClient(
        base_url=access.server, auth=access.auth, timeout=90, trust_env=False, transport=transport
    ) as http:
        yield Api(http), client
    await client.transport.aclose()


# --- objects --------------------------------------------------------------------------------------
def pod(name: str = "p", *containers: Object, command: str = "sleep 1000", **spec: Any) -> Object:
    """A pod of busybox that ends soon when it is asked to. `labels` and `annotations` are metadata."""
    metadata: Object = {"name": name, "labels": spec.pop("labels", {"app": name})}
    if annotations := spec.pop("annotations", None):
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": list(containers) or [container("c", command)],
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def container(name: str, command: str = "sleep 1000", **more: Any) -> Object:
    """`limits` are short for resources.limits."""
    if limits := more.pop("limits", None):
        more["resources"] = {"limits": {key: str(value) for key, value in limits.items()}}
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", command], **more}


def idle(name: str = "p", **spec: Any) -> Object:
    """A pod that no scheduler takes: it stays as the API server has it."""
    return pod(name, **{"schedulerName": "nobody", **spec})


def deployment(name: str = "web", replicas: int = 1, **spec: Any) -> Object:
    template = pod(name, **spec)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": template["spec"]},
        },
    }


def config(name: str = "settings", **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
