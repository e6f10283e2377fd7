"""`kubectl exec`: a local process of the cluster's owner with exactly the container's environment."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gpuslice.errors import ApiError
from gpuslice.local.streams import ExecSession, Output

_CHUNK: Final = 65536
# With a terminal: make it the session's own, so that Ctrl-C arrives, then become the command. Python adds
# LC_CTYPE to its environment under the C locale (PEP 538); it must not leak into the container's.
_TAKE_TERMINAL: Final = (
    "import fcntl,os,sys,termios\n"
    "fcntl.ioctl(0,termios.TIOCSCTTY,0)\n"
    "env=dict(os.environb)\n"
    "if sys.argv[1]=='drop': env.pop(b'LC_CTYPE',None)\n"
    "try: os.execvpe(sys.argv[2],sys.argv[2:],env)\n"
    "except OSError as e: print(f'exec: \"{sys.argv[2]}\": {e.strerror}'); os._exit(126)\n"
)


async def start_exec(
    command: Sequence[str], *, env: Mapping[str, str], folder: Path, stdin: bool, tty: bool
) -> ExecSession:
    """Start a process. Raises ApiError(400) if there is no such command."""
    if not command:
        raise ApiError(400, "you must specify at least one command for the container")
    try:
        _make(folder)
        if tty:
            return await _start_tty(command, env, folder)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            cwd=folder,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ApiError(400, f'exec: "{command[0]}": {text}') from error
    return _Pipes(process)


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


async def _start_tty(command: Sequence[str], env: Mapping[str, str], folder: Path) -> ExecSession:
    ours, theirs = pty.openpty()
    drop = "keep" if "LC_CTYPE" in env else "drop"
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _TAKE_TERMINAL, drop, *command),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={"TERM": "xterm", **env},
            cwd=folder,
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return _Terminal(process, ours)


class _Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def wait(self) -> int:
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


class _Pipes(_Process):
    """stdout and stderr apart."""

    async def output(self) -> AsyncIterator[Output]:
        queue: asyncio.Queue[Output | None] = asyncio.Queue(maxsize=16)

        async def copy(channel: int, stream: asyncio.StreamReader | None) -> None:
            while stream is not None and (data := await stream.read(_CHUNK)):
                await queue.put(Output(channel, data))
            await queue.put(None)

        copiers = [
            asyncio.create_task(copy(1, self._process.stdout)),
            asyncio.create_task(copy(2, self._process.stderr)),
        ]
        try:
            open_streams = len(copiers)
            while open_streams:
                item = await queue.get()
                if item is None:
                    open_streams -= 1
                else:
                    yield item
        finally:
            for copier in copiers:
                copier.cancel()

    async def write(self, data: bytes) -> None:
        stdin = self._process.stdin
        if stdin is None:
            return
        with contextlib.suppress(ConnectionError):
            if data:
                stdin.write(data)
                await stdin.drain()
            else:
                stdin.close()

    async def resize(self, width: int, height: int) -> None:
        """No terminal, no size."""


class _Terminal(_Process):
    """A pseudo terminal: everything is stdout."""

    def __init__(self, process: asyncio.subprocess.Process, ours: int) -> None:
        super().__init__(process)
        self._ours = ours
        self._open = True
        os.set_blocking(ours, False)

    async def output(self) -> AsyncIterator[Output]:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._ours, readable.set)
        try:
            while True:
                await readable.wait()
                readable.clear()
                try:
                    data = os.read(self._ours, _CHUNK)
                except BlockingIOError:
                    continue
                except OSError:  # EIO: the last process that had it open has ended
                    return
                if not data:
                    return
                yield Output(1, data)
                readable.set()
        finally:
            loop.remove_reader(self._ours)
            self._open = False
            os.close(self._ours)

    async def write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        rest = data or b"\x04"  # a terminal has no end of file, only the key for it
        while rest and self._open:
            try:
                rest = rest[os.write(self._ours, rest) :]
            except BlockingIOError:
                writable = asyncio.Event()
                loop.add_writer(self._ours, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(self._ours)
            except OSError:
                return

    async def resize(self, width: int, height: int) -> None:
        if self._open:
            size = struct.pack("HHHH", height, width, 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)
