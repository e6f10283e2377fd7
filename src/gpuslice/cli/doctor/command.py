"""`gpuslice doctor`: the command line, the text for people, the report for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuslice.cli import options

if TYPE_CHECKING:
    from gpuslice.cli.doctor.finding import Finding

strict_option = click.option("--strict", is_flag=True, help="Warnings count as errors.")


@click.group(
    invoke_without_command=True,
    short_help="Say what is wrong with a cluster, and the command that mends it.",
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
    from gpuslice.cli.process import run

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
    from gpuslice.cli.doctor.host.checks import examine
    from gpuslice.cli.doctor.host.look import look

    _say(examine(look(root)), strict, output)


def _say(findings: Sequence[Finding], strict: bool, output: str | None) -> None:
    """Print what was found, and end with the exit code that goes with it."""
    from gpuslice.cli.doctor.finding import Level

    if output:
        from gpuslice.cli.doctor.report import report
        from gpuslice.cli.output import print_as

        print_as(report(findings), output)
    else:
        click.echo(tell(findings))
    if any(strict or finding.level is Level.ERROR for finding in findings):
        sys.exit(1)


def tell(findings: Sequence[Finding]) -> str:
    """The text for people: a block per finding, and a sum."""
    blocks = []
    for number, finding in enumerate(findings, 1):
        remedy = "".join(f"\n   -> {line}" for line in finding.remedy.splitlines())
        blocks.append(f"{number}. {finding.level}: {finding.sentence}{remedy}")
    return "\n\n".join([*blocks, _sum(findings)])


def _sum(findings: Sequence[Finding]) -> str:
    if not findings:
        return "nothing is wrong"
    counts = {"error": 0, "warning": 0}
    for finding in findings:
        counts[finding.level] += 1
    return ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count)


async def _examine(kubeconfig: Path | None) -> list[Finding]:
    from datetime import UTC, datetime

    from gpuslice.cli.doctor.checks import examine
    from gpuslice.cli.doctor.look import look
    from gpuslice.kube.http import connected

    async with connected(kubeconfig) as client:
        return examine(await look(client), datetime.now(UTC))
