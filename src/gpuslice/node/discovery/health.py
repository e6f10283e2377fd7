"""What is known of the health of GPUs and MIG devices, from what the driver answers and the XIDs it reports.

A GPU that does not answer is kept as it was last seen, so that its holders are not forgotten; it is healthy
again when it answers. After an XID that counts, it is healthy again when it answers, the driver asks for no
recovery action, and QUIET_SECONDS have passed without another such XID (NVIDIA's plugin keeps a GPU unhealthy
until the plugin itself restarts). An XID of a GPU counts for all its MIG devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import Final

import structlog

from gpuslice.devices.found import Found, FoundGpu, MigDevice
from gpuslice.devices.xids import XidPolicy, describe
from gpuslice.node.discovery.driver import Xid

QUIET_SECONDS: Final = 60.0
GONE: Final = "the driver does not list the GPU any more"

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Illness:
    """Why something is unhealthy and since when, in seconds of the clock."""

    reason: str
    since: float


class Health:
    """The machine as last seen, with the health of its devices. Times are seconds of one monotonic clock."""

    def __init__(self, policy: XidPolicy, found: Found) -> None:
        self._policy = policy
        self._seen = found
        self._silent: dict[str, str] = {}
        self._ill: dict[str, _Illness] = {}  # by the UUID of a GPU or a MIG device

    @property
    def all_answer(self) -> bool:
        """False if a GPU that was here before does not answer."""
        return not self._silent and not self._seen.silent

    def found(self) -> Found:
        """The machine with the health of everything in it."""
        return replace(self._seen, gpus=tuple(self._judged(gpu) for gpu in self._seen.gpus))

    def update(self, found: Found, now: float) -> None:
        """Take in what the driver says now."""
        answering = {gpu.uuid: gpu for gpu in found.gpus}
        why = dict(found.silent)
        before, self._silent = self._silent, {}
        kept: list[FoundGpu] = []
        for gpu in self._seen.gpus:
            if gpu.uuid not in answering and (gpu.index in why or not found.complete):
                self._silent[gpu.uuid] = why.get(gpu.index, GONE)
                kept.append(gpu)
        taken = {gpu.index for gpu in found.gpus}
        gpus = list(found.gpus)
        for gpu in kept:
            # Once the driver does not count it any more, the GPUs after it have moved up.
            index = gpu.index if gpu.index not in taken else next(i for i in count() if i not in taken)
            taken.add(index)
            gpus.append(replace(gpu, index=index))
        self._seen = replace(found, gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)))
        for uuid, reason in self._silent.items():
            if uuid not in before:
                _log.warning("a GPU does not answer", gpu=uuid, reason=reason)
        self._heal(found, now)

    def xid(self, event: Xid, now: float) -> None:
        """Take in an error that the driver has reported."""
        if not self._policy.counts(event.number):
            _log.info("an XID that says nothing about the GPU's health", xid=event.number, gpu=event.uuid)
            return
        reason = describe(event.number)
        for uuid in self._meant(event):
            self._ill[uuid] = _Illness(reason, now)
            _log.warning("an XID makes a device unhealthy", device=uuid, reason=reason)

    def _meant(self, event: Xid) -> list[str]:
        """The UUIDs of the MIG devices that an event is about, or of the GPUs if it is not about MIG
        devices.
        """
        gpus = [gpu for gpu in self._seen.gpus if event.uuid in (None, gpu.uuid)]
        if event.gpu_instance is not None:
            devices = [mig.uuid for gpu in gpus for mig in gpu.mig_devices if _concerns(event, mig)]
            if devices:
                return devices
        return [gpu.uuid for gpu in gpus]

    def _heal(self, found: Found, now: float) -> None:
        for gpu in found.gpus:
            if not gpu.healthy:
                continue
            for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)):
                if uuid in self._ill and now - self._ill[uuid].since >= QUIET_SECONDS:
                    _log.info("a device is well again", device=uuid, after=self._ill.pop(uuid).reason)
        known = {uuid for gpu in self._seen.gpus for uuid in (gpu.uuid, *(m.uuid for m in gpu.mig_devices))}
        self._ill = {uuid: illness for uuid, illness in self._ill.items() if uuid in known}

    def _judged(self, gpu: FoundGpu) -> FoundGpu:
        reason = self._silent.get(gpu.uuid, "")
        if not reason and not gpu.healthy:
            reason = gpu.reason
        if gpu.uuid in self._ill:
            # What has happened first, then what follows from it.
            reason = "; ".join(filter(None, (self._ill[gpu.uuid].reason, reason)))
        healthy = not reason and gpu.healthy
        return replace(
            gpu,
            healthy=healthy,
            reason=reason,
            mig_devices=tuple(self._judged_mig(mig, reason, healthy) for mig in gpu.mig_devices),
        )

    def _judged_mig(self, mig: MigDevice, reason: str, parent_healthy: bool) -> MigDevice:
        illness = self._ill.get(mig.uuid)
        if not parent_healthy:
            return replace(mig, healthy=False, reason=reason)
        if illness is not None:
            return replace(mig, healthy=False, reason=illness.reason)
        return mig


def _concerns(event: Xid, mig: MigDevice) -> bool:
    return mig.gpu_instance == event.gpu_instance and event.compute_instance in (None, mig.compute_instance)
