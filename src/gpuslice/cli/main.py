"""`gpuslice`: the group of all commands."""

from __future__ import annotations

import click

from gpuslice import __version__
from gpuslice.cli.lazy import LazyGroup, load

COMMANDS = {
    "agent": ("run.agent", "Offer a node's GPUs to its kubelet."),
    "doctor": ("doctor", "Say what is wrong with a cluster, and the command that mends it."),
    "explain": ("inspect.explain", "Say why a pod waits, or why it is where it is."),
    "extender": ("run.extender", "Answer kube-scheduler about GPUs."),
    "inspect": ("inspect.command", "Show who holds how much of which GPU."),
    "install": ("install.command", "Wire the cluster's own kube-scheduler."),
    "mig": ("mig.command", "Plan, apply and save this machine's MIG layout."),
    "node": ("node.command", "Look at this machine's GPUs."),
    "nodepool": ("nodepool.command", "Pools of machines whose GPUs are partitioned alike."),
    "scheduler": ("run.scheduler", "Schedule the pods whose spec.schedulerName is gpuslice."),
    "uninstall": ("install.uninstall", "Take off the nodes what the agents wrote there."),
    "up": ("up.command", "Start a cluster with simulated GPUs in this process."),
    "validate": ("validate.command", "Say what is wrong with the GPU requests in manifests."),
}


@click.group(cls=LazyGroup, modules=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuslice")
def main() -> None:
    """Share GPUs in Kubernetes. To try it without a GPU and without a cluster: gpuslice up."""


def kubectl_plugin() -> None:
    """`kubectl inspect gpushare`."""
    load("gpuslice.cli.inspect.command:kubectl_plugin")()


if __name__ == "__main__":
    main()
