"""Options that several commands share."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

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
devices = click.option(
    "--devices",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Simulated GPUs: a file (kind: Devices), or a ready-made machine such as 8xA100-40; "
    "default: the GPUs that NVIDIA's driver has.",
)


@dataclass(frozen=True, slots=True)
class Probes:
    """Where /healthz, /readyz and /metrics are answered; with `token_file` the last only to who has it."""

    listen: str
    token_file: Path | None = None


def probes(command: Callable[..., None]) -> Callable[..., None]:
    """Click options that arrive as one argument, `probes`: Probes, or None for nowhere."""

    @click.option(
        "--probes",
        metavar="HOST:PORT",
        help="Where to answer /healthz, /readyz and /metrics; default: nowhere.",
    )
    @click.option(
        "--metrics-token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Answer /metrics there only to requests with this bearer token; default: to everyone.",
    )
    @wraps(command)
    def collecting(*args: Any, probes: str | None, metrics_token_file: Path | None, **others: Any) -> None:
        if metrics_token_file is not None and probes is None:
            raise click.UsageError("--metrics-token-file needs --probes")
        command(*args, probes=Probes(probes, metrics_token_file) if probes is not None else None, **others)

    return collecting


class _Namespaced(click.ParamType[tuple[str, str]]):
    name = "NAMESPACE/NAME"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        namespace, _, name = value.partition("/")
        if not namespace or not name or "/" in name:
            self.fail(f"{value!r} is not NAMESPACE/NAME, such as gpuslice/scheduler", param, ctx)
        return namespace, name


NAMESPACED = _Namespaced()
lease = click.option(
    "--lease",
    type=NAMESPACED,
    metavar="NAMESPACE/NAME",
    help="Of several replicas, only the one that holds this Lease acts; default: it is the only one.",
)
identity = click.option(
    "--identity",
    default=socket.gethostname,
    show_default="the host's name",
    metavar="NAME",
    help="Who holds the Lease; in a pod, the pod's name.",
)


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
