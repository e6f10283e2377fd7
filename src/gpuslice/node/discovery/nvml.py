"""NVIDIA's driver through NVML: which GPUs there are, how they are connected, what happens to them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from gpuslice.devices.found import Found, FoundGpu, Link, MigDevice, MigMode, Nearness, Window
from gpuslice.devices.mig import ATTRIBUTES, Engines, MigGeometry
from gpuslice.devices.miglayout import ComputeInstance, GpuInstance, MigLayout
from gpuslice.devices.migprofile import MigProfile, named_gb
from gpuslice.node.discovery import nvmlcalls, nvmlmig
from gpuslice.node.discovery.driver import Changed, DriverError, Trouble, Xid
from gpuslice.node.discovery.nvmlcalls import call

MIB: Final = 2**20
_UNKNOWN: Final = (Trouble.NOT_SUPPORTED, Trouble.NO_FUNCTION)
"""NVML's errors for an answer that this GPU or this driver does not have."""
_BRANDS: Final = {
    1: "Quadro", 2: "Tesla", 3: "NVS", 4: "GRID", 5: "GeForce", 6: "Titan", 7: "NvidiaVApps", 8: "NvidiaVPC",
    9: "NvidiaVCS", 10: "NvidiaVWS", 11: "NvidiaVGaming", 12: "QuadroRTX", 13: "NvidiaRTX", 14: "Nvidia",
    15: "GeForceRTX", 16: "TitanRTX",
}  # fmt: skip
_WISHES: Final = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "that programs on GPUs which talk to it are ended",
    4: "that the GPU is freed and reset",
    5: "a recovery of the NVLink domain",
    6: "a reset of the GPU's bus",
    7: "a reboot of the whole system",
}
"""NVML's nvmlDeviceGpuRecoveryAction_t."""

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class NvmlDriver:
    """A `Driver`. `sysfs` is where the kernel says which NUMA node a GPU is near."""

    def __init__(self, *, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs
        self._lock = threading.RLock()
        self._ear = threading.RLock()
        """Held while the library waits for an event: what it waits on must not be taken away meanwhile."""
        self._opened = False
        self._driver_version = ""
        self._cuda_version = ""
        self._events: Any = None
        self._uuids: dict[int, str] = {}
        self._links: dict[str, tuple[Link, ...]] = {}

    # --- the machine ------------------------------------------------------------------------------
    def open(self) -> None:
        with self._lock, self._ear:
            self.close()
            nvmlcalls.initialise()
            self._opened = True
            self._driver_version = _optional(lambda: str(call("nvmlSystemGetDriverVersion")), "")
            cuda = _optional(lambda: int(call("nvmlSystemGetCudaDriverVersion_v2")), 0)
            self._cuda_version = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
            self.listen()
            self._links = self._read_links(self._devices())

    def close(self) -> None:
        """Let go of the library, as soon as nobody waits for an event any more."""
        with self._lock, self._ear:
            if self._opened:
                self._opened = False
                for step in (self._stop_listening, nvmlcalls.shut_down):
                    with contextlib.suppress(DriverError):
                        step()

    def listen(self) -> None:
        with self._lock, self._ear:
            self._stop_listening()
            try:
                self._events = call("nvmlEventSetCreate")
            except DriverError as error:
                _log.warning("errors of GPUs (XIDs) cannot be followed", error=str(error))
            for device in self._devices().values():
                self._register(device)

    def query(self) -> Found:
        with self._lock:
            gpus: list[FoundGpu] = []
            silent: list[tuple[int, str]] = []
            for index in range(call("nvmlDeviceGetCount")):
                try:
                    gpus.append(self._gpu(index))
                except DriverError as error:
                    silent.append((index, str(error)))
            return Found(self._driver_version, self._cuda_version, tuple(gpus), tuple(silent))

    def query_gpu(self, gpu: str) -> FoundGpu:
        with self._lock:
            return self._gpu(call("nvmlDeviceGetIndex", self._find(gpu)))

    def wait(self, milliseconds: int) -> Xid | Changed | None:
        with self._ear:
            if self._events is None:
                raise DriverError(Trouble.NOT_SUPPORTED, "this driver reports no events")
            event = nvmlcalls.wait(self._events, milliseconds)
        if event is None:
            return None
        if event.eventType == nvmlcalls.MIG_EVENT:
            return Changed()
        if event.eventType != nvmlcalls.XID_EVENT:
            return None
        parts = (event.gpuInstanceId, event.computeInstanceId)
        instance, compute = (None if part == nvmlcalls.ANY_INSTANCE else int(part) for part in parts)
        # By address first: a GPU that has fallen off the bus does not say its UUID any more.
        uuid = self._uuids.get(nvmlcalls.address(event.device))
        return Xid(uuid, int(event.eventData), instance, compute)

    # --- MIG --------------------------------------------------------------------------------------
    def set_mig_mode(self, gpu: str, enabled: bool) -> bool:
        with self._lock:
            device = self._find(gpu)
            call("nvmlDeviceSetMigMode", device, int(enabled))
            current, _ = call("nvmlDeviceGetMigMode", device)
            return bool(current) == enabled

    def geometry(self, gpu: str) -> MigGeometry:
        with self._lock:
            device = self._find(gpu)
            total, _ = _memory(device)
            return nvmlmig.geometry(device, str(call("nvmlDeviceGetName", device)), total)

    def layout(self, gpu: str) -> MigLayout:
        with self._lock:
            geometry = self.geometry(gpu)
            return nvmlmig.layout(self._find(gpu), geometry)

    def create_gpu_instance(self, gpu: str, profile_id: int, start: int | None = None) -> GpuInstance:
        with self._lock:
            geometry = self.geometry(gpu)
            return nvmlmig.create_gpu_instance(self._find(gpu), geometry, profile_id, start)

    def destroy_gpu_instance(self, gpu: str, gpu_instance: int) -> None:
        with self._lock:
            call("nvmlGpuInstanceDestroy", self._instance(gpu, gpu_instance))

    def create_compute_instance(self, gpu: str, gpu_instance: int, slices: int) -> ComputeInstance:
        with self._lock:
            return nvmlmig.create_compute_instance(self._instance(gpu, gpu_instance), slices)

    def destroy_compute_instance(self, gpu: str, gpu_instance: int, compute_instance: int) -> None:
        with self._lock:
            instance = self._instance(gpu, gpu_instance)
            compute = call("nvmlGpuInstanceGetComputeInstanceById", instance, compute_instance)
            call("nvmlComputeInstanceDestroy", compute)

    # --- inside -----------------------------------------------------------------------------------
    def _devices(self) -> dict[str, Any]:
        """Handles of the GPUs that answer, by UUID."""
        devices: dict[str, Any] = {}
        for index in range(call("nvmlDeviceGetCount")):
            try:
                device = call("nvmlDeviceGetHandleByIndex", index)
                devices[str(call("nvmlDeviceGetUUID", device))] = device
            except DriverError:
                continue  # `query` says why
        self._uuids |= {nvmlcalls.address(device): uuid for uuid, device in devices.items()}
        return devices

    def _stop_listening(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            call("nvmlEventSetFree", events)

    def _find(self, gpu: str) -> Any:
        device = self._devices().get(gpu)
        if device is None:
            raise DriverError(Trouble.NOT_FOUND, f"the driver has no GPU {gpu} that answers")
        return device

    def _instance(self, gpu: str, gpu_instance: int) -> Any:
        return call("nvmlDeviceGetGpuInstanceById", self._find(gpu), gpu_instance)

    def _register(self, device: Any) -> None:
        if self._events is None:
            return
        try:
            supported = call("nvmlDeviceGetSupportedEventTypes", device)
            call("nvmlDeviceRegisterEvents", device, supported & nvmlcalls.EVENTS, self._events)
        except DriverError as error:
            uuid = self._uuids.get(nvmlcalls.address(device))
            _log.warning("the GPU's errors cannot be followed", gpu=uuid, error=str(error))

    def _gpu(self, index: int) -> FoundGpu:
        device = call("nvmlDeviceGetHandleByIndex", index)
        uuid = str(call("nvmlDeviceGetUUID", device))
        self._uuids[nvmlcalls.address(device)] = uuid
        total, reserved = _memory(device)
        pci = _optional(lambda: call("nvmlDeviceGetPciInfo", device), None)
        bus = str(pci.busId) if pci else ""
        # Not optional: a GPU that is partitioned must never be taken for a whole one.
        mode = _known(lambda: MigMode(*map(bool, call("nvmlDeviceGetMigMode", device))), None)
        wish = _optional(lambda: nvmlcalls.recovery_action(device), None)
        capability = _optional(lambda: call("nvmlDeviceGetCudaComputeCapability", device), ())
        return FoundGpu(
            index,
            uuid,
            str(call("nvmlDeviceGetName", device)),
            total,
            reserved,
            minor=_optional(lambda: int(call("nvmlDeviceGetMinorNumber", device)), None),
            pci_bus_id=bus,
            numa_node=self._numa_node(bus),
            brand=_BRANDS.get(_optional(lambda: int(call("nvmlDeviceGetBrand", device)), 0), "Unknown"),
            compute_capability=".".join(map(str, capability)),
            mig=mode,
            mig_devices=self._mig_devices(device, total) if mode and mode.current else (),
            links=self._links.get(uuid, ()),
            healthy=not wish,
            reason=f"the driver asks for {_WISHES.get(wish, f'recovery action {wish}')}" if wish else "",
            pci_device_id=(int(pci.pciDeviceId) or None) if pci else None,
            pci_subsystem_id=(int(pci.pciSubSystemId) or None) if pci else None,
            clique=_optional(lambda: nvmlcalls.clique(device), ""),
        )

    def _mig_devices(self, device: Any, total_mib: int) -> tuple[MigDevice, ...]:
        profiles = nvmlmig.numbers(device)
        found: list[MigDevice] = []
        for index in range(call("nvmlDeviceGetMaxMigDeviceCount", device)):
            try:
                mig = call("nvmlDeviceGetMigDeviceHandleByIndex", device, index)
                found.append(_mig_device(device, mig, index, total_mib, profiles))
            except DriverError as error:
                # Destroyed since they were counted, or never made: later indexes may still have a device.
                if error.trouble not in (Trouble.NOT_FOUND, Trouble.INVALID):
                    raise
        return tuple(found)

    def _numa_node(self, bus: str) -> int | None:
        """The NUMA node that the kernel names. NVML writes the PCI domain with eight digits, the kernel with
        four.
        """
        try:
            node = int((self._sysfs / "bus/pci/devices" / bus.lower()[4:] / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _read_links(self, devices: dict[str, Any]) -> dict[str, tuple[Link, ...]]:
        """Does not change while the driver is loaded; with 16 GPUs it takes some thousand calls."""
        buses = {uuid: _bus(device) for uuid, device in devices.items()}
        wires = {uuid: _nvlinks(device) for uuid, device in devices.items()}
        links: dict[str, tuple[Link, ...]] = {}
        for uuid, device in devices.items():
            found: list[Link] = []
            for other, peer in devices.items():
                if other == uuid:
                    continue
                try:
                    level = call("nvmlDeviceGetTopologyCommonAncestor", device, peer)
                    nearness = Nearness(int(level))
                except (DriverError, ValueError):
                    continue
                switched = min(wires[uuid].count(None), wires[other].count(None))
                found.append(Link(other, nearness, wires[uuid].count(buses[other]) + switched))
            links[uuid] = tuple(found)
        return links


def _known(question: Callable[[], T], otherwise: T) -> T:
    """The answer, or `otherwise` if this GPU or driver has none."""
    try:
        return question()
    except DriverError as error:
        if error.trouble in _UNKNOWN:
            return otherwise
        raise


def _optional(question: Callable[[], T], otherwise: T) -> T:
    """The answer, or `otherwise` if there is none, for whatever reason: what nobody has to know makes no GPU
    unhealthy. That the GPU is lost is no answer, but news.
    """
    try:
        return question()
    except DriverError as error:
        if error.trouble is Trouble.LOST:
            raise
        return otherwise


def _bus(device: Any) -> str:
    """Where it is on PCI, "" if it does not say."""
    try:
        return str(call("nvmlDeviceGetPciInfo", device).busId)
    except DriverError:
        return ""


def _memory(device: Any) -> tuple[int, int]:
    """MiB in total, and the part that the driver keeps. Before R510 that part was not in the total."""
    try:
        memory = call("nvmlDeviceGetMemoryInfo", device, nvmlcalls.MEMORY_V2)
    except DriverError as error:
        if error.trouble not in _UNKNOWN:
            raise
        return int(call("nvmlDeviceGetMemoryInfo", device).total) // MIB, 0
    return int(memory.total) // MIB, -(-int(memory.reserved) // MIB)


def _nvlinks(device: Any) -> list[str | None]:
    """Where each active NVLink of a GPU ends: the PCI bus id of another device, None for a switch."""
    ends: list[str | None] = []
    for link in range(nvmlcalls.MAX_LINKS):
        try:
            if not call("nvmlDeviceGetNvLinkState", device, link):
                continue
            if call("nvmlDeviceGetNvLinkRemoteDeviceType", device, link) == nvmlcalls.SWITCH:
                ends.append(None)
            else:
                ends.append(str(call("nvmlDeviceGetNvLinkRemotePciInfo", device, link).busId))
        except DriverError:
            continue
    return ends


def _mig_device(parent: Any, device: Any, index: int, total_mib: int, profiles: dict[int, int]) -> MigDevice:
    """One MIG device. `profiles`: NVML's number of each profile id, which tells the attribute in the name."""
    instance_id = int(call("nvmlDeviceGetGpuInstanceId", device))
    what = call("nvmlDeviceGetAttributes_v2", device)
    attribute, window = "", None
    try:
        info = call("nvmlGpuInstanceGetInfo", call("nvmlDeviceGetGpuInstanceById", parent, instance_id))
        attribute = ATTRIBUTES.get(profiles.get(info.profileId, 0), "")
        window = Window(info.placement.start, info.placement.size)
    except DriverError as error:
        if error.trouble is not Trouble.NO_PERMISSION:
            raise
    memory = int(what.memorySizeMB)
    return MigDevice(
        str(call("nvmlDeviceGetUUID", device)),
        instance_id,
        int(call("nvmlDeviceGetComputeInstanceId", device)),
        MigProfile(
            what.gpuInstanceSliceCount,
            named_gb(memory, total_mib),
            attribute,
            what.computeInstanceSliceCount,
        ),
        memory,
        Engines(
            what.multiprocessorCount,
            what.sharedCopyEngineCount,
            what.sharedDecoderCount,
            what.sharedEncoderCount,
            what.sharedJpegCount,
            what.sharedOfaCount,
        ),
        window,
        index=index,
    )
