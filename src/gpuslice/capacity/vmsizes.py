"""The machines that cloud VM sizes stand for, and how their GPUs can be partitioned. Data, and pure.

Source: Azure's documentation of GPU-accelerated VM sizes (NC, ND and NV series). Sizes that hold a part of a
GPU (NVads A10 below 36 vCPU) or GPUs of other makers than NVIDIA are not included.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gpuslice.capacity.pools import GpuInstanceProfile
from gpuslice.config.migstandard import standard_configs
from gpuslice.devices.catalogue import GpuModel, find_model
from gpuslice.devices.migtables import geometry_of
from gpuslice.errors import InputError, quoted

DISABLED: Final = "all-disabled"
"""The configuration of a node whose GPUs are whole."""


@dataclass(frozen=True)
class VmSize:
    """A type of machine. `gpu` is a model's short name; `nvlinks` how many two of its GPUs share."""

    name: str
    gpu: str
    gpus: int
    vcpus: int
    memory_gib: int
    nvlinks: int = 0

    @cached_property
    def model(self) -> GpuModel:
        """The GPUs' model."""
        return find_model(self.gpu)


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How each GPU is partitioned: mig-parted's name for it (all-1g.5gb) and the instances ("1g.5gb",
    ...).
    """

    config: str
    instances: tuple[str, ...]


VM_SIZES: Final = (
    VmSize("Standard_NC6", "K80", 1, 6, 56),
    VmSize("Standard_NC12", "K80", 2, 12, 112),
    VmSize("Standard_NC24", "K80", 4, 24, 224),
    VmSize("Standard_NC24r", "K80", 4, 24, 224),
    VmSize("Standard_NC6s_v2", "P100", 1, 6, 112),
    VmSize("Standard_NC12s_v2", "P100", 2, 12, 224),
    VmSize("Standard_NC24s_v2", "P100", 4, 24, 448),
    VmSize("Standard_NC24rs_v2", "P100", 4, 24, 448),
    VmSize("Standard_NC6s_v3", "V100", 1, 6, 112),
    VmSize("Standard_NC12s_v3", "V100", 2, 12, 224),
    VmSize("Standard_NC24s_v3", "V100", 4, 24, 448),
    VmSize("Standard_NC24rs_v3", "V100", 4, 24, 448),
    VmSize("Standard_NC4as_T4_v3", "T4", 1, 4, 28),
    VmSize("Standard_NC8as_T4_v3", "T4", 1, 8, 56),
    VmSize("Standard_NC16as_T4_v3", "T4", 1, 16, 110),
    VmSize("Standard_NC64as_T4_v3", "T4", 4, 64, 440),
    VmSize("Standard_NC24ads_A100_v4", "A100-80", 1, 24, 220),
    VmSize("Standard_NC48ads_A100_v4", "A100-80", 2, 48, 440),
    VmSize("Standard_NC96ads_A100_v4", "A100-80", 4, 96, 880),
    VmSize("Standard_NC40ads_H100_v5", "H100-94", 1, 40, 320),
    VmSize("Standard_NC80adis_H100_v5", "H100-94", 2, 80, 640),
    VmSize("Standard_ND40rs_v2", "V100-32", 8, 40, 672),
    VmSize("Standard_ND96asr_v4", "A100-40", 8, 96, 900, nvlinks=12),
    VmSize("Standard_ND96amsr_A100_v4", "A100-80", 8, 96, 1900, nvlinks=12),
    VmSize("Standard_ND96isr_H100_v5", "H100-80", 8, 96, 1900, nvlinks=18),
    VmSize("Standard_ND96isr_H200_v5", "H200", 8, 96, 1850, nvlinks=18),
    VmSize("Standard_NV6", "M60", 1, 6, 56),
    VmSize("Standard_NV12", "M60", 2, 12, 112),
    VmSize("Standard_NV24", "M60", 4, 24, 224),
    VmSize("Standard_NV12s_v3", "M60", 1, 12, 112),
    VmSize("Standard_NV24s_v3", "M60", 2, 24, 224),
    VmSize("Standard_NV48s_v3", "M60", 4, 48, 448),
    VmSize("Standard_NV36ads_A10_v5", "A10", 1, 36, 440),
    VmSize("Standard_NV72ads_A10_v5", "A10", 2, 72, 880),
)
_BY_NAME: Final = {size.name.casefold(): size for size in VM_SIZES}


def find_size(name: str, *, field: str = "vmSize") -> VmSize:
    """The VM size of that name, in any case of letters as Azure has it. Raises InputError."""
    found = _BY_NAME.get(name.casefold())
    if found is None:
        close = difflib.get_close_matches(name.casefold(), _BY_NAME, n=1, cutoff=0.9)
        hint = (
            f"did you mean {_BY_NAME[close[0]].name}?"
            if close
            else "use one with NVIDIA GPUs, such as Standard_ND96asr_v4 or Standard_NC4as_T4_v3"
        )
        raise InputError(f"{quoted(name)} is not a VM size that is known here; {hint}", field=field)
    return found


def partitioning_of(
    model: GpuModel, profile: GpuInstanceProfile, *, field: str = "gpuInstanceProfile"
) -> Partitioning:
    """How an AKS profile partitions a GPU of that model: as many as fit of the plainest instances of that
    size.

    MIG1g on an A100 with 40 GB is seven times 1g.5gb. Raises InputError if the model has no such instances.
    """
    if model.mig_family is None:
        raise InputError(
            f"{profile} is not possible: {model.name} cannot be partitioned; leave the profile out",
            field=field,
        )
    geometry = geometry_of(model.mig_family)
    plain = [p.name for p in geometry.profiles if not p.name.attribute]
    so_large = [name for name in plain if name.slices == profile.slices]
    if not so_large:
        possible = ", ".join(f"MIG{slices}g" for slices in sorted({name.slices for name in plain}))
        raise InputError(f"{profile} is not possible on {model.name}; use {possible}", field=field)
    name = min(so_large, key=lambda name: name.memory_gb)
    config = f"all-{name.label}"
    (entry,) = standard_configs([((), geometry)]).configs[config]
    return Partitioning(config, (str(name),) * entry.devices[name])
