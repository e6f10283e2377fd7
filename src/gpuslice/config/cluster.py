"""`kind: Cluster`: the nodes that `gpuslice up` starts.

`ClusterFile` is what the file says, `ClusterPlan` what it means: every node with its own name, sizes as
integers, and its GPUs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from gpuslice.config.devices import ready_made
from gpuslice.config.gpus import (
    CUDA_VERSION,
    DRIVER_VERSION,
    GpuEntry,
    inventory_of,
    paper_gpus,
    read_unit,
)
from gpuslice.config.nodeconfig import Fallback, choose
from gpuslice.config.nvidia import NvidiaConfig
from gpuslice.config.nvidiaflags import effective
from gpuslice.config.reader import Section, parse, read_document
from gpuslice.devices.found import Found
from gpuslice.devices.inventory import NodeGpus
from gpuslice.devices.machine import PaperMachine
from gpuslice.devices.offered import offered
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError
from gpuslice.placement import policies
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.units import MemoryUnit, parse_quantity

KIND: Final = "Cluster"
UNCONFIGURED: Final = NvidiaConfig({})
FALLBACKS: Final = (Fallback.NAMED, Fallback.EMPTY)
"""Which of the device plugin's configurations counts on a node without the label."""
MAX_NODES: Final = 20_000
"""Nodes that have an address each in 10.0.0.0/8 and a pod network each beside them."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*")
_LABEL_NAME: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY: Final = re.compile(rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}")
_LABEL_VALUE: Final = re.compile(rf"(?:{_LABEL_NAME})?")


class TaintEntry(Section, frozen=True):
    """A taint as on a Node."""

    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str = ""


class NodeEntry(Section, frozen=True):
    """One node (`name`), or `count` equal ones called `namePrefix`-0, -1 and so on.

    `machine` is the name of a ready-made one ("8xA100-40"), in the place of `gpus`. `mig_strategy`: how the
    MIG devices of GPUs that are partitioned are counted.
    """

    name: str | None = None
    name_prefix: str | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_NODES)] | None = None
    cpu: str | int | float = 32
    memory: str | int = "128Gi"
    pods: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 110
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[TaintEntry, ...] = ()
    gpus: tuple[GpuEntry, ...] = ()
    machine: str | None = None
    mig_strategy: MigStrategy = MigStrategy.NONE

    def hardware(self, node: str, unit: MemoryUnit, field: str) -> PaperMachine:
        """One node's machine: with the GPUs listed, or the ready-made one. Raises InputError."""
        if self.machine is None:
            gpus = paper_gpus(self.gpus, unit, node=node, field=f"{field}.gpus")
            return PaperMachine(DRIVER_VERSION, CUDA_VERSION, gpus)
        if self.gpus:
            raise InputError("give either machine or gpus", field=field)
        try:
            return ready_made(self.machine).machine(node)
        except InputError as error:
            raise InputError(str(error), field=f"{field}.machine") from error

    def names(self, field: str) -> list[str]:
        """The names of the nodes that this entry stands for. Raises InputError."""
        if (self.name is None) == (self.name_prefix is None):
            raise InputError("give either name, or namePrefix and count", field=field)
        if self.name is not None:
            if self.count is not None:
                raise InputError("count goes with namePrefix; one name is one node", field=f"{field}.count")
            names = [self.name]
        else:
            if self.count is None:
                raise InputError("namePrefix needs a count", field=field)
            names = [f"{self.name_prefix}-{number}" for number in range(self.count)]
        for name in names:
            if not _NAME.fullmatch(name) or len(name) > 253:
                raise InputError(
                    f"{name!r} is not a node name; use lower-case letters, digits, '-' and '.'", field=field
                )
        return names


class ClusterSpec(Section, frozen=True):
    """`memory_unit`: what one aliyun.com/gpu-mem means; `policy`: how the scheduler fills GPUs.

    `device_plugin_configs`: NVIDIA's device plugin configurations by name, as mappings or as text. A
    node's label says which counts; without it the one called default does, if there is one.
    """

    nodes: tuple[NodeEntry, ...]
    device_plugin_configs: dict[str, Any] = msgspec.field(default_factory=dict)
    memory_unit: str = "GiB"
    policy: str = BINPACK.name


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node to start. `gpus` are those of its `machine` as shared; `address` is its InternalIP."""

    name: str
    cpu_milli: int
    memory_mib: int
    pods: int
    labels: Mapping[str, str]
    taints: tuple[TaintEntry, ...]
    gpus: NodeGpus
    machine: PaperMachine
    address: str
    mig_strategy: MigStrategy = MigStrategy.NONE
    plugin: NvidiaConfig = UNCONFIGURED

    @property
    def plugin_options(self) -> Mapping[str, object]:
        """What the node's own settings say to its device plugin, whatever its configuration does."""
        return {} if self.mig_strategy is MigStrategy.NONE else {"mig-strategy": self.mig_strategy}

    def offered(self, found: Found) -> NodeGpus:
        """What its agent will offer of these GPUs. Raises InputError if they cannot be so."""
        flags = effective(self.plugin.flags, cli=self.plugin_options, env={})
        policy = flags.shared_devices_allocation_policy
        return NodeGpus(offered(found, flags.mig_strategy, self.plugin.sharing, policy), self.gpus.unit)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What a cluster file means."""

    nodes: tuple[NodePlan, ...]
    unit: MemoryUnit
    policy: Policy
    plugin_configs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Texts of the device plugin's configurations, by name."""


class ClusterFile(Section, frozen=True):
    """A whole document."""

    spec: ClusterSpec

    @classmethod
    def load(cls, path: Path) -> ClusterFile:
        """Read a file. Raises InputError naming it."""
        return read_document(path, KIND, cls)

    @classmethod
    def parse(cls, text: str) -> ClusterFile:
        """Read a document's text. Raises InputError."""
        return parse(text, KIND, cls)

    def plan(self) -> ClusterPlan:
        """Work out every node. Raises InputError naming the place in the file."""
        unit = read_unit(self.spec.memory_unit, "spec.memoryUnit")
        policy = policies.find(self.spec.policy, field="spec.policy")
        configs = _configs(self.spec.device_plugin_configs)
        if not self.spec.nodes:
            raise InputError("no nodes; write at least one", field="spec.nodes")
        nodes: list[NodePlan] = []
        named: dict[str, str] = {}  # node name -> where it was named
        owner: dict[str, str] = {}  # GPU uuid -> node name
        for position, entry in enumerate(self.spec.nodes):
            field = f"spec.nodes[{position}]"
            try:
                plugin = plugin_of(entry.labels, configs)
            except InputError as error:
                raise InputError(str(error), field=f"{field}.labels") from error
            for name in entry.names(field):
                if name in named:
                    raise InputError(f"node {name!r} is in {named[name]} already", field=field)
                named[name] = field
                nodes.append(replace(_plan(entry, name, unit, len(nodes), field), plugin=plugin))
                for gpu in nodes[-1].gpus.gpus:
                    if gpu.uuid in owner:
                        raise InputError(
                            f"GPU {gpu.uuid} is on node {owner[gpu.uuid]!r} already; give every GPU its own",
                            field=f"{field}.gpus",
                        )
                    owner[gpu.uuid] = name
            if len(nodes) > MAX_NODES:
                raise InputError(f"more than {MAX_NODES} nodes", field="spec.nodes")
        return ClusterPlan(tuple(nodes), unit, policy, configs)


def _plan(entry: NodeEntry, name: str, unit: MemoryUnit, number: int, field: str) -> NodePlan:
    _check_labels(entry, field)
    machine = entry.hardware(name, unit, field)
    return NodePlan(
        name,
        _size(entry.cpu, Fraction(1, 1000), f"{field}.cpu"),
        _size(entry.memory, Fraction(2**20), f"{field}.memory"),
        entry.pods,
        entry.labels,
        entry.taints,
        inventory_of(machine.gpus, unit, field=f"{field}.gpus"),
        machine,
        address(number),
        entry.mig_strategy,
    )


def _configs(written: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the device plugin's configurations, all read once. Raises InputError naming the place."""
    texts: dict[str, str] = {}
    for name, value in written.items():
        texts[name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        try:
            NvidiaConfig.parse(texts[name])
        except InputError as error:
            raise InputError(str(error), field=f"spec.devicePluginConfigs.{name}") from error
    return texts


def plugin_of(labels: Mapping[str, str], configs: Mapping[str, str]) -> NvidiaConfig:
    """The configuration that counts at first. Raises InputError if a label names one that is not there."""
    name = choose(labels, tuple(configs), fallbacks=FALLBACKS) if configs else None
    return NvidiaConfig.parse(configs[name]) if name is not None else UNCONFIGURED


def address(number: int) -> str:
    """The address of the node at that place of the file, from 0: 10.0.0.1, ... 10.0.0.254, 10.0.1.1, ..."""
    high, low = divmod(number, 254)
    return f"10.0.{high}.{low + 1}"


def _size(value: str | float, step: Fraction, field: str) -> int:
    """A quantity in whole steps (milli-CPU, MiB)."""
    steps = int(parse_quantity(str(value), field=field) / step)
    if not 0 < steps < 2**31:
        raise InputError(f"{value!r} is no size of a node", field=field)
    return steps


def _check_labels(entry: NodeEntry, field: str) -> None:
    for key, value in entry.labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise InputError(f"{key}={value} is not a label as Kubernetes takes it", field=f"{field}.labels")
    for position, taint in enumerate(entry.taints):
        if not _LABEL_KEY.fullmatch(taint.key) or not _LABEL_VALUE.fullmatch(taint.value):
            raise InputError(
                f"{taint.key}={taint.value} is not a taint as Kubernetes takes it",
                field=f"{field}.taints[{position}]",
            )
