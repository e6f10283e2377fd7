"""Hands devices to containers in the ways that the node's container runtime understands.

`response` decides what Allocate answers; this module adds which device files the devices have on this
machine, and where the driver is. It also keeps the CDI specification, which says what the devices' names
mean, in the folder that runtimes read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from gpuslice.config.nvidiaflags import DeviceIdStrategy, DeviceListStrategy, Flags
from gpuslice.devices.found import Found, FoundGpu, MigDevice
from gpuslice.devices.sharing import UNSHARED, Sharing, device_of
from gpuslice.errors import InputError
from gpuslice.node.inject.cdi import FOLDER, file_name, gpu_spec
from gpuslice.node.inject.driverfiles import existing, find_driver
from gpuslice.node.inject.response import (
    CONTROL_NODES,
    InjectedDevice,
    MigMinors,
    answer,
    gpu_nodes,
    mig_nodes,
    read_mig_minors,
)
from gpuslice.node.kubelet.messages import ContainerAllocation

MIG_MINORS: Final = "/proc/driver/nvidia-caps/mig-minors"
_CDI: Final = {DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI}


class Injector:
    """How this node's containers get devices.

    `found` is the machine as of now; `host` the folder below which the host's files are, and the driver in
    `flags.container_driver_root` there, if it is mounted; `new_token` gives a text that no other response
    has.
    """

    def __init__(
        self,
        flags: Flags,
        found: Callable[[], Found],
        *,
        host: Path = Path("/"),
        new_token: Callable[[], str],
    ) -> None:
        self._flags = flags
        self._sharing = UNSHARED
        self._found = found
        self._host = host
        self._new_token = new_token
        self._spec = _below(host, f"{FOLDER}/{file_name()}")

    @property
    def _by_cdi(self) -> bool:
        return bool(_CDI & set(self._flags.device_list_strategy))

    def configure(self, flags: Flags, sharing: Sharing) -> None:
        """From now on inject devices so. Raises as `publish` does, and then nothing has changed."""
        before = self._flags, self._sharing
        was_by_cdi, self._flags, self._sharing = self._by_cdi, flags, sharing
        try:
            self.publish()
        except InputError:
            self._flags, self._sharing = before
            raise
        if was_by_cdi and not self._by_cdi:
            self._unlink()

    def answer(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        """The response for a container that gets these GPUs, MIG devices or replicas, by id, in this order.

        Raises InputError if device files are asked for and the driver does not say which ones these have, or
        if replicas are not to be given out so.
        """
        uuids = tuple(map(device_of, ids))
        files = self._flags.pass_device_specs
        if files or self._flags.device_id_strategy is DeviceIdStrategy.INDEX:
            handed = {one.uuid: one for one in self._devices(uuids, files=files)}
        else:
            handed = {uuid: InjectedDevice(uuid, "") for uuid in uuids}
        return answer(
            resource,
            ids,
            handed,
            self._flags,
            self._sharing,
            control_nodes=self._control_nodes() if files else (),
            token=self._new_token(),
        )

    def publish(self) -> None:
        """Write the CDI specification of what is there now, if devices are injected by CDI; in one step.

        Raises InputError if the driver's files are not where they should be, or the folder cannot be written.
        """
        if not self._by_cdi:
            return
        devices = list(self._devices())
        if not devices:
            self.withdraw()  # one without devices is refused by runtimes
            return
        driver = find_driver(
            self._found().driver_version, self._seen(self._flags.nvidia_driver_root), host=self._seen("/")
        )
        spec = gpu_spec(devices, driver, self._flags, control_nodes=self._control_nodes())
        new = self._spec.with_name(f".{self._spec.name}.new")  # no runtime reads files of another ending
        try:
            self._spec.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(spec, indent=2) + "\n")
            new.chmod(0o644)
            os.replace(new, self._spec)  # noqa: PTH105 (Path.replace returns a path nobody needs)
        except OSError as error:
            raise InputError(
                f"cannot write the CDI specification {self._spec}: {error.strerror}; run as root, "
                f"with the host's {FOLDER} mounted, or use envvar",
                field="--device-list-strategy",
            ) from error

    def withdraw(self) -> None:
        """Remove the specification, since from now on nobody updates it."""
        if self._by_cdi:
            self._unlink()

    def _unlink(self) -> None:
        with contextlib.suppress(OSError):
            self._spec.unlink()

    def _devices(
        self, only: Collection[str] | None = None, *, files: bool = True
    ) -> Iterator[InjectedDevice]:
        """Those GPUs and MIG devices, or all, by index; with their device files if `files` says so."""
        for gpu in self._found().gpus:
            if only is None or gpu.uuid in only:
                yield InjectedDevice(gpu.uuid, str(gpu.index), gpu_nodes(_minor(gpu)) if files else ())
            parts = [mig for mig in gpu.mig_devices if only is None or mig.uuid in only]
            minors = self._minors() if parts and files else {}
            for mig in parts:
                nodes = _mig_nodes(gpu, mig, minors) if files else ()
                yield InjectedDevice(mig.uuid, f"{gpu.index}:{mig.index}", nodes)

    def _minors(self) -> MigMinors:
        path = _below(self._host, MIG_MINORS)
        try:
            return read_mig_minors(path.read_text())
        except OSError as error:
            raise InputError(
                f"{path}, which lists the device files of MIG devices, cannot be read ({error.strerror}); "
                "load the driver's module nvidia, or use the device list strategy envvar without device specs"
            ) from error

    def _control_nodes(self) -> tuple[str, ...]:
        return existing(CONTROL_NODES, self._seen(self._flags.nvidia_dev_root))

    def _seen(self, root: str) -> Path:
        """The path by which this process sees a root of the host: the driver's root may be mounted for it."""
        mounted = _below(self._host, self._flags.container_driver_root)
        same = root.rstrip("/") == self._flags.nvidia_driver_root.rstrip("/")
        return mounted if same and mounted.is_dir() else _below(self._host, root)


def _mig_nodes(gpu: FoundGpu, mig: MigDevice, minors: MigMinors) -> tuple[str, ...]:
    return mig_nodes(_minor(gpu), mig.gpu_instance, mig.compute_instance, minors)


def _minor(gpu: FoundGpu) -> int:
    if gpu.minor is None:
        raise InputError(
            f"the driver gives no minor number for GPU {gpu.index} ({gpu.uuid}), so its device file is not "
            "known; use the device list strategy envvar without device specs"
        )
    return gpu.minor


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


PLAIN: Final = Injector(Flags(), lambda: Found("", "", ()), new_token=lambda: "")
"""NVIDIA's default: an environment variable of UUIDs, which needs no knowledge of the machine."""
