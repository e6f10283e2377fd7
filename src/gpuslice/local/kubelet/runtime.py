"""Two container runtimes: one that only keeps time, one that runs local processes.

A simulated container runs for the time that its annotation or its `sleep` command says, else until it is
stopped. A local process gets exactly the container's environment, its own process group, and its output
goes to the log; it shares the host's file system (see `environment.on_the_host`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gpuslice.clock import Clock
from gpuslice.local.kubelet.logs import Log

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What an image without a PATH of its own gets."""
EXIT_TERM: Final = 128 + signal.SIGTERM
EXIT_KILL: Final = 128 + signal.SIGKILL
EXIT_START: Final = 128
"""containerd's exit code for a command that could not be started."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a container. `seconds`: how long a simulated one runs, None for ever.

    `programs` are mounted ones: the folder in the container, and that of the host (see `mounted_programs`).
    """

    hostname: str
    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    seconds: float | None = None
    exit_code: int = 0
    ignore_term: bool = False
    programs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended."""

    code: int
    message: str = ""
    reason: str = ""

    @property
    def why(self) -> str:
        """The status' reason."""
        return self.reason or ("Completed" if self.code == 0 else "Error")


class Running(Protocol):
    """A started container."""

    async def wait(self) -> Exit:
        """How it ended, once it has."""

    def terminate(self) -> None:
        """SIGTERM to all its processes."""

    def kill(self) -> None:
        """SIGKILL to all its processes."""


class Runtime(Protocol):
    async def start(self, launch: Launch, log: Log) -> Running | Exit:
        """Start it; an Exit if it cannot be started."""


class Simulated:
    """Containers that only pass time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def start(self, launch: Launch, log: Log) -> Running | Exit:
        command = " ".join(launch.command) or "the image's own command"
        log.write(f"gpuslice: simulating {launch.name!r}, which would run: {command}\n".encode())
        shown = [f"{name}={value}" for name, value in launch.env.items() if _about_gpus(name)]
        if shown:
            log.write(f"gpuslice: with {' '.join(shown)}\n".encode())
        return _SimulatedContainer(self._clock, launch)


def _about_gpus(name: str) -> bool:
    return name.startswith(("NVIDIA_", "ALIYUN_COM_", "CUDA_", "CGPU_"))


class _SimulatedContainer:
    def __init__(self, clock: Clock, launch: Launch) -> None:
        self._clock = clock
        self._launch = launch
        self._stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> Exit:
        if self._launch.seconds is None:
            return Exit(await asyncio.shield(self._stopped))
        timer = asyncio.ensure_future(self._clock.sleep(self._launch.seconds))
        try:
            await asyncio.wait((timer, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return Exit(self._stopped.result() if self._stopped.done() else self._launch.exit_code)

    def terminate(self) -> None:
        if not self._launch.ignore_term:
            self._stop(EXIT_TERM)

    def kill(self) -> None:
        self._stop(EXIT_KILL)

    def _stop(self, code: int) -> None:
        if not self._stopped.done():
            self._stopped.set_result(code)


class LocalProcesses:
    """Containers with a command run as processes of the cluster's owner; the others are simulated."""

    def __init__(self, simulated: Simulated) -> None:
        self._simulated = simulated

    async def start(self, launch: Launch, log: Log) -> Running | Exit:
        if not launch.command:
            return await self._simulated.start(launch, log)
        try:
            launch.folder.mkdir(parents=True, exist_ok=True)
            process = await asyncio.create_subprocess_exec(
                *launch.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=process_env(launch, home=True),
                cwd=launch.folder,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return Exit(EXIT_START, f'exec: "{launch.command[0]}": {text}', "StartError")
        return _LocalContainer(process, log)


class _LocalContainer:
    def __init__(self, process: asyncio.subprocess.Process, log: Log) -> None:
        self._process = process
        self._log = log
        self._copier = asyncio.create_task(self._copy(), name=f"log of process {process.pid}")

    async def wait(self) -> Exit:
        code = await self._process.wait()
        # A daemon that the command left behind may hold the pipe open; the container ends with pid 1.
        self._signal(signal.SIGKILL)
        await asyncio.shield(self._copier)
        return Exit(code if code >= 0 else 128 - code)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _copy(self) -> None:
        stream = self._process.stdout
        while stream is not None and (data := await stream.read(65536)):
            self._log.write(data)


def process_env(launch: Launch, *, home: bool) -> dict[str, str]:
    """The container's variables, and before them the little that every container has.

    Mounted programs of folders on the PATH are found first, as a mount would hide what is there.
    """
    base = {"PATH": PATH, "HOSTNAME": launch.hostname}
    if home:
        base["HOME"] = str(launch.folder)
    env = base | dict(launch.env)
    path = env["PATH"].split(":")
    mounted = dict.fromkeys(host for inside, host in launch.programs if inside in path)
    return env | {"PATH": ":".join((*mounted, *path))}


_SLEEP: Final = re.compile(r"\bsleep\s+(\d+(?:\.\d+)?)([smhd]?)(?![\w.])")
_LOOP: Final = re.compile(r"\b(while|until|for)\b|\bsleep\s+inf|\btail\s+-f\b|\bwait\b")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def sleeping_time(command: Sequence[str]) -> float | None:
    """How long `sleep N` or `sh -c "...; sleep N"` takes; None if the command says nothing about it."""
    if not command:
        return None
    program = Path(command[0]).name
    if program == "sleep":
        text = "sleep " + " ".join(command[1:])
    elif program in ("sh", "bash", "ash", "dash") and len(command) >= 3 and command[1].endswith("c"):
        text = command[2]
    else:
        return None
    found = _SLEEP.findall(text)
    if not found or _LOOP.search(text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in found)
