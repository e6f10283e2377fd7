"""`gpuslice`: the group of all commands."""

from __future__ import annotations

import click

from gpuslice import __version__
from gpuslice.cli.agent import agent
from gpuslice.cli.doctor import doctor
from gpuslice.cli.explain import explain
from gpuslice.cli.extender import extender
from gpuslice.cli.inspect import inspect
from gpuslice.cli.install import install
from gpuslice.cli.mig import mig
from gpuslice.cli.node import node
from gpuslice.cli.nodepool import nodepool
from gpuslice.cli.scheduler import scheduler
from gpuslice.cli.uninstall import uninstall
from gpuslice.cli.up import up
from gpuslice.cli.validate import validate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuslice")
def main() -> None:
    """Share GPUs in Kubernetes. To try it without a GPU and without a cluster: gpuslice up."""


for command in (
    up,
    inspect,
    explain,
    doctor,
    validate,
    install,
    uninstall,
    extender,
    scheduler,
    agent,
    node,
    nodepool,
    mig,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
