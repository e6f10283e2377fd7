"""`gpuslice uninstall`: takes off the nodes what the agents wrote there."""

from __future__ import annotations

from pathlib import Path

import click

from gpuslice.cli import options
from gpuslice.cli.install.cleaning import clean
from gpuslice.cli.process import run
from gpuslice.kube.http import connected


@click.command(
    help="Take off the nodes what the agents wrote there: annotations and aliyun.com/gpu-count. Running pods "
    "keep their GPUs. `helm uninstall` runs this; agents that still run write it again.\n\n"
    + options.examples("gpuslice uninstall --kubeconfig ~/.kube/config"),
)
@options.kubeconfig
@click.option(
    "--lease",
    type=options.NAMESPACED,
    metavar="NAMESPACE/NAME",
    help="Delete this Lease of the replicas, too.",
)
def uninstall(kubeconfig: Path | None, lease: tuple[str, str] | None) -> None:

    async def work() -> None:
        async with connected(kubeconfig) as client:
            for line in await clean(client, lease=lease):
                click.echo(line)

    run(work())
