"""Encodes and decodes two annotations: the MIG instances of a node's GPUs as its agent reports them, and as
desired.

They are on nodes whose GPUs are partitioned as pods need it: `gpuslice.io/mig`, written by the agent, says
what can be partitioned and what is; `gpuslice.io/mig-wanted`, written by the MIG demand controller, how the
GPUs are to be partitioned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

import msgspec

from gpuslice import names
from gpuslice.cluster.text import decode
from gpuslice.devices.mig import GiProfile, Limit, MigGeometry
from gpuslice.devices.miglayout import ComputeInstance, GpuInstance, MigLayout, layout
from gpuslice.devices.migprofile import MigProfile
from gpuslice.errors import InputError, quoted


class MigPolicy(StrEnum):
    """What decides how a node's GPUs are partitioned: the label nvidia.com/mig.config, or the waiting pods.

    On demand, instances are added where none is; with `drain`, idle instances are removed for them as well.
    """

    STATIC = "static"
    ON_DEMAND = "on-demand"
    ON_DEMAND_DRAIN = "on-demand-drain"

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> MigPolicy:
        """The policy of a node. Raises InputError if the label names none."""
        word = labels.get(names.MIG_POLICY, cls.STATIC)
        try:
            return cls(word)
        except ValueError:
            known = ", ".join(cls)
            raise InputError(
                f"{quoted(word)} is no policy; write one of {known}", field=f"label {names.MIG_POLICY}"
            ) from None


@dataclass(frozen=True, slots=True)
class MigCapableGpu:
    """One GPU that can be partitioned. `layout` is empty while MIG is off.

    `devices` are the UUIDs of its MIG devices, by the GPU instance's start and the compute instance's id.
    """

    uuid: str
    index: int
    enabled: bool
    layout: MigLayout
    healthy: bool = True
    devices: Mapping[tuple[int, int], str] = field(default_factory=dict)

    def marked(self, used: Collection[str]) -> MigLayout:
        """The layout with the instances of these MIG devices marked as in use."""
        return replace(self.layout, instances=tuple(self._marked(gi, used) for gi in self.layout.instances))

    def _marked(self, gi: GpuInstance, used: Collection[str]) -> GpuInstance:
        parts = (replace(ci, in_use=self.devices.get((gi.start, ci.id)) in used) for ci in gi.compute)
        return replace(gi, compute=tuple(parts))


Target = tuple[str, ...] | None
"""How a GPU is to be: placements such as "3g.20gb@4" (see `miglayout.layout`); None: MIG off."""


def placements(of: MigLayout) -> tuple[str, ...]:
    """A layout as its placements are written."""
    return tuple(f"{device}@{gi.start}" for gi in of.instances for device in gi.devices)


_Slices = Annotated[int, msgspec.Meta(ge=0, le=64)]
"""A number of slices of one GPU: bounded, since no GPU has more and planning takes longer with more."""
_Short = msgspec.Meta(max_length=64)


class _Profile(msgspec.Struct, frozen=True, gc=False):
    name: str
    enum: int
    id: int
    size: _Slices
    starts: Annotated[list[_Slices], _Short]
    most: _Slices


class _Limit(msgspec.Struct, frozen=True, gc=False):
    what: str
    total: int
    shares: tuple[tuple[int, int], ...]


class _Kind(msgspec.Struct, frozen=True, gc=False):
    name: str
    memory: _Slices
    compute: _Slices
    profiles: Annotated[list[_Profile], _Short]
    limits: Annotated[list[_Limit], _Short]


class _Part(msgspec.Struct, frozen=True, gc=False):
    slices: _Slices
    id: int
    uuid: str = ""


class _Instance(msgspec.Struct, frozen=True, gc=False):
    profile: str
    start: _Slices
    id: int
    parts: Annotated[list[_Part], _Short]


class _Gpu(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    uuid: str
    index: int
    kind: _Slices
    enabled: bool = False
    healthy: bool = True
    instances: Annotated[list[_Instance], _Short] = []


class _Record(msgspec.Struct, frozen=True, gc=False):
    kinds: Annotated[list[_Kind], _Short]
    gpus: Annotated[list[_Gpu], _Short]


_records = msgspec.json.Decoder(_Record)
_targets = msgspec.json.Decoder(dict[str, list[str] | None])


def encode_partitions(gpus: Iterable[MigCapableGpu]) -> str:
    """What the agent publishes."""
    gpus = tuple(gpus)
    kinds = list(dict.fromkeys(gpu.layout.geometry for gpu in gpus))
    return msgspec.json.encode(
        _Record(
            [_kind(kind) for kind in kinds], [_gpu(gpu, kinds.index(gpu.layout.geometry)) for gpu in gpus]
        )
    ).decode()


def decode_partitions(annotations: Mapping[str, str]) -> tuple[MigCapableGpu, ...]:
    """The GPUs that can be partitioned, as the agent published them; () if it published none.

    Raises InputError if the annotation was damaged: such a node is left as it is until its agent mends it.
    """
    text = annotations.get(names.MIG_PARTITIONS)
    if text is None:
        return ()
    where = f"metadata.annotations[{names.MIG_PARTITIONS}]"
    try:
        record = decode(_records, text)
        kinds = [_geometry(kind) for kind in record.kinds]
        return tuple(_partitioned(gpu, kinds[gpu.kind]) for gpu in record.gpus)
    except (IndexError, InputError) as error:
        raise InputError(
            f"not readable ({error}); restart the node's agent, it writes it anew", field=where
        ) from error


def encode_wanted(targets: Mapping[str, Target]) -> str:
    """What the agent is to make of its GPUs, by UUID."""
    return msgspec.json.encode({uuid: targets[uuid] for uuid in sorted(targets)}).decode()


def decode_wanted(annotations: Mapping[str, str]) -> dict[str, Target]:
    """The desired placements of GPUs, by UUID; GPUs that are not named stay as they are.

    Raises InputError for what cannot be read; placements are read where their geometry is known.
    """
    text = annotations.get(names.MIG_WANTED)
    if text is None:
        return {}
    try:
        wanted = decode(_targets, text)
    except InputError as error:
        raise InputError(
            f"not readable ({error}); remove the annotation, the scheduler writes it anew",
            field=f"metadata.annotations[{names.MIG_WANTED}]",
        ) from error
    return {uuid: None if target is None else tuple(target) for uuid, target in wanted.items()}


def _kind(of: MigGeometry) -> _Kind:
    profiles = [_Profile(str(p.name), p.enum, p.id, p.size, list(p.starts), p.max_count) for p in of.profiles]
    limits = [_Limit(limit.what, limit.total, limit.shares) for limit in of.limits]
    return _Kind(of.name, of.memory_slices, of.compute_slices, profiles, limits)


def _gpu(gpu: MigCapableGpu, kind: int) -> _Gpu:
    instances = [
        _Instance(
            str(gi.profile),
            gi.start,
            gi.id,
            [_Part(ci.slices, ci.id, gpu.devices.get((gi.start, ci.id), "")) for ci in gi.compute],
        )
        for gi in gpu.layout.instances
    ]
    return _Gpu(gpu.uuid, gpu.index, kind, gpu.enabled, gpu.healthy, instances)


def _geometry(kind: _Kind) -> MigGeometry:
    profiles = tuple(
        GiProfile(MigProfile.parse(p.name), p.enum, p.id, p.size, tuple(p.starts), p.most)
        for p in kind.profiles
    )
    limits = tuple(Limit(limit.what, limit.total, limit.shares) for limit in kind.limits)
    return MigGeometry(kind.name, kind.memory, kind.compute, profiles, limits)


def _partitioned(gpu: _Gpu, geometry: MigGeometry) -> MigCapableGpu:
    instances = tuple(
        GpuInstance(
            geometry.profile(MigProfile.parse(one.profile)),
            one.start,
            one.id,
            tuple(ComputeInstance(part.slices, part.id) for part in one.parts),
        )
        for one in gpu.instances
    )
    devices = {(one.start, part.id): part.uuid for one in gpu.instances for part in one.parts}
    made = MigLayout(geometry, instances)
    if made.fault is not None:
        raise InputError(made.fault)
    return MigCapableGpu(gpu.uuid, gpu.index, gpu.enabled, made, gpu.healthy, devices)


def target_layout(geometry: MigGeometry, target: Target) -> MigLayout:
    """The layout of a target, with nothing in use. Raises InputError if this GPU cannot be partitioned so."""
    return layout(geometry, *(target or ()))
