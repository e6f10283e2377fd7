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


@click.command(
    short_help="Say what is wrong with a cluster, and the command that mends it.",
    help="Look at a cluster and say what is wrong, where, why, and the command that mends it; what must be "
    "mended first comes first. Nothing is changed.\n\n"
    "Exit code: 0 nothing is wrong, 1 an error was found (with --strict also: a warning), 2 what was typed "
    "is "
    "wrong.\n\n" + options.examples("gpuslice doctor", "gpuslice doctor --strict -o json"),
)
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@options.output
@options.kubeconfig
def doctor(strict: bool, output: str | None, kubeconfig: Path | None) -> None:
    from gpuslice.cli.doctor.finding import Level
    from gpuslice.cli.process import run

    findings = run(_examine(kubeconfig))
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
    from gpuslice.cli.reading import connected

    async with connected(kubeconfig) as client:
        return examine(await look(client), datetime.now(UTC))
