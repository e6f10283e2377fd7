"""Imports commands when they are first used; all other modules import at the top.

`gpuslice --help` and the shell's completion know every command without importing one.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from gpuslice.observe.plainly import import_structlog


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called.

    `modules`: by the command's name, the module below gpuslice.cli which has it under that name, and what the
    list of commands says of it.
    """

    def __init__(self, *args: Any, modules: Mapping[str, tuple[str, str]], **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        module, _ = self._modules[cmd_name]
        command: click.Command = load(f"gpuslice.cli.{module}:{cmd_name}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._modules[name][1]) for name in self.list_commands(ctx)])


def load(path: str) -> Any:
    """What "package.module:name" names. Raises ModuleNotFoundError if something it needs is not installed."""
    module, _, name = path.partition(":")
    import_structlog()
    collecting = gc.isenabled()
    gc.disable()  # what is imported stays: to look for garbage among it takes a tenth of the time
    try:
        return getattr(import_module(module), name)
    finally:
        if collecting:
            gc.enable()
