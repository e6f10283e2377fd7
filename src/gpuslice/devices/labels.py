"""Makes the labels that describe a node's GPUs: GPU feature discovery's, and three of other origin. Pure.

The keys, values and oddities are NVIDIA's, because selectors in the field are written for them; oddities are
told where they are. Beside them stand `alpha.kubernetes.io/nvidia-gpu-name`, which Kubernetes' documentation
had administrators set before there was feature discovery, and how much memory one `nvidia.com/gpu` really
is, which NVIDIA's labels do not say of replicas. Sources: NVIDIA/k8s-device-plugin `internal/lm`;
kubernetes.io, "Schedule GPUs", 1.6 to 1.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuslice import names
from gpuslice.devices.found import Found, FoundGpu, MigDevice
from gpuslice.devices.labelvalue import label_value
from gpuslice.devices.migprofile import MigProfile
from gpuslice.devices.sharing import UNSHARED, MigStrategy, Sharing, SharingStrategy

GRAPHICS: Final = 0x0300
COMPUTE: Final = 0x0302
"""PCI classes: a VGA controller, a 3D controller."""
_PREFIX: Final = "nvidia.com/"
_NODE_KEYS: Final = (
    "cuda.driver.major",
    "cuda.driver.minor",
    "cuda.driver.rev",
    "cuda.driver-version.major",
    "cuda.driver-version.minor",
    "cuda.driver-version.revision",
    "cuda.driver-version.full",
    "cuda.runtime.major",
    "cuda.runtime.minor",
    "cuda.runtime-version.major",
    "cuda.runtime-version.minor",
    "cuda.runtime-version.full",
    "gfd.timestamp",
    "gpu.machine",
    "gpu.mode",
    "gpu.clique",
    "mig.capable",
    "mig.strategy",
    "mps.capable",
    "vgpu.present",
    "vgpu.host-driver-version",
    "vgpu.host-driver-branch",
)
_RESOURCE_KEYS: Final = (
    "product",
    "count",
    "replicas",
    "sharing-strategy",
    "memory",
    "family",
    "compute.major",
    "compute.minor",
    "multiprocessors",
    "slices.gi",
    "slices.ci",
    "engines.copy",
    "engines.decoder",
    "engines.encoder",
    "engines.jpeg",
    "engines.ofa",
)
_OURS: Final = frozenset(
    [names.HISTORICAL_GPU_NAME, names.LABEL_GPU_MEMORY, names.LABEL_GPU_MEMORY_MIB]
    + [_PREFIX + key for key in _NODE_KEYS]
    + [f"{names.WHOLE_GPU}.{key}" for key in _RESOURCE_KEYS]
)
_VOLTA_AND_TURING: Final = 7
_AMPERE_AND_ADA: Final = 8
_FAMILIES: Final = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}


@dataclass(frozen=True, slots=True)
class Vgpu:
    """What the host tells a guest that has a vGPU."""

    host_driver_version: str
    host_driver_branch: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known beside the driver's answers; all of it may be missing.

    `product` is the DMI name; `pci_classes` (0x0302) go by UUID; `timestamp` is in unix seconds and is said
    only if it is given.
    """

    product: str = ""
    pci_classes: Mapping[str, int] = field(default_factory=dict)
    vgpu: Vgpu | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The whole mapping by key, and sentences about what it cannot say."""

    labels: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def node_labels(
    found: Found,
    machine: Machine,
    strategy: MigStrategy = MigStrategy.NONE,
    sharing: Sharing = UNSHARED,
) -> NodeLabels:
    """Every label of a node with these GPUs; none at all for a node without."""
    gpus = [gpu for gpu in found.gpus if not gpu.is_for_displays]
    if not gpus:
        return NodeLabels({})
    warnings: list[str] = []
    values = _versions(found, warnings)
    if machine.timestamp is not None:
        values["gfd.timestamp"] = machine.timestamp
    values["gpu.machine"] = label_value(machine.product) or "unknown"
    values["gpu.mode"] = _mode(gpus, machine)
    if clique := _clique(gpus, warnings):
        values["gpu.clique"] = clique
    values["mig.capable"] = any(gpu.mig is not None for gpu in gpus)
    if strategy is not MigStrategy.NONE:
        values["mig.strategy"] = strategy
    values["mps.capable"] = sharing.strategy is SharingStrategy.MPS
    values["vgpu.present"] = machine.vgpu is not None
    if machine.vgpu is not None:
        values["vgpu.host-driver-version"] = label_value(machine.vgpu.host_driver_version)
        values["vgpu.host-driver-branch"] = label_value(machine.vgpu.host_driver_branch)
    values |= _full_gpus(gpus, sharing, warnings)
    wrong = _why_not_single(gpus) if strategy is MigStrategy.SINGLE else ""
    if wrong:
        warnings.append(f"mig-strategy=single cannot be met: {wrong}")
        values |= _invalid(gpus)
    elif strategy is MigStrategy.SINGLE:
        values |= _single(gpus, sharing)
    elif strategy is MigStrategy.MIXED:
        values |= _mixed(gpus, sharing)
    labels = {_PREFIX + key: _text(value) for key, value in values.items()}
    labels[names.HISTORICAL_GPU_NAME] = label_value(gpus[0].name)
    mib = 0 if wrong else _capacity(gpus, strategy, sharing)
    if mib:
        labels[names.LABEL_GPU_MEMORY] = f"{(mib + 512) // 1024}GB"
        labels[names.LABEL_GPU_MEMORY_MIB] = str(mib)
    return NodeLabels(dict(sorted(labels.items())), tuple(warnings))


def stale(present: Iterable[str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that must be removed from a node: ours that are no longer among its labels.

    Others' labels under nvidia.com/ stay: mig.config and its state, device-plugin.config, gpu.deploy.*,
    gpu.present and all that may come.
    """
    return tuple(sorted(key for key in present if key not in wanted and owned(key)))


def owned(key: str) -> bool:
    """True for a label that is written here."""
    if key in _OURS:
        return True
    return any(
        key.endswith(f".{suffix}") and MigProfile.of_resource(key.removesuffix(f".{suffix}")) is not None
        for suffix in _RESOURCE_KEYS
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- the node ---------------------------------------------------------------------------------------
def _versions(found: Found, warnings: list[str]) -> dict[str, object]:
    values: dict[str, object] = {}
    driver = found.driver_version.split(".")
    if 2 <= len(driver) <= 3:
        major, minor, revision = (label_value(part) for part in (*driver, "")[:3])
        values = {
            "cuda.driver.major": major,
            "cuda.driver.minor": minor,
            "cuda.driver.rev": revision,
            "cuda.driver-version.major": major,
            "cuda.driver-version.minor": minor,
            "cuda.driver-version.revision": revision,
            "cuda.driver-version.full": label_value(found.driver_version),
        }
    else:
        warnings.append(f"driver version {found.driver_version!r} is not of the form X.Y or X.Y.Z: no labels")
    cuda = found.cuda_version.split(".")
    if len(cuda) == 2:
        major, minor = map(label_value, cuda)
        values |= {
            "cuda.runtime.major": major,
            "cuda.runtime.minor": minor,
            "cuda.runtime-version.major": major,
            "cuda.runtime-version.minor": minor,
            "cuda.runtime-version.full": label_value(found.cuda_version),
        }
    else:
        warnings.append(f"CUDA version {found.cuda_version!r} is not of the form X.Y: no labels")
    return values


def _mode(gpus: Sequence[FoundGpu], machine: Machine) -> str:
    classes = {machine.pci_classes.get(gpu.uuid) for gpu in gpus}
    if classes == {COMPUTE}:
        return "compute"
    return "graphics" if classes == {GRAPHICS} else "unknown"


def _clique(gpus: Sequence[FoundGpu], warnings: list[str]) -> str:
    cliques = {gpu.clique for gpu in gpus if gpu.clique}
    if len(cliques) > 1:
        warnings.append("the GPUs are in different NVLink cliques: gpu.clique is not set")
        return ""
    return label_value(next(iter(cliques), ""))


# --- resources --------------------------------------------------------------------------------------
def _partitioned(gpu: FoundGpu) -> bool:
    return gpu.mig is not None and gpu.mig.current


def _full_gpus(gpus: Sequence[FoundGpu], sharing: Sharing, warnings: list[str]) -> dict[str, object]:
    """Labels of `gpu`. Of several models the last one is described, GPUs without MIG after those with.

    GPUs in MIG mode are counted as well, as NVIDIA does: gpu.count is no capacity. The replicas are 0 where
    every GPU of the model is in MIG mode.
    """
    models = tuple(dict.fromkeys(gpu.name for gpu in gpus))
    if len(models) > 1:
        warnings.append(
            f"several GPU models on one node ({', '.join(models)}): the labels of gpu describe one of them"
        )
    values: dict[str, object] = {}
    for partitioned in (True, False):
        for gpu in {gpu.name: gpu for gpu in gpus if _partitioned(gpu) is partitioned}.values():
            count = sum(other.name == gpu.name for other in gpus)
            values |= _resource("gpu", names.WHOLE_GPU, count, None if partitioned else sharing, gpu.name)
            if gpu.memory_mib:
                values["gpu.memory"] = gpu.memory_mib
            major, _, minor = gpu.compute_capability.partition(".")
            if major.isdecimal() and minor.isdecimal():
                values |= {
                    "gpu.family": _family(int(major), int(minor)),
                    "gpu.compute.major": int(major),
                    "gpu.compute.minor": int(minor),
                }
    return values


def _family(major: int, minor: int) -> str:
    if major == _VOLTA_AND_TURING:
        return "volta" if minor < 5 else "turing"
    if major == _AMPERE_AND_ADA:
        return "ampere" if minor < 9 else "ada-lovelace"
    return _FAMILIES.get(major, "undefined")


def _resource(
    key: str, resource: str, count: int, sharing: Sharing | None, *product: str
) -> dict[str, object]:
    """`sharing` None: these devices are not given out under that name, which NVIDIA tells by 0 replicas.

    Where devices of one resource have different numbers of replicas, the largest is told.
    """
    entries = sharing.of(resource) if sharing is not None else ()
    replicas = 0 if sharing is None else max((entry.replicas for entry in entries), default=1)
    marks = ("SHARED",) if entries and not any(entry.rename for entry in entries) else ()
    return {
        f"{key}.product": label_value(*product, *marks),
        f"{key}.count": count,
        f"{key}.replicas": replicas,
        f"{key}.sharing-strategy": sharing.strategy if sharing and entries else SharingStrategy.NONE,
    }


def _why_not_single(gpus: Sequence[FoundGpu]) -> str:
    """Why not every device can be one `nvidia.com/gpu`, in NVIDIA's words; empty if it can."""
    partitioned = [gpu for gpu in gpus if _partitioned(gpu)]
    if not all(gpu.mig_devices for gpu in partitioned):
        return "at least one MIG device is enabled but empty"
    if partitioned and len(partitioned) != len(gpus):
        return "devices with MIG enabled and disabled detected"
    if len({device.profile for gpu in partitioned for device in gpu.mig_devices}) > 1:
        return "more than one MIG device type present on node"
    return ""


def _invalid(gpus: Sequence[FoundGpu]) -> dict[str, object]:
    model = next(gpu.name for gpu in gpus if _partitioned(gpu))
    return {
        "gpu.product": label_value(model, "MIG", "INVALID"),
        "gpu.count": 0,
        "gpu.replicas": 0,
        "gpu.memory": 0,
        "gpu.sharing-strategy": "",
    }


def _single(gpus: Sequence[FoundGpu], sharing: Sharing) -> dict[str, object]:
    devices = [(gpu.name, device) for gpu in gpus if _partitioned(gpu) for device in gpu.mig_devices]
    return _mig_resource("gpu", names.WHOLE_GPU, devices, sharing) if devices else {}


def _mixed(gpus: Sequence[FoundGpu], sharing: Sharing) -> dict[str, object]:
    groups: dict[MigProfile, list[tuple[str, MigDevice]]] = {}
    for gpu in gpus:
        for device in gpu.mig_devices if _partitioned(gpu) else ():
            groups.setdefault(device.profile, []).append((gpu.name, device))
    values: dict[str, object] = {}
    for profile, devices in groups.items():
        values |= _mig_resource(f"mig-{profile.label}", profile.resource, devices, sharing)
    return values


def _mig_resource(
    key: str, resource: str, devices: Sequence[tuple[str, MigDevice]], sharing: Sharing
) -> dict[str, object]:
    """Labels of MIG devices of one profile, with the names of the GPUs that they are on.

    What the driver does not say is 0, as NVML has it.
    """
    model, one = devices[0]
    engines = one.engines
    return _resource(key, resource, len(devices), sharing, model, "MIG", one.profile.label) | {
        f"{key}.memory": one.memory_mib or 0,
        f"{key}.multiprocessors": engines.sm or 0,
        f"{key}.slices.gi": one.profile.slices,
        f"{key}.slices.ci": one.profile.compute,
        f"{key}.engines.copy": engines.copy or 0,
        f"{key}.engines.decoder": engines.decoder or 0,
        f"{key}.engines.encoder": engines.encoder or 0,
        f"{key}.engines.jpeg": engines.jpeg or 0,
        f"{key}.engines.ofa": engines.ofa or 0,
    }


def _capacity(gpus: Sequence[FoundGpu], strategy: MigStrategy, sharing: Sharing) -> int:
    """MiB that go with one `nvidia.com/gpu`, the least where they differ; 0 if there is no such thing.

    Of a replica it is the even part: what it can hold if its neighbours hold no more than theirs.
    """
    sizes = [gpu.memory_mib for gpu in gpus if strategy is MigStrategy.NONE or not _partitioned(gpu)]
    if strategy is MigStrategy.SINGLE and not sizes:
        sizes = [device.memory_mib or 0 for gpu in gpus for device in gpu.mig_devices]
    entries = sharing.of(names.WHOLE_GPU)
    if not sizes or any(entry.rename and entry.devices.all for entry in entries):
        return 0
    return min(sizes) // max((entry.replicas for entry in entries if not entry.rename), default=1)
