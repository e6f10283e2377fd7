"""The GPU models we know by name, for simulated machines and for reading what users write.

On a real node the driver's own numbers win; nothing here limits which GPU can be shared. Memory is
NVML's `total` of current drivers and the part of it that the driver keeps for itself (`reserved` in
nvmlDeviceGetMemoryInfo_v2); their difference is what older drivers reported as the total and what
gpushare counts (T4 15109, V100 16160 and 32510, A100 40536 and 81251 MiB).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.errors import InputError


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One product: `name` as NVML says it, memory in MiB, compute capability such as "8.0".

    `mig_family` names the table of MIG profiles that fits it; None if it cannot be partitioned. `pci_device`
    is its number on PCI, where NVIDIA is vendor 0x10DE.
    """

    name: str
    memory_mib: int
    reserved_mib: int
    architecture: str
    compute_capability: str
    mig_family: str | None = None
    aliases: tuple[str, ...] = ()
    pci_device: int | None = None

    @property
    def usable_mib(self) -> int:
        """Memory that containers can hold, in MiB."""
        return self.memory_mib - self.reserved_mib


MODELS: tuple[GpuModel, ...] = (
    GpuModel("Tesla K80", 11520, 79, "kepler", "3.7", aliases=("K80",), pci_device=0x102D),
    GpuModel("Tesla M60", 8192, 63, "maxwell", "5.2", aliases=("M60",), pci_device=0x13F2),
    GpuModel("Tesla P100-PCIE-12GB", 12288, 90, "pascal", "6.0", aliases=("P100-12",), pci_device=0x15F7),
    GpuModel(
        "Tesla P100-PCIE-16GB",
        16384,
        104,
        "pascal",
        "6.0",
        aliases=("P100", "P100-16", "Tesla P100"),
        pci_device=0x15F8,
    ),
    GpuModel(
        "Tesla V100-SXM2-16GB",
        16384,
        224,
        "volta",
        "7.0",
        aliases=("V100", "V100-16", "Tesla V100"),
        pci_device=0x1DB1,
    ),
    GpuModel("Tesla V100-SXM2-32GB", 32768, 258, "volta", "7.0", aliases=("V100-32",), pci_device=0x1DB5),
    GpuModel("Tesla T4", 15360, 251, "turing", "7.5", aliases=("T4",), pci_device=0x1EB8),
    GpuModel("NVIDIA A10", 23028, 297, "ampere", "8.6", aliases=("A10",), pci_device=0x2236),
    GpuModel("NVIDIA A30", 24576, 512, "ampere", "8.0", "A30", ("A30",), pci_device=0x20B7),
    GpuModel(
        "NVIDIA A100-SXM4-40GB",
        40960,
        424,
        "ampere",
        "8.0",
        "A100-40",
        ("A100", "A100-40", "A100-SXM4-40GB"),
        pci_device=0x20B0,
    ),
    GpuModel(
        "NVIDIA A100-SXM4-80GB",
        81920,
        669,
        "ampere",
        "8.0",
        "A100-80",
        ("A100-80", "A100-SXM4-80GB"),
        pci_device=0x20B2,
    ),
    GpuModel("NVIDIA L4", 23034, 457, "ada-lovelace", "8.9", aliases=("L4",), pci_device=0x27B8),
    GpuModel("NVIDIA L40S", 46068, 478, "ada-lovelace", "8.9", aliases=("L40S",), pci_device=0x26B9),
    GpuModel(
        "NVIDIA H100 80GB HBM3",
        81559,
        551,
        "hopper",
        "9.0",
        "H100-80",
        ("H100", "H100-80"),
        pci_device=0x2330,
    ),
    GpuModel(
        "NVIDIA H100 NVL", 95830, 577, "hopper", "9.0", "H100-94", ("H100-94", "H100-NVL"), pci_device=0x2321
    ),
    GpuModel("NVIDIA H200", 143771, 593, "hopper", "9.0", "H200", ("H200",), pci_device=0x2335),
    GpuModel("NVIDIA B200", 183359, 723, "blackwell", "10.0", "B200", ("B200",), pci_device=0x2901),
    GpuModel(
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        97887,
        638,
        "blackwell",
        "12.0",
        "RTX-PRO-6000",
        ("RTX PRO 6000", "RTX-PRO-6000"),
        pci_device=0x2BB5,
    ),
)

_BY_NAME = {name.casefold(): model for model in MODELS for name in (model.name, *model.aliases)}


def find_model(text: str) -> GpuModel:
    """The model of that NVML name or short name ("T4", "Tesla T4", "A100-80"), in any case.

    Raises InputError that lists the known short names.
    """
    model = _BY_NAME.get(text.strip().casefold())
    if model is None:
        known = ", ".join(model.aliases[0] for model in MODELS)
        raise InputError(
            f"GPU model {text!r} is unknown; use one of {known}, or give memoryMiB with a name of your own"
        )
    return model
