"""`gpuslice mig`: this machine's MIG layout, in mig-parted's words and files."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gpuslice.cli import options
from gpuslice.cli.mig.report import report, table
from gpuslice.cli.node.command import show
from gpuslice.cli.output import print_as
from gpuslice.cli.process import run
from gpuslice.errors import InputError
from gpuslice.node.assembly import KUBELET_DIR
from gpuslice.node.mig.executor import GpuPlan
from gpuslice.node.mig.standalone import Choice, StandaloneMachine

T = TypeVar("T")
Command = Callable[..., None]

_PAPER = (
    "With --devices the layout is read from the file; what would be there afterwards is printed, and the "
    "file is not changed."
)
_EXITS = "Exit code: 0 it is so, 1 it cannot be or is not, 2 the command line or a file is wrong."


@click.group(
    help="Partition this machine's GPUs into MIG instances. Reads mig-parted's configuration files and its "
    "environment variables (MIG_PARTED_...); everything is checked against the GPUs before one is touched, "
    "instances that stay as they are stay untouched, and a refusal on the way is undone. No cluster is "
    "needed.\n\n"
    + options.examples("gpuslice mig plan -c all-balanced", "gpuslice mig apply -f mig.yaml -c custom"),
)
def mig() -> None:
    pass


def _node(command: Command) -> Command:
    named = click.option(
        "--node",
        default=socket.gethostname,
        show_default="the host's name",
        metavar="NAME",
        help="Whose simulated GPUs: each node has GPUs of its own.",
    )
    return options.devices(named(command))


def _configuration(command: Command) -> Command:
    selected = click.option(
        "-c",
        "--selected-config",
        envvar="MIG_PARTED_SELECTED_CONFIG",
        metavar="NAME",
        help="Which configuration; default: the only one.",
    )
    file = click.option(
        "-f",
        "--config-file",
        envvar="MIG_PARTED_CONFIG_FILE",
        metavar="FILE",
        help="mig-parted's file, - for standard input; default: the standard configurations for these GPUs "
        "(all-disabled, all-enabled, all-1g.5gb, all-balanced, ...).",
    )
    return file(selected(_node(command)))


_mode_only = click.option(
    "-m",
    "--mode-only",
    is_flag=True,
    envvar="MIG_PARTED_MODE_CHANGE_ONLY",
    help="Only whether MIG is on, not the instances.",
)


_hooks_file = click.option(
    "-k",
    "--hooks-file",
    envvar="MIG_PARTED_HOOKS_FILE",
    metavar="FILE",
    callback=lambda _context, _option, file: _warn_of_hooks(file),
    expose_value=False,
    help="Taken for mig-parted's sake, and not read: no hooks are run here.",
)


_kubelet_dir = click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path),
    default=KUBELET_DIR,
    show_default=True,
    metavar="DIR",
    help="The root directory of the kubelet, if there is one: what its pods hold is not touched.",
)


def _checkpoint_file(text: str) -> Callable[[Any], Any]:
    return click.option(
        "-f",
        "--checkpoint-file",
        type=click.Path(path_type=Path),
        required=True,
        envvar="MIG_PARTED_CHECKPOINT_FILE",
        metavar="FILE",
        help=text,
    )


@mig.command(
    short_help="Show what apply would do.",
    help="Print by GPU what would be destroyed, kept and created, with every instance's place (start:size in "
    f"memory slices). Nothing is changed.\n\n{_EXITS}\n\n"
    + options.examples(
        "gpuslice mig plan -f mig.yaml -c custom", "gpuslice mig plan -c all-1g.5gb --devices 8xA100-40"
    ),
)
@_configuration
@_kubelet_dir
@_mode_only
@options.output
def plan(
    config_file: str | None,
    selected_config: str | None,
    devices: Path | None,
    node: str,
    kubelet_dir: Path,
    mode_only: bool,
    output: str | None,
) -> None:
    choice = Choice(config_file, selected_config)
    plans = _work(devices, node, lambda machine: machine.plan(choice), kubelet_dir)
    _show(plans, output=output, mode_only=mode_only)


@mig.command(
    short_help="Partition the GPUs as a configuration says.",
    help="Partition the GPUs as a configuration says. What is so already stays; if the driver refuses a "
    "step, those before it are undone. Switching MIG on or off resets GPUs of the Ampere generation (all "
    f"that wait for it together, by nvidia-smi). {_PAPER}\n\n{_EXITS}\n\n"
    + options.examples("gpuslice mig apply -f mig.yaml -c custom", "gpuslice mig apply -c all-balanced"),
)
@_configuration
@_kubelet_dir
@_mode_only
@_hooks_file
@click.option(
    "-s",
    "--skip-reset",
    is_flag=True,
    envvar="MIG_PARTED_SKIP_RESET",
    help="Reset no GPU: a mode that waits for it comes true later, and no instances are made until then.",
)
@options.output
def apply(
    config_file: str | None,
    selected_config: str | None,
    devices: Path | None,
    node: str,
    kubelet_dir: Path,
    mode_only: bool,
    skip_reset: bool,
    output: str | None,
) -> None:
    choice = Choice(config_file, selected_config)

    def work(machine: StandaloneMachine) -> tuple[GpuPlan, ...]:
        return _told(
            machine, machine.apply(choice, mode_only=mode_only, skip_reset=skip_reset), output, mode_only
        )

    _work(devices, node, work, kubelet_dir)
    _say("MIG configuration applied successfully", output)


@mig.command(
    "assert",
    short_help="Check that a configuration is applied.",
    help="Check that the GPUs are as a configuration says; GPUs that it is not about do not matter. With "
    f"--valid-config, check only that they could be.\n\n{_EXITS}\n\n"
    + options.examples(
        "gpuslice mig assert -f mig.yaml -c custom",
        "gpuslice mig assert --valid-config -f mig.yaml -c custom",
    ),
)
@_configuration
@_mode_only
@click.option(
    "-a",
    "--valid-config",
    is_flag=True,
    envvar="MIG_PARTED_VALID_CONFIG",
    help="Only whether these GPUs could be partitioned so.",
)
def check(
    config_file: str | None,
    selected_config: str | None,
    devices: Path | None,
    node: str,
    mode_only: bool,
    valid_config: bool,
) -> None:
    choice = Choice(config_file, selected_config)
    if valid_config:
        _work(devices, node, lambda machine: choice.specs(machine.machine()))
        click.echo("Selected MIG configuration is valid")
        return
    _work(devices, node, lambda machine: machine.check(choice, mode_only=mode_only))
    what = "MIG mode settings from configuration" if mode_only else "MIG configuration"
    click.echo(f"Selected {what} currently applied")


@mig.command(
    short_help="Print the layout as a configuration file.",
    help="Print the MIG layout as mig-parted's configuration file.\n\n"
    + options.examples("gpuslice mig export"),
)
@_node
@click.option(
    "-o",
    "--output-format",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    envvar="MIG_PARTED_OUTPUT_FORMAT",
    help="How to print it.",
)
@click.option(
    "-l",
    "--config-label",
    default="current",
    show_default=True,
    envvar="MIG_PARTED_CONFIG_LABEL",
    metavar="NAME",
    help="What to call the configuration.",
)
def export(devices: Path | None, node: str, output_format: str, config_label: str) -> None:
    click.echo(_work(devices, node, lambda machine: machine.export(config_label, output_format)), nl=False)


@mig.command(
    "generate-config",
    short_help="Print the standard configurations for these GPUs.",
    help="Print the configurations that go by standard names (all-disabled, all-enabled, all-1g.5gb, "
    "all-balanced, ...) on this machine's GPUs, as mig-parted's configuration file.\n\n"
    + options.examples("gpuslice mig generate-config", "gpuslice mig generate-config --devices 8xH100-80"),
)
@_node
@click.option(
    "-f",
    "--output-file",
    type=click.Path(path_type=Path),
    envvar="MIG_PARTED_OUTPUT_FILE",
    metavar="FILE",
    help="Where to write; default: standard output.",
)
@click.option(
    "-o",
    "--output-format",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    envvar="MIG_PARTED_OUTPUT_FORMAT",
    help="How to write it.",
)
def generate_config(devices: Path | None, node: str, output_file: Path | None, output_format: str) -> None:

    text = _work(devices, node, lambda machine: machine.standard(output_format))
    if output_file is None:
        click.echo(text, nl=False)
        return
    try:
        output_file.write_text(text)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field=str(output_file)) from error


@mig.command(
    short_help="Save the layout with every instance's place.",
    help="Write the MIG layout, with every instance's place, to a file in mig-parted's form. Instances do "
    "not outlive a reboot or a reload of the driver: `restore` makes them again.\n\n"
    + options.examples("gpuslice mig checkpoint -f mig.json"),
)
@_checkpoint_file("Where to write.")
@_node
def checkpoint(checkpoint_file: Path, devices: Path | None, node: str) -> None:
    _work(devices, node, lambda machine: machine.checkpoint(checkpoint_file))
    click.echo("MIG configuration checkpointed successfully")


@mig.command(
    short_help="Make the layout that a checkpoint has.",
    help="Make the instances of a checkpoint again, each in its place; what is there already stays. GPUs of "
    f"which the checkpoint says nothing stay as they are. {_PAPER}\n\n{_EXITS}\n\n"
    + options.examples("gpuslice mig restore -f mig.json"),
)
@_checkpoint_file("A file that `checkpoint` (or mig-parted) wrote.")
@_hooks_file
@_node
@_kubelet_dir
@options.output
def restore(
    checkpoint_file: Path, devices: Path | None, node: str, kubelet_dir: Path, output: str | None
) -> None:
    def work(machine: StandaloneMachine) -> tuple[GpuPlan, ...]:
        return _told(machine, machine.restore(checkpoint_file), output, mode_only=False)

    _work(devices, node, work, kubelet_dir)
    _say("MIG configuration restored successfully", output)


def _work(
    devices: Path | None, node: str, work: Callable[[StandaloneMachine], T], kubelet_dir: Path | None = None
) -> T:
    """Do it in a thread, since a driver's calls block; Ctrl-C waits until the steps are done."""

    async def working() -> T:
        machine = await asyncio.to_thread(StandaloneMachine, devices, node)
        found = await asyncio.to_thread(machine.query)
        for index, reason in found.silent:
            click.echo(f"warning: GPU {index} is left out: {reason}", err=True)
        if kubelet_dir is not None and (warning := await machine.ask_kubelet(kubelet_dir)) is not None:
            click.echo(f"warning: {warning}", err=True)
        return await asyncio.to_thread(work, machine)

    return run(working())


def _told(
    machine: StandaloneMachine, plans: tuple[GpuPlan, ...], output: str | None, mode_only: bool
) -> tuple[GpuPlan, ...]:
    """Print what was done, and for GPUs on paper what is there now."""
    _show(plans, output=output, mode_only=mode_only)
    waiting = machine.waiting()
    if waiting:
        indexes = ",".join(map(str, waiting))
        click.echo(
            f"warning: MIG's mode waits for a reset: nvidia-smi --gpu-reset -i {indexes}, or a reboot",
            err=True,
        )
    if machine.on_paper and not output:
        click.echo("The GPUs on paper would then be (the file is not changed):")
        show(machine.query(), output=None)
    return plans


def _show(plans: Sequence[GpuPlan], *, output: str | None, mode_only: bool) -> None:

    if output:
        print_as(report(plans, mode_only=mode_only), output)
    else:
        click.echo(table(plans, mode_only=mode_only), nl=False)


def _say(sentence: str, output: str | None) -> None:
    """For people only: what programs read is one document."""
    if not output:
        click.echo(sentence)


def _warn_of_hooks(file: str | None) -> None:
    if file is not None:
        click.echo(f"warning: the hooks file {file} is not read: no hooks are run here", err=True)
