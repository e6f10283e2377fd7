"""`gpuslice node`: what is on this machine, without a cluster."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import click

from gpuslice.cli import options
from gpuslice.cli.node.report import report
from gpuslice.cli.output import print_as
from gpuslice.cli.process import run
from gpuslice.devices.found import Found
from gpuslice.devices.listing import listing
from gpuslice.node.discovery.drivers import driver_of


@click.group(
    help="Look at this machine's GPUs; no cluster is needed.\n\n" + options.examples("gpuslice node devices"),
)
def node() -> None:
    pass


@node.command(
    short_help="List this machine's GPUs and MIG devices.",
    help="List this machine's GPUs and MIG devices as `nvidia-smi -L` does.\n\n"
    + options.examples(
        "gpuslice node devices",
        "gpuslice node devices -o json",
        "gpuslice node devices --devices 8xA100-40",
    ),
)
@options.devices
@click.option(
    "--node",
    default=socket.gethostname,
    show_default="the host's name",
    metavar="NAME",
    help="Whose simulated GPUs: each node has GPUs of its own.",
)
@options.output
def devices(devices: Path | None, node: str, output: str | None) -> None:

    show(run(_found(devices, node)), output=output)


def show(found: Found, *, output: str | None) -> None:
    """Print a machine as nvidia-smi does, or as JSON or YAML."""
    if output:
        print_as(report(found), output)
        return
    click.echo(listing(found), nl=False)
    for index, reason in found.silent:
        click.echo(f"warning: GPU {index} is left out: {reason}", err=True)


async def _found(devices: Path | None, node: str) -> Found:

    driver = driver_of(devices, node)
    await asyncio.to_thread(driver.open)
    return await asyncio.to_thread(driver.query)
