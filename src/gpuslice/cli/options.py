"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

kubeconfig = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="How to reach the API server; default: the pod's service account, $KUBECONFIG or ~/.kube/config.",
)
output = click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "yaml"]),
    help="Print this instead of a table; memory in MiB.",
)


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
