"""The device manager's memory on disk: device-plugins/kubelet_internal_checkpoint.

The layout is the kubelet's (pkg/kubelet/cm/devicemanager/checkpoint): entries per pod uid, container and
resource with the ids and the plugin's answer as base64 protobuf, the registered resources, a checksum.
It is written before a container starts, so that no restart hands its ids to somebody else.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from gpuslice.local.kubelet.devicemanager import Holding
from gpuslice.node.kubelet.wire import decode_allocations, encode_allocations

FILE_NAME: Final = "kubelet_internal_checkpoint"
_NO_NUMA: Final = "-1"

_log = structlog.get_logger(__name__)


class _Entry(msgspec.Struct, frozen=True, gc=False):
    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    ids: dict[str, list[str]] = msgspec.field(name="DeviceIDs")
    answer: str = msgspec.field(name="AllocResp")


class _Data(msgspec.Struct, frozen=True):
    entries: list[_Entry] = msgspec.field(name="PodDeviceEntries")
    registered: dict[str, list[str]] = msgspec.field(name="RegisteredDevices")


class _File(msgspec.Struct, frozen=True):
    data: msgspec.Raw = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is remembered: resources that were registered, and who holds what."""

    resources: tuple[str, ...] = ()
    holdings: tuple[Holding, ...] = ()


class CheckpointFile:
    """Reads and writes the file in that folder; entries that did not change are not encoded again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._encoded: dict[tuple[str, str, str], tuple[Holding, bytes]] = {}
        self._registered: tuple[dict[str, frozenset[str]], bytes] = ({}, b"{}")

    def load(self) -> Checkpoint:
        """What was written last; empty if there is nothing or if it is damaged."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return Checkpoint()
        try:
            file = msgspec.json.decode(raw, type=_File)
            if zlib.crc32(file.data) != file.checksum:
                _log.warning("the device checkpoint is damaged; starting without it", file=str(self._path))
                return Checkpoint()
            data = msgspec.json.decode(file.data, type=_Data)
            return Checkpoint(tuple(data.registered), tuple(_holding(entry) for entry in data.entries))
        except (msgspec.DecodeError, ValueError) as error:
            _log.warning(
                "the device checkpoint is unreadable; starting without it",
                file=str(self._path),
                error=str(error),
            )
            return Checkpoint()

    def save(self, registered: dict[str, frozenset[str]], holdings: Iterable[Holding]) -> None:
        """Replace the file in one step."""
        encoded: dict[tuple[str, str, str], tuple[Holding, bytes]] = {}
        for holding in holdings:
            key = (holding.uid, holding.container, holding.resource)
            known = self._encoded.get(key)
            encoded[key] = known if known and known[0] is holding else (holding, _entry(holding))
        self._encoded = encoded
        if self._registered[0] != registered:
            names = {name: sorted(ids) for name, ids in registered.items()}
            self._registered = (registered, msgspec.json.encode(names))
        entries = b",".join(entry for _, entry in encoded.values())
        data = b'{"PodDeviceEntries":[%b],"RegisteredDevices":%b}' % (entries, self._registered[1])
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(b'{"Data":%b,"Checksum":%d}' % (data, zlib.crc32(data)))
        temporary.replace(self._path)


def _entry(holding: Holding) -> bytes:
    answer = base64.b64encode(encode_allocations([holding.answer])).decode()
    ids = {_NO_NUMA: sorted(holding.ids)}
    return msgspec.json.encode(_Entry(holding.uid, holding.container, holding.resource, ids, answer))


def _holding(entry: _Entry) -> Holding:
    ids = frozenset(id_ for near in entry.ids.values() for id_ in near)
    (answer,) = decode_allocations(base64.b64decode(entry.answer))
    return Holding(entry.pod_uid, entry.container, entry.resource, ids, answer)
