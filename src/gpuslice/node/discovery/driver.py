"""The protocol of a driver, and the errors of its calls. All calls block: keep them off the event loop."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpuslice.devices.found import Found, FoundGpu
from gpuslice.devices.mig import MigGeometry
from gpuslice.devices.miglayout import ComputeInstance, GpuInstance, MigLayout
from gpuslice.errors import GpuSliceError


class Trouble(StrEnum):
    """Why a call failed, as far as callers tell the cases apart."""

    NO_LIBRARY = "no_library"
    NO_DRIVER = "no_driver"
    VERSIONS_DIFFER = "versions_differ"
    NO_FUNCTION = "no_function"
    NO_PERMISSION = "no_permission"
    NOT_SUPPORTED = "not_supported"
    NOT_FOUND = "not_found"
    INVALID = "invalid"
    IN_USE = "in_use"
    NO_ROOM = "no_room"
    RESET_REQUIRED = "reset_required"
    LOST = "lost"
    OTHER = "other"


class DriverError(GpuSliceError):
    """The driver cannot or will not; one sentence with the remedy where there is one."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reports. Without a UUID it may be about any GPU.

    With a GPU instance it is about that one, or about the compute instance in it.
    """

    uuid: str | None
    number: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """Something other than an error has happened: query the GPUs anew."""


class Driver(Protocol):
    """One machine's driver, for any thread. GPUs are named by UUID; every call raises DriverError."""

    def open(self) -> None:
        """Connect and listen to every GPU; when called again, let go of everything and connect anew."""

    def listen(self) -> None:
        """Stop listening to the GPUs of before, and listen to every GPU that answers now."""

    def query(self) -> Found:
        """The machine now. A GPU that does not answer is left out and listed as silent."""

    def query_gpu(self, gpu: str) -> FoundGpu:
        """One GPU now, as `query` has it. NOT_FOUND, LOST."""

    def wait(self, milliseconds: int) -> Xid | Changed | None:
        """The next event, None if there was none in time. `open` and `listen` wait until it has returned."""

    def set_mig_mode(self, gpu: str, enabled: bool) -> bool:
        """Switch MIG on or off; True if that is so now, False if it waits for a reset of the GPU.

        IN_USE: the GPU has instances.
        """

    def geometry(self, gpu: str) -> MigGeometry:
        """All that can be made from the GPU, free or not. NOT_SUPPORTED: nothing can."""

    def layout(self, gpu: str) -> MigLayout:
        """The instances that exist. The driver does not know who may use them: `in_use` is never set."""

    def create_gpu_instance(self, gpu: str, profile_id: int, start: int | None = None) -> GpuInstance:
        """Create a GPU instance; without a start the driver chooses one. NO_ROOM; NOT_SUPPORTED with MIG
        off.
        """

    def destroy_gpu_instance(self, gpu: str, gpu_instance: int) -> None:
        """IN_USE while it has compute instances."""

    def create_compute_instance(self, gpu: str, gpu_instance: int, slices: int) -> ComputeInstance:
        """Make a MIG device of some or all of a GPU instance's compute slices. NO_ROOM."""

    def destroy_compute_instance(self, gpu: str, gpu_instance: int, compute_instance: int) -> None:
        """IN_USE while a program runs in it."""
