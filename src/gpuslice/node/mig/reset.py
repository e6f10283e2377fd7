"""Resets GPUs, which NVML cannot do: nvidia-smi does it on real GPUs, a simulated driver by itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Final, Protocol

from gpuslice.devices.found import FoundGpu
from gpuslice.node.discovery.driver import Driver, DriverError, Trouble
from gpuslice.node.discovery.simulated import SimulatedDriver
from gpuslice.node.mig.executor import Reset

PATIENCE_SECONDS: Final = 300
"""A reset of eight GPUs takes about a minute."""


class ClosableDriver(Driver, Protocol):
    """A driver whose library is let go while the GPUs are reset: a GPU that is open cannot be reset."""

    def close(self) -> None:
        """Let go of the library; `open` connects again."""


def reset_of(driver: SimulatedDriver | ClosableDriver) -> Reset:
    """How to reset GPUs of that driver."""
    if not isinstance(driver, SimulatedDriver):
        return lambda gpus: by_nvidia_smi(driver, gpus)

    def on_paper(gpus: Sequence[FoundGpu]) -> None:
        for gpu in gpus:
            driver.reset(gpu.uuid)

    return on_paper


def by_nvidia_smi(driver: ClosableDriver, gpus: Sequence[FoundGpu]) -> None:
    """Have nvidia-smi reset them all at once, as GPUs on NVLink demand. Raises DriverError with its
    message.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise DriverError(Trouble.OTHER, "nvidia-smi is not in the PATH: reset the GPUs from the host")
    driver.close()
    try:
        done = subprocess.run(  # noqa: S603  the driver's own tool, and addresses that the driver gave
            [tool, "--gpu-reset", "-i", ",".join(gpu.pci_bus_id for gpu in gpus)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DriverError(Trouble.OTHER, f"nvidia-smi --gpu-reset cannot be run: {error}") from error
    finally:
        driver.open()
    if done.returncode:
        words = " ".join((done.stdout + done.stderr).split())
        raise DriverError(Trouble.IN_USE, f"nvidia-smi --gpu-reset: {words or done.returncode}")
