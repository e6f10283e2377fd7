"""`gpuslice`: the group of all commands."""

from __future__ import annotations

import click

from gpuslice import __version__
from gpuslice.cli.doctor import doctor
from gpuslice.cli.inspect.command import inspect
from gpuslice.cli.inspect.explain import explain
from gpuslice.cli.install.command import install
from gpuslice.cli.install.uninstall import uninstall
from gpuslice.cli.mig.command import mig
from gpuslice.cli.node.command import node
from gpuslice.cli.nodepool.command import nodepool
from gpuslice.cli.run.agent import agent
from gpuslice.cli.run.extender import extender
from gpuslice.cli.run.scheduler import scheduler
from gpuslice.cli.up.command import up
from gpuslice.cli.validate.command import validate


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
