"""Where the agent learns its node's GPUs: NVIDIA's driver on a real node, a file on a simulated one."""

from __future__ import annotations

from typing import Protocol

from gpuslice.devices.inventory import Gpu


class DeviceBackend(Protocol):
    """The GPUs of this node, now and whenever they change."""

    def gpus(self) -> tuple[Gpu, ...]:
        """What is known at the moment. Sick GPUs are included: `healthy` is false and `reason` says why."""

    async def changed(self) -> None:
        """Wait until `gpus()` may answer otherwise than when `changed` last returned."""
