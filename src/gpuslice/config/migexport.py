"""Writes the present MIG layout of a node's GPUs as mig-parted's configuration file. Pure.

Source: NVIDIA/mig-parted `cmd/nvidia-mig-parted/export`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from gpuslice.config.migparted import VERSION, MigPartedFile, MigSpec, PciId
from gpuslice.devices.migprofile import MigProfile

LABEL: Final = "current"
"""What mig-parted calls the configuration that it exports."""


@dataclass(frozen=True, slots=True)
class MigState:
    """One GPU: its place, its kind and what it is."""

    index: int
    board: PciId
    state: MigSpec


class _Flow(list[Any]):
    """A list that is written in one line."""


class _Dumper(yaml.SafeDumper):
    """Knows lists that are written in one line."""


_Dumper.add_representer(
    _Flow, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


def export(gpus: Sequence[MigState], *, label: str = LABEL, form: str = "yaml") -> str:
    """The file as text, `form` yaml or json, with one configuration named `label`.

    Equal GPUs are one entry, `devices: all` where it is all of their kind; `device-filter` is there only if
    the node has several kinds of GPUs.
    """
    entries: list[list[MigState]] = []
    for gpu in gpus:
        equal = next((entry for entry in entries if _same(entry[0].state, gpu.state)), None)
        if equal is None:
            entries.append([gpu])
        else:
            equal.append(gpu)
    kinds = {gpu.board.device for gpu in gpus}
    several = len(kinds) > 1 and len(entries) > 1
    document = {
        "version": VERSION,
        "mig-configs": {label: [_entry(entry, gpus, several) for entry in entries]},
    }
    return _text(document, form)


def text_of(file: MigPartedFile, *, form: str = "yaml") -> str:
    """A whole file in the same form: "yaml" or "json"."""
    document = {
        "version": VERSION,
        "mig-configs": {
            name: [
                _written(
                    [str(board) for board in entry.boards],
                    "all" if entry.indexes is None else entry.indexes,
                    MigSpec(entry.enabled, entry.devices),
                )
                for entry in entries
            ]
            for name, entries in file.configs.items()
        },
    }
    return _text(document, form)


def _text(document: dict[str, Any], form: str) -> str:
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000)


def _same(one: MigSpec, other: MigSpec) -> bool:
    return one.enabled == other.enabled and dict(one.devices) == dict(other.devices)


def _entry(entry: Sequence[MigState], gpus: Sequence[MigState], several: bool) -> dict[str, Any]:
    boards = sorted({gpu.board.device for gpu in entry})
    indexes = sorted(gpu.index for gpu in entry)
    of_kind = sorted(gpu.index for gpu in gpus if gpu.board.device in boards)
    return _written(
        [str(PciId(board)) for board in boards] if several else [],
        "all" if indexes == of_kind else indexes,
        entry[0].state,
    )


def _written(boards: list[str], indexes: str | Sequence[int], state: MigSpec) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if boards:
        written["device-filter"] = boards[0] if len(boards) == 1 else _Flow(boards)
    written["devices"] = indexes if isinstance(indexes, str) else _Flow(indexes)
    written["mig-enabled"] = state.enabled
    written["mig-devices"] = _counts(state.devices)
    return written


def _counts(devices: Mapping[MigProfile, int]) -> dict[str, int]:
    return {str(profile): count for profile, count in sorted(devices.items(), key=lambda item: str(item[0]))}
