"""The demo's client: applies manifests over HTTPS as kubectl would, follows pods and events."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import yaml

from gpuslice.clock import Clock
from gpuslice.errors import GpuSliceError
from gpuslice.kube.reflector import Reflector
from gpuslice.kube.wire import Event, Pod
from gpuslice.local.apiserver.api.serve import Endpoint
from gpuslice.local.up import LocalCluster

EXAMPLES: Final = Path(__file__).parents[4] / "examples"
PATIENCE_SECONDS: Final = 25.0
"""For each thing that must happen."""
ROUTES: Final[Mapping[str, str]] = {
    "Pod": "/api/v1/namespaces/default/pods",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/default/statefulsets",
}


class DemoError(GpuSliceError):
    """Something is not as it must be."""


@dataclass(frozen=True, slots=True)
class Applied:
    """One object as the API server took it."""

    kind: str
    name: str
    warnings: tuple[str, ...]


class Story:
    """What the demo knows of its pods and events, kept by watching."""

    def __init__(self, cluster: LocalCluster, *, clock: Clock) -> None:
        self.cluster = cluster
        self.pods: dict[str, Pod] = {}
        self.events: dict[str, Event] = {}
        self._changed = asyncio.Event()
        random = SystemRandom().random
        self._reflectors = (
            Reflector(
                cluster.client,
                Pod,
                on_set=lambda pod: self._set(self.pods, pod.name, pod),
                on_drop=lambda pod: self._drop(self.pods, pod.name),
                namespace="default",
                clock=clock,
                random=random,
            ),
            Reflector(
                cluster.client,
                Event,
                on_set=lambda event: self._set(self.events, event.name, event),
                on_drop=lambda event: self._drop(self.events, event.name),
                namespace="default",
                clock=clock,
                random=random,
            ),
        )

    async def follow(self) -> None:
        """Keep watching, for ever."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for something to become true. Raises DemoError, saying what did not."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            states = ", ".join(f"{pod.name} {pod.status.phase}" for pod in self.pods.values())
            raise DemoError(
                f"{PATIENCE_SECONDS:.0f} s passed without this: {what} (pods: {states})"
            ) from None

    def running(self) -> list[Pod]:
        """Pods whose containers all run, by name."""
        return [pod for _, pod in sorted(self.pods.items()) if pod.status.phase == "Running"]

    def reasons(self, pod: str, reason: str) -> list[str]:
        """The messages of a pod's events of that reason."""
        return [
            event.message
            for event in self.events.values()
            if (event.involved_object.name, event.reason) == (pod, reason)
        ]

    def _set(self, known: dict[str, Any], name: str, obj: object) -> None:
        known[name] = obj
        self._changed.set()

    def _drop(self, known: dict[str, Any], name: str) -> None:
        known.pop(name, None)
        self._changed.set()


async def apply(story: Story, file: str, *, folder: str = "gpushare") -> list[Applied]:
    """POST every object of a file over HTTPS and print what the server said."""
    path = EXAMPLES / folder / file
    say(f"$ kubectl apply -f {path.relative_to(EXAMPLES.parent)}")
    applied = []
    for manifest in yaml.safe_load_all(path.read_text()):
        one = await asyncio.to_thread(_post, story.cluster.endpoint, manifest)
        for warning in one.warnings:
            say(f"  Warning: {warning}")
        say(f"  {one.kind.lower()}/{one.name} created")
        applied.append(one)
    return applied


def _post(endpoint: Endpoint, manifest: dict[str, Any]) -> Applied:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    request = urllib.request.Request(  # noqa: S310 - our own https URL
        endpoint.url + ROUTES[kind],
        json.dumps(manifest).encode(),
        {"Authorization": f"Bearer {endpoint.token}", "Content-Type": "application/json"},
    )
    trust = ssl.create_default_context(cadata=endpoint.authority.decode())
    try:
        with urllib.request.urlopen(request, context=trust, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
            warnings = answer.headers.get_all("Warning") or []
    except urllib.error.HTTPError as error:
        raise DemoError(f"{kind} {name} was refused: {json.load(error).get('message')}") from error
    # 299 - "text", with quotes escaped
    texts = (warning.partition('"')[2].rstrip('"').replace('\\"', '"') for warning in warnings)
    return Applied(kind, name, tuple(texts))


async def environment(story: Story, pod: Pod, container: str) -> dict[str, str]:
    """What `kubectl exec POD -c CONTAINER -- env` prints."""
    kubelet = story.cluster.kubelets[pod.spec.node_name]
    session = await kubelet.exec(pod.namespace, pod.name, container, ["env"], stdin=False, tty=False)
    text = b"".join([piece.data async for piece in session.output()])
    await session.wait()
    return dict(line.split("=", 1) for line in text.decode().splitlines() if "=" in line)


def require(holds: bool, what: str, *, quiet: bool = False) -> None:
    """Raise DemoError unless it holds; otherwise say so."""
    if not holds:
        raise DemoError(what)
    if not quiet:
        say(f"  checked: {what}")


async def within(what: str, work: Awaitable[None]) -> None:
    """Wait for something, but not for ever."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await work
    except TimeoutError:
        raise DemoError(f"{PATIENCE_SECONDS:.0f} s passed without this: {what}") from None


def say(text: str) -> None:
    """One line of the story, at once."""
    print(text, flush=True)
