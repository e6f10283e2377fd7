"""Follows NVIDIA's device plugin configuration of one node while the agent runs.

The node's label nvidia.com/device-plugin.config says which file counts. A change of the label or of the file
is followed without a restart. A file that cannot be used leaves everything as it was; the log and an
annotation of the node say why. If none was used before, nothing is given out until it is mended: a node must
not give GPUs away whole because of a mistyped name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from gpuslice import names
from gpuslice.clock import Clock, happened
from gpuslice.config.nodeconfig import Fallback, choose, fingerprint
from gpuslice.config.nvidia import NvidiaConfig
from gpuslice.config.nvidiaflags import Flags, effective
from gpuslice.config.reader import read_file
from gpuslice.devices.sharing import AllocationPolicy, MigStrategy, Sharing
from gpuslice.errors import GpuSliceError, InputError
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Node
from gpuslice.node.inject.injector import Injector
from gpuslice.node.report.featurewriter import FeatureWriter

POLL_SECONDS: Final = 1.0
"""How often files are read, and a file that could not be used is tried again."""
UNKNOWN: Final = f"the node's label {names.DEVICE_PLUGIN_CONFIG} is not known yet"

_log = structlog.get_logger(__name__)


class Announcer(Protocol):
    """Who announces the devices: `discovery.backend.DiscoveredGpus`."""

    def shut(self, reason: str) -> None: ...
    def check(self, strategy: MigStrategy, sharing: Sharing, policy: AllocationPolicy) -> tuple[str, ...]: ...
    def configure(self, strategy: MigStrategy, sharing: Sharing, policy: AllocationPolicy) -> None: ...


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """The files that there are. `texts` reads them, by name; it raises InputError.

    On a node without the label `default` counts, else what the fallbacks name. If not `by_label`, the default
    always counts.
    """

    texts: Callable[[], Mapping[str, str]]
    default: str = ""
    fallbacks: tuple[Fallback, ...] = ()
    by_label: bool = True

    @classmethod
    def one(cls, path: Path) -> ConfigFiles:
        """One file, whatever the node's label is."""
        return cls(lambda: {path.name: read_file(path, str)}, path.name, by_label=False)

    @classmethod
    def folder(cls, path: Path, default: str, fallbacks: tuple[Fallback, ...]) -> ConfigFiles:
        """All files of a folder, such as a mounted ConfigMap; hidden ones are the mount's own."""

        def texts() -> Mapping[str, str]:
            try:
                files = sorted(one for one in path.iterdir() if one.is_file() and one.name[0] != ".")
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror}", field=str(path)) from error
            return {one.name: read_file(one, str) for one in files}

        return cls(texts, default, fallbacks)

    def choose(self, labels: Mapping[str, str]) -> tuple[str, str]:
        """Name and text of the file that counts, "" for both if there is none. Raises InputError."""
        texts = self.texts()
        name: str | None = self.default
        if self.by_label:
            name = choose(labels, tuple(texts), default=self.default, fallbacks=self.fallbacks)
        return (name, texts[name]) if name is not None else ("", "")


@dataclass(frozen=True, slots=True)
class Applying:
    """How a file is put to use: options (`cli`) override the environment, which overrides the file."""

    announcer: Announcer
    injector: Injector
    cli: Mapping[str, object]
    env: Mapping[str, str]
    features: FeatureWriter | None = None

    def flags(self, config: NvidiaConfig) -> Flags:
        """Every setting. Raises InputError."""
        return effective(config.flags, cli=self.cli, env=self.env)

    def __call__(self, config: NvidiaConfig) -> tuple[str, ...]:
        """Use the file from now on; returns warnings about what may not work as meant.

        Raises InputError if this node cannot be configured so; then nothing has changed.
        """
        flags = self.flags(config)
        strategy, policy = flags.mig_strategy, flags.shared_devices_allocation_policy
        warnings = self.announcer.check(strategy, config.sharing, policy)
        self.injector.configure(flags, config.sharing)
        self.announcer.configure(strategy, config.sharing, policy)
        if self.features is not None:
            self.features.configure(flags)
        return (*config.warnings, *warnings)


class ConfigFollower:
    """One node's. `start` before anything is announced, then `run`."""

    def __init__(
        self, client: Client, node: str, files: ConfigFiles, apply: Applying, *, clock: Clock
    ) -> None:
        self._client = client
        self._name = node
        self._files = files
        self._apply = apply
        self._clock = clock
        self._node: Node | None = None
        self._wake = asyncio.Event()
        self._counts: tuple[str, str] | None = None
        self._problem = ""

    def start(self) -> None:
        """Use the one file, if the label does not choose. Raises InputError if it cannot be used."""
        if self._files.by_label:
            self._apply.announcer.shut(UNKNOWN)
        else:
            name, text = self._files.choose({})
            try:
                self._use(name, text)
            except InputError as error:
                raise InputError(str(error), field=name) from error

    def set_node(self, node: Node) -> None:
        """The node as the API server has it."""
        self._node = node
        self._wake.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            if self._node is not None or not self._files.by_label:
                self._reconcile()
                await self._write_status()
            await happened(self._wake, self._clock, POLL_SECONDS)
            self._wake.clear()

    def _reconcile(self) -> None:
        """Use the file that counts now; if that is impossible, all stays as it was."""
        labels = self._node.metadata.labels if self._node else None
        name, problem = "", ""
        try:
            name, text = self._files.choose(labels or {})
            self._use(name, text)
        except InputError as error:
            where = f"configuration {name}: " if name else ""
            problem = f"{where}{error}; {self._instead()}"
            if self._counts is None:
                self._apply.announcer.shut(problem)
        if problem and problem != self._problem:
            _log.warning("the device plugin configuration cannot be used", problem=problem)
        self._problem = problem

    def _instead(self) -> str:
        if self._counts is None:
            return "until it can be used the node gives out no GPU"
        return f"{self._counts[0] or 'no file'} counts as before"

    def _use(self, name: str, text: str) -> None:
        written = (name, fingerprint(text))
        if written == self._counts:
            return
        warnings: Sequence[str] = self._apply(NvidiaConfig.parse(text))
        self._counts = written
        _log.info("the device plugin configuration counts", name=name or "none", warnings=list(warnings))

    async def _write_status(self) -> None:
        """Write on the node which file is in use, and why it is not the one that should be."""
        node = self._node
        if node is None:
            return
        name = self._counts[0] if self._counts else ""
        wanted = {names.DEVICE_CONFIG: name or None, names.DEVICE_CONFIG_REASON: self._problem or None}
        changes = {key: value for key, value in wanted.items() if node.annotations.get(key) != value}
        if not changes:
            return
        try:
            answer = await self._client.patch(Node, self._name, {"metadata": {"annotations": changes}})
        except GpuSliceError as error:
            _log.warning("cannot say which device plugin configuration counts", error=str(error))
            return
        if self._node is node:
            self._node = answer
