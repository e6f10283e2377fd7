"""mig-parted's configuration file, version v1: read strictly, and checked against the GPUs it is meant for.

mig-parted checks the grammar only: a profile that the GPU does not have "applies successfully" and leaves it
empty, eight of seven slices destroy what runs before they fail, a GPU that is not there is passed over. Here
all of that is found before anything is touched. Source: NVIDIA/mig-parted `api/spec/v1`, whose words are
used where it has some.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gpuslice.config.reader import load_yaml, read_file
from gpuslice.devices.found import FoundGpu
from gpuslice.devices.mig import MigGeometry
from gpuslice.devices.miglayout import say_counts
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.migspace import space_of
from gpuslice.errors import InputError, quoted

VERSION: Final = "v1"
_NUMBER: Final = re.compile(r"0[xX][0-9A-Fa-f]{1,16}|[0-9]{1,16}")
_KEYS: Final = ("device-filter", "devices", "mig-enabled", "mig-devices")


@dataclass(frozen=True, slots=True)
class PciId:
    """What kind of board it is: device and vendor in one number (0x20B010DE), and the same of the board's
    maker (`subsystem`; None in a filter: any).
    """

    device: int
    subsystem: int | None = None

    @classmethod
    def parse(cls, text: str, *, field: str = "") -> PciId:
        """Read "0x20B010DE" or "0x20B010DE:0x134F10DE"; decimal numbers as well, as mig-parted does.

        Raises InputError naming `field`.
        """
        parts = text.split(":")
        numbers = [
            int(part, 16 if part.startswith(("0x", "0X")) else 10)
            for part in parts
            if _NUMBER.fullmatch(part)
        ]
        if len(numbers) != len(parts) or len(parts) > 2 or max(numbers) >= 1 << 32:
            raise InputError(
                f"{quoted(text)} is no PCI id; write 0xDEVICEVENDOR in quotes, such as '0x20B010DE' for "
                "A100-40",
                field=field,
            )
        return cls(*numbers)

    def matches(self, board: PciId) -> bool:
        """As a filter: is that board meant?"""
        return self.device == board.device and self.subsystem in (None, board.subsystem)

    def __str__(self) -> str:
        return f"0x{self.device:08X}" + (f":0x{self.subsystem:08X}" if self.subsystem is not None else "")


@dataclass(frozen=True, slots=True)
class MigEntry:
    """What a part of the GPUs is to be. `indexes` None: all; `boards` empty: of every kind."""

    enabled: bool
    devices: Mapping[MigProfile, int]
    indexes: tuple[int, ...] | None = None
    boards: tuple[PciId, ...] = ()

    def selects(self, gpu: MigTarget) -> bool:
        """Is the entry about this GPU?"""
        if self.boards and not any(board.matches(gpu.board) for board in self.boards):
            return False
        return self.indexes is None or gpu.index in self.indexes


@dataclass(frozen=True, slots=True)
class MigTarget:
    """A GPU that a configuration may be about; `geometry` is None if it cannot be partitioned."""

    index: int
    name: str
    board: PciId
    geometry: MigGeometry | None

    @classmethod
    def of(cls, gpu: FoundGpu, geometry: MigGeometry | None) -> MigTarget:
        """A GPU as the driver describes it; one without a PCI id is meant by no device-filter."""
        return cls(gpu.index, gpu.name, PciId(gpu.pci_device_id or 0, gpu.pci_subsystem_id), geometry)

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"


@dataclass(frozen=True, slots=True)
class MigSpec:
    """What one GPU is to be: MIG mode, and how many devices of each profile."""

    enabled: bool
    devices: Mapping[MigProfile, int]


@dataclass(frozen=True, slots=True)
class MigPartedFile:
    """A whole file: entries by the configuration's name.

    `refused`: configurations that cannot be read, and why; the others can be used all the same.
    """

    configs: Mapping[str, tuple[MigEntry, ...]]
    refused: Mapping[str, InputError] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> MigPartedFile:
        """Read a file. Raises InputError naming it and the place in it."""
        return read_file(path, cls.parse)

    @classmethod
    def parse(cls, text: str) -> MigPartedFile:
        """Read a file's text. Raises InputError naming the place."""
        return cls.read(load_yaml(text))

    @classmethod
    def read(cls, document: object) -> MigPartedFile:
        """Read a document's value. Raises InputError naming the place."""
        if not isinstance(document, dict):
            raise InputError("expected a mapping with version and mig-configs")
        if "version" not in document:
            raise InputError("unable to parse with missing 'version' field; write version: v1")
        if document["version"] != VERSION:
            raise InputError(f"unknown version: {document['version']}; write {VERSION}", field="version")
        for key in document:
            if key not in ("version", "mig-configs"):
                raise InputError(f"unexpected field: {key}; configurations belong under mig-configs")
        configs = document.get("mig-configs")
        if not isinstance(configs, dict) or not configs:
            raise InputError("at least one entry in 'mig-configs' is required", field="mig-configs")
        read: dict[str, tuple[MigEntry, ...]] = {}
        refused: dict[str, InputError] = {}
        for name, entries in configs.items():
            try:
                read[str(name)] = _entries(name, entries, f"mig-configs.{name}")
            except InputError as error:
                refused[str(name)] = error
        return cls(MappingProxyType(read), MappingProxyType(refused))

    def select(self, name: str) -> tuple[MigEntry, ...]:
        """One configuration. Raises InputError that lists what there is, or says what is wrong with it."""
        if name in self.refused:
            raise self.refused[name]
        if name not in self.configs:
            there = ", ".join(self.configs) or "none that can be read"
            raise InputError(f"selected mig-config not present: {name}; there are {there}")
        return self.configs[name]

    def specs(self, name: str, gpus: Sequence[MigTarget]) -> dict[int, MigSpec]:
        """What each GPU is to be, by index, with everything checked that can be before a GPU is touched.

        A GPU that no entry is about is left as it is and not in the answer; `devices: all` is about those
        that can be partitioned; of several entries about a GPU the last counts, as with mig-parted. Raises
        InputError with one sentence that names the configuration, the GPU and why it cannot be.
        """
        entries = self.select(name)
        last: dict[int, tuple[str, MigEntry, MigTarget]] = {}
        for position, entry in enumerate(entries):
            where = f"mig-configs.{name}[{position}]"
            _check_indexes(entry, gpus, where)
            for gpu in gpus:
                if not entry.selects(gpu):
                    continue
                if gpu.geometry is None and entry.enabled and entry.indexes is None:
                    continue
                last[gpu.index] = where, entry, gpu
        for where, entry, gpu in last.values():
            if (fault := _fault(entry, gpu)) is not None:
                raise InputError(f"{gpu} cannot be made so: {fault}", field=where)
        if not last:
            has = ", ".join(dict.fromkeys(f"{gpu.board} {gpu.name}" for gpu in gpus)) or "none"
            raise InputError(
                f"it matches no GPU of this node, so it would change nothing; the node has {has}",
                field=f"mig-configs.{name}",
            )
        return {index: MigSpec(entry.enabled, entry.devices) for index, (_, entry, _) in last.items()}


def _check_indexes(entry: MigEntry, gpus: Sequence[MigTarget], where: str) -> None:
    present = {gpu.index for gpu in gpus}
    for index in entry.indexes or ():
        if index not in present:
            raise InputError(
                f"GPU {index} does not exist: the node has {len(gpus)}, "
                f"numbered {', '.join(map(str, sorted(present))) or 'not at all'}",
                field=f"{where}.devices",
            )


def _fault(entry: MigEntry, gpu: MigTarget) -> str | None:
    if not entry.enabled:
        return None
    if gpu.geometry is None:
        return "it does not support MIG"
    return space_of(gpu.geometry).why_impossible(entry.devices)


def unmet(specs: Mapping[int, MigSpec], states: Mapping[int, MigSpec]) -> list[str]:
    """In which GPUs the node differs from a configuration, a sentence each; only GPUs that it is about."""
    sentences = []
    for index, spec in sorted(specs.items()):
        state = states.get(index)
        if state is None:
            sentences.append(f"GPU {index} has gone")
        elif state.enabled != spec.enabled:
            sentences.append(f"GPU {index}: MIG is {_on(state.enabled)}, it is to be {_on(spec.enabled)}")
        elif dict(state.devices) != dict(spec.devices):
            sentences.append(f"GPU {index} has {_say(state.devices)}; it is to have {_say(spec.devices)}")
    return sentences


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"


def _say(devices: Mapping[MigProfile, int]) -> str:
    return say_counts(sorted(devices.items()))


# --- the grammar --------------------------------------------------------------------------------------
def _entries(name: object, entries: Any, where: str) -> tuple[MigEntry, ...]:
    if not isinstance(name, str) or not name:
        raise InputError(f"{name!r} is no name; put it in quotes", field="mig-configs")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"at least one entry in '{name}' is required", field=where)
    return tuple(_entry(entry, f"{where}[{position}]") for position, entry in enumerate(entries))


def _entry(entry: Any, where: str) -> MigEntry:
    if not isinstance(entry, dict):
        raise InputError("expected a mapping with devices, mig-enabled and mig-devices", field=where)
    for key in entry:
        if key not in _KEYS:
            raise InputError(f"unexpected field: {key}; there are {', '.join(_KEYS)}", field=where)
    for key in ("devices", "mig-enabled"):
        if key not in entry:
            raise InputError(f"missing required field: {key}", field=where)
    enabled = entry["mig-enabled"]
    if not isinstance(enabled, bool):
        raise InputError(f"expected true or false, not {enabled!r}", field=f"{where}.mig-enabled")
    devices = _mig_devices(entry.get("mig-devices"), f"{where}.mig-devices")
    if enabled and devices is None:
        raise InputError("missing required field 'mig-devices' when 'mig-enabled' is true", field=where)
    if not enabled and devices:
        raise InputError("MIG devices included when 'mig-enabled' is false", field=where)
    return MigEntry(
        enabled,
        MappingProxyType(devices or {}),
        _indexes(entry["devices"], f"{where}.devices"),
        _boards(entry.get("device-filter"), f"{where}.device-filter"),
    )


def _indexes(devices: Any, where: str) -> tuple[int, ...] | None:
    if isinstance(devices, str):
        if devices != "all":
            raise InputError(
                f"invalid string input for 'devices': {devices}; write all or a list", field=where
            )
        return None
    if not isinstance(devices, list) or not devices:
        raise InputError("expected all, or a list of indexes such as [0, 1]", field=where)
    for position, index in enumerate(devices):
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise InputError(f"{index!r} is no index of a GPU", field=f"{where}[{position}]")
        if index in devices[:position]:
            raise InputError(f"{index} is there twice", field=f"{where}[{position}]")
    return tuple(devices)


def _boards(wanted: Any, where: str) -> tuple[PciId, ...]:
    if wanted in (None, "", []):
        return ()
    boards = wanted if isinstance(wanted, list) else [wanted]
    return tuple(
        PciId.parse(f"0x{board:08X}" if isinstance(board, int) else str(board), field=where)
        for board in boards
    )


def _mig_devices(devices: Any, where: str) -> dict[MigProfile, int] | None:
    if devices is None:
        return None
    if not isinstance(devices, dict):
        raise InputError("expected a mapping from profiles to counts, such as {1g.5gb: 7}", field=where)
    wrong = "error validating values in 'mig-devices' field"
    found: dict[MigProfile, int] = {}
    for name, count in devices.items():
        try:
            profile = MigProfile.parse(str(name))
        except InputError as error:
            raise InputError(f"{wrong}: invalid format for '{name}': {error}", field=where) from error
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise InputError(f"{wrong}: invalid count for '{count}': write 0 or more", field=where)
        if profile in found:
            raise InputError(f"{wrong}: {profile} is there twice", field=where)
        found[profile] = count
    if found and not any(found.values()):
        raise InputError(f"{wrong}: all counts for all MigProfiles are 0; write {{}} for none", field=where)
    return {profile: count for profile, count in found.items() if count}
