"""`gpuslice inspect` and `kubectl inspect gpushare`: who holds how much of which GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from gpuslice.cli import options
from gpuslice.cli.inspect import gpushare, migtable
from gpuslice.cli.inspect.report import report
from gpuslice.cli.output import print_as
from gpuslice.cli.process import check, run
from gpuslice.cluster.reading import read_views
from gpuslice.cluster.records import NodeView
from gpuslice.kube.http import connected

_HELP = "Show each GPU's memory and who holds it, for all nodes or one NODE."


@click.command(
    help=_HELP
    + "\n\n"
    + options.examples("gpuslice inspect", "gpuslice inspect -d gpu-1", "gpuslice inspect -o json"),
)
@click.argument("node", required=False)
@click.option("-d", "--details", is_flag=True, help="Show the pods.")
@options.output
@options.kubeconfig
def inspect(node: str | None, details: bool, output: str | None, kubeconfig: Path | None) -> None:

    show(run(_views(kubeconfig, node)), details=details, output=output)


@click.command(
    "kubectl inspect gpushare",
    help=_HELP + "\n\n" + options.examples("kubectl inspect gpushare", "kubectl inspect gpushare -d gpu-1"),
)
@click.argument("node", required=False)
@click.option("-d", "--details", is_flag=True, help="Show the pods.")
@options.output
@options.kubeconfig
def kubectl_plugin(node: str | None, details: bool, output: str | None, kubeconfig: Path | None) -> None:

    show(check(_views(kubeconfig, node), prefix="Failed due to "), details=details, output=output)


def show(views: Sequence[NodeView], *, details: bool, output: str | None) -> None:
    """Print nodes as gpushare does, or as JSON or YAML."""
    if output:
        print_as(report(views), output)
        return

    click.echo(gpushare.details(views) if details else gpushare.summary(views), nl=False)
    click.echo(migtable.table(views, details=details), nl=False)


async def _views(kubeconfig: Path | None, node: str | None) -> list[NodeView]:

    async with connected(kubeconfig) as client:
        views, unreadable = await read_views(client, node)
    for sentence in unreadable:
        click.echo(sentence, err=True)
    return views
