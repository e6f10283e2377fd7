"""The settings of NVIDIA's device plugin and GPU feature discovery, from everywhere they can be given. Pure.

The command line wins over the environment, that over the file, that over the default, setting by setting.
Names and defaults are NVIDIA's; where labels go has another default here (see `Flags`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final, TypeVar

from gpuslice.devices.sharing import AllocationPolicy, MigStrategy
from gpuslice.errors import InputError

E = TypeVar("E", bound=StrEnum)


class DeviceListStrategy(StrEnum):
    """How the devices of a container are named to the container runtime."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


class DeviceIdStrategy(StrEnum):
    """What a device is called there."""

    UUID = "uuid"
    INDEX = "index"


class Discovery(StrEnum):
    """Where devices are looked for."""

    AUTO = "auto"
    NVML = "nvml"
    TEGRA = "tegra"
    VFIO = "vfio"


@dataclass(frozen=True, slots=True)
class Flags:
    """Every setting. `nvidia_dev_root` is the driver root if it is not given.

    `use_node_feature_api` and `output_file` are None where nobody says anything: then labels are put on the
    node itself, which needs no Node Feature Discovery. `sleep_interval_ms` is None for "infinite".
    """

    mig_strategy: MigStrategy = MigStrategy.NONE
    fail_on_init_error: bool = True
    mps_root: str = ""
    nvidia_driver_root: str = "/"
    nvidia_dev_root: str = ""
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    use_node_feature_api: bool | None = None
    device_discovery_strategy: Discovery = Discovery.AUTO
    pass_device_specs: bool = False
    device_list_strategy: tuple[DeviceListStrategy, ...] = (DeviceListStrategy.ENVVAR,)
    device_id_strategy: DeviceIdStrategy = DeviceIdStrategy.UUID
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    nvidia_ctk_path: str = "/usr/bin/nvidia-ctk"
    container_driver_root: str = "/driver-root"
    shared_devices_allocation_policy: AllocationPolicy = AllocationPolicy.DISTRIBUTED
    kubelet_socket: str = "/var/lib/kubelet/device-plugins/kubelet.sock"
    oneshot: bool = False
    no_timestamp: bool = False
    sleep_interval_ms: int | None = 60_000
    output_file: str | None = None
    machine_type_file: str = "/sys/class/dmi/id/product_name"
    imex_channel_ids: tuple[int, ...] = ()
    imex_required: bool = False


_TRUE: Final = ("1", "t", "T", "true", "TRUE", "True")
_FALSE: Final = ("0", "f", "F", "false", "FALSE", "False")
_NUMBER: Final = r"(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})"
_UNIT: Final = "ns|us|\u00b5s|\u03bcs|ms|s|m|h"
_DURATION: Final = re.compile(rf"\+?(?:{_NUMBER}(?:{_UNIT})){{1,9}}")
_PART: Final = re.compile(rf"({_NUMBER})({_UNIT})")
_MICROSECOND: Final = Fraction(1, 1000)
_MS: Final[Mapping[str, Fraction | int]] = {
    "ns": Fraction(1, 1_000_000),
    "us": _MICROSECOND, "\u00b5s": _MICROSECOND, "\u03bcs": _MICROSECOND,
    "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000,
}  # fmt: skip


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("text")  # noqa: TRY004 - read as a sentence
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value not in _TRUE + _FALSE:
        raise ValueError("true or false")
    return value in _TRUE


def _choice(kind: type[E]) -> Callable[[object], E]:
    def read(value: object) -> E:
        try:
            return kind(str(value))
        except ValueError as error:
            raise ValueError("one of " + ", ".join(kind)) from error

    return read


def _items(value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _strategies(value: object) -> tuple[DeviceListStrategy, ...]:
    read = _choice(DeviceListStrategy)
    found = tuple(dict.fromkeys(read(item) for item in _items(value)))
    if not found:
        raise ValueError("at least one of " + ", ".join(DeviceListStrategy))
    return found


def _channels(value: object) -> tuple[int, ...]:
    found = tuple(str(item) for item in _items(value))
    if found not in ((), ("0",)):
        raise ValueError("[] or [0], the only channel there is")
    return tuple(int(item) for item in found)


def _milliseconds(value: object) -> int | None:
    """A duration as Go's time.ParseDuration reads it, down to whole milliseconds; None for "infinite"."""
    if value == "infinite":
        return None
    if value in ("0", "+0") or (value == 0 and isinstance(value, int)):
        return 0
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        raise ValueError("a duration such as 60s or 1m30s, or infinite")
    return int(sum(Fraction(f"0{number}") * _MS[unit] for number, unit in _PART.findall(value)))


@dataclass(frozen=True, slots=True)
class _Row:
    """One setting: its field of `Flags`, how it is read, and what it is called in the file, on the command
    line and in the environment. The first name of each is the one that is used in sentences.
    """

    field: str
    read: Callable[[object], object]
    file: str | None
    cli: tuple[str, ...]
    env: tuple[str, ...]


def _row(
    name: str, read: Callable[[object], object], file: str | None, *cli: str, env: tuple[str, ...] = ()
) -> _Row:
    """The environment's name is the command line's in capitals, if nothing else is given."""
    return _Row(name, read, file, cli, env or (cli[0].replace("-", "_").upper(),))


def _gfd(name: str, read: Callable[[object], object], key: str, cli: str) -> _Row:
    return _row(name, read, f"flags.gfd.{key}", cli, env=("GFD_" + cli.replace("-", "_").upper(),))


_ROWS: Final = (
    _row("mig_strategy", _choice(MigStrategy), "flags.migStrategy", "mig-strategy"),
    _row("fail_on_init_error", _boolean, "flags.failOnInitError", "fail-on-init-error"),
    _row("mps_root", _text, "flags.mpsRoot", "mps-root"),
    _row(
        "nvidia_driver_root",
        _text,
        "flags.nvidiaDriverRoot",
        "nvidia-driver-root",
        "driver-root",
    ),
    _row("nvidia_dev_root", _text, "flags.nvidiaDevRoot", "nvidia-dev-root", "dev-root"),
    _row("gdrcopy_enabled", _boolean, "flags.gdrcopyEnabled", "gdrcopy-enabled"),
    _row("gds_enabled", _boolean, "flags.gdsEnabled", "gds-enabled"),
    _row("mofed_enabled", _boolean, "flags.mofedEnabled", "mofed-enabled"),
    _row(
        "use_node_feature_api",
        _boolean,
        "flags.useNodeFeatureAPI",
        "use-node-feature-api",
        env=("USE_NODE_FEATURE_API", "GFD_USE_NODE_FEATURE_API"),
    ),
    _row(
        "device_discovery_strategy",
        _choice(Discovery),
        "flags.deviceDiscoveryStrategy",
        "device-discovery-strategy",
    ),
    _row("pass_device_specs", _boolean, "flags.plugin.passDeviceSpecs", "pass-device-specs"),
    _row("device_list_strategy", _strategies, "flags.plugin.deviceListStrategy", "device-list-strategy"),
    _row(
        "device_id_strategy", _choice(DeviceIdStrategy), "flags.plugin.deviceIDStrategy", "device-id-strategy"
    ),
    _row("cdi_annotation_prefix", _text, "flags.plugin.cdiAnnotationPrefix", "cdi-annotation-prefix"),
    _row(
        "nvidia_ctk_path",
        _text,
        "flags.plugin.nvidiaCTKPath",
        "nvidia-cdi-hook-path",
        "nvidia-ctk-path",
        env=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
    ),
    _row(
        "container_driver_root",
        _text,
        "flags.plugin.containerDriverRoot",
        "container-driver-root",
        "driver-root-ctr-path",
        env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
    ),
    _row(
        "shared_devices_allocation_policy",
        _choice(AllocationPolicy),
        "flags.plugin.sharedDevicesAllocationPolicy",
        "shared-devices-allocation-policy",
    ),
    _row("kubelet_socket", _text, None, "kubelet-socket"),
    _gfd("oneshot", _boolean, "oneshot", "oneshot"),
    _gfd("no_timestamp", _boolean, "noTimestamp", "no-timestamp"),
    _gfd("sleep_interval_ms", _milliseconds, "sleepInterval", "sleep-interval"),
    _gfd("output_file", _text, "outputFile", "output-file"),
    _gfd("machine_type_file", _text, "machineTypeFile", "machine-type-file"),
    _row("imex_channel_ids", _channels, "imex.channelIDs", "imex-channel-ids"),
    _row("imex_required", _boolean, "imex.required", "imex-required"),
)
_EMPTY_MEANS: Final = frozenset({"kubelet_socket"})
"""Settings for which an empty environment variable says something: serve, but do not register."""


def check(file: Mapping[str, object]) -> None:
    """Raises InputError naming the place if a value in a file cannot be."""
    for row in _ROWS:
        if row.file is not None and row.file in file:
            _read(row, file[row.file], row.file)


def effective(file: Mapping[str, object], *, cli: Mapping[str, object], env: Mapping[str, str]) -> Flags:
    """What counts. `file` is `NvidiaConfig.flags`; `cli` goes by the options' names without dashes.

    Raises InputError naming the option, the variable or the place in the file.
    """
    known = {name for row in _ROWS for name in row.cli}
    for name in cli:
        if name not in known:
            raise InputError("there is no such option", field=f"--{name}")
    found: dict[str, Any] = {}
    for row in _ROWS:
        given = _given(row, file, cli, env)
        if given is not None:
            found[row.field] = _read(row, *given)
    flags = Flags(**found)
    if not flags.nvidia_dev_root:
        flags = Flags(**{**found, "nvidia_dev_root": flags.nvidia_driver_root})
    return flags


def _given(
    row: _Row, file: Mapping[str, object], cli: Mapping[str, object], env: Mapping[str, str]
) -> tuple[object, str] | None:
    """The value that wins, and where it was given."""
    for name in row.cli:
        if name in cli:
            return cli[name], f"--{name}"
    for name in row.env:
        if name in env and (env[name] or row.field in _EMPTY_MEANS):
            return env[name], name
    if row.file is not None and row.file in file:
        return file[row.file], row.file
    return None


def _read(row: _Row, value: object, where: str) -> object:
    try:
        return row.read(value)
    except ValueError as error:
        raise InputError(f"{value!r} is not understood; write {error}", field=where) from error
