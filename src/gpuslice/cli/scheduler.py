"""`gpuslice scheduler`: the complete scheduler for pods that name it."""

from __future__ import annotations

from pathlib import Path

import click

from gpuslice.cli import options


@click.command(
    help="Schedule the pods whose spec.schedulerName is gpuslice.\n\n"
    + options.examples("gpuslice scheduler --kubeconfig ~/.kube/config")
)
@options.kubeconfig
@click.option(
    "--policy",
    type=click.Choice(["binpack", "spread"]),
    default="binpack",
    show_default=True,
    help="Fill the fullest node and GPU that fits, or the emptiest.",
)
def scheduler(kubeconfig: Path | None, policy: str) -> None:
    from gpuslice.cli.process import serve

    async def work() -> None:
        from gpuslice.cli import servers

        await servers.scheduler(kubeconfig, policy=policy)

    serve(work())
