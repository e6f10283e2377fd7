"""pods/NAME/log: finds the pod's kubelet and passes its log through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gpuslice.errors import ApiError
from gpuslice.local.apiserver.api.http import Reply, Request, Stream, Target
from gpuslice.local.apiserver.api.rest import Rest
from gpuslice.local.apiserver.schema.status import Failure, Json, bad_request
from gpuslice.local.streams import KubeletBackend, LogOptions

TEXT = "text/plain"
REFUSAL_SECONDS = 0.2
"""How long a followed log may take to refuse before its stream begins."""


def container_of(pod: Json, name: str) -> str:
    """The container that a request means. Raises 400 where the name is needed or wrong."""
    spec, meta = pod["spec"], pod["metadata"]
    plain = [one["name"] for one in spec.get("containers") or ()]
    first = [one["name"] for one in spec.get("initContainers") or ()]
    if name:
        if name not in plain + first:
            raise bad_request(f"container {name} is not valid for pod {meta['name']}")
        return name
    if len(plain) == 1 and not first:
        return str(plain[0])
    default = (meta.get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if default in plain:
        return str(default)
    if len(plain) == 1:
        return str(plain[0])
    choices = f"choose one of: [{' '.join(plain)}]"
    if first:
        choices += f" or one of the init containers: [{' '.join(first)}]"
    raise bad_request(f"a container name must be specified for pod {meta['name']}, {choices}")


def kubelet_of(kubelets: dict[str, KubeletBackend], pod: Json) -> KubeletBackend:
    """The streaming half of the pod's node. Raises 400 if it has none yet, 502 if the node is silent."""
    node = pod["spec"].get("nodeName")
    if not node:
        raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
    found = kubelets.get(node)
    if found is None:
        raise Failure(502, "BadGateway", f"the kubelet of node {node} cannot be reached")
    return found


async def serve(
    rest: Rest, kubelets: dict[str, KubeletBackend], request: Request, target: Target
) -> Reply | Stream:
    """GET the log of one container, following it if asked to. Raises what the kubelet raises."""
    pod = rest.entry(target).decode()
    container = container_of(pod, request.query.get("container", ""))
    options = LogOptions(
        follow=request.flag("follow"),
        previous=request.flag("previous"),
        tail_lines=request.number("tailLines"),
        since_seconds=request.number("sinceSeconds"),
        limit_bytes=request.number("limitBytes"),
        timestamps=request.flag("timestamps"),
    )
    if not pod["spec"].get("nodeName"):
        return Reply(b"", content_type=TEXT)  # nothing was said yet, and that is no mistake
    pieces = kubelet_of(kubelets, pod).logs(target.namespace, target.name, container, options)
    first = asyncio.ensure_future(_next(pieces))
    # A refusal comes at once and becomes a status; a container that is silent so far is followed anyway.
    await asyncio.wait({first}, timeout=REFUSAL_SECONDS if options.follow else None)
    if first.done():
        try:
            first.result()
        except ApiError as error:
            raise Failure(error.status, error.reason or "BadRequest", str(error)) from error
    source = _Pieces(first, pieces)
    return Stream(source.batches(), source.close, content_type=TEXT)


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


class _Pieces:
    """A log as batches that can be closed from outside."""

    def __init__(self, first: asyncio.Future[bytes | None], rest: AsyncIterator[bytes]) -> None:
        self._first = first
        self._rest = rest
        self._closed = False

    async def batches(self) -> AsyncIterator[list[bytes]]:
        try:
            piece = await self._first
            while piece is not None and not self._closed:
                yield [piece]
                piece = await anext(self._rest, None)
        except ApiError as error:
            yield [f"{error}\n".encode()]

    def close(self) -> None:
        self._closed = True
        self._first.cancel()
