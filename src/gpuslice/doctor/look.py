"""Reads the facts from the API server, once.

What may not be read (403) is remembered in `blind` and does not stop the rest; what the server does not have
(404: an older Kubernetes) is empty. Of Secrets and Leases only those are read that our own workloads name.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from gpuslice import names
from gpuslice.doctor.facts import Facts, Served
from gpuslice.doctor.objects import (
    DaemonSet,
    Deployment,
    EndpointSlice,
    Node,
    Pod,
    RuntimeClass,
    Secret,
    Service,
    WebhookConfiguration,
    Workload,
)
from gpuslice.doctor.ours import failure
from gpuslice.errors import ApiError, GpuSliceError, NotFound
from gpuslice.kube.client import Client
from gpuslice.kube.decoding import Broken
from gpuslice.kube.leading import Lease
from gpuslice.kube.wire import ConfigMap, Event, KubeObject

K = TypeVar("K", bound=KubeObject)

CONNECT_SECONDS: Final = 5.0
LOGS: Final = 5
"""Of how many failing pods the last words are read."""


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


async def look(client: Client) -> Facts:
    """Look at a cluster. Raises Unavailable, and ApiError for anything but 403 and 404."""
    version = msgspec.json.decode(await client.read("/version"), type=_Version).git_version
    reader = _Reader(client)
    facts = Facts(
        version=version,
        nodes=await reader.list(Node),
        pods=await reader.list(Pod),
        daemonsets=await reader.list(DaemonSet),
        deployments=await reader.list(Deployment),
        services=await reader.list(Service),
        slices=await reader.list(EndpointSlice),
        webhooks=await reader.list(WebhookConfiguration),
        runtime_classes=await reader.list(RuntimeClass),
        marks=await reader.list(ConfigMap, names.UNHEALTHY_NAMESPACE),
    )
    ours = [*facts.agents.workloads, *(one.workload for one in facts.schedulers)]
    urls = {hook.client_config.url for _, hook in facts.hooks if hook.client_config.url}
    return replace(
        facts,
        events=await reader.events(ours),
        leases=await reader.named(Lease, [key for one in facts.schedulers for key in one.leases]),
        secrets=await reader.named(Secret, [key for one in facts.schedulers for key in one.secrets]),
        configs=await reader.named(ConfigMap, [key for one in facts.schedulers for key in one.configs]),
        served={url: await served(url) for url in sorted(urls)},
        last_words=await _last_words(client, facts),
        broken=tuple(reader.broken),
        blind=reader.blind,
    )


class _Reader:
    """Remembers what it was not allowed to read, and what does not decode."""

    def __init__(self, client: Client) -> None:
        self.blind: dict[str, str] = {}
        self.broken: list[Broken[Any]] = []
        self._client = client

    async def list(self, kind: type[K], namespace: str | None = None) -> tuple[K, ...]:
        try:
            listing = await self._client.list(kind, namespace)
        except NotFound:
            return ()
        except ApiError as error:
            self._forgive(kind.resource.plural, error)
            return ()
        self.broken += listing.broken
        return tuple(listing.items)

    async def named(self, kind: type[K], keys: Iterable[str]) -> dict[str, K]:
        """Those of these objects (namespace/name) that exist."""
        found: dict[str, K] = {}
        for key in keys:
            namespace, _, name = key.partition("/")
            try:
                found[key] = await self._client.get(kind, name, namespace)
            except NotFound:
                continue
            except ApiError as error:
                self._forgive(kind.resource.plural, error)
        return found

    async def events(self, workloads: Sequence[Workload]) -> tuple[Event, ...]:
        """What was said about these workloads themselves, such as that their pods are forbidden."""
        ours = {(one.resource.kind, one.name) for one in workloads}
        found = [await self.list(Event, namespace) for namespace in {one.namespace for one in workloads}]
        return tuple(
            event
            for events in found
            for event in events
            if (event.involved_object.kind, event.involved_object.name) in ours
        )

    def _forgive(self, plural: str, error: ApiError) -> None:
        if error.status != 403:
            raise error
        self.blind[plural] = str(error)


async def served(url: str) -> Served:
    """Who answers at an https URL: its certificate, which is judged later and so not verified here."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(
                parts.hostname or "", parts.port or 443, ssl=context, server_hostname=parts.hostname
            )
    except TimeoutError:
        return Served(problem=f"no answer within {CONNECT_SECONDS:.0f} s")
    except (OSError, ValueError) as error:
        return Served(problem=getattr(error, "strerror", None) or str(error))
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    # Closing politely waits for the other side; there is nothing to wait for.
    writer.transport.abort()
    return Served(certificate or b"")


async def _last_words(client: Client, facts: Facts) -> dict[str, str]:
    """The last line that failing pods of ours have printed, where it can be had."""
    ours = [
        pod for pod in (*facts.agents.pods, *(p for s in facts.schedulers for p in s.pods)) if failure(pod)
    ]
    found: dict[str, str] = {}
    for pod in ours[:LOGS]:
        container = next((one.name for one in pod.status.all_statuses if not one.ready), "")
        path = Pod.resource.path(pod.namespace, pod.name, "log")
        for previous in ("false", "true"):
            query = {"container": container, "tailLines": "1", "previous": previous}
            try:
                answer = await client.transport.request("GET", path, query=query)
            except GpuSliceError:
                continue
            words = answer.body.decode(errors="replace").strip() if answer.status == 200 else ""
            if words:
                found[pod.key] = words.splitlines()[-1]
                break
    return found
