"""Reads from a vGPU's PCI configuration space what it says about the host. Pure.

A vendor-specific capability (id 9) that begins with "VF" holds records of (id, length, data); record 0 is ten
bytes of the host's driver version and ten of its branch. Sources: PCI Local Bus Specification 3.0, 6.7;
NVIDIA/k8s-device-plugin `internal/vgpu`.
"""

from __future__ import annotations

from typing import Final

from gpuslice.devices.labels import Vgpu

_STATUS: Final = 0x06
_HAS_CAPABILITIES: Final = 0x10
_FIRST: Final = 0x34
_VENDOR_SPECIFIC: Final = 0x09
_SPACE: Final = 256
"""Bytes of the space; without privileges the kernel shows 64 of them."""
_FIELD: Final = 10


def read_vgpu(space: bytes) -> Vgpu | None:
    """What the host says; None if this is no vGPU, or the space is not complete."""
    capability = _vendor_specific(space)
    if capability[3:5] != b"VF":
        return None
    at = 5
    while at + 2 <= len(capability):
        record, length = capability[at], capability[at + 1]
        if record == 0:
            version, branch = (
                capability[start : start + _FIELD].strip(b"\0").decode("ascii", "replace")
                for start in (at + 2, at + 2 + _FIELD)
            )
            return Vgpu(version, branch)
        if length < 2:
            break
        at += length
    return Vgpu("", "")


def _vendor_specific(space: bytes) -> bytes:
    """The first capability of that kind; empty if there is none."""
    if len(space) < _SPACE or not space[_STATUS] & _HAS_CAPABILITIES:
        return b""
    at, seen = space[_FIRST], set[int]()
    while at and at not in seen and at + 3 <= _SPACE:
        seen.add(at)
        if space[at] == _VENDOR_SPECIFIC:
            return space[at : at + space[at + 2]]
        at = space[at + 1]
    return b""
