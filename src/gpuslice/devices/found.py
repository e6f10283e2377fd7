"""A node's GPUs as its driver reports them: NVML's answers, or those of a simulated machine. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gpuslice.devices.availability import of_health
from gpuslice.devices.inventory import Gpu
from gpuslice.devices.mig import Engines
from gpuslice.devices.migprofile import MigProfile


class Nearness(IntEnum):
    """The closest thing on PCIe that two GPUs share, nearest first. Values of `nvmlGpuTopologyLevel_t`."""

    BOARD = 0
    SWITCH = 10
    SWITCHES = 20
    HOST_BRIDGE = 30
    NUMA_NODE = 40
    SYSTEM = 50


@dataclass(frozen=True, slots=True)
class Link:
    """How one GPU reaches another, by the other's UUID. `nvlinks` counts those through a switch, too."""

    uuid: str
    nearness: Nearness
    nvlinks: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """The memory slices of a GPU instance: `size` of them from `start`."""

    start: int
    size: int

    def __str__(self) -> str:
        return f"{self.start}:{self.size}"


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One compute instance in a GPU instance, which is what a container can be given.

    `index` is NVML's on this GPU, as nvidia-smi and ids such as "0:3" have it; others' coming may change it.
    `window` is None where the driver does not say it to this user, `memory_mib` on paper where no table does.
    """

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: MigProfile
    memory_mib: int | None
    engines: Engines
    window: Window | None = None
    healthy: bool = True
    reason: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class MigMode:
    """The MIG mode of a GPU that can be partitioned. If `pending` differs, it takes effect when the GPU is
    reset.
    """

    current: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """One physical GPU. Memory in MiB; what is None the driver does not know.

    `memory_mib` is all of it, `reserved_mib` the driver's own part. `pci_bus_id` is written as NVML does:
    00000000:07:00.0. `pci_device_id` is device and vendor in one number (0x20B010DE), `pci_subsystem_id` the
    same of the board's maker. `mig` is None if it cannot be partitioned. `clique` names the GPUs of all nodes
    that reach each other by NVLink, as "CLUSTER-UUID.NUMBER"; "" if it is in no such fabric.
    """

    index: int
    uuid: str
    name: str
    memory_mib: int
    reserved_mib: int
    minor: int | None = None
    pci_bus_id: str = ""
    numa_node: int | None = None
    brand: str = "Unknown"
    compute_capability: str = ""
    mig: MigMode | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    links: tuple[Link, ...] = ()
    healthy: bool = True
    reason: str = ""
    pci_device_id: int | None = None
    pci_subsystem_id: int | None = None
    clique: str = ""

    @property
    def is_for_displays(self) -> bool:
        """True for the small GPU that a DGX Station has for its screens, which is not for pods."""
        return self.name.removeprefix("NVIDIA ") == "DGX Display"

    @property
    def usable_mib(self) -> int:
        """Memory that containers can hold."""
        return self.memory_mib - self.reserved_mib

    @property
    def shared(self) -> Gpu:
        """The GPU as containers see it that share its memory."""
        return Gpu(
            self.index,
            self.uuid,
            self.name,
            self.usable_mib,
            of_health(self.healthy, self.reason),
            numa_node=self.numa_node,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A whole machine: its GPUs by index. `silent` are those that the driver cannot ask: index, why.

    `complete`: a GPU that is not listed is not there. NVML also leaves out what it cannot reach.
    """

    driver_version: str
    cuda_version: str
    gpus: tuple[FoundGpu, ...]
    silent: tuple[tuple[int, str], ...] = ()
    complete: bool = False
