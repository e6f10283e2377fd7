"""From a command to a process: exit codes, signals, and errors as one sentence.

Exit codes: 0 it worked (also: a server that was told to stop), 1 it did not, 2 what was typed or written
in a file is wrong.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import click

from gpuslice.errors import GpuSliceError, InputError

START_SECONDS: Final = 2.0
"""How long a server is taken to start."""

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command to its end. A GpuSliceError becomes a sentence on stderr and the exit code."""
    try:
        return asyncio.run(work)
    except (GpuSliceError, BaseExceptionGroup) as raised:
        error = _sentence(raised)
        click.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def serve(work: Coroutine[Any, Any, None]) -> None:
    """Run until the work ends or SIGINT or SIGTERM asks for the end, which is no failure."""
    # What a start makes stays: to look for garbage among it takes a tenth of the start's time.
    gc.disable()

    async def until_stopped() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        loop.call_later(START_SECONDS, _collect_from_now_on)
        stopping = False

        def stop() -> None:
            nonlocal stopping
            stopping = True
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        try:
            await task
        except asyncio.CancelledError:
            if not stopping:
                raise

    run(until_stopped())


def _collect_from_now_on() -> None:
    gc.freeze()
    gc.enable()


def check(work: Coroutine[Any, Any, T], *, prefix: str) -> T:
    """Run a plugin of kubectl to its end, with gpushare's way to fail: on stdout, without a newline."""
    try:
        return asyncio.run(work)
    except (GpuSliceError, BaseExceptionGroup) as raised:
        click.echo(f"{prefix}{_sentence(raised)}", nl=False)
        sys.exit(1)


def _sentence(raised: BaseException) -> GpuSliceError:
    """The one that people should read, of one error or a group of them. Anything else is a bug: raised on."""
    if isinstance(raised, GpuSliceError):
        return raised
    if isinstance(raised, BaseExceptionGroup):
        expected, rest = raised.split(GpuSliceError)
        if rest is None and expected is not None:
            return _sentence(expected.exceptions[0])
    raise raised
