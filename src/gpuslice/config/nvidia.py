"""NVIDIA's device plugin configuration, version v1: read strictly, YAML or JSON.

A file that NVIDIA's plugin takes means the same here, but for what docs/nvidia-config.md tells: a key that is
unknown or in the wrong place is an error (NVIDIA's plugin ignores it in silence: its issue 1433), `devices`
of a shared resource really selects devices, `allowSameGPU` is ours, MPS is refused. Source:
NVIDIA/k8s-device-plugin `api/config/v1`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuslice import names
from gpuslice.config import nvidiaflags
from gpuslice.config.reader import Section, convert, load_yaml, read_file
from gpuslice.devices.sharing import ALL, UNSHARED, Replicated, Selection, Sharing, SharingStrategy
from gpuslice.errors import InputError

VERSION: Final = "v1"
_PREFIX: Final = "nvidia.com/"
_LONGEST: Final = 63
"""Characters of a resource's name with its prefix, as NVIDIA limits it."""
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_REF: Final = re.compile(r"\d+(?::\d+)?|(?:GPU|MIG)-[0-9A-Za-z][0-9A-Za-z-]*|MIG-GPU-[0-9A-Za-z-]+/\d+/\d+")
_RENAMED: Final = ".shared"


class _Plugin(Section, frozen=True):
    pass_device_specs: bool | None = None
    device_list_strategy: str | tuple[str, ...] | None = None
    device_id_strategy: str | None = msgspec.field(default=None, name="deviceIDStrategy")
    cdi_annotation_prefix: str | None = msgspec.field(default=None, name="cdiAnnotationPrefix")
    nvidia_ctk_path: str | None = msgspec.field(default=None, name="nvidiaCTKPath")
    container_driver_root: str | None = None
    shared_devices_allocation_policy: str | None = None


class _Gfd(Section, frozen=True):
    oneshot: bool | None = None
    no_timestamp: bool | None = None
    sleep_interval: str | int | None = None
    output_file: str | None = None
    machine_type_file: str | None = None


class _Flags(Section, frozen=True):
    mig_strategy: str | None = None
    fail_on_init_error: bool | None = None
    mps_root: str | None = None
    nvidia_driver_root: str | None = None
    nvidia_dev_root: str | None = None
    gdrcopy_enabled: bool | None = None
    gds_enabled: bool | None = None
    mofed_enabled: bool | None = None
    use_node_feature_api: bool | None = msgspec.field(default=None, name="useNodeFeatureAPI")
    device_discovery_strategy: str | None = None
    plugin: _Plugin | None = None
    gfd: _Gfd | None = None


class _Pattern(Section, frozen=True):
    pattern: str
    name: str


class _Resources(Section, frozen=True):
    gpus: tuple[_Pattern, ...] | None = None
    mig: tuple[_Pattern, ...] | None = None


class _Shared(Section, frozen=True):
    # What is missing here is reported in NVIDIA's own words below.
    name: str | None = None
    replicas: int | None = None
    rename: str | None = None
    devices: str | int | tuple[str | int, ...] | None = None


class _Sharing(Section, frozen=True):
    rename_by_default: bool | None = None
    fail_requests_greater_than_one: bool | None = None
    resources: tuple[_Shared, ...] | None = None


class _TimeSlicing(_Sharing, frozen=True):
    allow_same_gpu: bool | None = msgspec.field(default=None, name="allowSameGPU")


class _Ways(Section, frozen=True):
    time_slicing: _TimeSlicing | None = None
    mps: _Sharing | None = None


class _Imex(Section, frozen=True):
    channel_ids: tuple[int, ...] | None = msgspec.field(default=None, name="channelIDs")
    required: bool | None = None


class _File(Section, frozen=True):
    version: str | None = None
    flags: _Flags | None = None
    resources: _Resources | None = None
    sharing: _Ways | None = None
    imex: _Imex | None = None


@dataclass(frozen=True, slots=True)
class NvidiaConfig:
    """What a file says. `flags` are those that are written in it, by their place in the file
    ("flags.plugin.passDeviceSpecs"); `nvidiaflags.effective` completes them. `warnings` are sentences about
    what is read but not used, as NVIDIA's plugin does.
    """

    flags: Mapping[str, object]
    sharing: Sharing = UNSHARED
    warnings: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: Path) -> NvidiaConfig:
        """Read a file. Raises InputError naming it and the place in it."""
        return read_file(path, cls.parse)

    @classmethod
    def parse(cls, text: str) -> NvidiaConfig:
        """Read a file's text; an empty one is a configuration without settings. Raises InputError."""
        return cls.read(load_yaml(text))

    @classmethod
    def read(cls, document: object) -> NvidiaConfig:
        """Read a document's value. Raises InputError naming the place."""
        if document is None:
            return cls({})
        if not isinstance(document, dict):
            raise InputError("expected a mapping with version, flags and sharing")
        file = convert(document, _File)
        if file.version not in (None, VERSION):
            raise InputError(f"unknown version: {file.version}; write {VERSION}", field="version")
        warnings: list[str] = []
        if file.resources is not None and (file.resources.gpus or file.resources.mig):
            warnings.append(
                "resources: not used, as in NVIDIA's plugin; resources are named after flags.migStrategy"
            )
        sharing = _sharing(file.sharing or _Ways(), warnings)
        flags = _written(document)
        nvidiaflags.check(flags)
        return cls(flags, sharing, tuple(warnings))


def _written(document: Mapping[str, Any]) -> dict[str, object]:
    """The flags that a file sets, by their place in it."""
    found: dict[str, object] = {}

    def walk(values: Mapping[str, Any], at: str) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                walk(value, f"{at}.{key}")
            elif value is not None:
                found[f"{at}.{key}"] = tuple(value) if isinstance(value, list) else value

    for section in ("flags", "imex"):
        walk(document.get(section) or {}, section)
    return found


def _sharing(ways: _Ways, warnings: list[str]) -> Sharing:
    if ways.mps is not None:
        # NVIDIA lets MPS win where both are given, so neither is served in its place.
        _replicated(ways.mps, "sharing.mps", warnings)
        raise InputError(
            "MPS is not supported yet; use sharing.timeSlicing, or memory shares (aliyun.com/gpu-mem)",
            field="sharing.mps",
        )
    slicing = ways.time_slicing
    if slicing is None:
        return UNSHARED
    return Sharing(
        SharingStrategy.TIME_SLICING,
        _replicated(slicing, "sharing.timeSlicing", warnings),
        bool(slicing.fail_requests_greater_than_one),
        slicing.allow_same_gpu is not False,
    )


def _replicated(section: _Sharing, at: str, warnings: list[str]) -> tuple[Replicated, ...]:
    if not section.resources:
        raise InputError("no resources specified", field=at)
    entries: list[Replicated] = []
    for position, shared in enumerate(section.resources):
        where = f"{at}.resources[{position}]"
        if shared.name is None:
            raise InputError("no resource name specified", field=where)
        name = _name(shared.name, f"{where}.name")
        if shared.replicas is None:
            raise InputError("no replicas specified", field=where)
        if shared.replicas < 2:
            raise InputError("number of replicas must be >= 2", field=f"{where}.replicas")
        default = name + _RENAMED if section.rename_by_default else ""
        if shared.rename is not None and shared.rename != default:
            warnings.append(
                f"{where}.rename: not used, as in NVIDIA's plugin; renameByDefault: true makes it "
                f"{name + _RENAMED}"
            )
        entry = Replicated(name, shared.replicas, default, _selection(shared.devices, f"{where}.devices"))
        _check_overlap(entry, entries, where)
        entries.append(entry)
    return tuple(entries)


def _name(text: str, where: str) -> str:
    """The full name of a resource that this node can have."""
    name = text if text.startswith(_PREFIX) else _PREFIX + text
    if len(name) > _LONGEST:
        raise InputError(
            f"fully-qualified resource name must be {_LONGEST} characters or less: {name}", field=where
        )
    rest = name.removeprefix(_PREFIX)
    if not _SUBDOMAIN.fullmatch(rest):
        raise InputError(
            f"incorrect format for resource name '{name}'; use lower-case letters, digits, '-' and '.'",
            field=where,
        )
    if name != names.WHOLE_GPU and not rest.startswith("mig-"):
        raise InputError(
            f"no device is announced as {name}; share {names.WHOLE_GPU}, or nvidia.com/mig-1g.5gb and such",
            field=where,
        )
    return name


def _selection(devices: str | int | tuple[str | int, ...] | None, where: str) -> Selection:
    if devices is None or devices == "all":
        return ALL
    if isinstance(devices, str):
        raise InputError(
            f"devices set as '{devices}' but the only valid string input is 'all'; for one write a list",
            field=where,
        )
    if isinstance(devices, int):
        if devices <= 0:
            raise InputError(f"devices set as '{devices}' but a count of devices must be > 0", field=where)
        return Selection(count=devices)
    if not devices:
        raise InputError("the list is empty; leave it out to share all devices", field=where)
    refs = tuple(str(ref) for ref in devices)
    for position, ref in enumerate(refs):
        if not _REF.fullmatch(ref):
            raise InputError(
                f"{ref!r} is no device; write an index (0), a MIG index ('0:1') or a UUID (GPU-..., MIG-...)",
                field=f"{where}[{position}]",
            )
        if ref in refs[:position]:
            raise InputError(f"{ref!r} is there twice", field=f"{where}[{position}]")
    return Selection(refs=refs)


def _check_overlap(entry: Replicated, before: list[Replicated], where: str) -> None:
    """Two entries for one device: what the file alone can tell; `replicate` tells the rest."""
    for other in before:
        if other.name != entry.name:
            continue
        if other.devices.all or entry.devices.all:
            raise InputError(
                f"{entry.name} is shared twice, once for all its devices; name the devices of each entry",
                field=where,
            )
        for ref in entry.devices.refs or ():
            if ref in (other.devices.refs or ()):
                raise InputError(
                    f"device {ref} of {entry.name} is in an entry before; name it in one only",
                    field=f"{where}.devices",
                )
