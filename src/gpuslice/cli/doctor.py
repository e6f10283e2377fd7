"""`gpuslice doctor`: the command line of the package `doctor`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from gpuslice.cli import options
from gpuslice.cli.output import print_as
from gpuslice.cli.process import run
from gpuslice.doctor import checks
from gpuslice.doctor.finding import Finding, Level
from gpuslice.doctor.host import checks as host_checks
from gpuslice.doctor.host.look import look as look_at_host
from gpuslice.doctor.look import look
from gpuslice.doctor.report import report, tell
from gpuslice.kube.http import connected

strict_option = click.option("--strict", is_flag=True, help="Warnings count as errors.")


@click.group(
    invoke_without_command=True,
    help="Look at a cluster and say what is wrong, where, why, and the command that mends it; what must be "
    "mended first comes first. Nothing is changed.\n\n"
    "Exit code: 0 nothing is wrong, 1 an error was found (with --strict also: a warning), 2 what was typed "
    "is "
    "wrong.\n\n"
    + options.examples(
        "gpuslice doctor", "gpuslice doctor --strict -o json", "sudo gpuslice doctor host   # on a node"
    ),
)
@strict_option
@options.output
@options.kubeconfig
@click.pass_context
def doctor(ctx: click.Context, strict: bool, output: str | None, kubeconfig: Path | None) -> None:
    if ctx.invoked_subcommand is not None:
        if strict or output or kubeconfig:
            raise click.UsageError(
                f"options go behind the command: gpuslice doctor {ctx.invoked_subcommand} ..."
            )
        return

    _say(run(_examine(kubeconfig)), strict, output)


@doctor.command(
    short_help="Say what is wrong with a node's driver, toolkit and container runtime.",
    help="Look at the files of the node that this runs on and say what keeps its GPUs from containers, or "
    "shows them to too many: driver, NVIDIA's Container Toolkit, docker, containerd, CRI-O, k3s, RKE2, CDI. "
    "Nothing is changed, started or asked over the network. Exit codes as of gpuslice doctor.\n\n"
    + options.examples(
        "sudo gpuslice doctor host",
        "gpuslice doctor host --root /host   # in a pod of kubectl debug node/NAME",
    ),
)
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    metavar="DIR",
    help="Where the node's file system is.",
)
@strict_option
@options.output
def host(root: Path, strict: bool, output: str | None) -> None:

    _say(host_checks.examine(look_at_host(root)), strict, output)


def _say(findings: Sequence[Finding], strict: bool, output: str | None) -> None:
    """Print what was found, and end with the exit code that goes with it."""
    if output:
        print_as(report(findings), output)
    else:
        click.echo(tell(findings))
    if any(strict or finding.level is Level.ERROR for finding in findings):
        sys.exit(1)


async def _examine(kubeconfig: Path | None) -> list[Finding]:

    async with connected(kubeconfig) as client:
        return checks.examine(await look(client), datetime.now(UTC))
