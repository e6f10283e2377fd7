"""Writes a node's labels for Node Feature Discovery (NFD): as its worker's file, or as its object.

Where NFD alone may label nodes, the agent writes one of these and no labels. Names and settings are GPU
feature discovery's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final

import structlog

from gpuslice.clock import Clock
from gpuslice.config.nvidiaflags import Flags
from gpuslice.errors import Conflict, GpuSliceError, NotFound
from gpuslice.kube.client import Client
from gpuslice.kube.wire import KubeObject, Resource, Wire
from gpuslice.node.report.features import API_VERSION, feature_file, node_feature

POLL_SECONDS: Final = 1.0
"""How often to look whether the labels have changed."""
RESOURCE: Final = Resource("nfd.k8s-sigs.io", "v1alpha1", "nodefeatures", "NodeFeature")
ABSENT: Final = (
    f"this cluster has no NodeFeature ({API_VERSION}); install Node Feature Discovery, or leave "
    "useNodeFeatureAPI out: the labels are on the node itself"
)

_log = structlog.get_logger(__name__)


class NodeFeatureSpec(Wire, frozen=True, gc=False):
    labels: dict[str, str] | None = None


class NodeFeature(KubeObject, frozen=True, gc=False):
    """The part of the object that is read."""

    resource: ClassVar[Resource] = RESOURCE
    spec: NodeFeatureSpec = NodeFeatureSpec()


class FeatureWriter:
    """Writes `labels()` where the flags say, when they change and every sleep interval.

    `host`: the folder below which the file's absolute path is.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        namespace: str,
        labels: Callable[[], Mapping[str, str]],
        flags: Flags,
        *,
        host: Path = Path("/"),
        clock: Clock,
    ) -> None:
        self._client = client
        self._node = node
        self._namespace = namespace
        self._labels = labels
        self._flags = flags
        self._host = host
        self._clock = clock
        self._configured = asyncio.Event()
        self._written: Mapping[str, str] | None = None
        self._at = 0.0
        self._said = ""

    def configure(self, flags: Flags) -> None:
        """Use these flags from now on; a file that is no longer to be written is removed."""
        before, self._flags, self._written = self._flags, flags, None
        if before.output_file != flags.output_file:
            self._remove(before)
        self._configured.set()

    async def run(self) -> None:
        """Run for ever; at the end the file is removed, as GPU feature discovery's is, unless it is to stay
        (oneshot).
        """
        try:
            while True:
                self._configured.clear()
                if self._flags.output_file or self._flags.use_node_feature_api:
                    await self._reconcile()
                    await self._clock.sleep(POLL_SECONDS)
                else:
                    await self._configured.wait()
        finally:
            if not self._flags.oneshot:
                self._remove(self._flags)

    async def _reconcile(self) -> None:
        flags, labels = self._flags, dict(self._labels())
        pause = flags.sleep_interval_ms
        due = pause is not None and self._clock.monotonic() - self._at >= pause / 1000
        if labels == self._written and not due:
            return
        problem = ""
        try:
            if flags.output_file:
                _write(self._path(flags.output_file), feature_file(labels))
            if flags.use_node_feature_api:
                await self._publish(labels)
        except OSError as error:
            problem = f"{flags.output_file} cannot be written: {error.strerror}"
        except NotFound:
            problem = ABSENT
        except GpuSliceError as error:
            problem = f"the NodeFeature object cannot be written: {error}"
        if problem and problem != self._said:
            _log.warning("labels do not reach Node Feature Discovery", problem=problem)
        self._said, self._written, self._at = problem, labels, self._clock.monotonic()

    async def _publish(self, labels: Mapping[str, str]) -> None:
        """Raises NotFound if there is no such kind, or another GpuSliceError."""
        body = node_feature(labels, self._node, self._namespace)
        name, wanted = body["metadata"]["name"], body["spec"]["labels"]
        try:
            present = (await self._client.get(NodeFeature, name, self._namespace)).spec.labels or {}
        except NotFound:
            with contextlib.suppress(Conflict):
                await self._client.create(RESOURCE, body, self._namespace)
            return
        if present != wanted:
            changes = dict.fromkeys(present.keys() - wanted.keys()) | wanted
            await self._client.patch(NodeFeature, name, {"spec": {"labels": changes}}, self._namespace)

    def _path(self, file: str) -> Path:
        path = Path(file)
        return self._host / path.relative_to("/") if path.is_absolute() else path

    def _remove(self, flags: Flags) -> None:
        if flags.output_file:
            with contextlib.suppress(OSError):
                self._path(flags.output_file).unlink()


def _write(path: Path, text: str) -> None:
    """Write the file in one step, since NFD's worker may read the folder at any time. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(text)
    os.replace(new, path)  # noqa: PTH105 (Path.replace returns a path nobody needs)
