"""The GPUs of a node as MIG sees them: mode, instances, and who must not be disturbed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from gpuslice.cluster.migrecords import MigCapableGpu
from gpuslice.config.migexport import MigState
from gpuslice.config.migparted import MigPartedFile, MigSpec, MigTarget
from gpuslice.config.migstandard import standard_configs
from gpuslice.devices.catalogue import find_model
from gpuslice.devices.found import FoundGpu
from gpuslice.devices.mig import MigGeometry
from gpuslice.devices.miglayout import GpuInstance, MigLayout
from gpuslice.devices.migtables import geometry_of
from gpuslice.errors import InputError
from gpuslice.node.discovery.driver import Driver, DriverError, Trouble


@dataclass(frozen=True, slots=True)
class MigGpu:
    """One GPU. `layout` is empty while MIG is off, and None if the GPU cannot be partitioned."""

    gpu: FoundGpu
    layout: MigLayout | None

    @property
    def target(self) -> MigTarget:
        """The GPU as configurations are checked against it."""
        return MigTarget.of(self.gpu, self.layout.geometry if self.layout else None)

    @property
    def spec(self) -> MigSpec:
        """The configuration that describes the GPU as it is."""
        enabled = self.gpu.mig is not None and self.gpu.mig.current
        return MigSpec(enabled, dict(self.layout.devices) if self.layout else {})

    @property
    def devices(self) -> dict[tuple[int, int], str]:
        """UUIDs of its MIG devices, by the start of the GPU instance and the compute instance's id."""
        starts = {gi.id: gi.start for gi in self.layout.instances} if self.layout else {}
        found = [mig for mig in self.gpu.mig_devices if mig.gpu_instance in starts]
        return {(starts[mig.gpu_instance], mig.compute_instance): mig.uuid for mig in found}

    @property
    def state(self) -> MigState:
        """The same with its index and its model, for export."""
        return MigState(self.gpu.index, self.target.board, self.spec)


@dataclass(frozen=True, slots=True)
class MigMachine:
    """All GPUs that answer, by index; `silent` are the others: index, why."""

    gpus: tuple[MigGpu, ...]
    silent: tuple[tuple[int, str], ...] = ()

    def find(self, uuid: str) -> MigGpu | None:
        """The GPU of that UUID."""
        return next((one for one in self.gpus if one.gpu.uuid == uuid), None)

    @property
    def partitions(self) -> tuple[MigCapableGpu, ...]:
        """What can be partitioned and what is, for planners off this node; users are left out."""
        return tuple(
            MigCapableGpu(
                one.gpu.uuid,
                one.gpu.index,
                one.gpu.mig is not None and one.gpu.mig.current,
                one.layout,
                one.gpu.healthy,
                one.devices,
            )
            for one in self.gpus
            if one.layout is not None
        )

    @property
    def standard(self) -> MigPartedFile:
        """The configurations that go by standard names on these GPUs."""
        kinds = {one.target.board: one.layout.geometry for one in self.gpus if one.layout is not None}
        return standard_configs([((board,), geometry) for board, geometry in kinds.items()])

    def specs(self, file: MigPartedFile, name: str) -> dict[str, MigSpec]:
        """What the GPUs are to become, by UUID; GPUs that cannot be partitioned have MIG off without doing
        anything.

        Raises InputError if there is no such configuration, or these GPUs cannot be partitioned so.
        """
        specs = file.specs(name, [one.target for one in self.gpus])
        return {
            one.gpu.uuid: specs[one.gpu.index]
            for one in self.gpus
            if one.gpu.index in specs and one.layout is not None
        }


def survey(driver: Driver, held: Collection[str] = ()) -> MigMachine:
    """Ask an open driver. `held`: UUIDs of MIG devices that containers have; those are in use.

    Raises DriverError.
    """
    found = driver.query()
    return MigMachine(tuple(MigGpu(gpu, _layout(driver, gpu, held)) for gpu in found.gpus), found.silent)


def _layout(driver: Driver, gpu: FoundGpu, held: Collection[str]) -> MigLayout | None:
    if gpu.mig is None:
        return None
    if not gpu.mig.current:
        return MigLayout(_geometry_while_off(driver, gpu))
    used = {(mig.gpu_instance, mig.compute_instance) for mig in gpu.mig_devices if mig.uuid in held}
    layout = driver.layout(gpu.uuid)
    return replace(layout, instances=tuple(_marked(gi, used) for gi in layout.instances)) if used else layout


def _marked(gi: GpuInstance, used: Collection[tuple[int, int]]) -> GpuInstance:
    return replace(gi, compute=tuple(replace(ci, in_use=(gi.id, ci.id) in used) for ci in gi.compute))


def _geometry_while_off(driver: Driver, gpu: FoundGpu) -> MigGeometry:
    """NVML may say the places of instances only while MIG is on; until then the published table counts.

    Nothing can be promised about a board that no table knows: MIG can be switched on, without instances.
    """
    try:
        return driver.geometry(gpu.uuid)
    except DriverError as error:
        if error.trouble is not Trouble.NOT_SUPPORTED:
            raise
    try:
        return geometry_of(find_model(gpu.name).mig_family or "")
    except InputError:
        return MigGeometry(f"{gpu.name} (no table knows it; switch MIG on first, by all-enabled)", 0, 0, ())
