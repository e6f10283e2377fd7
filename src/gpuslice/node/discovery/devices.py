"""Where the agent learns its node's GPUs: NVIDIA's driver on a real node, a file on a simulated one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gpuslice.devices.found import Found
from gpuslice.devices.inventory import Gpu


class DeviceBackend(Protocol):
    """The GPUs of this node, now and whenever they change."""

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs as known at the moment, including those that are given to nobody."""

    def plain(self) -> tuple[Gpu, ...]:
        """The same devices as they would be if none were shared, by memory or by replicas."""

    def found(self) -> Found:
        """The machine, with what is known of its GPUs' neighbourhood."""

    async def differs(self, uuids: Collection[str]) -> str:
        """A sentence if one of these devices is not as `gpus()` says, or does not answer; "" if all are as it
        says.
        """

    async def changed(self) -> None:
        """Wait until the answer of `gpus()` may differ from when `changed` last returned."""
