"""Driver and toolkit of a host: loaded, complete, of one version, and where the runtimes look for them."""

from __future__ import annotations

from collections.abc import Iterator

from gpuslice.doctor.checks.say import listed
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.host.driver import LIBRARY, LIBRARY_FOLDERS, MODES, TOOLKIT_FILE
from gpuslice.doctor.host.look import Host


def check(host: Host) -> Iterator[Finding]:
    """Driver, then toolkit."""
    yield from _driver(host)
    yield from _toolkit(host)


def _driver(host: Host) -> Iterator[Finding]:
    driver = host.driver
    if not driver.version:
        yield Finding(
            Area.DRIVER,
            "driver-absent",
            Level.ERROR,
            "File/proc/driver/nvidia/version",
            "NVIDIA's driver is not loaded: there is no /proc/driver/nvidia/version",
            "sudo modprobe nvidia   # if it fails, install the driver and reboot",
        )
        return
    if driver.missing_devices:
        yield Finding(
            Area.DRIVER,
            "driver-devices-missing",
            Level.WARNING if driver.missing_devices == ("nvidia-uvm",) else Level.ERROR,
            f"File/dev/{driver.missing_devices[0]}",
            f"the driver is loaded, but /dev has no {listed(driver.missing_devices)}, which containers need",
            "sudo nvidia-modprobe -c 0 -u && nvidia-smi   # at boot: systemctl enable nvidia-persistenced",
        )
    if not driver.nvml:
        yield Finding(
            Area.DRIVER,
            "driver-library-missing",
            Level.ERROR,
            f"File{LIBRARY_FOLDERS[0]}/{LIBRARY}",
            f"the driver {driver.version} is loaded, but {LIBRARY} is in none of the usual folders: neither "
            "the agent nor the toolkit can ask it for its GPUs",
            f"ldconfig -p | grep {LIBRARY}   # if it prints nothing, install the libraries of driver "
            f"{driver.version}",
        )
    elif driver.nvml_version and driver.nvml_version != driver.version:
        yield Finding(
            Area.DRIVER,
            "driver-mismatch",
            Level.ERROR,
            f"File{driver.nvml}",
            f"the loaded driver is {driver.version}, but {driver.nvml} is of {driver.nvml_version}: "
            "after an update, until the next boot, NVML says driver/library version mismatch",
            "sudo reboot",
        )


def _toolkit(host: Host) -> Iterator[Finding]:
    used = host.used
    named = {name: used.handlers[name] for name in used.nvidia} if used else {}
    lost = {name: program for name, program in named.items() if not host.programs[program]}
    if not host.toolkit.installed and not host.by_cdi and len(lost) == len(named):
        yield Finding(
            Area.TOOLKIT,
            "toolkit-missing",
            Level.ERROR,
            "Host",
            "NVIDIA's Container Toolkit is not installed: neither nvidia-container-runtime nor nvidia-ctk "
            "is there",
            "sudo apt-get install -y nvidia-container-toolkit   # or dnf, zypper; from NVIDIA's repository",
        )
    elif used is not None and lost:
        name, program = next(iter(lost.items()))
        there = host.toolkit.runtime
        yield Finding(
            Area.TOOLKIT,
            "runtime-binary-missing",
            Level.ERROR,
            f"File{used.file}",
            f"{used.engine}'s handler {name} runs {program}, which is not there: "
            + ("every container of the node" if used.default == name else f"every pod of RuntimeClass {name}")
            + " fails to start",
            f"sudo ln -s {there} {program}"
            if there and program.startswith("/")
            else "sudo apt-get install --reinstall -y nvidia-container-toolkit   # or dnf, zypper",
        )
    if host.toolkit.mode not in MODES:
        yield Finding(
            Area.TOOLKIT,
            "runtime-mode-unknown",
            Level.ERROR,
            f"File{TOOLKIT_FILE}",
            f"{TOOLKIT_FILE} sets the mode {host.toolkit.mode!r}, which NVIDIA's runtime does not know "
            f"({', '.join(MODES)}): containers with a GPU fail to start",
            "sudo nvidia-ctk config --in-place --set nvidia-container-runtime.mode=auto",
        )
