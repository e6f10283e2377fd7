"""`gpuslice validate`: what is wrong with the GPU requests in manifests, before they are applied."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from gpuslice.cli import options
from gpuslice.cli.output import print_as
from gpuslice.cli.process import run
from gpuslice.cli.validate.examine import Examined, Level, examine
from gpuslice.cli.validate.report import report
from gpuslice.config.reader import read_file
from gpuslice.errors import InputError


@click.command(
    help="Check the GPU requests of pods, and of everything with a pod template, in YAML or JSON: in the API "
    "server's words, without an API server. Spellings of old Kubernetes are warned of, with what to write "
    "today. Files of NVIDIA's device plugin and of mig-parted are checked, too. FILE may be - for standard "
    "input.\n\n"
    "Exit code: 0 nothing is wrong (warnings are told), 1 an error was found, 2 a file cannot be read.\n\n"
    + options.examples("gpuslice validate pod.yaml", "helm template . | gpuslice validate -o json -"),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options.output
def validate(files: tuple[str, ...], output: str | None) -> None:

    examined = run(_examine(files))
    findings = [finding for one in examined for finding in one.findings]
    if output:
        print_as(report(examined), output)
    else:
        for finding in findings:
            click.echo(str(finding), err=True)
        click.echo(tell(examined))
    if any(finding.level is Level.ERROR for finding in findings):
        sys.exit(1)


def tell(examined: Sequence[Examined]) -> str:
    """The sum, in a line; a template of pods is a pod."""
    pods = sum(one.pods for one in examined)
    configurations = sum(one.configurations for one in examined)
    looked = [_count(pods, "pod")] if pods or not configurations else []
    looked += [_count(configurations, "configuration")] if configurations else []
    levels = [finding.level for one in examined for finding in one.findings]
    found = [_count(levels.count(level), level) for level in sorted(set(levels))]
    return f"{', '.join(looked)}: {', '.join(found) or 'nothing is wrong'}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


async def _examine(files: Sequence[str]) -> list[Examined]:
    return [_examine_file(file) for file in files]


def _examine_file(file: str) -> Examined:

    if file != "-":
        return read_file(Path(file), lambda text: examine(text, file=file))
    text = sys.stdin.read()
    try:
        return examine(text, file="standard input")
    except InputError as error:
        raise InputError(str(error), field="standard input") from error
